package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"geodlq/shared/capture"
	"geodlq/shared/inbox"
	"geodlq/shared/trigger"
)

// Capturer takes one object in; *capture.Capturer is one.
type Capturer interface {
	Capture(ctx, stop context.Context, object inbox.Object) (capture.Counts, error)
}

// Handler is the capture function: it takes in the objects that an event announces.
type Handler struct {
	Open     func(ctx context.Context, bucket, key, versionID string) (inbox.Object, error)
	Capturer Capturer
	Bucket   string        // the inbox; events about another bucket are refused
	Prefix   string        // of its keys; events about other keys are refused
	Margin   time.Duration // before the deadline, when nothing new is begun
	Stop     context.Context
	Log      *slog.Logger
}

// Answer is what an invocation answers, and logs.
type Answer struct {
	Objects      int64 `json:"objects"`       // captured to their end
	Records      int64 `json:"records"`       // dead letters in them: captured + already_there
	Captured     int64 `json:"captured"`      // new in the queue
	AlreadyThere int64 `json:"already_there"` // in the queue before
	Malformed    int64 `json:"malformed"`     // of records, quarantined on arrival
	Bytes        int64 `json:"bytes"`         // read, after decompression
	Files        int64 `json:"files"`         // written to the archive
	DurationMS   int64 `json:"duration_ms"`

	// BatchItemFailures names the SQS messages to be delivered again. It is there,
	// if empty, in the answer to every SQS event and in no other.
	BatchItemFailures *[]ItemFailure `json:"batchItemFailures,omitempty"`
}

// ItemFailure is one element of batchItemFailures, as Lambda reads it.
type ItemFailure struct {
	ItemIdentifier string `json:"itemIdentifier"`
}

// Failure is the error of an invocation of which not all could be captured, where
// it did not come through SQS. Lambda or the sender delivers the whole of it again.
type Failure struct {
	Failed, Of int // messages
	Errs       []error
}

func (f *Failure) Error() string {
	texts := make([]string, len(f.Errs))
	for i, err := range f.Errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f *Failure) Unwrap() []error { return f.Errs }

// Handle takes in every object the event announces, one after the other: one object
// uses all cores by itself. What fails does not keep the rest from being taken in.
func (h *Handler) Handle(ctx context.Context, payload json.RawMessage) (*Answer, error) {
	began := time.Now()
	event, err := trigger.Parse(payload)
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	ctx, stop, cancel := h.deadlines(ctx)
	defer cancel()

	answer := new(Answer)
	var counts capture.Counts
	var errs []error
	failed := []ItemFailure{}
	anonymous := false // a message failed that has no id to name it by
	for _, m := range event.Messages {
		if err := h.message(ctx, stop, m, answer, &counts); err != nil {
			errs = append(errs, err)
			failed = append(failed, ItemFailure{m.ID})
			anonymous = anonymous || m.ID == ""
		}
	}
	answer.add(counts)
	answer.DurationMS = time.Since(began).Milliseconds()
	if event.Kind == trigger.KindSQS {
		answer.BatchItemFailures = &failed
	}
	h.Log.InfoContext(ctx, "captured", "event", event.Kind, "messages", len(event.Messages), "failed", len(errs), "answer", answer)
	if len(errs) > 0 && (event.Kind != trigger.KindSQS || anonymous) {
		return nil, &Failure{len(errs), len(event.Messages), errs}
	}
	return answer, nil
}

func (a *Answer) add(c capture.Counts) {
	a.Records, a.Captured, a.AlreadyThere, a.Malformed = c.Records, c.Captured, c.AlreadyThere, c.Malformed
	a.Bytes, a.Files = c.Bytes, c.Files
}

// deadlines returns the context that work runs under, which ends a little before
// Lambda's, so that the function can still say what happened, and the one after
// whose end nothing new is begun.
func (h *Handler) deadlines(parent context.Context) (ctx, stop context.Context, cancel func()) {
	ctx, stop = parent, parent
	cancelWork, cancelStop := func() {}, func() {}
	if deadline, ok := parent.Deadline(); ok {
		ctx, cancelWork = context.WithDeadline(parent, deadline.Add(-h.Margin/5))
		stop, cancelStop = context.WithDeadline(ctx, deadline.Add(-h.Margin))
	}
	stop, end := context.WithCancel(stop)
	undo := context.AfterFunc(h.Stop, end) // the environment is about to be shut down
	if h.Stop.Err() != nil {
		end()
	}
	return ctx, stop, func() { undo(); end(); cancelStop(); cancelWork() }
}

// message takes in the objects of one message. Its error says all that failed.
func (h *Handler) message(ctx, stop context.Context, m trigger.Message, answer *Answer, counts *capture.Counts) error {
	log := h.Log
	if m.ID != "" {
		log = log.With("message", m.ID)
	}
	for _, what := range m.Ignored {
		log.InfoContext(ctx, "ignored an event that announces no new object", "what", what)
	}
	errs := m.Errs
	for _, err := range m.Errs {
		log.ErrorContext(ctx, "could not read a record of the event", "error", err)
	}
	for _, o := range m.Objects {
		began := time.Now()
		got, err := h.object(ctx, stop, o)
		attrs := []any{"bucket", o.Bucket, "key", o.Key, "records", got.Records, "captured", got.Captured,
			"already_there", got.AlreadyThere, "malformed", got.Malformed, "bytes", got.Bytes,
			"files", got.Files, "files_there", got.FilesThere, "duration_ms", time.Since(began).Milliseconds()}
		if err != nil {
			errs = append(errs, err)
			log.ErrorContext(ctx, "could not capture an object to its end", append(attrs, "error", err)...)
			continue
		}
		log.InfoContext(ctx, "captured an object", attrs...)
		answer.Objects++
		counts.Add(got)
	}
	return errors.Join(errs...)
}

func (h *Handler) object(ctx, stop context.Context, o trigger.Object) (capture.Counts, error) {
	if o.Bucket == "" {
		o.Bucket = h.Bucket
	}
	switch {
	case o.Bucket != h.Bucket:
		return capture.Counts{}, fmt.Errorf("capture s3://%s/%s: refused: this function captures from bucket %s (INBOX_BUCKET)", o.Bucket, o.Key, h.Bucket)
	case !strings.HasPrefix(o.Key, h.Prefix):
		return capture.Counts{}, fmt.Errorf("capture s3://%s/%s: refused: this function captures keys that begin with %q (INBOX_PREFIX)", o.Bucket, o.Key, h.Prefix)
	case stop.Err() != nil:
		return capture.Counts{}, fmt.Errorf("capture s3://%s/%s: not begun, for lack of time; a retry will", o.Bucket, o.Key)
	}
	object, err := h.Open(ctx, o.Bucket, o.Key, o.VersionID)
	if err != nil {
		return capture.Counts{}, fmt.Errorf("capture: %w", err)
	}
	if o.VersionID == "" && o.ETag != "" && object.ETag != o.ETag {
		h.Log.WarnContext(ctx, "the object is not the one the event announced: it was overwritten in a bucket that keeps no versions, and what is there now is captured",
			"bucket", o.Bucket, "key", o.Key, "announced", o.ETag, "found", object.ETag)
	}
	counts, err := h.Capturer.Capture(ctx, stop, object)
	if err != nil {
		err = fmt.Errorf("capture: %w", err)
	}
	return counts, err
}
