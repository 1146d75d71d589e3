package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// lockBooks serialises what changes the books. It is a statement of its own: the
// one that follows must see what the holder before it committed. The memory, for
// this transaction alone, lets a large fold hash its entries where it would sort them.
const lockBooks = `SELECT closed_until, now(), set_config('work_mem', '64MB', true) FROM dlq_books FOR UPDATE`

// foldEntries takes ledger entries away and adds them to the totals in one
// statement, so that each is counted once, whoever dies where. It takes those that
// it sees: an entry whose transaction commits later than that of one with a higher
// id is still there for the next fold. Entries of a window that was closed meanwhile
// ($2 is where the open one begins) count in the open one.
//
// Texts are grouped as bytes: comparing them by the rules of a language takes longer
// than all the rest.
const foldEntries = `
	WITH entries AS (
	    DELETE FROM dlq_ledger
	    WHERE id IN (SELECT id FROM dlq_ledger ORDER BY id LIMIT $4::bigint)
	    RETURNING at, transition COLLATE "C" AS transition, batch_id COLLATE "C" AS batch_id,
	              coalesce(error_type, '') COLLATE "C" AS error_type, coalesce(failed_rule, '') COLLATE "C" AS failed_rule,
	              coalesce(from_status, '') COLLATE "C" AS from_status, coalesce(to_status, '') COLLATE "C" AS to_status,
	              coalesce(age_class, -1) AS age_class, n
	), summed AS MATERIALIZED (
	    SELECT greatest(date_bin($1::interval, at, 'epoch'::timestamptz), $2::timestamptz) AS window_start,
	           transition, batch_id, error_type, failed_rule, from_status, to_status, age_class,
	           count(*) AS entries, sum(n)::bigint AS n, min(at) AS first, max(at) AS last
	    FROM entries
	    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
	), batches AS (
	    INSERT INTO dlq_batches AS b (batch_id, arrived, cleared, quarantined, discarded, cleared_deleted, discarded_deleted, first_activity, last_activity)
	    SELECT e.batch_id, e.arrived, e.cleared, e.quarantined, e.discarded, e.cleared_deleted, e.discarded_deleted, e.first, e.last
	    FROM (SELECT batch_id, ` + effects + `, min(first) AS first, max(last) AS last FROM summed GROUP BY batch_id) e
	    ON CONFLICT (batch_id) DO UPDATE SET
	        arrived = b.arrived + excluded.arrived,
	        cleared = b.cleared + excluded.cleared,
	        quarantined = b.quarantined + excluded.quarantined,
	        discarded = b.discarded + excluded.discarded,
	        cleared_deleted = b.cleared_deleted + excluded.cleared_deleted,
	        discarded_deleted = b.discarded_deleted + excluded.discarded_deleted,
	        first_activity = least(b.first_activity, excluded.first_activity),
	        last_activity = greatest(b.last_activity, excluded.last_activity)
	), causes AS (
	    INSERT INTO dlq_batch_causes AS c (batch_id, error_type, failed_rule, quarantined)
	    SELECT batch_id, error_type, failed_rule, sum(n * ((to_status = 'quarantined')::int - (from_status = 'quarantined')::int))::bigint
	    FROM summed
	    WHERE to_status = 'quarantined' OR from_status = 'quarantined'
	    GROUP BY batch_id, error_type, failed_rule
	    ON CONFLICT (batch_id, error_type, failed_rule) DO UPDATE SET quarantined = c.quarantined + excluded.quarantined
	), activity AS (
	    INSERT INTO dlq_activity AS a (window_start, batch_id, transition, reason, from_status, to_status, age_class, n)
	    SELECT s.window_start, s.batch_id, s.transition, r.reason, s.from_status, s.to_status, s.age_class, sum(s.n)::bigint
	    FROM summed s
	    CROSS JOIN LATERAL (
	        SELECT CASE
	            WHEN s.transition <> 'failed' AND (s.to_status <> 'quarantined' OR s.transition = 'moved') THEN ''
	            WHEN s.error_type = ANY ($3::text[]) THEN s.error_type
	            ELSE 'unknown'
	        END AS reason
	    ) r
	    GROUP BY 1, 2, 3, 4, 5, 6, 7
	    ON CONFLICT (window_start, batch_id, transition, reason, from_status, to_status, age_class) DO UPDATE SET n = a.n + excluded.n
	), books AS (
	    UPDATE dlq_books b
	    SET arrived = b.arrived + e.arrived, cleared = b.cleared + e.cleared,
	        quarantined = b.quarantined + e.quarantined, discarded = b.discarded + e.discarded
	    FROM (SELECT ` + effects + ` FROM summed) e
	    WHERE e.arrived IS NOT NULL
	), files AS (
	    UPDATE dlq_archive_files
	    SET window_start = greatest(date_bin($1::interval, at, 'epoch'::timestamptz), $2::timestamptz)
	    WHERE window_start IS NULL
	), runs AS (
	    UPDATE replay_runs
	    SET window_start = greatest(date_bin($1::interval, ended_at, 'epoch'::timestamptz), $2::timestamptz)
	    WHERE window_start IS NULL
	)
	SELECT coalesce(sum(entries), 0)::bigint FROM summed`

// Fold takes what the ledger holds into the books and returns how many entries
// that were. A large backlog is folded in several transactions; what they have done
// stays done when a later one fails.
func (b *Books) Fold(ctx context.Context) (entries int64, err error) {
	for {
		var n int64
		err := b.locked(ctx, func(tx pgx.Tx, at moment) error {
			return tx.QueryRow(ctx, foldEntries, b.window, at.closedUntil, reasonNames(), b.chunk).Scan(&n)
		})
		if err != nil {
			return entries, fmt.Errorf("fold ledger entries into the books, after %d: %w", entries, err)
		}
		entries += n
		if n < int64(b.chunk) {
			return entries, nil
		}
	}
}

// locked runs fn in a transaction that holds the lock of the books.
func (b *Books) locked(ctx context.Context, fn func(pgx.Tx, moment) error) error {
	return pgx.BeginFunc(ctx, b.db, func(tx pgx.Tx) error {
		var at moment
		if err := tx.QueryRow(ctx, lockBooks).Scan(&at.closedUntil, &at.now, nil); err != nil {
			return fmt.Errorf("lock the books (table dlq_books): %w", err)
		}
		return fn(tx, at)
	})
}
