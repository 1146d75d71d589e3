package queue

import (
	"context"
	"fmt"
	"time"

	"geodlq/shared/deadletter"
)

// Run is one invocation of replay as the books keep it.
type Run struct {
	ID       deadletter.UUID
	Duration time.Duration

	Claimed, Replayed, Retried, Quarantined, Released int64

	StoppedBecause  string
	ContractVersion string
}

// insertRun dates the run by the database clock: it ended now.
const insertRun = `
	INSERT INTO replay_runs (id, started_at, claimed, replayed, retried, quarantined, released, stopped_because, contract_version)
	VALUES ($1::uuid, now() - make_interval(secs => $2), $3, $4, $5, $6, $7, $8, $9)`

// RecordRun keeps what a run of replay did, for the metrics and for a person who
// asks what happened at night.
func (q *Queue) RecordRun(ctx context.Context, r Run) error {
	_, err := q.db.Exec(ctx, insertRun, r.ID.String(), r.Duration.Seconds(),
		r.Claimed, r.Replayed, r.Retried, r.Quarantined, r.Released, r.StoppedBecause, r.ContractVersion)
	if err != nil {
		return fmt.Errorf("record the run: %w", err)
	}
	return nil
}
