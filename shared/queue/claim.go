package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
	"geodlq/shared/transform"
)

// Lease is a claim on rows: whoever holds the token until the database clock
// reaches the lease's end may settle them.
type Lease struct {
	// Token is random, never derived from a host or function name, which restarts repeat.
	Token deadletter.UUID
	Tasks []Task
}

// Task is one claimed dead letter.
type Task struct {
	ID         int64
	DLQID      deadletter.UUID
	BatchID    string
	FeatureID  string // the row's feature_id; empty when it has none
	TaskID     string // the row's task_id, else its dlq_id: what it is named by where nothing names its feature
	FailedRule string

	// Payload is the feature's bytes as received; nil for a row that was inserted
	// with a geometry only.
	Payload   []byte
	SourceCRS *string
	Overrides []byte // a person's fix, JSON; nil when there is none

	// WKB is the source geometry of a row without payload, 2D well-known binary in
	// the CRS EPSG; nil when it has none. GeomSRID is the SRID that the geometry
	// itself declares, 0 when none.
	WKB      []byte
	EPSG     int
	GeomSRID int
	GeomHash string // as given with a row without payload; else empty

	Attempts   int // charged so far, this one included
	LostLeases int // how often a worker vanished while holding it
}

// Claim asks for work.
type Claim struct {
	// Limit is the most rows to claim.
	Limit int
	// Bytes bounds the sum of the payloads claimed, so that a batch of huge
	// features does not exhaust the worker. One row is claimed whatever its size.
	Bytes int64
	// Lease is how long the rows are held. A worker that is not done by then has
	// lost them.
	Lease time.Duration
	// Batch, when set, claims rows of that batch alone.
	Batch string
	// After is the batch after which the sharing-out over batches starts; the
	// claim's [Lease] tells where it ended by its last task.
	After string
}

const (
	ready = `f.status = 'pending' AND f.lease_token IS NULL AND f.lost_leases = 0`

	// batchesPerClaim bounds how many batches share one claim, so that its cost
	// does not grow with the number of batches.
	batchesPerClaim = "64"

	// eligibleBatches walks the index failed_geotasks_ready from batch to batch
	// (a loose index scan) and keeps those with a row that is due.
	eligibleBatches = `
	batches AS (
	    (SELECT f.batch_id FROM failed_geotasks f
	     WHERE ` + ready + ` AND f.batch_id > $5
	     ORDER BY f.batch_id LIMIT 1)
	    UNION ALL
	    SELECT (SELECT f.batch_id FROM failed_geotasks f
	            WHERE ` + ready + ` AND f.batch_id > b.batch_id
	            ORDER BY f.batch_id LIMIT 1)
	    FROM batches b WHERE b.batch_id IS NOT NULL
	), eligible AS MATERIALIZED (
	    SELECT b.batch_id FROM batches b
	    WHERE EXISTS (SELECT FROM failed_geotasks f
	                  WHERE ` + ready + ` AND f.batch_id = b.batch_id AND f.next_attempt_at <= now())
	    LIMIT ` + batchesPerClaim + `
	)`

	oneBatch = `eligible AS MATERIALIZED (SELECT $5::text AS batch_id)`

	// claimReady charges the attempt and leases the rows in the statement that
	// picks them: what it returns is committed, and a worker that dies right after
	// has been charged. Rows that another claim is picking are passed over, not
	// waited for. Each eligible batch gives its share, so that the largest does not
	// starve the others.
	//
	// The rows are picked in a materialised CTE because a LIMIT with SKIP LOCKED in
	// a plain subquery may be executed more than once, locking more than the limit.
	claimReady = `
	, picked AS MATERIALIZED (
	    SELECT p.id, sum(p.bytes) OVER (ROWS UNBOUNDED PRECEDING) - p.bytes AS before
	    FROM eligible e
	    CROSS JOIN LATERAL (
	        SELECT f.id, coalesce(octet_length(f.feature_geojson), octet_length(f.payload_raw), 0)::bigint AS bytes
	        FROM failed_geotasks f
	        WHERE ` + ready + ` AND f.batch_id = e.batch_id AND f.next_attempt_at <= now()
	        ORDER BY f.next_attempt_at
	        LIMIT (SELECT ceil($2::bigint / greatest(count(*), 1)::numeric)::bigint FROM eligible)
	        FOR UPDATE SKIP LOCKED
	    ) p
	    LIMIT $2::bigint
	)` + leasePicked

	// leasePicked is the second half of a claim.
	leasePicked = `
	UPDATE failed_geotasks f
	SET attempts = f.attempts + 1,
	    lease_token = $1::uuid,
	    next_attempt_at = now() + make_interval(secs => $3),
	    last_seen = now()
	FROM picked p
	WHERE f.id = p.id AND (p.before = 0 OR p.before < $4)
	RETURNING ` + taskColumns

	taskColumns = `f.id, f.dlq_id, f.batch_id, coalesce(f.feature_id, ''), coalesce(f.task_id, f.dlq_id::text), coalesce(f.failed_rule, ''),
	    f.feature_geojson, f.payload_raw, f.source_crs, f.overrides::text,
	    CASE WHEN f.feature_geojson IS NULL AND f.payload_raw IS NULL THEN ST_AsBinary(ST_Force2D(f.geom)) END,
	    coalesce(f.epsg, 0), coalesce(ST_SRID(f.geom), 0),
	    CASE WHEN f.feature_geojson IS NULL AND f.payload_raw IS NULL THEN coalesce(f.geom_hash, '') ELSE '' END,
	    f.attempts, f.lost_leases`

	// claimSuspect claims the one row that has waited longest among those that a
	// worker vanished with. It is claimed alone, so that a feature that kills its
	// process takes no neighbour with it.
	claimSuspect = `
	WITH picked AS MATERIALIZED (
	    SELECT f.id, 0::bigint AS before
	    FROM failed_geotasks f
	    WHERE f.status = 'pending' AND f.lease_token IS NULL AND f.lost_leases > 0
	      AND f.next_attempt_at <= now() AND ($5 = '' OR f.batch_id = $5)
	    ORDER BY f.next_attempt_at
	    LIMIT $2::bigint
	    FOR UPDATE SKIP LOCKED
	)` + leasePicked
)

// Claim leases rows that are due, at most c.Limit of them, and charges each an
// attempt. An empty lease means that nothing is due.
func (q *Queue) Claim(ctx context.Context, c Claim) (Lease, error) {
	sql, from := "WITH RECURSIVE "+eligibleBatches+claimReady, c.After
	if c.Batch != "" {
		sql, from = "WITH "+oneBatch+claimReady, c.Batch
	}
	lease, err := q.claim(ctx, sql, c, from)
	if err != nil {
		return Lease{}, fmt.Errorf("claim up to %d rows: %w", c.Limit, err)
	}
	if len(lease.Tasks) == 0 && c.Batch == "" && c.After != "" {
		c.After = "" // past the last batch: begin again with the first
		return q.Claim(ctx, c)
	}
	return lease, nil
}

// ClaimSuspect leases one row that a worker vanished with before. The caller must
// hold no other lease while it works on it.
func (q *Queue) ClaimSuspect(ctx context.Context, c Claim) (Lease, error) {
	c.Limit = 1
	lease, err := q.claim(ctx, claimSuspect, c, c.Batch)
	if err != nil {
		return Lease{}, fmt.Errorf("claim a suspect: %w", err)
	}
	return lease, nil
}

func (q *Queue) claim(ctx context.Context, sql string, c Claim, from string) (Lease, error) {
	lease := Lease{Token: deadletter.NewUUID()}
	rows, err := q.db.Query(ctx, sql, lease.Token.String(), c.Limit, c.Lease.Seconds(), c.Bytes, from)
	if err != nil {
		return Lease{}, err
	}
	lease.Tasks, err = pgx.CollectRows(rows, scanTask)
	return lease, err
}

func scanTask(row pgx.CollectableRow) (Task, error) {
	var t Task
	var text, overrides *string
	var raw []byte
	err := row.Scan(&t.ID, (*[16]byte)(&t.DLQID), &t.BatchID, &t.FeatureID, &t.TaskID, &t.FailedRule, &text, &raw, &t.SourceCRS, &overrides,
		&t.WKB, &t.EPSG, &t.GeomSRID, &t.GeomHash, &t.Attempts, &t.LostLeases)
	if err != nil {
		return Task{}, err
	}
	switch {
	case text != nil:
		t.Payload = []byte(*text)
	case raw != nil:
		t.Payload = raw
	}
	if overrides != nil {
		t.Overrides = []byte(*overrides)
	}
	return t, nil
}

// Input puts the row before the transform. The error is a fault of the row.
func (t *Task) Input() (transform.Input, error) {
	in := transform.Input{
		FeatureID: t.FeatureID, TaskID: t.TaskID, BatchID: t.BatchID, FailedRule: t.FailedRule,
		Payload: t.Payload, SourceCRS: t.SourceCRS, Overrides: t.Overrides,
		EPSG: t.EPSG, GeomHash: t.GeomHash,
	}
	if t.WKB == nil {
		return in, nil
	}
	if t.GeomSRID != 0 && t.EPSG != 0 && t.GeomSRID != t.EPSG {
		return in, deadletter.Faultf(deadletter.ReasonCRSConflict, transform.RuleResolveCRS,
			"the row's epsg is %d, its geom declares SRID %d; make them agree", t.EPSG, t.GeomSRID)
	}
	if in.EPSG == 0 {
		in.EPSG = t.GeomSRID
	}
	g, err := ParseWKB(t.WKB)
	if err != nil {
		return in, deadletter.Faultf(deadletter.ReasonUnsupportedGeometryType, transform.RuleDecodeGeometry,
			"the row's geom is no type of GeoJSON (curves must be made linear first): %v", err)
	}
	in.Geometry = g
	return in, nil
}

// releaseTasks gives rows back as if they had never been claimed. The token fences it.
const releaseTasks = `
	UPDATE failed_geotasks f
	SET attempts = f.attempts - 1, lease_token = NULL, next_attempt_at = now(), last_seen = now()
	WHERE f.id = ANY ($2) AND ` + fence + ``

// Release gives claimed rows back uncharged: they were not started, or downstream
// trouble kept them from being settled. It returns how many were still held.
func (q *Queue) Release(ctx context.Context, token deadletter.UUID, ids []int64) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	tag, err := q.db.Exec(ctx, releaseTasks, token.String(), ids)
	if err != nil {
		return 0, fmt.Errorf("release %d claimed rows: %w", len(ids), err)
	}
	return tag.RowsAffected(), nil
}

// rescueLost ends leases that ran out. Their rows become suspects: due at once, to
// be claimed alone. Whoever cost a worker its life when it was alone, and has no
// attempt left, is quarantined. A row that was lost in company is not judged by
// it: where that was its last attempt, the attempt is given back.
const rescueLost = `
	WITH lost AS MATERIALIZED (
	    SELECT f.id FROM failed_geotasks f
	    WHERE f.status = 'pending' AND f.lease_token IS NOT NULL AND f.next_attempt_at <= now()
	    ORDER BY f.next_attempt_at
	    LIMIT 1000
	    FOR UPDATE SKIP LOCKED
	), judged AS (
	    SELECT f.id,
	           f.attempts - f.attempts_forgiven >= $1 AS at_cap,
	           f.lost_leases > 0 AS was_alone
	    FROM failed_geotasks f JOIN lost USING (id)
	), rescued AS (
	    UPDATE failed_geotasks f
	    SET lease_token = NULL,
	        lost_leases = f.lost_leases + 1,
	        next_attempt_at = now(),
	        last_seen = now(),
	        attempts = f.attempts - CASE WHEN j.at_cap AND NOT j.was_alone THEN 1 ELSE 0 END,
	        status = CASE WHEN j.at_cap AND j.was_alone THEN 'quarantined' ELSE 'pending' END,
	        error_type = CASE WHEN j.at_cap AND j.was_alone THEN 'worker_lost' ELSE f.error_type END,
	        error = CASE WHEN j.at_cap AND j.was_alone
	                THEN format('the worker vanished %s times while it held this feature, lastly with this feature alone: it most likely exhausts memory or time', f.lost_leases + 1)
	                ELSE f.error END
	    FROM judged j
	    WHERE f.id = j.id
	    RETURNING f.id, f.batch_id, f.status, f.attempts, f.failed_rule, f.error_type, f.error
	), noted AS (
	    INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, failed_rule, error_type, error)
	    SELECT r.id, r.batch_id, e.event, r.attempts, r.failed_rule, 'worker_lost', r.error
	    FROM rescued r
	    CROSS JOIN LATERAL (
	        SELECT 'lease_lost' AS event
	        UNION ALL
	        SELECT 'quarantined' WHERE r.status = 'quarantined'
	    ) e
	)
	SELECT count(*), count(*) FILTER (WHERE status = 'quarantined') FROM rescued`

// Rescue ends the leases that ran out, at most 1,000 a call, and returns how many
// rows it found and how many of them it quarantined as worker_lost.
func (q *Queue) Rescue(ctx context.Context, p Policy) (lost, quarantined int64, err error) {
	err = q.db.QueryRow(ctx, rescueLost, p.MaxAttempts).Scan(&lost, &quarantined)
	if err != nil {
		return 0, 0, fmt.Errorf("end leases that ran out: %w", err)
	}
	return lost, quarantined, nil
}
