package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"geodlq/infra/local/localtest"
	"geodlq/shared/capture"
	"geodlq/shared/inbox"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// capturer captures three records of every object, and fails where it is told to.
type capturer struct {
	keys []string
	fail map[string]error
	stop bool // take so long that the time to stop comes
}

func (c *capturer) Capture(_, stop context.Context, o inbox.Object) (capture.Counts, error) {
	c.keys = append(c.keys, o.Key)
	if c.stop {
		<-stop.Done()
	}
	return capture.Counts{Records: 3, Captured: 2, AlreadyThere: 1, Malformed: 1, Bytes: 100, Files: 1}, c.fail[o.Key]
}

func newHandler(c Capturer) *Handler {
	return &Handler{
		Open: func(_ context.Context, bucket, key, versionID string) (inbox.Object, error) {
			return inbox.Object{Bucket: bucket, Key: key, VersionID: versionID}, nil
		},
		Capturer: c, Bucket: "geodlq-inbox", Prefix: "incoming/", Margin: time.Second,
		Stop: context.Background(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

const sampleKey = "incoming/batch_id=parcels-2026-11-30/parcels+roads failures 0001.ndjson"

func sample(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../events", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Every event in events/ captures the same object, but for S3's test.
func TestHandleSampleEvents(t *testing.T) {
	t.Parallel()
	const counts = `"objects":1,"records":3,"captured":2,"already_there":1,"malformed":1,"bytes":100,"files":1,"duration_ms":0`
	for name, want := range map[string]string{
		"capture-s3.json":              `{` + counts + `}`,
		"capture-eventbridge.json":     `{` + counts + `}`,
		"capture-sqs-s3.json":          `{` + counts + `,"batchItemFailures":[]}`,
		"capture-sqs-eventbridge.json": `{` + counts + `,"batchItemFailures":[]}`,
		"capture-sns.json":             `{` + counts + `}`,
		"capture-sqs-sns.json":         `{` + counts + `,"batchItemFailures":[]}`,
		"capture-direct.json":          `{` + counts + `}`,
		"capture-s3-test-event.json":   `{"objects":0,"records":0,"captured":0,"already_there":0,"malformed":0,"bytes":0,"files":0,"duration_ms":0}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := new(capturer)
			answer, err := newHandler(c).Handle(t.Context(), sample(t, name))
			if err != nil {
				t.Fatal(err)
			}
			answer.DurationMS = 0
			got, err := json.Marshal(answer)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != want {
				t.Errorf("answer %s, want %s", got, want)
			}
			if name != "capture-s3-test-event.json" && (len(c.keys) != 1 || c.keys[0] != sampleKey) {
				t.Errorf("captured %q, want %q", c.keys, sampleKey)
			}
		})
	}
}

func sqs(bodies map[string]string) []byte {
	type record struct {
		MessageID   string `json:"messageId"`
		Body        string `json:"body"`
		EventSource string `json:"eventSource"`
	}
	var event struct{ Records []record }
	for _, id := range []string{"m1", "m2", "m3", "m4"} {
		if body, ok := bodies[id]; ok {
			event.Records = append(event.Records, record{id, body, "aws:sqs"})
		}
	}
	b, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	return b
}

// An answer to SQS names the messages that failed and no other.
func TestHandleNamesFailedMessages(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	c := &capturer{fail: map[string]error{"incoming/bad": boom}}
	twoRecords := `{"Records":[
		{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"geodlq-inbox"},"object":{"key":"incoming/%zz"}}},
		{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"geodlq-inbox"},"object":{"key":"incoming/beside"}}}]}`
	answer, err := newHandler(c).Handle(t.Context(), sqs(map[string]string{
		"m1": `{"key":"incoming/good"}`, "m2": `{"key":"incoming/bad"}`, "m3": twoRecords, "m4": `not JSON`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := []ItemFailure{{"m2"}, {"m3"}, {"m4"}}
	if diff := cmp.Diff(want, *answer.BatchItemFailures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"incoming/good", "incoming/bad", "incoming/beside"}, c.keys); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if answer.Objects != 2 || answer.Records != 6 || answer.Records != answer.Captured+answer.AlreadyThere {
		t.Errorf("answer %+v, want the two objects that were captured", answer)
	}
	// A message that cannot be named cannot be told from the rest: all must come again.
	if _, err := newHandler(c).Handle(t.Context(), []byte(`{"Records":[{"eventSource":"aws:sqs","body":"not JSON"}]}`)); err == nil {
		t.Error("a failed message without an id was answered with success")
	}
}

func TestHandleErrors(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		payload string
		want    string
	}{
		"an object that fails":        {`{"bucket":"geodlq-inbox","key":"incoming/bad"}`, "boom"},
		"another bucket":              {`{"bucket":"geodlq-archive","key":"incoming/a"}`, "refused: this function captures from bucket geodlq-inbox"},
		"another prefix":              {`{"key":"outgoing/a"}`, `refused: this function captures keys that begin with "incoming/"`},
		"an object that is not there": {`{"key":"incoming/gone"}`, "no such key"},
		"another event":               {`{"resource":"/"}`, "not an event about S3 objects"},
		"one of several": {`{"Records":[
			{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"geodlq-inbox"},"object":{"key":"incoming/good"}}},
			{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"geodlq-inbox"},"object":{"key":"incoming/bad"}}}]}`, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHandler(&capturer{fail: map[string]error{"incoming/bad": boom}})
			open := h.Open
			h.Open = func(ctx context.Context, bucket, key, versionID string) (inbox.Object, error) {
				if key == "incoming/gone" {
					return inbox.Object{}, errors.New("no such key")
				}
				return open(ctx, bucket, key, versionID)
			}
			answer, err := h.Handle(t.Context(), []byte(tc.payload))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("answer %+v, error %v; want an error with %q", answer, err, tc.want)
			}
			if tc.want == "boom" && !errors.Is(err, boom) {
				t.Errorf("error %v does not wrap its cause", err)
			}
		})
	}
}

// When time runs out, what is not begun is left to a retry, by name.
func TestHandleStopsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := &capturer{stop: true}
		answer, err := newHandler(c).Handle(ctx, sqs(map[string]string{"m1": `{"key":"incoming/1"}`, "m2": `{"key":"incoming/2"}`}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]ItemFailure{{"m2"}}, *answer.BatchItemFailures); diff != "" {
			t.Errorf("failures (-want +got):\n%s", diff)
		}
		if ctx.Err() != nil {
			t.Error("the answer came after the deadline")
		}
	})

	shutdown, terminate := context.WithCancel(t.Context())
	terminate()
	h := newHandler(new(capturer))
	h.Stop = shutdown
	answer, err := h.Handle(t.Context(), sqs(map[string]string{"m1": `{"key":"incoming/1"}`}))
	if err != nil || len(*answer.BatchItemFailures) != 1 {
		t.Errorf("answer %+v, error %v; want the message failed, as the environment is being shut down", answer, err)
	}
}
