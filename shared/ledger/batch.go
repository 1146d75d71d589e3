package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Batch is what arrived of a batch and what has become of it, at the latest fold.
// Arrived is always the sum of Active, Cleared, Quarantined and Discarded.
type Batch struct {
	BatchID     string   `json:"batch_id"`
	Arrived     int64    `json:"arrived"`
	Active      int64    `json:"active"`
	Cleared     int64    `json:"cleared"`
	Quarantined int64    `json:"quarantined"`
	Discarded   int64    `json:"discarded"`
	PoisonRate  *float64 `json:"poison_rate"` // Quarantined / Arrived to 4 decimals; nil where nothing arrived

	FirstActivity time.Time `json:"first_activity"`
	LastActivity  time.Time `json:"last_activity"`

	// Causes are the most frequent of what keeps its rows in quarantine, at most three.
	Causes []Cause `json:"causes,omitempty"`
}

// Cause is the rule that rows fail and the kind of error they fail with.
type Cause struct {
	FailedRule string `json:"failed_rule"`
	ErrorType  string `json:"error_type"`
	Rows       int64  `json:"rows"`
}

const batchColumns = `b.batch_id, b.arrived, b.active, b.cleared, b.quarantined, b.discarded, b.poison_rate::float8,
	b.first_activity, b.last_activity,
	(SELECT coalesce(jsonb_agg(jsonb_build_object('failed_rule', c.failed_rule, 'error_type', c.error_type, 'rows', c.quarantined)
	                           ORDER BY c.quarantined DESC, c.error_type, c.failed_rule), '[]')
	 FROM (SELECT * FROM dlq_batch_causes
	       WHERE batch_id = b.batch_id AND quarantined > 0
	       ORDER BY quarantined DESC, error_type, failed_rule LIMIT 3) c)`

// systemicBatches reads from the top of the index dlq_batches_poison.
const systemicBatches = `
	SELECT ` + batchColumns + `
	FROM dlq_batches b
	WHERE b.quarantined > 0 AND b.poison_rate > $1::float8::numeric
	ORDER BY b.poison_rate DESC, b.batch_id
	LIMIT $2`

// listedBatches are the worst and the latest, each from its index.
const listedBatches = `
	SELECT ` + batchColumns + `
	FROM dlq_batches b
	WHERE b.batch_id IN (
	    (SELECT batch_id FROM dlq_batches WHERE quarantined > 0 AND poison_rate IS NOT NULL ORDER BY poison_rate DESC LIMIT $1)
	    UNION
	    (SELECT batch_id FROM dlq_batches ORDER BY last_activity DESC LIMIT $1)
	)
	ORDER BY b.poison_rate DESC NULLS LAST, b.last_activity DESC, b.batch_id
	LIMIT $1`

// Systemic returns the batches whose poison rate is above threshold, the worst
// first, at most limit of them, and how many there are.
func (b *Books) Systemic(ctx context.Context, threshold float64, limit int) (batches []Batch, all int64, err error) {
	const count = `SELECT count(*) FROM dlq_batches WHERE quarantined > 0 AND poison_rate > $1::float8::numeric`
	if err := b.db.QueryRow(ctx, count, threshold).Scan(&all); err != nil {
		return nil, 0, fmt.Errorf("count batches with a poison rate above %g: %w", threshold, err)
	}
	if all == 0 {
		return nil, 0, nil
	}
	batches, err = b.batches(ctx, systemicBatches, threshold, limit)
	return batches, all, err
}

// Batches returns those with the highest poison rates and, as far as there is room,
// those with the latest activity, the worst first, at most limit of them.
func (b *Books) Batches(ctx context.Context, limit int) ([]Batch, error) {
	return b.batches(ctx, listedBatches, limit)
}

func (b *Books) batches(ctx context.Context, sql string, args ...any) ([]Batch, error) {
	rows, err := b.db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read batches: %w", err)
	}
	batches, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x Batch, err error) {
		err = row.Scan(&x.BatchID, &x.Arrived, &x.Active, &x.Cleared, &x.Quarantined, &x.Discarded, &x.PoisonRate,
			&x.FirstActivity, &x.LastActivity, &x.Causes)
		x.FirstActivity, x.LastActivity = x.FirstActivity.UTC(), x.LastActivity.UTC()
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read batches: %w", err)
	}
	return batches, nil
}
