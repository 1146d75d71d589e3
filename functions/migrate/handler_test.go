package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// cloudFormation is the other end of a response URL: it answers with the given
// statuses in turn, the last for ever, and keeps what was put.
type cloudFormation struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	bodies   [][]byte
	types    []string
}

func newCloudFormation(t *testing.T, statuses ...int) *cloudFormation {
	t.Helper()
	c := &cloudFormation{statuses: append(statuses, http.StatusOK)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPut || r.URL.Path != "/response" || r.URL.Query().Get("Signature") != "s3cr3t" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bodies = append(c.bodies, body)
		c.types = append(c.types, r.Header.Get("Content-Type"))
		status := c.statuses[0]
		if len(c.statuses) > 1 {
			c.statuses = c.statuses[1:]
		}
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *cloudFormation) event(t *testing.T, requestType string) json.RawMessage {
	t.Helper()
	event, err := json.Marshal(map[string]any{
		"RequestType": requestType, "RequestId": "request-1", "StackId": "stack-1", "LogicalResourceId": "Schema",
		"ResourceType": "Custom::Schema", "ResponseURL": c.URL + "/response?Signature=s3cr3t",
		"ResourceProperties": map[string]any{"Version": "arn:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return event
}

// told returns the responses CloudFormation was given.
func (c *cloudFormation) told(t *testing.T) []map[string]any {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []map[string]any
	for i, b := range c.bodies {
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if len(b) > 4096 {
			t.Errorf("a response of %d bytes: CloudFormation takes 4,096", len(b))
		}
		if c.types[i] != "" {
			t.Errorf("content type %q: the URL was signed for none", c.types[i])
		}
		list = append(list, m)
	}
	return list
}

func newHandler(migrate func(context.Context) (Answer, error)) *handler {
	return &handler{log: slog.New(slog.DiscardHandler), migrate: migrate}
}

func succeed(context.Context) (Answer, error) {
	return Answer{From: 1, To: 3, Applied: []int32{2, 3}, PostGIS: "3.4.0"}, nil
}

func TestDirectInvocation(t *testing.T) {
	t.Parallel()
	for _, event := range []string{`{}`, `null`, `"now"`, `[]`, `{"RequestType":"Create"}`, `{"ResponseURL":"http://127.0.0.1:1/"}`, `{"scheduled_time":"2026-11-30T12:00:00Z"}`} {
		got, err := newHandler(succeed).Handle(t.Context(), json.RawMessage(event))
		if err != nil {
			t.Errorf("%s: %v", event, err)
			continue
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(`{"from":1,"to":3,"applied":[2,3],"postgis":"3.4.0"}`, string(text)); d != "" {
			t.Errorf("%s: %s", event, d)
		}
	}
}

func TestDirectInvocationThatFails(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection refused")
	got, err := newHandler(func(context.Context) (Answer, error) { return Answer{}, cause }).Handle(t.Context(), json.RawMessage(`{}`))
	if !errors.Is(err, cause) || got != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCustomResource(t *testing.T) {
	t.Parallel()
	common := map[string]any{"RequestId": "request-1", "StackId": "stack-1", "LogicalResourceId": "Schema", "PhysicalResourceId": "geodlq-schema"}
	with := func(more map[string]any) map[string]any {
		m := map[string]any{}
		for _, part := range []map[string]any{common, more} {
			for k, v := range part {
				m[k] = v
			}
		}
		return m
	}
	versions := map[string]any{"From": 1.0, "To": 3.0}
	for _, tc := range []struct {
		situation, request string
		migrate            func(context.Context) (Answer, error)
		want               map[string]any
	}{
		{"a new stack", "Create", succeed, with(map[string]any{"Status": "SUCCESS", "Data": versions})},
		{"a deployment", "Update", succeed, with(map[string]any{"Status": "SUCCESS", "Data": versions})},
		{"a stack that goes", "Delete", func(context.Context) (Answer, error) { return Answer{}, errors.New("called") }, with(map[string]any{"Status": "SUCCESS"})},
		{"a failure", "Update", func(context.Context) (Answer, error) { return Answer{}, errors.New("no PostGIS") }, with(map[string]any{"Status": "FAILED", "Reason": "no PostGIS"})},
		{"a panic", "Create", func(context.Context) (Answer, error) { panic("out of range") }, with(map[string]any{"Status": "FAILED", "Reason": "the migration panicked: out of range; the log has the stack"})},
		{
			"a reason beyond what CloudFormation takes", "Create",
			func(context.Context) (Answer, error) { return Answer{}, errors.New(strings.Repeat("ü<", 4096)) },
			with(map[string]any{"Status": "FAILED", "Reason": strings.Repeat("ü<", 256)}),
		},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			c := newCloudFormation(t)
			if _, err := newHandler(tc.migrate).Handle(t.Context(), c.event(t, tc.request)); err != nil {
				t.Fatalf("the invocation failed although CloudFormation was told: %v", err)
			}
			if d := cmp.Diff([]map[string]any{tc.want}, c.told(t)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCloudFormationIsToldBeforeTimeIsUp(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	for situation, migrate := range map[string]func(context.Context) (Answer, error){
		"the work notices": func(ctx context.Context) (Answer, error) {
			<-ctx.Done()
			return Answer{}, ctx.Err()
		},
		"the work hangs": func(context.Context) (Answer, error) {
			<-release
			return Answer{}, nil
		},
	} {
		t.Run(situation, func(t *testing.T) {
			c := newCloudFormation(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if _, err := newHandler(migrate).Handle(ctx, c.event(t, "Update")); err != nil {
				t.Fatal(err)
			}
			told := c.told(t)
			if len(told) != 1 || told[0]["Status"] != "FAILED" || !strings.HasPrefix(told[0]["Reason"].(string), "out of time, invoke migrate again") {
				t.Errorf("told %v", told)
			}
		})
	}
}

func TestTellingCloudFormation(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		situation string
		statuses  []int
		tries     int
		want      string // in the error; empty for success
	}{
		{"S3 is busy for a moment", []int{503, 500}, 3, ""},
		{"S3 asks to slow down", []int{429}, 2, ""},
		{"S3 stays busy", []int{503, 503, 503, 503}, 4, "try 4: put the response: 503"},
		{"the URL has expired", []int{403}, 1, "try 1: put the response: 403"},
		{"a redirect", []int{307}, 1, "try 1: put the response: 307"},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			c := newCloudFormation(t, tc.statuses...)
			_, err := newHandler(succeed).Handle(t.Context(), c.event(t, "Create"))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error is %v, want %q in it", err, tc.want)
			}
			if got := len(c.told(t)); got != tc.tries {
				t.Errorf("%d tries, want %d", got, tc.tries)
			}
		})
	}
}

func TestTheSignatureIsNotLogged(t *testing.T) {
	t.Parallel()
	c := newCloudFormation(t)
	event := c.event(t, "Delete")
	c.Close()
	_, err := newHandler(succeed).Handle(t.Context(), event)
	if err == nil || strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), "S3 gateway endpoint") {
		t.Errorf("error is %v", err)
	}
}
