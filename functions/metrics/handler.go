package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/ledger"
	"geodlq/shared/telemetry/gauge"
	"geodlq/shared/writeonce"
)

// Books is what the function needs of the books; *ledger.Books has it.
type Books interface {
	Fold(ctx context.Context) (entries int64, err error)
	Close(ctx context.Context, scheduled time.Time) (ledger.Closed, error)
	Unpublished(ctx context.Context) (windows []ledger.Window, expired int64, err error)
	MarkPublished(ctx context.Context, windows []ledger.Window) error
	Unmanifested(ctx context.Context) ([]ledger.Window, error)
	In(ctx context.Context, w ledger.Window) ([]ledger.BatchWindow, error)
	MarkManifested(ctx context.Context, windows []ledger.Window) error
	Prune(ctx context.Context) error
	Systemic(ctx context.Context, threshold float64, limit int) (batches []ledger.Batch, all int64, err error)
	Batches(ctx context.Context, limit int) ([]ledger.Batch, error)
	Check(ctx context.Context) (ledger.Checked, error)
	TargetTable(ctx context.Context) (string, error)
}

// Publisher puts metrics to CloudWatch; *gauge.Publisher does.
type Publisher interface {
	Publish(ctx context.Context, metrics []gauge.Metric) error
}

// ObjectPutter writes manifests; *s3.Client does.
type ObjectPutter interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
}

// Handler is the metrics function: it folds the ledger into the books, closes the
// windows that are over, publishes them, writes their lineage, and says in the log
// which batches fail for a systemic reason.
type Handler struct {
	Books     Books
	Publisher Publisher
	Objects   ObjectPutter
	Log       *slog.Logger

	Stage           string
	Bucket          string // of archive and manifests
	TargetNamespace string // OpenLineage's name of the target's datasource: postgres://host:port
	Threshold       float64
}

// Event is what the schedule sends. An empty one stands for this moment: the window
// under way ends now.
type Event struct {
	// ScheduledTime is when this invocation was due: windows that ended by then are
	// closed, however late it runs and however often it is repeated.
	ScheduledTime time.Time `json:"scheduled_time,omitzero"`
	ExecutionID   string    `json:"execution_id,omitempty"`
	// Check asks for a full count in place of the rest.
	Check bool `json:"check,omitempty"`
}

// Answer is what a run did, or what a check found.
type Answer struct {
	*Kept
	*Check
}

// Kept says how the books were kept.
type Kept struct {
	Folded int64 `json:"folded"` // ledger entries

	Published int             `json:"published"`         // windows
	Windows   []ledger.Window `json:"windows"`           // the latest of these, at most listed
	Behind    int             `json:"behind,omitempty"`  // windows left to later runs
	Expired   int64           `json:"expired,omitempty"` // windows CloudWatch would no longer take
	Manifests int             `json:"manifests"`         // lineage manifests

	Batches  []ledger.Batch `json:"batches"`  // the worst first, at most listed
	Systemic int64          `json:"systemic"` // batches above the threshold
}

// Check says how the books compare with a full count.
type Check struct {
	Checked    int64             `json:"checked"`    // batches
	Differing  int               `json:"differing"`  // batches whose rows are not what the books say
	Mismatches []ledger.Mismatch `json:"mismatches"` // these, at most listed
}

const (
	listed = 20  // elements of a list in the answer
	logged = 100 // batches or mismatches that get a log line of their own
)

// Handle runs once. Whatever can be done is done, and anything that failed fails
// the invocation, so that it is repeated and seen; a repetition publishes what was
// stored the first time.
func (h *Handler) Handle(ctx context.Context, event Event) (Answer, error) {
	if event.Check {
		return h.check(ctx)
	}
	var kept Kept
	var err error
	if kept.Folded, err = h.Books.Fold(ctx); err != nil {
		return Answer{}, fmt.Errorf("metrics: %w", err)
	}
	closed, err := h.Books.Close(ctx, event.ScheduledTime)
	if err != nil {
		return Answer{}, fmt.Errorf("metrics: %w", err)
	}
	if closed.Since != nil {
		h.Log.WarnContext(ctx, "metrics had not run for two weeks: what happened since counts in the first window that can be published",
			"since", *closed.Since)
	}
	kept.Behind = closed.Behind
	err = errors.Join(
		h.reportBatches(ctx, &kept),
		h.publish(ctx, &kept),
		h.writeLineage(ctx, &kept),
		h.Books.Prune(ctx),
	)
	if err != nil {
		return Answer{}, fmt.Errorf("metrics: %w", err)
	}
	h.Log.InfoContext(ctx, "books kept", "folded", kept.Folded, "published", kept.Published,
		"behind", kept.Behind, "manifests", kept.Manifests, "systemic", kept.Systemic, "execution_id", event.ExecutionID)
	return Answer{Kept: &kept}, nil
}

// reportBatches logs every batch above the threshold, the worst first.
func (h *Handler) reportBatches(ctx context.Context, kept *Kept) error {
	systemic, all, err := h.Books.Systemic(ctx, h.Threshold, logged)
	if err != nil {
		return err
	}
	for _, b := range systemic {
		h.Log.ErrorContext(ctx, "poison rate of a batch is above the threshold: its failures are systemic",
			"batch_id", b.BatchID, "poison_rate", *b.PoisonRate, "threshold", h.Threshold,
			"arrived", b.Arrived, "quarantined", b.Quarantined, "causes", b.Causes)
	}
	if left := all - int64(len(systemic)); left > 0 {
		h.Log.ErrorContext(ctx, "more batches are above the threshold than are logged one by one: SELECT * FROM dlq_batches ORDER BY poison_rate DESC",
			"batches", left, "threshold", h.Threshold)
	}
	kept.Systemic = all
	kept.Batches, err = h.Books.Batches(ctx, listed)
	return err
}

// publish puts all windows that are not yet published and marks them. Were the mark
// lost, the next run would put the same values once more.
func (h *Handler) publish(ctx context.Context, kept *Kept) error {
	windows, expired, err := h.Books.Unpublished(ctx)
	if err != nil {
		return err
	}
	if kept.Expired = expired; expired > 0 {
		h.Log.ErrorContext(ctx, "windows were never published and are too old for CloudWatch by now; their values stay in dlq_windows", "windows", expired)
	}
	if len(windows) == 0 {
		kept.Windows = windows
		return nil
	}
	var metrics []gauge.Metric
	for _, w := range windows {
		metrics = append(metrics, gauges{h.Stage}.window(w)...)
	}
	if err := h.Publisher.Publish(ctx, metrics); err != nil {
		return fmt.Errorf("publish %d windows: %w", len(windows), err)
	}
	if err := h.Books.MarkPublished(ctx, windows); err != nil {
		return err
	}
	kept.Published = len(windows)
	kept.Windows = windows[max(0, len(windows)-listed):]
	return nil
}

// check counts everything. What differs is logged, published and answered, and does
// not fail the invocation: repeating it would not help.
func (h *Handler) check(ctx context.Context) (Answer, error) {
	checked, err := h.Books.Check(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("metrics: %w", err)
	}
	for i, m := range checked.Mismatches {
		if i == logged {
			h.Log.ErrorContext(ctx, "more batches differ from the books than are logged one by one", "batches", len(checked.Mismatches)-i)
			break
		}
		h.Log.ErrorContext(ctx, "rows of a batch are not what the books say: a trigger was off, or the books were edited",
			"batch_id", m.BatchID, "booked", m.Booked, "counted", m.Counted)
	}
	answer := Check{
		Checked:    checked.Batches,
		Differing:  len(checked.Mismatches),
		Mismatches: checked.Mismatches[:min(len(checked.Mismatches), listed)],
	}
	mismatch := gauges{h.Stage}.metric(metricLedgerMismatch, checked.At, types.StandardUnitCount, float64(answer.Differing))
	if err := h.Publisher.Publish(ctx, []gauge.Metric{mismatch}); err != nil {
		return Answer{}, fmt.Errorf("metrics: publish the outcome of the check: %w", err)
	}
	h.Log.InfoContext(ctx, "books checked", "batches", answer.Checked, "differing", answer.Differing)
	return Answer{Check: &answer}, nil
}

// lineageMargin is the time left of an invocation at which no further window's
// lineage is begun; the next run goes on.
const lineageMargin = 10 * time.Second

// writeLineage writes the manifests of the windows that have none, oldest first.
func (h *Handler) writeLineage(ctx context.Context, kept *Kept) error {
	windows, err := h.Books.Unmanifested(ctx)
	if err != nil || len(windows) == 0 {
		return err
	}
	table, err := h.Books.TargetTable(ctx)
	if err != nil {
		return err
	}
	lineage := ledger.Lineage{Stage: h.Stage, Archive: h.Bucket, TargetNamespace: h.TargetNamespace, TargetName: table}
	for i, w := range windows {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < lineageMargin && i > 0 {
			h.Log.WarnContext(ctx, "time is up: lineage of windows is left to the next run", "windows", len(windows)-i)
			return nil
		}
		batches, err := h.Books.In(ctx, w)
		if err != nil {
			return err
		}
		if err := h.putManifests(ctx, lineage, batches); err != nil {
			return fmt.Errorf("write the lineage of the window from %s: %w", w.Start.Format(time.RFC3339), err)
		}
		if err := h.Books.MarkManifested(ctx, windows[i:i+1]); err != nil {
			return err
		}
		kept.Manifests += len(batches)
	}
	return nil
}

// putsAtOnce is how many manifests are written at the same time.
const putsAtOnce = 8

func (h *Handler) putManifests(ctx context.Context, lineage ledger.Lineage, batches []ledger.BatchWindow) error {
	var (
		wait  sync.WaitGroup
		slots = make(chan struct{}, putsAtOnce)
		errs  = make([]error, len(batches))
	)
	for i, b := range batches {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			key, content, err := lineage.Object(b)
			if err == nil {
				err = h.putOnce(ctx, key, content)
			}
			errs[i] = err
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// putOnce writes an object that nobody has written before. Where it is there
// already, an earlier run wrote it from the same closed window.
func (h *Handler) putOnce(ctx context.Context, key string, content []byte) error {
	_, err := writeonce.Put(ctx, h.Objects, &s3.PutObjectInput{
		Bucket: &h.Bucket, Key: &key, Body: bytes.NewReader(content), ContentType: aws.String("application/x-ndjson"),
	})
	return err
}
