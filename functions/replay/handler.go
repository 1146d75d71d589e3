package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"geodlq/shared/config"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

// Handler is the replay function.
type Handler struct {
	Engine *replay.Engine
	// Contract gives the transform as it stands now. It is asked once a run, so
	// that a corrected contract counts from the next invocation on.
	Contract func(ctx context.Context) (transform.Transformer, error)
}

// Handle runs one replay. A contract that cannot be loaded is an error, and no row
// is claimed then.
func (h *Handler) Handle(ctx context.Context, event replay.Event) (replay.Answer, error) {
	t, err := h.Contract(ctx)
	if err != nil {
		return replay.Answer{}, fmt.Errorf("replay: load the contract (nothing was claimed): %w", err)
	}
	return h.Engine.Run(ctx, event, t)
}

// Outcomes is the append-only log of what became of dead letters; *outcome.Log is one.
type Outcomes interface {
	Append(ctx context.Context, source string, outcomes []outcome.Outcome) error
}

// settled logs the outcomes of a claim. They are committed by then; if the log misses
// some, a restore replays those rows once more, to no effect.
func settled(log Outcomes, logger *slog.Logger) func(context.Context, queue.Lease, []queue.Settled, string) {
	return func(ctx context.Context, lease queue.Lease, rows []queue.Settled, contractVersion string) {
		err := log.Append(ctx, outcome.SourceOf(lease.Token), outcome.OfClaim(lease, rows, contractVersion, time.Now()))
		if err != nil {
			logger.WarnContext(ctx, "outcomes are missing in the log", "lease", lease.Token.String(), "rows", len(rows), "error", err)
		}
	}
}

func settings(c config.Replay) replay.Settings {
	return replay.Settings{
		Policy:     queue.Policy{MaxAttempts: c.MaxAttempts, DataFaultAttempts: c.DataFaultAttempts, BackoffBase: c.BackoffBase},
		Workers:    c.Workers,
		ClaimSize:  c.ClaimSize,
		Lease:      c.Lease,
		RowTimeout: c.RowTimeout,
		Margin:     c.DeadlineMargin,
	}
}
