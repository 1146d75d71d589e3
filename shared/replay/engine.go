// Package replay drains the queue: it claims dead letters, runs their transform
// again and settles each with its outcome. Rows without a record are worked on many
// at a time by several workers; rows that a worker vanished with are worked on one
// at a time with nothing else in hand.
package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/transform"
)

// Event starts a run. The schedule's brings the two scheduler fields; a person or a
// program may name one batch and a limit instead. An empty object drains what is due.
type Event struct {
	ScheduledTime string `json:"scheduled_time,omitempty"`
	ExecutionID   string `json:"execution_id,omitempty"`

	// BatchID drains that batch alone.
	BatchID string `json:"batch_id,omitempty"`
	// Limit is the most rows to claim; 0 is no limit.
	Limit int64 `json:"limit,omitempty"`
}

// StopReason says why a run ended.
type StopReason string

const (
	StopDrained    StopReason = "drained"    // nothing is due any more
	StopLimit      StopReason = "limit"      // the event's limit is reached
	StopDeadline   StopReason = "deadline"   // the time left would not do for another claim
	StopTerminated StopReason = "terminated" // the sandbox is being shut down
	StopDownstream StopReason = "downstream" // database, network or a service is in trouble
	StopSchema     StopReason = "schema"     // the target table does not take what the contract makes
)

// Answer is what a run did. Claimed = Replayed + Retried + Quarantined + Released +
// Stale, less the rows in QuarantinedByReason["worker_lost"], which were not claimed
// by this run.
type Answer struct {
	Claimed int64 `json:"claimed"`

	Replayed  int64 `json:"replayed"`
	Inserted  int64 `json:"inserted"`
	Unchanged int64 `json:"unchanged"`
	Updated   int64 `json:"updated"`

	Retried             int64                       `json:"retried"`
	Quarantined         int64                       `json:"quarantined"`
	QuarantinedByReason map[deadletter.Reason]int64 `json:"quarantined_by_reason"`

	Released   int64 `json:"released"`    // given back uncharged
	Stale      int64 `json:"stale"`       // lost to another worker before they were settled
	LostLeases int64 `json:"lost_leases"` // leases of vanished workers that this run ended

	StoppedBecause StopReason `json:"stopped_because"`
	Trouble        string     `json:"trouble,omitempty"` // what stopped it, where that was an error

	ContractVersion string  `json:"contract_version"`
	Seconds         float64 `json:"seconds"`
	RowsPerSecond   float64 `json:"rows_per_second"`
}

// Queue is what replay needs of the queue; *queue.Queue is one.
type Queue interface {
	CheckTarget(ctx context.Context, epsg int) error
	Rescue(ctx context.Context, p queue.Policy) (lost, quarantined int64, err error)
	Claim(ctx context.Context, c queue.Claim) (queue.Lease, error)
	ClaimSuspect(ctx context.Context, c queue.Claim) (queue.Lease, error)
	Settle(ctx context.Context, token deadletter.UUID, c queue.Contract, p queue.Policy, cleared []queue.Cleared, failed []queue.Failed) ([]queue.Settled, error)
	Release(ctx context.Context, token deadletter.UUID, ids []int64) (int64, error)
	RecordRun(ctx context.Context, r queue.Run) error
}

// Settings bound a run.
type Settings struct {
	queue.Policy

	Workers    int           // claims worked on at once
	ClaimSize  int           // rows a worker claims at a time
	Lease      time.Duration // how long a claim is a worker's own
	RowTimeout time.Duration // time one row's transform may take
	// Margin is kept before the deadline of the invocation: no work begins in it,
	// and half of it is there for what is at hand.
	Margin time.Duration
}

// Engine runs replays. It is safe for concurrent use.
type Engine struct {
	Queue    Queue
	Settings Settings
	Log      *slog.Logger
	// Stop is done when the process is being shut down: claimed rows that were not
	// started are given back then.
	Stop context.Context
	// Settled, if set, is told of each claim after its outcomes are committed. It is
	// called by several workers at once.
	Settled func(ctx context.Context, lease queue.Lease, settled []queue.Settled, contractVersion string)
}

// Run drains what is due with t and says what it did. Trouble on the way stops the
// run, and the answer says so; the error is for an event that makes no sense.
func (e *Engine) Run(ctx context.Context, event Event, t transform.Transformer) (Answer, error) {
	if event.Limit < 0 {
		return Answer{}, fmt.Errorf("replay: limit %d: want 0 for no limit, or more", event.Limit)
	}
	started := time.Now()
	r := newRun(ctx, e, event, t)
	r.drain(ctx)
	a := r.answer
	a.Seconds = time.Since(started).Seconds()
	if a.Seconds > 0 {
		a.RowsPerSecond = float64(a.Replayed+a.Retried+a.Quarantined) / a.Seconds
	}
	e.report(ctx, a)
	return a, nil
}

// report logs the run and keeps it in the books. The run is over: a failure here
// changes none of it.
func (e *Engine) report(ctx context.Context, a Answer) {
	level := slog.LevelInfo
	if a.StoppedBecause == StopDownstream || a.StoppedBecause == StopSchema {
		level = slog.LevelError
	}
	e.Log.Log(ctx, level, "replay run",
		"claimed", a.Claimed, "replayed", a.Replayed, "retried", a.Retried,
		"quarantined", a.Quarantined, "quarantined_by_reason", a.QuarantinedByReason,
		"released", a.Released, "stale", a.Stale, "lost_leases", a.LostLeases,
		"stopped_because", a.StoppedBecause, "trouble", a.Trouble,
		"contract_version", a.ContractVersion, "seconds", a.Seconds, "rows_per_second", a.RowsPerSecond)
	ctx, cancel := e.lastWords(ctx)
	defer cancel()
	err := e.Queue.RecordRun(ctx, queue.Run{
		ID: deadletter.NewUUID(), Duration: time.Duration(a.Seconds * float64(time.Second)),
		Claimed: a.Claimed, Replayed: a.Replayed, Retried: a.Retried, Quarantined: a.Quarantined, Released: a.Released,
		StoppedBecause: string(a.StoppedBecause), ContractVersion: a.ContractVersion,
	})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		e.Log.WarnContext(ctx, "the run is not in replay_runs", "error", err)
	}
}

// lastWords is a context for what must be said when the invocation's own has ended:
// it outlives it by up to half the deadline margin.
func (e *Engine) lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), e.Settings.Margin/2)
}
