package ledger_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local/localtest"
	"geodlq/shared/ledger"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// window is as long as windows can be, so that hardly a test meets the end of one.
const window = time.Hour

// bench is books in a database of the test's own.
type bench struct {
	*ledger.Books
	t  testing.TB
	db *pgxpool.Pool
}

func setup(t testing.TB, options ...ledger.Option) bench {
	t.Helper()
	db := localtest.Pool(t, localtest.Database(t))
	b := bench{ledger.New(db, window, options...), t, db}
	// Those that would meet it begin after it.
	const wait = `SELECT pg_sleep_until(date_trunc('hour', now()) + interval '1 hour') WHERE now() > date_trunc('hour', now()) + interval '59 minutes 30 seconds'`
	b.exec(wait)
	return b
}

func (b bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

func (b bench) fold() int64 {
	b.t.Helper()
	n, err := b.Fold(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// reset makes the queue and the books as new, for tests that take many situations
// one after another: a database for each would cost more than the situation.
func (b bench) reset() {
	b.t.Helper()
	b.exec(`
		TRUNCATE failed_geotasks, failed_geotasks_history, replay_runs, dlq_archive_files RESTART IDENTITY;
		TRUNCATE dlq_ledger, dlq_batches, dlq_batch_causes, dlq_activity, dlq_windows;
		UPDATE dlq_books SET (arrived, cleared, quarantined, discarded, closed_until) = (0, 0, 0, 0, NULL)`)
}

func scan[T any](b bench, sql string, args ...any) (value T) {
	b.t.Helper()
	if err := b.db.QueryRow(b.t.Context(), sql, args...).Scan(&value); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// reconciled fails the test unless the books are what a full count is, before and
// after a fold, and every batch and the books as a whole add up.
func (b bench) reconciled() {
	b.t.Helper()
	for _, when := range []string{"before the fold", "after it"} {
		checked, err := b.Check(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		if len(checked.Mismatches) > 0 {
			b.t.Fatalf("%s the books differ from a full count: %+v", when, checked.Mismatches)
		}
		b.fold()
	}
	const adds = `SELECT count(*) FROM dlq_batches WHERE arrived <> active + cleared + quarantined + discarded
		OR least(arrived, active, cleared, quarantined, discarded) < 0`
	if n := scan[int](b, adds); n > 0 {
		b.t.Fatalf("%d batches do not add up", n)
	}
	const whole = `SELECT (SELECT (arrived, cleared, quarantined, discarded)::text FROM dlq_books)
		= (SELECT coalesce((sum(arrived)::bigint, sum(cleared)::bigint, sum(quarantined)::bigint, sum(discarded)::bigint)::text, '') FROM dlq_batches)`
	if scan[int](b, `SELECT count(*) FROM dlq_batches`) > 0 && !scan[bool](b, whole) {
		b.t.Fatal("the totals of the books are not the sum of its batches")
	}
	const causes = `
		SELECT count(*) FROM (SELECT batch_id, error_type, failed_rule, quarantined FROM dlq_batch_causes WHERE quarantined <> 0) c
		FULL JOIN (SELECT batch_id, coalesce(error_type, '') AS error_type, coalesce(failed_rule, '') AS failed_rule, count(*) AS quarantined
		           FROM failed_geotasks WHERE status = 'quarantined' GROUP BY 1, 2, 3) q USING (batch_id, error_type, failed_rule)
		WHERE c.quarantined IS DISTINCT FROM q.quarantined`
	if n := scan[int](b, causes); n > 0 {
		b.t.Fatalf("%d causes of quarantine are counted wrong", n)
	}
}

// totals reads all batches as "arrived = active + cleared + quarantined + discarded".
func (b bench) totals() map[string][5]int64 {
	b.t.Helper()
	list, err := b.Batches(b.t.Context(), 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	got := map[string][5]int64{}
	for _, x := range list {
		got[x.BatchID] = [5]int64{x.Arrived, x.Active, x.Cleared, x.Quarantined, x.Discarded}
	}
	return got
}

func TestTotalsOfABatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const four = `INSERT INTO failed_geotasks (id, batch_id) SELECT i, 'a' FROM generate_series(1, 4) i; `
	const oneOfEach = four + `UPDATE failed_geotasks SET status = (ARRAY['pending', 'replayed', 'quarantined', 'discarded'])[id];`
	for _, tc := range []struct {
		situation, sql string
		want           map[string][5]int64 // arrived, active, cleared, quarantined, discarded
	}{
		{"nothing ever arrived", ``, map[string][5]int64{}},
		{"rows arrive", four, map[string][5]int64{"a": {4, 4, 0, 0, 0}}},
		{"rows arrive in quarantine", `INSERT INTO failed_geotasks (batch_id, status, error_type) VALUES ('a', 'quarantined', 'invalid_json'), ('a', 'pending', NULL)`,
			map[string][5]int64{"a": {2, 1, 0, 1, 0}}},
		{"a pipeline inserts with the four columns it has",
			`INSERT INTO failed_geotasks (task_id, geom, epsg, geom_hash) VALUES ('t', ST_SetSRID(ST_MakePoint(1, 2), 4326), 4326, 'h')`,
			map[string][5]int64{"direct": {1, 1, 0, 0, 0}}},
		{"a role that may only insert", `SET LOCAL ROLE geodlq_pipeline; INSERT INTO failed_geotasks (task_id) VALUES ('t')`,
			map[string][5]int64{"direct": {1, 1, 0, 0, 0}}},
		{"the same record is delivered twice",
			`INSERT INTO failed_geotasks (dlq_id, batch_id) VALUES ('00000000-0000-0000-0000-000000000001', 'a');
			 INSERT INTO failed_geotasks (dlq_id, batch_id) VALUES ('00000000-0000-0000-0000-000000000001', 'a') ON CONFLICT (dlq_id) DO NOTHING`,
			map[string][5]int64{"a": {1, 1, 0, 0, 0}}},
		{"an upsert inserts one row and settles another",
			`INSERT INTO failed_geotasks (dlq_id, batch_id) VALUES ('00000000-0000-0000-0000-000000000001', 'a');
			 INSERT INTO failed_geotasks (dlq_id, batch_id) VALUES ('00000000-0000-0000-0000-000000000001', 'a'), ('00000000-0000-0000-0000-000000000002', 'a')
			 ON CONFLICT (dlq_id) DO UPDATE SET status = 'replayed'`,
			map[string][5]int64{"a": {2, 1, 1, 0, 0}}},
		{"rows are claimed", four + `UPDATE failed_geotasks SET attempts = 1, lease_token = gen_random_uuid()`, map[string][5]int64{"a": {4, 4, 0, 0, 0}}},
		{"one of each outcome", oneOfEach, map[string][5]int64{"a": {4, 1, 1, 1, 1}}},
		{"everything is requeued", oneOfEach + `UPDATE failed_geotasks SET status = 'pending'`, map[string][5]int64{"a": {4, 4, 0, 0, 0}}},
		{"a statement that is rolled back", four + `
			 DO $$ BEGIN UPDATE failed_geotasks SET status = 'replayed'; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END $$`, map[string][5]int64{"a": {4, 4, 0, 0, 0}}},
		{"a pending row is deleted", oneOfEach + `DELETE FROM failed_geotasks WHERE id = 1`, map[string][5]int64{"a": {4, 0, 1, 1, 2}}},
		{"a quarantined row is deleted", oneOfEach + `DELETE FROM failed_geotasks WHERE id = 3`, map[string][5]int64{"a": {4, 1, 1, 0, 2}}},
		{"a replayed and a discarded row are deleted", oneOfEach + `DELETE FROM failed_geotasks WHERE id IN (2, 4)`, map[string][5]int64{"a": {4, 1, 1, 1, 1}}},
		{"everything is deleted", oneOfEach + `DELETE FROM failed_geotasks`, map[string][5]int64{"a": {4, 0, 1, 0, 3}}},
		{"the table is truncated", oneOfEach + `TRUNCATE failed_geotasks`, map[string][5]int64{"a": {4, 0, 1, 0, 3}}},
		{"deleted and taken in again", four + `DELETE FROM failed_geotasks WHERE id = 1; INSERT INTO failed_geotasks (id, batch_id) VALUES (1, 'a')`,
			map[string][5]int64{"a": {5, 4, 0, 0, 1}}},
		{"rows are given to another batch", oneOfEach + `UPDATE failed_geotasks SET batch_id = 'b' WHERE id <= 3`,
			map[string][5]int64{"a": {1, 0, 0, 0, 1}, "b": {3, 1, 1, 1, 0}}},
		{"all rows are given to another batch", four + `UPDATE failed_geotasks SET batch_id = 'b'`,
			map[string][5]int64{"a": {0, 0, 0, 0, 0}, "b": {4, 4, 0, 0, 0}}},
		{"batch and status change at once", oneOfEach + `UPDATE failed_geotasks SET batch_id = 'b', status = 'replayed'`,
			map[string][5]int64{"a": {0, 0, 0, 0, 0}, "b": {4, 0, 4, 0, 0}}},
		{"ids are changed", oneOfEach + `UPDATE failed_geotasks SET id = id + 100`, map[string][5]int64{"a": {4, 1, 1, 1, 1}}},
		{"ids, batch and status change at once", oneOfEach + `UPDATE failed_geotasks SET id = id + 100, batch_id = 'b', status = 'discarded'`,
			map[string][5]int64{"a": {0, 0, 0, 0, 0}, "b": {4, 0, 0, 0, 4}}},
		{"the cause of a quarantined row is corrected", oneOfEach + `UPDATE failed_geotasks SET error_type = 'missing_crs', failed_rule = 'reproject'`,
			map[string][5]int64{"a": {4, 1, 1, 1, 1}}},
		{"a quarantined row is requeued with its cause erased", oneOfEach + `
			 UPDATE failed_geotasks SET error_type = 'missing_crs' WHERE id = 3;
			 UPDATE failed_geotasks SET status = 'pending', error_type = NULL WHERE id = 3`,
			map[string][5]int64{"a": {4, 2, 1, 0, 1}}},
		{"a quarantined row changes batch and cause and is requeued at once", oneOfEach + `
			 UPDATE failed_geotasks SET status = 'pending', batch_id = 'b', error_type = 'missing_crs' WHERE id = 3`,
			map[string][5]int64{"a": {3, 1, 1, 0, 1}, "b": {1, 1, 0, 0, 0}}},
		{"rows are merged", four + `MERGE INTO failed_geotasks f USING generate_series(3, 6) i ON f.id = i
			 WHEN MATCHED THEN UPDATE SET status = 'discarded' WHEN NOT MATCHED THEN INSERT (id, batch_id) VALUES (i, 'a')`,
			map[string][5]int64{"a": {6, 4, 0, 0, 2}}},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			b.t = t
			b.reset()
			b.exec(tc.sql)
			b.reconciled()
			if d := cmp.Diff(tc.want, b.totals()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestCopyIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	rows := strings.Repeat("copied\n", 300)
	if _, err := conn.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader(rows), `COPY failed_geotasks (batch_id) FROM STDIN`); err != nil {
		t.Fatal(err)
	}
	b.reconciled()
	if d := cmp.Diff(map[string][5]int64{"copied": {300, 300, 0, 0, 0}}, b.totals()); d != "" {
		t.Error(d)
	}
}

func TestPoisonRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rate := func(f float64) *float64 { return &f }
	for _, tc := range []struct {
		situation            string
		arrived, quarantined int
		want                 *float64
		systemic             bool
	}{
		{"nothing arrived", 0, 0, nil, false},
		{"nothing in quarantine", 10, 0, rate(0), false},
		{"exactly at the threshold", 20, 1, rate(0.05), false},
		{"just above it", 1999, 100, rate(0.05), false}, // 0.050025 to 4 decimals
		{"above it to 4 decimals", 1000, 51, rate(0.051), true},
		{"rounded half up", 20000, 3, rate(0.0002), false},
		{"all of it", 3, 3, rate(1), true},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			b.t = t
			b.reset()
			b.exec(`INSERT INTO failed_geotasks (batch_id, status, error_type, failed_rule)
				SELECT 'a', CASE WHEN i <= $2 THEN 'quarantined' ELSE 'pending' END, 'missing_crs', 'reproject' FROM generate_series(1, $1::int) i`,
				tc.arrived, tc.quarantined)
			if tc.arrived == 0 { // a batch that only has a lost lease to its name
				b.exec(`INSERT INTO failed_geotasks_history (task, batch_id, event, attempt) VALUES (1, 'a', 'lease_lost', 1)`)
			}
			b.reconciled()
			got, err := b.Batches(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 {
				t.Fatalf("batches %+v, want one", got)
			}
			if d := cmp.Diff(tc.want, got[0].PoisonRate); d != "" {
				t.Error(d)
			}
			systemic, all, err := b.Systemic(t.Context(), 0.05, 10)
			if err != nil {
				t.Fatal(err)
			}
			if (len(systemic) == 1 && all == 1) != tc.systemic {
				t.Errorf("systemic batches %+v (%d), want it to be one: %t", systemic, all, tc.systemic)
			}
		})
	}
}

func TestSystemicBatchesNameTheirCauses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO failed_geotasks (batch_id, status, error_type, failed_rule)
		SELECT 'bad', 'quarantined', t, r FROM (VALUES ('missing_crs', 'reproject', 5), ('coerce_failed', 'coerce:built_year->integer', 7),
		    ('coerce_failed', 'coerce:floors->integer', 2), (NULL, NULL, 3)) v (t, r, n), generate_series(1, n)`)
	b.exec(`INSERT INTO failed_geotasks (batch_id, status) SELECT 'worse', 'quarantined'`)
	b.exec(`INSERT INTO failed_geotasks (batch_id) SELECT 'bad' FROM generate_series(1, 3)`)
	b.exec(`INSERT INTO failed_geotasks (batch_id) SELECT 'good' FROM generate_series(1, 3)`)
	// Two of the most frequent cause leave quarantine again.
	b.exec(`UPDATE failed_geotasks SET status = 'pending', error_type = NULL
		WHERE id IN (SELECT id FROM failed_geotasks WHERE failed_rule = 'coerce:built_year->integer' LIMIT 3)`)
	b.reconciled()
	got, all, err := b.Systemic(t.Context(), 0.05, 10)
	if err != nil {
		t.Fatal(err)
	}
	one, bad := 1.0, 0.7
	want := []ledger.Batch{
		{BatchID: "worse", Arrived: 1, Quarantined: 1, PoisonRate: &one, Causes: []ledger.Cause{{Rows: 1}}},
		{BatchID: "bad", Arrived: 20, Active: 6, Quarantined: 14, PoisonRate: &bad, Causes: []ledger.Cause{
			{FailedRule: "reproject", ErrorType: "missing_crs", Rows: 5},
			{FailedRule: "coerce:built_year->integer", ErrorType: "coerce_failed", Rows: 4},
			{FailedRule: "", ErrorType: "", Rows: 3},
		}},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(ledger.Batch{}, "FirstActivity", "LastActivity")); d != "" || all != 2 {
		t.Errorf("%d batches %s", all, d)
	}
	if got, all, err = b.Systemic(t.Context(), 0.05, 1); err != nil || len(got) != 1 || all != 2 {
		t.Errorf("with a limit of 1: %d of %d batches, %v", len(got), all, err)
	}
}

func TestAnEntryThatCommitsLateIsFoldedLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	late, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(context.Background())
	if _, err := late.Exec(t.Context(), `INSERT INTO failed_geotasks (batch_id) VALUES ('late')`); err != nil {
		t.Fatal(err)
	}
	b.exec(`INSERT INTO failed_geotasks (batch_id) VALUES ('early')`)
	if n := b.fold(); n != 1 {
		t.Fatalf("folded %d entries, want the one that is committed", n)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.reconciled()
	if d := cmp.Diff(map[string][5]int64{"early": {1, 1, 0, 0, 0}, "late": {1, 1, 0, 0, 0}}, b.totals()); d != "" {
		t.Error(d)
	}
}

func TestAFoldThatIsKilledIsDoneOnceByTheNext(t *testing.T) {
	t.Parallel()
	b := setup(t, ledger.FoldAtOnce(10))
	for range 25 {
		b.exec(`INSERT INTO failed_geotasks (batch_id, status) VALUES ('a', 'pending'), ('a', 'quarantined')`)
	}
	b.fold()
	for range 25 {
		b.exec(`INSERT INTO failed_geotasks (batch_id, status) VALUES ('a', 'pending'), ('z', 'replayed')`)
	}
	// Somebody who looks at batch a holds the fold up in the middle of its statement.
	holder, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background())
	if _, err := holder.Exec(t.Context(), `SELECT FROM dlq_batches WHERE batch_id = 'a' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := b.Fold(t.Context())
		failed <- err
	}()
	const stuck = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock' AND query LIKE '%DELETE FROM dlq_ledger%'`
	for scan[int](b, stuck) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the fold never waited for the row")
		}
	}
	if err := <-failed; err == nil {
		t.Fatal("the fold went on without its connection")
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.reconciled()
	if d := cmp.Diff(map[string][5]int64{"a": {75, 50, 0, 25, 0}, "z": {25, 0, 25, 0, 0}}, b.totals()); d != "" {
		t.Error(d)
	}
}

func TestACheckFindsWhatTheTriggersDidNotSee(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tc := range []struct {
		situation, sql string
		want           []ledger.Mismatch
	}{
		{"nothing", ``, []ledger.Mismatch{}},
		{"rows that were inserted while the triggers were off", `
			ALTER TABLE failed_geotasks DISABLE TRIGGER USER;
			INSERT INTO failed_geotasks (batch_id, status) VALUES ('a', 'pending'), ('b', 'replayed');
			ALTER TABLE failed_geotasks ENABLE TRIGGER USER`,
			[]ledger.Mismatch{
				{BatchID: "a", Booked: ledger.Rows{Pending: 2}, Counted: ledger.Rows{Pending: 3}},
				{BatchID: "b", Counted: ledger.Rows{Replayed: 1}},
			}},
		{"rows that vanished while the triggers were off", `
			ALTER TABLE failed_geotasks DISABLE TRIGGER USER;
			DELETE FROM failed_geotasks;
			ALTER TABLE failed_geotasks ENABLE TRIGGER USER`,
			[]ledger.Mismatch{{BatchID: "a", Booked: ledger.Rows{Pending: 2}}}},
		{"an entry that was taken from the ledger", `UPDATE failed_geotasks SET status = 'discarded'; DELETE FROM dlq_ledger WHERE transition = 'changed'`,
			[]ledger.Mismatch{{BatchID: "a", Booked: ledger.Rows{Pending: 2}, Counted: ledger.Rows{Discarded: 2}}}},
		{"totals that were edited", `UPDATE dlq_batches SET quarantined = quarantined + 1`,
			[]ledger.Mismatch{{BatchID: "a", Booked: ledger.Rows{Pending: 1, Quarantined: 1}, Counted: ledger.Rows{Pending: 2}}}},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			b.t = t
			b.reset()
			b.exec(`INSERT INTO failed_geotasks (batch_id) VALUES ('a'), ('a')`)
			b.fold()
			b.exec(tc.sql)
			got, err := b.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got.Mismatches); d != "" {
				t.Error(d)
			}
		})
	}
}
