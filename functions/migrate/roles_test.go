package main

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/infra/local/localtest"
)

// signIn connects to the database as a login role of its own that is a member of
// role and of nothing else.
func signIn(t *testing.T, databaseURL, role string) *pgx.Conn {
	t.Helper()
	return connect(t, signInURL(t, databaseURL, role))
}

// What each role may do, and what it tries in vain.
func TestRolesMayDoTheirOwnWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	const (
		ask    = "SELECT feature_geojson FROM failed_geotasks"
		status = "UPDATE failed_geotasks SET status = 'discarded'"
		forge  = "UPDATE failed_geotasks SET feature_geojson = '{}'"
		move   = "UPDATE failed_geotasks SET batch_id = 'another'"
		age    = "UPDATE failed_geotasks SET first_seen = now()"
		remove = "DELETE FROM failed_geotasks"
		empty  = "TRUNCATE failed_geotasks"
		put    = "INSERT INTO failed_geotasks (task_id, geom, epsg, geom_hash) VALUES ('t', ST_Point(1, 2), 4326, 'h')"
		once   = "INSERT INTO failed_geotasks (dlq_id, batch_id, status) VALUES (gen_random_uuid(), 'b', 'quarantined') ON CONFLICT (dlq_id) DO NOTHING"
		cheat  = "INSERT INTO failed_geotasks (task_id, status) VALUES ('t', 'replayed')"
		claim  = "WITH p AS MATERIALIZED (SELECT id FROM failed_geotasks WHERE status = 'pending' LIMIT 1 FOR UPDATE SKIP LOCKED) " +
			"UPDATE failed_geotasks f SET attempts = attempts + 1, lease_token = gen_random_uuid(), next_attempt_at = now() + interval '1 min' FROM p WHERE p.id = f.id RETURNING f.feature_geojson"
		land   = "INSERT INTO processed_features AS p (feature_id, geom, geom_hash) VALUES ('f', ST_SetSRID(ST_Point(1, 2), 3857), gen_random_uuid()::text) ON CONFLICT (geom_hash) DO UPDATE SET processed_at = now() RETURNING p.id"
		read   = "SELECT id FROM processed_features"
		unland = "DELETE FROM processed_features"
		note   = "INSERT INTO failed_geotasks_history (task, batch_id, event, attempt) VALUES (1, 'b', 'retried', 1)"
		erase  = "DELETE FROM failed_geotasks_history"
		run    = "INSERT INTO replay_runs (id, started_at, claimed, replayed, retried, quarantined, released, stopped_because) VALUES (gen_random_uuid(), now(), 0, 0, 0, 0, 0, 'empty')"
		books  = "SELECT sum(n) FROM dlq_ledger"
		cook   = "INSERT INTO dlq_ledger (transition, batch_id, n) VALUES ('arrived', 'b', 1000000)"
		prune  = "DELETE FROM dlq_ledger WHERE id < 0"
		gauge  = "SELECT count(*), min(first_seen), max(lost_leases) FROM failed_geotasks WHERE status = 'pending' GROUP BY batch_id, error_type, failed_rule"
		table  = "CREATE TABLE mine (x int)"
		drop   = "DROP TABLE failed_geotasks"
		alter  = "ALTER TABLE failed_geotasks DISABLE TRIGGER ALL"
		grants = "SELECT geodlq_grant()"
		rights = "UPDATE geodlq_privileges SET privileges = 'ALL'"
		person = "UPDATE failed_geotasks SET overrides = '{}', redrives = redrives + 1, attempts_forgiven = attempts"
	)
	all := []string{ask, status, forge, move, age, remove, empty, put, once, cheat, claim, land, read, unland, note, erase,
		run, books, cook, prune, gauge, table, drop, alter, grants, rights, person}
	for role, may := range map[string][]string{
		"geodlq_capture":  {put, once, cheat},
		"geodlq_replay":   {ask, status, claim, land, read, note, run, gauge},
		"geodlq_metrics":  {books, prune, gauge},
		"geodlq_redrive":  {ask, status, put, once, cheat, claim, land, read, note, run, books, gauge, person},
		"geodlq_pipeline": {put},
		"geodlq_reader":   {ask, read, books, gauge},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			db := localtest.Database(t)
			exec(t, connect(t, db), "INSERT INTO failed_geotasks (feature_geojson) VALUES ('{}')")
			conn := signIn(t, db, role)
			allowed := map[string]bool{}
			for _, sql := range may {
				allowed[sql] = true
			}
			for _, sql := range all {
				// Each in a transaction that is undone, so that one does not change
				// what the next finds.
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_, err = tx.Exec(t.Context(), sql)
				if rollback := tx.Rollback(t.Context()); rollback != nil {
					t.Fatal(rollback)
				}
				var pg *pgconn.PgError
				switch {
				case allowed[sql] && err != nil:
					t.Errorf("may not: %s: %v", sql, err)
				case !allowed[sql] && err == nil:
					t.Errorf("may: %s", sql)
				case err != nil && (!errors.As(err, &pg) || pg.Code != "42501"):
					t.Errorf("%s: %v, want insufficient_privilege", sql, err)
				}
			}
		})
	}
}

// The triggers that keep the ledger must work for roles that may not touch it, and
// for nobody but through the queue.
func TestTheLedgerIsKeptForEveryRole(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	admin := connect(t, db)
	exec(t, signIn(t, db, "geodlq_capture"), "INSERT INTO failed_geotasks (batch_id) VALUES ('b'), ('b'), ('b')")
	exec(t, signIn(t, db, "geodlq_pipeline"), "INSERT INTO failed_geotasks (batch_id, task_id) VALUES ('b', 't')")
	exec(t, signIn(t, db, "geodlq_replay"), "UPDATE failed_geotasks SET status = 'replayed' WHERE id IN (SELECT id FROM failed_geotasks LIMIT 2)")
	var arrived, replayed int64
	err := admin.QueryRow(t.Context(), `SELECT sum(n) FILTER (WHERE transition = 'arrived'), sum(n) FILTER (WHERE to_status = 'replayed') FROM dlq_ledger WHERE batch_id = 'b'`).Scan(&arrived, &replayed)
	if err != nil || arrived != 4 || replayed != 2 {
		t.Errorf("ledger has %d arrived and %d replayed, %v; want 4 and 2", arrived, replayed, err)
	}
}

// A role cannot bend a function that runs with its owner's rights by a search_path
// of its own.
func TestTheOwnersRightsCannotBeBorrowed(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	conn := signIn(t, db, "geodlq_pipeline")
	var schema string
	if err := conn.QueryRow(t.Context(), "SELECT current_schema()").Scan(&schema); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, "CREATE TEMP TABLE dlq_ledger (transition text, batch_id text, error_type text, failed_rule text, from_status text, to_status text, n bigint)")
	exec(t, conn, "SET search_path = pg_temp, "+schema+", public")
	exec(t, conn, "INSERT INTO failed_geotasks (batch_id, task_id) VALUES ('b', 't')")
	var mine, real int64
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_temp.dlq_ledger").Scan(&mine); err != nil {
		t.Fatal(err)
	}
	if err := connect(t, db).QueryRow(t.Context(), "SELECT count(*) FROM dlq_ledger").Scan(&real); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, "DROP TABLE pg_temp.dlq_ledger") // or the role could not be dropped
	if mine != 0 || real != 1 {
		t.Errorf("the caller's own table got %d lines and the ledger %d; want 0 and 1", mine, real)
	}
}
