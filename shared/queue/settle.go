package queue

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/transform"
)

// Result is what a settlement did with one row.
type Result string

const (
	Inserted    Result = "inserted"    // the feature is new in the target
	Unchanged   Result = "unchanged"   // the target had it already
	Updated     Result = "updated"     // a newer dead letter of the same feature replaced its attributes
	Retried     Result = "retried"     // failed, due again after its backoff
	Quarantined Result = "quarantined" // failed for good, until a person acts
	Stale       Result = "stale"       // the lease was lost: nothing was changed
)

// Settled is the outcome of one claimed row.
type Settled struct {
	ID     int64
	Result Result
	// Of Retried and Quarantined, as the row has them now.
	Reason deadletter.Reason
	Rule   string
	Error  string
}

// Cleared is a row whose transform succeeded.
type Cleared struct {
	ID int64
	transform.Output
}

// Failed is a row whose transform failed.
type Failed struct {
	ID    int64
	Class transform.Class
	Fault *deadletter.Fault
}

// Contract says what the target wants and which contract says so.
type Contract struct {
	Target  transform.Target
	Version string
}

// prepared is a cleared row as it is sent to the database.
type prepared struct {
	Cleared
	wkb    []byte
	repair *string
}

func prepare(cleared []Cleared) []prepared {
	rows := make([]prepared, len(cleared))
	for i, r := range cleared {
		rows[i] = prepared{Cleared: r, wkb: WKB(r.Geometry)}
	}
	return rows
}

// schemaFaultRows is how many rows of a batch the target must refuse, with none
// taken, before the target and not the rows is held to be wrong.
const schemaFaultRows = 8

// Settle ends a claim: it writes the cleared features to the target and settles
// their rows in one transaction, and charges the failed ones. Rows that the lease
// no longer covers are left alone and come back as [Stale]. The outcomes are in no
// particular order, one for each row given.
//
// If the target refuses the batch on data, the batch is halved until the guilty
// row is alone; it fails with [deadletter.ReasonTargetRejected] and the others
// commit. If it refuses all, a [*SchemaFault] is returned and nothing is charged.
// Any other error is downstream trouble: the outcomes returned beside it are those
// that did commit.
func (q *Queue) Settle(ctx context.Context, token deadletter.UUID, c Contract, p Policy, cleared []Cleared, failed []Failed) ([]Settled, error) {
	s := settlement{q: q, token: token, contract: c, policy: p}
	rows := prepare(cleared)
	// In order of the conflict key, so that two workers that upsert the same
	// features lock them in the same order and cannot deadlock. One key twice in a
	// statement is an error in PostgreSQL: the later ones take another round.
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].GeomHash < rows[j].GeomHash })
	for len(rows) > 0 {
		var round, again []prepared
		for i, r := range rows {
			if i > 0 && rows[i-1].GeomHash == r.GeomHash {
				again = append(again, r)
			} else {
				round = append(round, r)
			}
		}
		if err := s.halving(ctx, round, failed); err != nil {
			return s.outcomes, err
		}
		rows, failed = again, nil
	}
	if err := s.transaction(ctx, nil, append(failed, s.rejected...)); err != nil {
		return s.outcomes, err
	}
	return s.outcomes, nil
}

// settlement is the state of one call of Settle.
type settlement struct {
	q        *Queue
	token    deadletter.UUID
	contract Contract
	policy   Policy

	outcomes []Settled // of what committed
	taken    int       // rows that the target took
	rejected []Failed  // rows that it refused, each alone
}

// halving settles rows (and failed, which cannot be refused) in one transaction,
// or, where the target refuses them, in halves.
func (s *settlement) halving(ctx context.Context, rows []prepared, failed []Failed) error {
	err := s.transaction(ctx, rows, failed)
	if err == nil || len(rows) == 0 {
		return err
	}
	refused, err := refusal(err)
	if err != nil {
		return err
	}
	if len(rows) == 1 {
		refused.ID = rows[0].ID
		s.rejected = append(s.rejected, refused)
		if s.taken == 0 && len(s.rejected) >= schemaFaultRows {
			return &SchemaFault{refused.Fault.Err}
		}
		return s.transaction(ctx, nil, failed)
	}
	half := len(rows) / 2
	if err := s.halving(ctx, rows[:half], failed); err != nil {
		return err
	}
	return s.halving(ctx, rows[half:], nil)
}

// refusal reads an error of a statement that wrote to the target as the refusal of a
// row, not yet said which. What is no row's fault comes back as the error.
func refusal(err error) (Failed, error) {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return Failed{}, err
	}
	if strings.HasPrefix(refused.Code, "42") { // undefined column, no permission, …
		return Failed{}, &SchemaFault{err}
	}
	class, reason := transform.Classify(err)
	if class == transform.ClassDownstream {
		return Failed{}, err
	}
	fault := deadletter.Faultf(reason, "target:"+refusedBy(refused), "the target refused the row: %s (SQLSTATE %s)", refused.Message, refused.Code)
	fault.Err = err
	return Failed{Class: class, Fault: fault}, nil
}

// refusedBy names what of the target refused a row, without the row's values.
func refusedBy(e *pgconn.PgError) string {
	for _, name := range []string{e.ConstraintName, e.ColumnName, e.DataTypeName} {
		if name != "" {
			return name
		}
	}
	return e.Code
}

// transaction settles rows and failed in one transaction. Its outcomes count only
// if it commits.
func (s *settlement) transaction(ctx context.Context, rows []prepared, failed []Failed) error {
	if len(rows)+len(failed) == 0 {
		return nil
	}
	var outcomes []Settled
	var collided []Failed
	taken := 0
	err := pgx.BeginFunc(ctx, s.q.db, func(tx pgx.Tx) error {
		rows, unprojected, err := s.reproject(ctx, tx, rows)
		if err != nil {
			return err
		}
		failed := append(failed[:len(failed):len(failed)], unprojected...)
		done, invalid, other, err := s.clear(ctx, tx, rows)
		if err != nil {
			return err
		}
		if len(invalid) > 0 {
			repaired, beyond, err := s.repair(ctx, tx, invalid)
			if err != nil {
				return err
			}
			failed = append(failed, beyond...)
			more, still, others, err := s.clear(ctx, tx, repaired)
			if err != nil {
				return err
			}
			for _, r := range still {
				failed = append(failed, Failed{r.ID, transform.ClassData, deadletter.Faultf(deadletter.ReasonBadGeometry, transform.RuleRepair, "is still invalid after repair (%s)", s.contract.Target.Repair)})
			}
			done, other = append(done, more...), append(other, others...)
		}
		if len(other) > 0 {
			collided = other
			return errCollision
		}
		lost, err := s.fail(ctx, tx, failed)
		if err != nil {
			return err
		}
		for _, d := range done {
			if d.Result != Stale {
				taken++
			}
		}
		outcomes = append(done, lost...)
		return nil
	})
	if errors.Is(err, errCollision) {
		return s.transaction(ctx, without(rows, collided), append(failed[:len(failed):len(failed)], collided...))
	}
	if err != nil {
		return fmt.Errorf("settle %d cleared and %d failed rows: %w", len(rows), len(failed), err)
	}
	s.outcomes = append(s.outcomes, outcomes...)
	s.taken += taken
	return nil
}

// errCollision rolls a transaction back whose upsert met another feature under its key.
var errCollision = errors.New("the target holds another feature under the same key")

func without(rows []prepared, failed []Failed) []prepared {
	gone := make(map[int64]bool, len(failed))
	for _, f := range failed {
		gone[f.ID] = true
	}
	var kept []prepared
	for _, r := range rows {
		if !gone[r.ID] {
			kept = append(kept, r)
		}
	}
	return kept
}

const reprojectRows = `
	SELECT r.wkb, r.message
	FROM unnest($1::bytea[], $2::int[]) WITH ORDINALITY AS i (wkb, srid, n)
	CROSS JOIN LATERAL geodlq_reproject(i.wkb, i.srid, $3::int) r
	ORDER BY i.n`

// reproject transforms the rows whose CRS is not computed in Go, in the database,
// and checks what comes back as the Go side checks its own. It returns all rows
// that are in the target's CRS now.
func (s *settlement) reproject(ctx context.Context, tx pgx.Tx, rows []prepared) ([]prepared, []Failed, error) {
	target := s.contract.Target.EPSG
	var wkbs [][]byte
	var srids []int32
	for _, r := range rows {
		if r.EPSG != target {
			wkbs, srids = append(wkbs, r.wkb), append(srids, int32(r.EPSG))
		}
	}
	if len(wkbs) == 0 {
		return rows, nil, nil
	}
	result, err := tx.Query(ctx, reprojectRows, wkbs, srids, target)
	if err != nil {
		return nil, nil, fmt.Errorf("reproject %d rows in PostGIS: %w", len(wkbs), err)
	}
	type projected struct {
		wkb     []byte
		message *string
	}
	answers, err := pgx.CollectRows(result, func(row pgx.CollectableRow) (p projected, err error) {
		err = row.Scan(&p.wkb, &p.message)
		return p, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reproject %d rows in PostGIS: %w", len(wkbs), err)
	}
	var done []prepared
	var failed []Failed
	for _, r := range rows {
		if r.EPSG == target {
			done = append(done, r)
			continue
		}
		a := answers[0]
		answers = answers[1:]
		if fault := reprojected(&r, a.wkb, a.message, target); fault != nil {
			failed = append(failed, Failed{r.ID, transform.ClassData, fault})
			continue
		}
		done = append(done, r)
	}
	return done, failed, nil
}

// reprojected puts PostGIS's answer into r or says why it cannot be used.
func reprojected(r *prepared, b []byte, message *string, target int) *deadletter.Fault {
	if message != nil {
		reason := transform.PostGISReason(*message)
		return deadletter.Faultf(reason, r.Rule, "EPSG:%d (given as %q) cannot be transformed to EPSG:%d by PostGIS: %s", r.SourceEPSG, r.SourceCRS, target, *message)
	}
	g, err := ParseWKB(b)
	if err != nil {
		return deadletter.Faultf(deadletter.ReasonCoordinateOutOfDomain, r.Rule, "PostGIS's answer cannot be read: %v", err)
	}
	if err := crs.CheckTarget(target, g); err != nil {
		if f, ok := deadletter.AsFault(err); ok {
			f.Rule = r.Rule
			return f
		}
		return deadletter.Faultf(deadletter.ReasonOutOfTargetDomain, r.Rule, "%v", err)
	}
	r.wkb, r.Geometry, r.EPSG = b, g, target
	return nil
}

// clearRows is the exactly-once effect: in one statement the row leaves the queue
// and its feature is in the target. The UPDATE is fenced by the lease, and only
// rows that it changed are upserted, so a worker whose lease went to another
// writes nothing. Rows whose geometry is invalid are left alone and reported.
//
// An attempt that was lost while the row shared a claim is given back here: the
// row has shown that it was not the one that killed the worker.
//
// On conflict nothing is written unless a newer dead letter of the same feature
// brings other attributes.
const clearRows = `
	WITH checked AS MATERIALIZED (
	    SELECT i.*, g.geom, i.repair IS NOT NULL OR ST_IsValid(g.geom) AS valid
	    FROM unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::int[], $10::text[], $11::text[])
	         AS i (id, geom_hash, feature_id, properties, wkb, source_crs, source_epsg, engine, repair)
	    CROSS JOIN LATERAL (SELECT ST_GeomFromWKB(i.wkb, $2::int) AS geom) g
	), settled AS (
	    UPDATE failed_geotasks f
	    SET status = 'replayed',
	        lease_token = NULL,
	        attempts = greatest(1, f.attempts - f.lost_leases),
	        geom_hash = c.geom_hash,
	        contract_version = $12,
	        last_seen = now()
	    FROM checked c
	    WHERE c.valid AND f.id = c.id AND ` + fence + `
	    RETURNING f.id, f.batch_id, f.dlq_id, f.feature_id, f.first_seen
	), landed AS (
	    INSERT INTO processed_features AS p (feature_id, batch_id, dlq_id, geom, geom_hash, properties, source_crs, source_epsg, engine, repair, contract_version, first_seen)
	    SELECT c.feature_id, s.batch_id, s.dlq_id, c.geom, c.geom_hash, c.properties::jsonb, c.source_crs, c.source_epsg, c.engine, c.repair, $12, s.first_seen
	    FROM settled s JOIN checked c USING (id)
	    ORDER BY c.geom_hash
	    ON CONFLICT (geom_hash) DO UPDATE SET
	        batch_id = excluded.batch_id, dlq_id = excluded.dlq_id, geom = excluded.geom, properties = excluded.properties,
	        source_crs = excluded.source_crs, source_epsg = excluded.source_epsg, engine = excluded.engine, repair = excluded.repair,
	        contract_version = excluded.contract_version, first_seen = excluded.first_seen, processed_at = now()
	    WHERE excluded.feature_id IS NOT DISTINCT FROM p.feature_id
	      AND excluded.first_seen > p.first_seen AND excluded.properties IS DISTINCT FROM p.properties
	    RETURNING p.geom_hash, p.xmax = 0 AS inserted
	)
	SELECT c.id, c.valid, s.id IS NOT NULL, l.inserted
	FROM checked c
	LEFT JOIN settled s USING (id)
	LEFT JOIN landed l ON l.geom_hash = c.geom_hash`

// foreignKeys finds, among rows whose feature the target had already, those whose
// key is another feature's there. Only keys that were given with the row can be.
const foreignKeys = `
	SELECT f.id, p.feature_id
	FROM failed_geotasks f JOIN processed_features p ON p.geom_hash = f.geom_hash
	WHERE f.id = ANY ($1) AND p.feature_id <> f.feature_id`

// targetColumns are rows as the arrays that a statement unnests: id, geom_hash,
// feature_id, properties, wkb, source_crs, source_epsg, engine, repair.
func targetColumns(rows []prepared) []any {
	n := len(rows)
	var (
		ids        = make([]int64, n)
		hashes     = make([]string, n)
		features   = make([]string, n)
		properties = make([]string, n)
		wkbs       = make([][]byte, n)
		sources    = make([]string, n)
		codes      = make([]int32, n)
		engines    = make([]string, n)
		repairs    = make([]*string, n)
	)
	for i := range rows {
		r := &rows[i]
		ids[i], hashes[i], features[i], properties[i], wkbs[i] = r.ID, r.GeomHash, r.FeatureID, string(r.Properties), r.wkb
		sources[i], codes[i], engines[i], repairs[i] = r.SourceCRS, int32(r.SourceEPSG), string(r.Engine), r.repair
	}
	return []any{ids, hashes, features, properties, wkbs, sources, codes, engines, repairs}
}

// clear runs clearRows. collided are rows whose key belongs to another feature.
func (s *settlement) clear(ctx context.Context, tx pgx.Tx, rows []prepared) (done []Settled, invalid []prepared, collided []Failed, err error) {
	if len(rows) == 0 {
		return nil, nil, nil, nil
	}
	byID := make(map[int64]*prepared, len(rows))
	for i := range rows {
		byID[rows[i].ID] = &rows[i]
	}
	args := append([]any{s.token.String(), s.contract.Target.EPSG}, targetColumns(rows)...)
	result, err := tx.Query(ctx, clearRows, append(args, s.contract.Version)...)
	if err != nil {
		return nil, nil, nil, err
	}
	defer result.Close()
	var unchanged []int64
	for result.Next() {
		var id int64
		var valid, settled bool
		var inserted *bool // null: the target was left as it is
		if err := result.Scan(&id, &valid, &settled, &inserted); err != nil {
			return nil, nil, nil, err
		}
		switch {
		case !valid:
			invalid = append(invalid, *byID[id])
		case !settled:
			done = append(done, Settled{ID: id, Result: Stale})
		case inserted == nil:
			unchanged = append(unchanged, id)
			done = append(done, Settled{ID: id, Result: Unchanged})
		case *inserted:
			done = append(done, Settled{ID: id, Result: Inserted})
		default:
			done = append(done, Settled{ID: id, Result: Updated})
		}
	}
	if err := result.Err(); err != nil || len(unchanged) == 0 {
		return done, invalid, nil, err
	}
	owners, err := tx.Query(ctx, foreignKeys, unchanged)
	if err != nil {
		return nil, nil, nil, err
	}
	defer owners.Close()
	for owners.Next() {
		var id int64
		var owner string
		if err := owners.Scan(&id, &owner); err != nil {
			return nil, nil, nil, err
		}
		collided = append(collided, Failed{id, transform.ClassData, deadletter.Faultf(deadletter.ReasonTargetRejected, "target:geom_hash",
			"the row's geom_hash %s belongs to feature %q in the target; give each feature a key of its own", byID[id].GeomHash, owner)})
	}
	return done, invalid, collided, owners.Err()
}

const repairRows = `
	SELECT r.wkb, r.reason, r.message
	FROM unnest($1::bytea[]) WITH ORDINALITY AS i (wkb, n)
	CROSS JOIN LATERAL geodlq_repair(i.wkb, $2::int, $3, $4, $5) r
	ORDER BY i.n`

// repair makes invalid rows valid with the contract's method, or says why not.
func (s *settlement) repair(ctx context.Context, tx pgx.Tx, rows []prepared) (repaired []prepared, failed []Failed, err error) {
	wkbs := make([][]byte, len(rows))
	for i := range rows {
		wkbs[i] = rows[i].wkb
	}
	t := s.contract.Target
	result, err := tx.Query(ctx, repairRows, wkbs, t.EPSG, string(t.Repair), t.MaxAreaChange, t.PromoteToMulti)
	if err != nil {
		return nil, nil, fmt.Errorf("repair %d geometries: %w", len(rows), err)
	}
	defer result.Close()
	for i := 0; result.Next(); i++ {
		var b []byte
		var reason, message *string
		if err := result.Scan(&b, &reason, &message); err != nil {
			return nil, nil, fmt.Errorf("repair %d geometries: %w", len(rows), err)
		}
		r := rows[i]
		if reason != nil {
			failed = append(failed, Failed{r.ID, transform.ClassData, deadletter.Faultf(deadletter.Reason(*reason), transform.RuleRepair, "%s", *message)})
			continue
		}
		note := string(t.Repair) + ": " + *message
		r.wkb, r.repair = b, &note
		repaired = append(repaired, r)
	}
	return repaired, failed, result.Err()
}

// failRows charges failures: the row waits for its backoff or, at its cap, goes to
// quarantine, and its history gets a line, in one statement fenced by the lease.
const failRows = `
	WITH failed AS (
	    UPDATE failed_geotasks f
	    SET status = CASE WHEN f.attempts - f.attempts_forgiven >= i.cap THEN 'quarantined' ELSE 'pending' END,
	        next_attempt_at = now() + make_interval(secs =>
	            least($7, $6 * greatest(1, f.attempts - f.attempts_forgiven) * (1 + 0.2 * random()))),
	        lease_token = NULL,
	        error_type = i.reason,
	        failed_rule = coalesce(nullif(i.rule, ''), f.failed_rule),
	        error = i.error,
	        contract_version = $8,
	        last_seen = now()
	    FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $9::int[]) AS i (id, reason, rule, error, cap)
	    WHERE f.id = i.id AND ` + fence + `
	    RETURNING f.id, f.batch_id, f.status, f.attempts, f.failed_rule, f.error_type, f.error
	), noted AS (
	    INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, failed_rule, error_type, error, contract_version)
	    SELECT id, batch_id, CASE status WHEN 'pending' THEN 'retried' ELSE status END, attempts, failed_rule, error_type, error, $8
	    FROM failed
	)
	SELECT id, status, failed_rule FROM failed`

func (s *settlement) fail(ctx context.Context, tx pgx.Tx, failed []Failed) ([]Settled, error) {
	if len(failed) == 0 {
		return nil, nil
	}
	var (
		n       = len(failed)
		ids     = make([]int64, n)
		reasons = make([]string, n)
		rules   = make([]string, n)
		errs    = make([]string, n)
		caps    = make([]int32, n)
		faults  = make(map[int64]*deadletter.Fault, n)
	)
	for i, f := range failed {
		ids[i], reasons[i], rules[i], errs[i] = f.ID, string(f.Fault.Reason), deadletter.Label(f.Fault.Rule), deadletter.Message(f.Fault.Detail)
		caps[i] = int32(s.policy.MaxAttempts)
		if f.Class == transform.ClassData {
			caps[i] = int32(min(s.policy.DataFaultAttempts, s.policy.MaxAttempts))
		}
		faults[f.ID] = f.Fault
	}
	result, err := tx.Query(ctx, failRows, s.token.String(), ids, reasons, rules, errs,
		s.policy.BackoffBase.Seconds(), MaxBackoff.Seconds(), s.contract.Version, caps)
	if err != nil {
		return nil, fmt.Errorf("charge %d failed rows: %w", n, err)
	}
	defer result.Close()
	var out []Settled
	for result.Next() {
		var id int64
		var status string
		var rule *string
		if err := result.Scan(&id, &status, &rule); err != nil {
			return nil, fmt.Errorf("charge %d failed rows: %w", n, err)
		}
		o := Settled{ID: id, Result: Retried, Reason: faults[id].Reason, Error: deadletter.Message(faults[id].Detail)}
		if status == "quarantined" {
			o.Result = Quarantined
		}
		if rule != nil {
			o.Rule = *rule
		}
		out = append(out, o)
		delete(faults, id)
	}
	for id := range faults {
		out = append(out, Settled{ID: id, Result: Stale})
	}
	return out, result.Err()
}

// targetSRID reads which CRS the target's column is declared for.
const targetSRID = `
	SELECT postgis_typmod_srid(a.atttypmod)
	FROM pg_attribute a
	WHERE a.attrelid = 'processed_features'::regclass AND a.attname = 'geom'`

// CheckTarget verifies, before anything is claimed, that the target table takes
// geometries in the CRS of the contract; else it returns a [*SchemaFault].
func (q *Queue) CheckTarget(ctx context.Context, epsg int) error {
	var srid int
	if err := q.db.QueryRow(ctx, targetSRID).Scan(&srid); err != nil {
		return fmt.Errorf("read the CRS of processed_features.geom: %w", err)
	}
	if srid != 0 && srid != epsg {
		return &SchemaFault{fmt.Errorf("processed_features.geom is declared for SRID %d, the contract's target is EPSG:%d", srid, epsg)}
	}
	return nil
}
