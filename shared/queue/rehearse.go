package queue

import (
	"context"
	"fmt"
	"sort"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
)

// Rehearse does with cleared rows what [Queue.Settle] would do with them, and says
// what would become of each, but writes nothing: PostGIS reprojects, validates and
// repairs; the target is asked whether it has the feature; and where the target has
// rules beyond its key, the rows are inserted in a transaction that is rolled back. A
// failure comes back as [Quarantined]. Two rows of one feature are both
// called new if neither is in the target.
func (q *Queue) Rehearse(ctx context.Context, c Contract, cleared []Cleared) ([]Settled, error) {
	if len(cleared) == 0 {
		return nil, nil
	}
	s := settlement{q: q, contract: c}
	rows := prepare(cleared)
	var out []Settled
	refuse := func(failed []Failed) {
		for _, f := range failed {
			out = append(out, Settled{ID: f.ID, Result: Quarantined, Reason: f.Fault.Reason, Rule: f.Fault.Rule})
		}
	}
	var guarded bool
	err := rolledBack(ctx, q.db, func(tx pgx.Tx) error {
		var failed []Failed
		var err error
		if rows, failed, err = s.reproject(ctx, tx, rows); err != nil {
			return err
		}
		refuse(failed)
		if rows, failed, err = s.rehearseRepair(ctx, tx, rows); err != nil {
			return err
		}
		refuse(failed)
		if err := tx.QueryRow(ctx, targetIsGuarded).Scan(&guarded); err != nil {
			return fmt.Errorf("read the rules of the target: %w", err)
		}
		var done []Settled
		if rows, done, err = inTarget(ctx, tx, rows); err != nil {
			return err
		}
		out = append(out, done...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("rehearse %d rows: %w", len(cleared), err)
	}
	if guarded {
		var refused []Failed
		err := rolledBack(ctx, q.db, func(tx pgx.Tx) error {
			var err error
			refused, err = tryTarget(ctx, tx, c, rows)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("rehearse %d rows: %w", len(cleared), err)
		}
		refuse(refused)
		rows = without(rows, refused)
	}
	for _, r := range rows {
		out = append(out, Settled{ID: r.ID, Result: Inserted})
	}
	return out, nil
}

// rolledBack runs f in a transaction that never commits.
func rolledBack(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	return f(tx)
}

const validRows = `
	SELECT ST_IsValid(ST_GeomFromWKB(i.wkb, $2::int))
	FROM unnest($1::bytea[]) WITH ORDINALITY AS i (wkb, n)
	ORDER BY i.n`

// rehearseRepair returns the rows that are valid, or would be after repair.
func (s *settlement) rehearseRepair(ctx context.Context, tx pgx.Tx, rows []prepared) ([]prepared, []Failed, error) {
	if len(rows) == 0 {
		return nil, nil, nil
	}
	wkbs := make([][]byte, len(rows))
	for i := range rows {
		wkbs[i] = rows[i].wkb
	}
	result, err := tx.Query(ctx, validRows, wkbs, s.contract.Target.EPSG)
	if err != nil {
		return nil, nil, fmt.Errorf("validate %d geometries: %w", len(rows), err)
	}
	valid, err := pgx.CollectRows(result, pgx.RowTo[bool])
	if err != nil {
		return nil, nil, fmt.Errorf("validate %d geometries: %w", len(rows), err)
	}
	var good, invalid []prepared
	for i, r := range rows {
		if valid[i] {
			good = append(good, r)
		} else {
			invalid = append(invalid, r)
		}
	}
	if len(invalid) == 0 {
		return good, nil, nil
	}
	repaired, failed, err := s.repair(ctx, tx, invalid)
	if err != nil {
		return nil, nil, err
	}
	return append(good, repaired...), failed, nil
}

// takenKeys finds the rows whose key the target has, and whether it is another
// feature's there, by the same rule as foreignKeys.
const takenKeys = `
	SELECT i.id, coalesce(p.feature_id <> f.feature_id, false)
	FROM unnest($1::bigint[], $2::text[]) AS i (id, geom_hash)
	JOIN processed_features p ON p.geom_hash = i.geom_hash
	JOIN failed_geotasks f ON f.id = i.id`

// inTarget takes out of rows those whose key the target has: their feature is there, or
// another one, which Settle would refuse.
func inTarget(ctx context.Context, tx pgx.Tx, rows []prepared) ([]prepared, []Settled, error) {
	ids, keys := make([]int64, len(rows)), make([]string, len(rows))
	for i := range rows {
		ids[i], keys[i] = rows[i].ID, rows[i].GeomHash
	}
	result, err := tx.Query(ctx, takenKeys, ids, keys)
	if err != nil {
		return nil, nil, fmt.Errorf("look for %d features in the target: %w", len(rows), err)
	}
	taken := map[int64]bool{}
	var id int64
	var foreign bool
	_, err = pgx.ForEachRow(result, []any{&id, &foreign}, func() error {
		taken[id] = foreign
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look for %d features in the target: %w", len(rows), err)
	}
	var fresh []prepared
	var done []Settled
	for _, r := range rows {
		foreign, there := taken[r.ID]
		switch {
		case !there:
			fresh = append(fresh, r)
		case foreign:
			done = append(done, Settled{ID: r.ID, Result: Quarantined, Reason: deadletter.ReasonTargetRejected, Rule: "target:geom_hash"})
		default:
			done = append(done, Settled{ID: r.ID, Result: Unchanged})
		}
	}
	return fresh, done, nil
}

// targetIsGuarded reports whether anything but the columns and key that the migrations
// made can refuse a row of the target: a constraint, a trigger, another unique index,
// or a geometry type that is declared.
const targetIsGuarded = `
	SELECT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'processed_features'::regclass AND contype NOT IN ('p', 'u', 'n'))
	    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'processed_features'::regclass AND NOT tgisinternal)
	    OR (SELECT count(*) > 2 FROM pg_index WHERE indrelid = 'processed_features'::regclass AND indisunique)
	    OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = 'processed_features'::regclass AND a.attname = 'geom'
	               AND upper(postgis_typmod_type(a.atttypmod)) <> 'GEOMETRY')`

// tryRows inserts as clearRows does, and leaves the queue alone.
const tryRows = `
	INSERT INTO processed_features (feature_id, batch_id, dlq_id, geom, geom_hash, properties, source_crs, source_epsg, engine, repair, contract_version, first_seen)
	SELECT i.feature_id, f.batch_id, f.dlq_id, ST_GeomFromWKB(i.wkb, $1::int), i.geom_hash, i.properties::jsonb, i.source_crs, i.source_epsg, i.engine, i.repair, $11::text, f.first_seen
	FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::int[], $9::text[], $10::text[])
	     AS i (id, geom_hash, feature_id, properties, wkb, source_crs, source_epsg, engine, repair)
	JOIN failed_geotasks f USING (id)
	ORDER BY i.geom_hash
	ON CONFLICT (geom_hash) DO NOTHING`

// tryTarget finds the rows that the target refuses, by halves, each under a savepoint
// of a transaction that will be rolled back. What it took stays until then, so that a
// row which only its neighbour keeps out is found too.
func tryTarget(ctx context.Context, tx pgx.Tx, c Contract, rows []prepared) ([]Failed, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].GeomHash < rows[j].GeomHash })
	err := pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error { return insertTried(ctx, sp, c, rows) })
	if err == nil {
		return nil, nil
	}
	refused, err := refusal(err)
	if err != nil {
		return nil, err
	}
	if len(rows) == 1 {
		refused.ID = rows[0].ID
		return []Failed{refused}, nil
	}
	half := len(rows) / 2
	a, err := tryTarget(ctx, tx, c, rows[:half])
	if err != nil {
		return nil, err
	}
	b, err := tryTarget(ctx, tx, c, rows[half:])
	return append(a, b...), err
}

func insertTried(ctx context.Context, tx pgx.Tx, c Contract, rows []prepared) error {
	args := append([]any{c.Target.EPSG}, targetColumns(rows)...)
	if _, err := tx.Exec(ctx, tryRows, append(args, c.Version)...); err != nil {
		return err
	}
	// What is deferred to the commit speaks now.
	_, err := tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE")
	return err
}
