package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Checked is the outcome of a full count.
type Checked struct {
	At         time.Time // database clock
	Batches    int64     // that were compared
	Mismatches []Mismatch
}

// Mismatch is a batch whose rows are not what the books say.
type Mismatch struct {
	BatchID string `json:"batch_id"`
	Booked  Rows   `json:"booked"`
	Counted Rows   `json:"counted"`
}

// Rows counts the rows of a batch in failed_geotasks by status.
type Rows struct {
	Pending     int64 `json:"pending"`
	Replayed    int64 `json:"replayed"`
	Quarantined int64 `json:"quarantined"`
	Discarded   int64 `json:"discarded"`
}

// countAll compares, in one snapshot, the totals and what the ledger still holds
// with the rows themselves. Triggers append to the ledger in the transaction that
// changes a row, so the two agree in every snapshot, whatever goes on meanwhile.
const countAll = `
	WITH unfolded AS (
	    SELECT batch_id, ` + effects + `
	    FROM (SELECT batch_id, transition, coalesce(from_status, '') AS from_status, coalesce(to_status, '') AS to_status, n FROM dlq_ledger) l
	    GROUP BY batch_id
	), booked AS (
	    SELECT batch_id,
	           (sum(arrived) - sum(cleared) - sum(quarantined) - sum(discarded))::bigint AS pending,
	           (sum(cleared) - sum(cleared_deleted))::bigint AS replayed,
	           sum(quarantined)::bigint AS quarantined,
	           (sum(discarded) - sum(discarded_deleted))::bigint AS discarded
	    FROM (SELECT batch_id, arrived, cleared, quarantined, discarded, cleared_deleted, discarded_deleted FROM dlq_batches
	          UNION ALL SELECT * FROM unfolded) t
	    GROUP BY batch_id
	), counted AS (
	    SELECT batch_id,
	           count(*) FILTER (WHERE status = 'pending') AS pending,
	           count(*) FILTER (WHERE status = 'replayed') AS replayed,
	           count(*) FILTER (WHERE status = 'quarantined') AS quarantined,
	           count(*) FILTER (WHERE status = 'discarded') AS discarded
	    FROM failed_geotasks
	    GROUP BY batch_id
	), compared AS (
	    SELECT batch_id,
	           coalesce(b.pending, 0) AS b1, coalesce(b.replayed, 0) AS b2, coalesce(b.quarantined, 0) AS b3, coalesce(b.discarded, 0) AS b4,
	           coalesce(c.pending, 0) AS c1, coalesce(c.replayed, 0) AS c2, coalesce(c.quarantined, 0) AS c3, coalesce(c.discarded, 0) AS c4
	    FROM booked b FULL JOIN counted c USING (batch_id)
	)
	SELECT now(), (SELECT count(*) FROM compared), d.*
	FROM (VALUES (1)) one
	LEFT JOIN (SELECT * FROM compared WHERE (b1, b2, b3, b4) <> (c1, c2, c3, c4) ORDER BY batch_id) d ON true`

// Check counts all rows and compares them with the books. It reads the whole
// queue, which takes as long as the queue is large.
func (b *Books) Check(ctx context.Context) (Checked, error) {
	checked := Checked{Mismatches: []Mismatch{}}
	rows, err := b.db.Query(ctx, countAll)
	if err != nil {
		return Checked{}, fmt.Errorf("count all rows of failed_geotasks: %w", err)
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var batch *string
		var n [8]*int64
		err := row.Scan(&checked.At, &checked.Batches, &batch, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &n[7])
		if err == nil && batch != nil {
			checked.Mismatches = append(checked.Mismatches, Mismatch{*batch,
				Rows{*n[0], *n[1], *n[2], *n[3]}, Rows{*n[4], *n[5], *n[6], *n[7]}})
		}
		return struct{}{}, err
	})
	if err != nil {
		return Checked{}, fmt.Errorf("count all rows of failed_geotasks: %w", err)
	}
	checked.At = checked.At.UTC()
	return checked, nil
}
