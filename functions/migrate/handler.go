package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/cfn"
)

const (
	// physicalID never changes: CloudFormation would take a new one for a
	// replacement and delete the old.
	physicalID = "geodlq-schema"

	// answerReserve is the time kept for telling CloudFormation the outcome.
	answerReserve = 15 * time.Second

	// maxResponse is what CloudFormation takes, in bytes.
	maxResponse = 4096

	answerTries = 4
)

// Answer is what an invocation returns: the schema's version before and after,
// which migrations ran, and what they ran on.
type Answer struct {
	From    int32   `json:"from"`
	To      int32   `json:"to"`
	Applied []int32 `json:"applied"`
	PostGIS string  `json:"postgis"`
}

// handler answers a direct invocation with an [Answer] and a CloudFormation custom
// resource event at the event's own URL.
type handler struct {
	log     *slog.Logger
	migrate func(context.Context) (Answer, error)
}

// Handle migrates. Of a direct invocation's event nothing is read.
func (h *handler) Handle(ctx context.Context, event json.RawMessage) (any, error) {
	var request cfn.Event
	if err := json.Unmarshal(event, &request); err != nil || request.ResponseURL == "" || request.RequestType == "" {
		answer, err := h.attempt(ctx)
		if err != nil {
			return nil, err
		}
		h.log.InfoContext(ctx, "migrated", "from", answer.From, "to", answer.To, "applied", answer.Applied)
		return answer, nil
	}
	return h.custom(ctx, request)
}

// custom serves the custom resource. CloudFormation waits for the answer at the URL
// and for nothing else, so everything that can go wrong ends there. Once it has been
// told, the invocation has succeeded: an error would make Lambda run it again.
func (h *handler) custom(ctx context.Context, request cfn.Event) (any, error) {
	response := cfn.Response{
		Status: cfn.StatusSuccess, PhysicalResourceID: physicalID,
		RequestID: request.RequestID, LogicalResourceID: request.LogicalResourceID, StackID: request.StackID,
	}
	var answer Answer
	var err error
	// A stack that goes leaves its data: deleting is for a person.
	if request.RequestType != cfn.RequestDelete {
		if answer, err = h.attempt(ctx); err == nil {
			response.Data = map[string]any{"From": answer.From, "To": answer.To}
		}
	}
	if err != nil {
		h.log.ErrorContext(ctx, "migration failed", "request", string(request.RequestType), "error", err.Error())
		response.Status, response.Reason = cfn.StatusFailed, err.Error()
	} else {
		h.log.InfoContext(ctx, "migrated", "request", string(request.RequestType), "from", answer.From, "to", answer.To, "applied", answer.Applied)
	}
	if err := answerTo(ctx, request.ResponseURL, response); err != nil {
		return nil, fmt.Errorf("tell CloudFormation that the migration ended as %s: %w", response.Status, err)
	}
	return answer, nil
}

// attempt runs the migration so that it returns in time to answer, whatever it does.
func (h *handler) attempt(ctx context.Context) (Answer, error) {
	grace := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		reserve := min(answerReserve, time.Until(deadline)/2)
		grace = min(grace, reserve/4)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-reserve))
		defer cancel()
	}
	type outcome struct {
		answer Answer
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				h.log.ErrorContext(ctx, "migration panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				done <- outcome{err: fmt.Errorf("the migration panicked: %v; the log has the stack", p)}
			}
		}()
		answer, err := h.migrate(ctx)
		done <- outcome{answer, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		// What respects the context ends by itself; it gets a moment to say where it was.
		select {
		case o = <-done:
		case <-time.After(grace):
			o.err = ctx.Err()
		}
	}
	if o.err != nil && ctx.Err() != nil {
		o.err = fmt.Errorf("out of time, invoke migrate again (what was committed stays): %w", o.err)
	}
	return o.answer, o.err
}

// answerTo puts the response to the pre-signed URL, which is the only thing that
// CloudFormation looks at. Transient failures are tried again while there is time.
func answerTo(ctx context.Context, url string, response cfn.Response) error {
	body, err := json.Marshal(response)
	// By halves, since the encoded length of a character is anything from 1 to 6.
	for err == nil && len(body) > maxResponse {
		response.Reason = cut(response.Reason, len(response.Reason)/2)
		body, err = json.Marshal(response)
	}
	if err != nil {
		return err
	}
	client := http.Client{
		Timeout: 5 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a signed URL is good for itself alone
		},
	}
	wait := 200 * time.Millisecond
	for try := 1; ; try++ {
		var again bool
		if again, err = put(ctx, &client, url, body); err == nil {
			return nil
		}
		if !again || try == answerTries {
			return fmt.Errorf("try %d: %w", try, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("try %d: %w", try, err)
		case <-time.After(wait):
			wait *= 3
		}
	}
}

func put(ctx context.Context, client *http.Client, url string, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("the response URL is none") // the error would quote the signature
	}
	res, err := client.Do(req)
	if err != nil {
		var wrapped interface{ Unwrap() error }
		if errors.As(err, &wrapped) {
			err = wrapped.Unwrap() // *url.Error quotes the URL, signature included
		}
		return true, fmt.Errorf("put the response: %w; a function in a VPC reaches the URL through an S3 gateway endpoint", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 512))
	if err != nil {
		return true, fmt.Errorf("put the response: %w", err)
	}
	if res.StatusCode/100 != 2 {
		return res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests,
			fmt.Errorf("put the response: %s: %s", res.Status, text)
	}
	return false, nil
}

// cut shortens s to n bytes or a little less, on a rune boundary.
func cut(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
