package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/queue"
	"geodlq/shared/redrive"
	"geodlq/shared/transform"
)

// quarantined is a bundle with a batch in quarantine: bad parcels that no contract
// here takes, and good ones that the lenient contract takes.
func quarantined(t testing.TB, good, bad int) *bundle {
	b := newBundle(t)
	b.capture(good, "county", "n/a")
	b.capture(bad, "county", "circa 1905")
	b.replay()
	b.want(fmt.Sprint(good+bad), `SELECT count(*) FROM failed_geotasks WHERE status = 'quarantined'`)
	b.use(lenientContract)
	return b
}

var county = object{"batch_id": "county"}

// real is a request that means it.
func real(more object) object {
	r := object{"filter": county, "dry_run": false, "actor": "ada", "why": "the rule is mended"}
	for k, v := range more {
		r[k] = v
	}
	return r
}

func TestDryRunIsTheDefaultAndRunsTheTransform(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 700, 20)
	// Two that fail where only PostGIS or the target can tell, and one that is there.
	b.exec(`UPDATE failed_geotasks SET feature_geojson = '{"type":"Feature","id":"p0","properties":{},"geometry":{"type":"Polygon","coordinates":[
		[[550000,5190000],[550010,5190000],[550010,5190010],[550000,5190000]], [[550000,5190000],[550010,5190000],[550010,5190010],[550000,5190000]]]}}' WHERE id = 1`)
	b.exec(`UPDATE failed_geotasks SET geom_hash = 'x', source_crs = 'EPSG:27700', feature_geojson = '{"type":"Feature","id":"p1","geometry":{"type":"Point","coordinates":[900000000,1]},"properties":{}}' WHERE id = 2`)
	b.exec(`INSERT INTO processed_features (feature_id, geom, geom_hash) SELECT feature_id, ST_Point(1, 1, 3857), geom_hash FROM failed_geotasks WHERE id = 3`)
	before := b.one(`SELECT md5(string_agg(f::text, '' ORDER BY id)) FROM failed_geotasks f`)
	r := do[redrive.Run](b, "requeue", object{"filter": county, "actor": "ada"})
	if !r.DryRun || r.State != "done" || r.Members != 720 || r.Handled != 720 || r.ContractVersion != "parcels-2" {
		t.Errorf("run %+v", r)
	}
	want := redrive.Counts{WouldClear: 698, WouldFail: 22, InTarget: 1, Causes: []redrive.Cause{
		{Reason: "coerce_failed", Rule: "coerce:built_year->integer", Rows: 20},
		{Reason: "degenerate_geometry", Rule: "repair:geometry", Rows: 1},
		{Reason: "coordinate_out_of_domain", Rule: "reproject:EPSG:27700->EPSG:3857", Rows: 1},
	}}
	if diff := cmp.Diff(want, r.Counts, cmpopts.SortSlices(func(a, b redrive.Cause) bool { return a.Reason < b.Reason })); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	b.want(before, `SELECT md5(string_agg(f::text, '' ORDER BY id)) FROM failed_geotasks f`)
	b.want("1", `SELECT count(*) FROM processed_features`)
	b.want("720", `SELECT count(*) FROM failed_geotasks_history`)

	// It foretells what then happens.
	do[redrive.Run](b, "requeue", real(nil))
	b.replay()
	b.want("698 22", `SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'replayed'), count(*) FILTER (WHERE status = 'quarantined')) FROM failed_geotasks`)
	b.balanced()
}

func TestDryRunAsksATargetThatHasRules(t *testing.T) {
	for _, c := range []struct{ name, rule, want string }{
		{"a check", `ALTER TABLE processed_features ADD CONSTRAINT no_unlucky CHECK (feature_id NOT IN ('p13', 'p17'))`, "target:no_unlucky"},
		{"a unique index", `CREATE UNIQUE INDEX one_of_each ON processed_features ((CASE WHEN feature_id IN ('p13', 'p14', 'p15') THEN 1 END))`, "target:one_of_each"},
		{"a trigger", `CREATE FUNCTION pg_temp_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.feature_id IN ('p13', 'p17') THEN RAISE 'not this one'; END IF; RETURN NEW; END $$;
			CREATE TRIGGER refuse BEFORE INSERT ON processed_features FOR EACH ROW EXECUTE FUNCTION pg_temp_refuse()`, "target:P0001"},
		{"a constraint that waits for the commit", `CREATE TABLE known (feature_id text PRIMARY KEY); INSERT INTO known SELECT 'p' || i FROM generate_series(0, 49) i WHERE i NOT IN (13, 17);
			ALTER TABLE processed_features ADD CONSTRAINT is_known FOREIGN KEY (feature_id) REFERENCES known DEFERRABLE INITIALLY DEFERRED`, "target:is_known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := quarantined(t, 50, 0)
			for sql := range strings.SplitSeq(c.rule, ";\n") {
				b.exec(sql)
			}
			r := do[redrive.Run](b, "requeue", object{"filter": county, "actor": "ada"})
			want := []redrive.Cause{{Reason: "target_rejected", Rule: c.want, Rows: 2}}
			if r.Counts.WouldClear != 48 || !cmp.Equal(want, r.Counts.Causes) {
				t.Errorf("counts %+v, want 48 that clear and %+v", r.Counts, want)
			}
			b.want("0", `SELECT count(*) FROM processed_features`)
		})
	}
}

// A feature that kills its process must not kill every invocation that goes on with a
// dry run of it.
func TestDryRunLeavesKillersAlone(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 1200, 0)
	b.exec(`UPDATE failed_geotasks SET lost_leases = 1 WHERE id IN (3, 4)`)
	// The process died three times in the second chunk.
	id := "0b2f1a52-9a41-4c7e-8f16-2d95e07bc438"
	b.Settings.Margin = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.try(ctx, "requeue", object{"filter": county, "actor": "ada", "run": id}); err != nil {
		t.Fatal(err)
	}
	b.exec(`UPDATE redrive_chunks SET tries = 3 WHERE chunk = 2`)
	b.Settings.Margin = 100 * time.Millisecond
	r := do[redrive.Runs](b, "continue", nil).Runs[0]
	if r.State != "done" || r.Handled != 1200 || r.Counts.Untried != 502 || r.Counts.WouldClear != 698 {
		t.Errorf("run %+v, want the chunk that killed three processes and the two suspects untried", r)
	}
	// One that ends with an error is no killer.
	b.Contract = func(context.Context) (transform.Transformer, error) { return nil, errors.New("no such contract") }
	if _, err := b.try(t.Context(), "requeue", object{"filter": county, "actor": "ada"}); err == nil || !strings.Contains(err.Error(), "nothing was begun") {
		t.Errorf("without a contract: %v", err)
	}
}

// stuck is a transform that hangs on one feature and needs the network for another.
type stuck struct {
	transform.Transformer
	hang, network string
}

func (s stuck) Transform(ctx context.Context, in transform.Input) (transform.Output, error) {
	switch in.FeatureID {
	case s.hang:
		<-ctx.Done()
	case s.network:
		return transform.Output{}, fmt.Errorf("ask the geocoder: %w", transform.ErrDownstream)
	}
	return s.Transformer.Transform(ctx, in)
}

func TestDryRunOfATransformThatHangs(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 10, 0)
	b.Settings.RowTimeout = 50 * time.Millisecond
	b.Contract = func(context.Context) (transform.Transformer, error) { return stuck{b.contract.Load(), "p3", ""}, nil }
	r := do[redrive.Run](b, "requeue", object{"filter": county, "actor": "ada"})
	if r.Counts.WouldClear != 9 || len(r.Counts.Causes) != 1 || r.Counts.Causes[0].Reason != "unknown" {
		t.Errorf("counts %+v, want one that fails as unknown", r.Counts)
	}
	// Trouble that is no feature's fault ends the invocation and not the run.
	b.Contract = func(context.Context) (transform.Transformer, error) { return stuck{b.contract.Load(), "", "p3"}, nil }
	if _, err := b.try(t.Context(), "requeue", object{"filter": county, "actor": "ada"}); !errors.Is(err, transform.ErrDownstream) {
		t.Errorf("with the network down: %v", err)
	}
	b.want("running 0", `SELECT concat_ws(' ', r.state, sum(c.tries)) FROM redrive_runs r JOIN redrive_chunks c ON c.run = r.id WHERE r.state = 'running' GROUP BY r.state`)
	b.Contract = func(context.Context) (transform.Transformer, error) { return b.contract.Load(), nil }
	if runs := do[redrive.Runs](b, "continue", nil); len(runs.Runs) != 1 || runs.Runs[0].Counts.WouldClear != 10 {
		t.Errorf("with the network up again: %+v", runs)
	}
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 12, 3)
	b.exec(`UPDATE failed_geotasks SET lost_leases = 2 WHERE id = 1`)
	b.exec(`UPDATE failed_geotasks SET status = 'pending', lease_token = gen_random_uuid(), next_attempt_at = now() + interval '1 hour' WHERE id = 2`)
	b.exec(`UPDATE failed_geotasks SET attempts = 4, attempts_forgiven = 2, redrives = 1 WHERE id = 3`)
	r := do[redrive.Run](b, "requeue", real(object{"filter": object{"batch_id": "county", "status": []string{"quarantined", "pending"}}}))
	if r.State != "done" || r.Counts.Changed != 14 || r.Counts.Skipped != 1 || r.Handled != 15 {
		t.Errorf("run %+v", r)
	}
	b.want("14", `SELECT count(*) FROM failed_geotasks WHERE status = 'pending' AND lease_token IS NULL AND redrives >= 1 AND attempts_forgiven = attempts AND next_attempt_at <= now()`)
	// What went before is kept: first_seen, the error, the history, the suspicion.
	b.want("14", `SELECT count(*) FROM failed_geotasks WHERE lease_token IS NULL AND error_type = 'coerce_failed' AND first_seen < '2026-11-02'`)
	b.want("2", `SELECT lost_leases FROM failed_geotasks WHERE id = 1`)
	b.want("4 4 2", `SELECT concat_ws(' ', attempts, attempts_forgiven, redrives) FROM failed_geotasks WHERE id = 3`)
	b.want("quarantined requeued", `SELECT string_agg(event, ' ' ORDER BY id) FROM failed_geotasks_history WHERE task = 3`)
	b.want("ada", `SELECT actor FROM failed_geotasks_history WHERE task = 3 AND event = 'requeued'`)

	b.exec(`UPDATE failed_geotasks SET lease_token = NULL WHERE id = 2`)
	b.replay()
	b.want("11 3", `SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'replayed'), count(*) FILTER (WHERE status = 'quarantined')) FROM failed_geotasks WHERE id <> 2`)
	b.balanced()
	// Nothing comes out of quarantine by itself.
	b.replay()
	b.want("3", `SELECT count(*) FROM failed_geotasks WHERE status = 'quarantined'`)

	// The same request once more, with the same run, is the same run.
	id := "0b2f1a52-9a41-4c7e-8f16-2d95e07bc438"
	first := do[redrive.Run](b, "requeue", real(object{"run": id, "limit": 2}))
	again := do[redrive.Run](b, "requeue", real(object{"run": id, "limit": 2}))
	if diff := cmp.Diff(first, again, cmpopts.IgnoreUnexported(redrive.Run{})); diff != "" || first.Counts.Changed != 2 {
		t.Errorf("the request sent again (-first +again):\n%s", diff)
	}
}

func TestMembersAreFixedAtTheStart(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 20, 0)
	r := do[redrive.Run](b, "requeue", real(object{"rate": 0.001})) // one row, then a wait beyond any patience
	if r.State != "running" || r.Handled != 1 || r.Members != 20 {
		t.Fatalf("run %+v", r)
	}
	// Others come to quarantine, and a member leaves it.
	b.capture(5, "county", "circa 1905")
	b.replay()
	b.exec(`UPDATE failed_geotasks SET status = 'discarded' WHERE id = 20`)
	b.exec(`UPDATE redrive_runs SET rate = NULL, next_chunk_at = now()`)
	runs := do[redrive.Runs](b, "continue", nil)
	if got := runs.Runs[0]; got.State != "done" || got.Counts.Changed != 19 || got.Counts.Skipped != 1 {
		t.Errorf("run %+v, want 19 changed and one passed over", got)
	}
	b.want("5 1", `SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'quarantined'), count(*) FILTER (WHERE status = 'discarded')) FROM failed_geotasks WHERE redrives = 0`)
	b.balanced()
}

func TestCanary(t *testing.T) {
	for _, c := range []struct {
		name      string
		good, bad int
		share     any
		passed    bool
	}{
		{"enough clear", 95, 5, 0.9, true},
		{"too few clear", 60, 40, 0.9, false},
		{"few are enough where few are asked for", 60, 40, 0.5, true},
		{"all must clear", 99, 1, 1.0, false},
		{"more than there are", 10, 0, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := quarantined(t, c.good, c.bad)
			all := int64(c.good + c.bad)
			canary := min(all, 100)
			ask := object{"canary": 100}
			if all > 50 && c.name != "all must clear" {
				canary = 50
				ask["canary"] = 50
			}
			if c.share != nil {
				ask["canary_share"] = c.share
			}
			r := do[redrive.Run](b, "requeue", real(ask))
			got := r.Counts.Canary
			if got == nil || got.Tried != canary || got.Cleared+got.Failed != canary || r.CanaryPassed == nil || *r.CanaryPassed != c.passed {
				t.Fatalf("canary %+v, passed %v; want %d tried, passed %t", got, r.CanaryPassed, canary, c.passed)
			}
			// For real: these are in the target, and those back in quarantine.
			b.want(fmt.Sprint(got.Cleared), `SELECT count(*) FROM processed_features`)
			b.want(fmt.Sprint(canary), `SELECT count(*) FROM failed_geotasks_history WHERE event = 'requeued' AND task IN (SELECT unnest(tasks) FROM redrive_chunks WHERE canary)`)
			// Taken from all over the members.
			if canary == 50 {
				b.want("true", `SELECT abs(avg(f.id) - 50) < 2 FROM failed_geotasks f WHERE f.id IN (SELECT unnest(tasks) FROM redrive_chunks WHERE canary)`)
			}
			if c.passed {
				if r.State != "done" || r.Counts.Changed != all {
					t.Errorf("after a good canary: %+v", r)
				}
				return
			}
			if r.State != "stopped" || r.StoppedBecause == "" || r.Counts.Changed != canary || got.Causes[0].Reason != "coerce_failed" {
				t.Errorf("after a bad canary: %+v", r)
			}
			b.want(fmt.Sprint(all-canary), `SELECT count(*) FROM failed_geotasks WHERE redrives = 0`)
			b.want("requeue ada, requeue stopped ada", `SELECT string_agg(action || ' ' || actor, ', ' ORDER BY id) FROM redrive_audit`)
			// Nothing goes on by itself; a person may say so.
			if runs := do[redrive.Runs](b, "continue", nil); len(runs.Runs) != 0 {
				t.Errorf("a stopped run went on: %+v", runs)
			}
			r = do[redrive.Run](b, "resume", object{"run": r.ID, "actor": "grace"})
			if r.State != "done" || r.Counts.Changed != all {
				t.Errorf("resumed: %+v", r)
			}
			b.balanced()
		})
	}
}

func TestCanaryTriesASuspectAlone(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 10, 0)
	b.exec(`UPDATE failed_geotasks SET lost_leases = 1 WHERE id IN (3, 4)`)
	r := do[redrive.Run](b, "requeue", real(object{"canary": 10}))
	if r.State != "done" || r.Counts.Canary.Cleared != 10 {
		t.Errorf("run %+v", r)
	}
	b.want("10", `SELECT count(*) FROM failed_geotasks WHERE status = 'replayed'`)
}

func TestCanaryOfAWorkerThatVanished(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 10, 0)
	// A canary whose process died after it had claimed four rows.
	r := do[redrive.Run](b, "requeue", real(object{"canary": 10, "rate": 0.001}))
	b.exec(`UPDATE redrive_runs SET state = 'running', rate = NULL, next_chunk_at = now(), canary_passed = NULL, counts = '{}', handled = 0`)
	b.exec(`UPDATE redrive_chunks SET done_at = NULL`)
	b.exec(`UPDATE failed_geotasks SET status = 'quarantined', redrives = 0, last_seen = $1 WHERE id > 4`, r.StartedAt.Add(-time.Second))
	b.exec(`UPDATE failed_geotasks SET status = 'pending', lease_token = gen_random_uuid(), next_attempt_at = now() + interval '1.5 s' WHERE id <= 4`)
	r = do[redrive.Runs](b, "continue", nil).Runs[0]
	if c := r.Counts.Canary; r.State != "stopped" || c.Tried != 10 || c.Cleared != 6 || c.Failed != 4 {
		t.Errorf("run %+v, canary %+v; want six cleared and the four that a worker vanished with counted as failed", r, c)
	}
}

func TestPauseResumeCancel(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 30, 0)
	r := do[redrive.Run](b, "requeue", real(object{"rate": 0.001}))
	b.refuse("is running", "resume", object{"run": r.ID, "actor": "ada"})
	b.refuse("who asks?", "pause", object{"run": r.ID})
	b.refuse("there is no run", "pause", object{"run": "0b2f1a52-9a41-4c7e-8f16-2d95e07bc438", "actor": "ada"})
	if got := do[redrive.Run](b, "pause", object{"run": r.ID, "actor": "ada"}); got.State != "paused" || got.Handled != 1 {
		t.Errorf("paused: %+v", got)
	}
	b.exec(`UPDATE redrive_runs SET next_chunk_at = now()`)
	if runs := do[redrive.Runs](b, "continue", nil); len(runs.Runs) != 0 {
		t.Errorf("continue took up a paused run: %+v", runs)
	}
	if got := do[redrive.Run](b, "run", object{"run": r.ID}); got.State != "paused" || got.Handled != 1 {
		t.Errorf("a paused run moved: %+v", got)
	}
	if got := do[redrive.Run](b, "resume", object{"run": r.ID, "actor": "ada"}); got.State != "running" || got.Handled != 2 {
		t.Errorf("resumed: %+v", got)
	}
	if got := do[redrive.Run](b, "cancel", object{"run": r.ID, "actor": "grace"}); got.State != "cancelled" || got.EndedAt == nil {
		t.Errorf("cancelled: %+v", got)
	}
	b.refuse("is cancelled", "resume", object{"run": r.ID, "actor": "ada"})
	b.want("2", `SELECT count(*) FROM failed_geotasks WHERE status = 'pending'`)
	audit := do[redrive.Audit](b, "audit", object{"run": r.ID})
	var did []string
	for _, e := range audit.Entries {
		did = append(did, e.Actor+" "+e.Action+" "+e.RequestID)
	}
	if diff := cmp.Diff([]string{"grace cancel request-1", "ada resume request-1", "ada pause request-1", "ada requeue request-1"}, did); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	if runs := do[redrive.Runs](b, "runs", object{"state": "cancelled"}); len(runs.Runs) != 1 || runs.Runs[0].ID != r.ID {
		t.Errorf("runs: %+v", runs)
	}
}

func TestRateIsKept(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 30, 0)
	began := time.Now()
	r := do[redrive.Run](b, "requeue", real(object{"rate": 20}))
	// Twenty at once, ten a second later; the upper end is the machine's.
	if took := time.Since(began); r.State != "done" || took < 900*time.Millisecond {
		t.Errorf("%s after %s", r.State, took)
	}
	b.want("2", `SELECT count(DISTINCT at) FROM failed_geotasks_history WHERE event = 'requeued'`)
}

func TestRunGoesOnInTheNextInvocation(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 40, 0)
	b.exec(`UPDATE failed_geotasks SET last_seen = last_seen - interval '1 minute'`)
	request := real(object{"rate": 10, "run": "0b2f1a52-9a41-4c7e-8f16-2d95e07bc438"})
	invocations := 0
	for state := ""; state != "done"; invocations++ {
		if invocations == 20 {
			t.Fatal("the run does not end")
		}
		// An invocation with 300 ms, of which the last 100 are not to be used.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		answer, err := b.try(ctx, "requeue", request)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			continue // a slow machine
		}
		if err != nil {
			t.Fatal(err)
		}
		state = answer.(redrive.Run).State
		b.exec(`UPDATE redrive_runs SET next_chunk_at = now()`)
	}
	if invocations < 4 {
		t.Errorf("40 rows at 10 a second took %d invocations of a fifth of a second, want 4 or more", invocations)
	}
	b.want("40", `SELECT count(*) FROM failed_geotasks WHERE redrives = 1`)
	b.want("40", `SELECT count(*) FROM failed_geotasks_history WHERE event = 'requeued'`)
}

// severed is a database whose connection breaks at the given call.
type severed struct {
	queue.DB
	mu    sync.Mutex
	calls int
	at    int
}

var errSevered = errors.New("connection reset by peer")

func (s *severed) cut() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.calls >= s.at {
		return errSevered
	}
	return nil
}

func (s *severed) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.cut(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return s.DB.Exec(ctx, sql, args...)
}

func (s *severed) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.cut(); err != nil {
		return nil, err
	}
	return s.DB.Query(ctx, sql, args...)
}

func (s *severed) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := s.cut(); err != nil {
		return lost{}
	}
	return s.DB.QueryRow(ctx, sql, args...)
}

type lost struct{}

func (lost) Scan(...any) error { return errSevered }

func (s *severed) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := s.cut(); err != nil {
		return nil, err
	}
	tx, err := s.DB.Begin(ctx)
	return &severedTx{tx, s}, err
}

// severedTx breaks within a transaction, and at its commit.
type severedTx struct {
	pgx.Tx
	s *severed
}

func (t *severedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.s.cut(); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

func (t *severedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.s.cut(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Tx.Exec(ctx, sql, args...)
}

func (t *severedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.s.cut(); err != nil {
		return nil, err
	}
	return t.Tx.Query(ctx, sql, args...)
}

func (t *severedTx) Commit(ctx context.Context) error {
	if err := t.s.cut(); err != nil {
		t.Tx.Rollback(ctx)
		return err
	}
	return t.Tx.Commit(ctx)
}

// Whatever statement a run breaks off at, the next invocation ends it, and every row is
// requeued once.
func TestRunThatBreaksOffAnywhere(t *testing.T) {
	for _, c := range []struct {
		name, action string
		request      object
		check        string
	}{
		{"requeue", "requeue", object{"rate": 1000}, `SELECT count(*) FROM failed_geotasks WHERE redrives = 1 AND status = 'pending'`},
		{"requeue with a canary", "requeue", object{"canary": 3, "canary_share": 0}, `SELECT count(*) FROM failed_geotasks WHERE redrives = 1 AND status IN ('pending', 'replayed')`},
		{"discard", "discard", object{"reason": "too old"}, `SELECT count(*) FROM failed_geotasks WHERE status = 'discarded'`},
		{"fix", "fix", object{"overrides": object{"set": object{"built_year": 1905}}}, `SELECT count(*) FROM failed_geotasks WHERE overrides = '{"set": {"built_year": 1905}}'`},
		{"dry run", "requeue", object{"dry_run": true}, `SELECT counts ->> 'would_clear' FROM redrive_runs WHERE counts ->> 'skipped' = '0'`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := quarantined(t, 10, 0)
			whole := b.Service
			for at := 1; ; at++ {
				b.exec(`UPDATE failed_geotasks SET status = 'quarantined', redrives = 0, overrides = NULL, lease_token = NULL, lost_leases = 0, last_seen = now() - interval '1 hour'`)
				b.exec(`DELETE FROM failed_geotasks_history`)
				b.exec(`DELETE FROM processed_features`)
				b.exec(`DELETE FROM redrive_chunks`)
				b.exec(`DELETE FROM redrive_runs`)
				cut := &severed{DB: b.db, at: at}
				broken := *whole
				broken.DB, broken.Queue = cut, queue.New(cut)
				b.Service = &broken
				request := real(c.request)
				request["run"] = "0b2f1a52-9a41-4c7e-8f16-2d95e07bc438"
				_, err := b.try(context.Background(), c.action, request)
				b.Service = whole
				finished := cut.calls < at
				if finished != (err == nil) {
					t.Fatalf("severed at call %d of %d: %v", at, cut.calls, err)
				}
				// A worker that died with the canary in hand: its leases run out.
				b.exec(`UPDATE failed_geotasks SET next_attempt_at = now() - interval '1 s' WHERE lease_token IS NOT NULL`)
				r := do[redrive.Run](b, c.action, request)
				if r.State != "done" || r.Handled != 10 {
					t.Fatalf("severed at call %d, then: %+v", at, r)
				}
				b.want("10", c.check)
				if c.action != "requeue" || c.request["dry_run"] == nil {
					b.want("10", `SELECT count(*) FROM failed_geotasks_history WHERE event IN ('requeued', 'discarded', 'fixed')`)
				}
				if finished {
					if at < 5 {
						t.Fatalf("a run takes only %d calls", at)
					}
					return
				}
			}
		})
	}
}

func TestTwoInvocationsWorkOnOneRun(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 60, 0)
	request := real(object{"rate": 0.001, "canary": 20})
	r := do[redrive.Run](b, "requeue", request)
	b.exec(`UPDATE redrive_runs SET rate = 100000, next_chunk_at = now()`)
	// More chunks, so that there is something to fight over.
	b.exec(`UPDATE failed_geotasks SET status = 'quarantined', redrives = 0 WHERE status = 'pending'`)
	b.exec(`DELETE FROM failed_geotasks_history`)
	b.exec(`DELETE FROM redrive_chunks WHERE NOT canary`)
	b.exec(`INSERT INTO redrive_chunks (run, chunk, tasks) SELECT $1::text::uuid, 100 + row_number() OVER (), ARRAY[id] FROM failed_geotasks WHERE status = 'quarantined'`, r.ID)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := b.try(context.Background(), "continue", object{"run": r.ID}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.want("40 40", `SELECT concat_ws(' ', count(*), count(DISTINCT task)) FROM failed_geotasks_history WHERE event = 'requeued'`)
	b.want("done", `SELECT state FROM redrive_runs`)
	b.balanced()
}

func TestTwoRunsOverTheSameRows(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 200, 0)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r := real(object{"canary": 10})
			if i%2 == 1 {
				r = real(object{"reason": "no longer wanted"})
			}
			if _, err := b.try(context.Background(), []string{"requeue", "discard"}[i%2], r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.want("0", `SELECT count(*) FROM failed_geotasks WHERE redrives > 1 OR status = 'quarantined'`)
	b.want("200", `SELECT count(*) FROM failed_geotasks_history WHERE event IN ('requeued', 'discarded')`)
	b.balanced()
}

func TestFix(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 0, 10)
	payloads := b.one(`SELECT md5(string_agg(feature_geojson, '' ORDER BY id)) FROM failed_geotasks`)
	year := object{"set": object{"built_year": 1905}}
	dry := do[redrive.Run](b, "fix", object{"filter": county, "actor": "ada", "overrides": year})
	if dry.Counts.WouldClear != 10 {
		t.Errorf("dry run: %+v, want ten that would clear with the fix", dry.Counts)
	}
	b.want("0", `SELECT count(*) FROM failed_geotasks WHERE overrides IS NOT NULL`)
	r := do[redrive.Run](b, "fix", real(object{"overrides": year, "why": "the deed says 1905"}))
	if r.Counts.Changed != 10 {
		t.Errorf("fix: %+v", r.Counts)
	}
	b.want("10", `SELECT count(*) FROM failed_geotasks_history WHERE event = 'fixed' AND actor = 'ada' AND error = 'the deed says 1905'`)
	b.want("10", `SELECT count(*) FROM failed_geotasks WHERE status = 'quarantined'`)
	// A later fix lies over the earlier, attribute by attribute.
	do[redrive.Run](b, "fix", real(object{"overrides": object{"set": object{"note": "checked"}, "source_crs": "EPSG:32610"}, "filter": object{"id": 1}, "requeue": true}))
	b.want(`{"set": {"note": "checked", "built_year": 1905}, "source_crs": "EPSG:32610"}`, `SELECT overrides FROM failed_geotasks WHERE id = 1`)
	b.want("pending 1", `SELECT concat_ws(' ', status, redrives) FROM failed_geotasks WHERE id = 1`)
	// Or takes its place; an empty one takes it away.
	do[redrive.Run](b, "fix", real(object{"overrides": object{}, "replace": true, "filter": object{"id": 2}}))
	b.want("true", `SELECT overrides IS NULL FROM failed_geotasks WHERE id = 2`)

	do[redrive.Run](b, "requeue", real(nil))
	b.replay()
	b.want("9 1", `SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'replayed'), count(*) FILTER (WHERE status = 'quarantined')) FROM failed_geotasks`)
	b.want("32610 checked", `SELECT concat_ws(' ', p.source_epsg, p.properties ->> 'note') FROM processed_features p JOIN failed_geotasks f USING (geom_hash) WHERE f.id = 1`)
	b.want(payloads, `SELECT md5(string_agg(feature_geojson, '' ORDER BY id)) FROM failed_geotasks`)
	b.balanced()
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 10, 0)
	give := object{"reason": "the county withdrew them"}
	if r := do[redrive.Run](b, "discard", object{"filter": county, "actor": "ada", "reason": "r"}); !r.DryRun || r.Counts.Changed != 10 {
		t.Errorf("dry run: %+v", r)
	}
	b.want("10", `SELECT count(*) FROM failed_geotasks WHERE status = 'quarantined'`)
	r := do[redrive.Run](b, "discard", real(give))
	if r.Counts.Changed != 10 || r.State != "done" {
		t.Errorf("run %+v", r)
	}
	b.want("10", `SELECT count(*) FROM failed_geotasks WHERE status = 'discarded' AND error_type = 'coerce_failed'`)
	b.want("10", `SELECT count(*) FROM failed_geotasks_history WHERE event = 'discarded' AND actor = 'ada' AND error = 'the county withdrew them'`)
	b.want("discard ada the county withdrew them 10", `SELECT concat_ws(' ', action, actor, request ->> 'reason', counts ->> 'members') FROM redrive_audit ORDER BY id DESC OFFSET 1 LIMIT 1`)
	b.want("discard ended 10", `SELECT concat_ws(' ', action, counts ->> 'changed') FROM redrive_audit ORDER BY id DESC LIMIT 1`)
	// Given up is not gone.
	r = do[redrive.Run](b, "requeue", real(object{"filter": object{"batch_id": "county", "status": "discarded"}}))
	if r.Counts.Changed != 10 {
		t.Errorf("run %+v", r)
	}
	b.balanced()
}

func TestCallerThatThePlatformKnows(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 1, 0)
	_, err := b.Do(t.Context(), redrive.Caller{Identity: "arn:aws:sts::1:assumed-role/ops/grace"},
		[]byte(`{"action": "requeue", "filter": {"batch_id": "county"}, "actor": "somebody else"}`))
	if err != nil {
		t.Fatal(err)
	}
	b.want("arn:aws:sts::1:assumed-role/ops/grace", `SELECT string_agg(DISTINCT actor, ' ') FROM redrive_audit`)
}

func TestLogThatCannotBeWrittenStopsNothing(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 3, 0)
	b.Log = unwritable(b)
	r := do[redrive.Run](b, "requeue", real(nil))
	if r.State != "done" || r.Counts.Changed != 3 || r.Counts.Unwritten != 3 {
		t.Errorf("run %+v, want it done and three outcomes missing in the log", r)
	}
}
