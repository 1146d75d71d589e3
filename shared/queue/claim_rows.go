package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
)

// Members are rows that a person redrives by id, to be worked on now.
type Members struct {
	IDs      []int64
	Statuses []string // what a row must still be in
	// Unchanged passes over rows that changed after it, by the database clock.
	Unchanged time.Time
	// Suspects takes rows that a worker vanished with, and only those: claim them with
	// Limit 1 and nothing else in hand. Otherwise they are passed over.
	Suspects bool
	Actor    string // for the history
}

// claimMembers redrives given rows and claims them in the same statement, so that no
// other worker comes between: pending, with a new allowance of attempts, the first of
// which is charged, and leased. What they failed with before goes to their history.
// Rows that somebody works on are passed over.
const claimMembers = `
	WITH picked AS MATERIALIZED (
	    SELECT m.id, sum(m.bytes) OVER (ORDER BY m.id) - m.bytes AS before
	    FROM (
	        SELECT f.id, coalesce(octet_length(f.feature_geojson), octet_length(f.payload_raw), 0)::bigint AS bytes
	        FROM failed_geotasks f
	        WHERE f.id = ANY ($5::bigint[]) AND f.status = ANY ($6::text[]) AND f.lease_token IS NULL
	          AND f.last_seen <= $7::timestamptz AND (f.lost_leases > 0) = $8::boolean
	        ORDER BY f.id
	        LIMIT $2::bigint
	        FOR UPDATE SKIP LOCKED
	    ) m
	), noted AS (
	    INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, failed_rule, error_type, error, contract_version, actor)
	    SELECT f.id, f.batch_id, 'requeued', f.attempts, f.failed_rule, f.error_type, f.error, f.contract_version, $9::text
	    FROM failed_geotasks f JOIN picked p USING (id)
	    WHERE p.before = 0 OR p.before < $4::bigint
	)
	UPDATE failed_geotasks f
	SET status = 'pending',
	    attempts_forgiven = f.attempts,
	    attempts = f.attempts + 1,
	    redrives = f.redrives + 1,
	    lease_token = $1::uuid,
	    next_attempt_at = now() + make_interval(secs => $3::float8),
	    last_seen = now()
	FROM picked p
	WHERE f.id = p.id AND (p.before = 0 OR p.before < $4::bigint)
	RETURNING ` + taskColumns

// ClaimMembers redrives rows of m and leases them, at most c.Limit of them and
// c.Bytes of payload; call it until the lease is empty. c.Batch and c.After have no meaning here.
func (q *Queue) ClaimMembers(ctx context.Context, c Claim, m Members) (Lease, error) {
	lease := Lease{Token: deadletter.NewUUID()}
	rows, err := q.db.Query(ctx, claimMembers, lease.Token.String(), c.Limit, c.Lease.Seconds(), c.Bytes,
		m.IDs, m.Statuses, m.Unchanged, m.Suspects, m.Actor)
	if err == nil {
		lease.Tasks, err = pgx.CollectRows(rows, scanTask)
	}
	if err != nil {
		return Lease{}, fmt.Errorf("claim up to %d rows of a redrive: %w", c.Limit, err)
	}
	return lease, nil
}

// readTasks reads rows as a claim would return them, with overrides merged in, and
// changes none. They come in the order of their ids.
const readTasks = `
	SELECT ` + taskColumns + `
	FROM (
	    SELECT t.id, t.dlq_id, t.batch_id, t.feature_id, t.task_id, t.failed_rule, t.feature_geojson, t.payload_raw,
	           t.source_crs, t.geom, t.epsg, t.geom_hash, t.attempts, t.lost_leases,
	           geodlq_merge_overrides(t.overrides, $5::jsonb, $6::boolean) AS overrides, s.before
	    FROM failed_geotasks t
	    JOIN (
	        SELECT id, sum(bytes) OVER (ORDER BY id) - bytes AS before
	        FROM (SELECT id, coalesce(octet_length(feature_geojson), octet_length(payload_raw), 0)::bigint AS bytes
	              FROM failed_geotasks
	              WHERE id = ANY ($1::bigint[]) AND status = ANY ($2::text[]) AND lease_token IS NULL
	              ORDER BY id LIMIT $3::bigint) sized
	    ) s ON s.id = t.id
	) f
	WHERE f.before = 0 OR f.before < $4::bigint
	ORDER BY f.id`

// Peek reads rows of m as a claim would return them, at most limit of them and so
// many bytes of payload, without claiming or changing any. overrides, JSON or nil, are
// what a person means to attach, in place of what is there (replace) or over it.
func (q *Queue) Peek(ctx context.Context, m Members, limit int, bytes int64, overrides []byte, replace bool) ([]Task, error) {
	var fix *string
	if overrides != nil {
		s := string(overrides)
		fix = &s
	}
	rows, err := q.db.Query(ctx, readTasks, m.IDs, m.Statuses, limit, bytes, fix, replace)
	if err != nil {
		return nil, fmt.Errorf("read %d rows: %w", len(m.IDs), err)
	}
	tasks, err := pgx.CollectRows(rows, scanTask)
	if err != nil {
		return nil, fmt.Errorf("read %d rows: %w", len(m.IDs), err)
	}
	return tasks, nil
}
