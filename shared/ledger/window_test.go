package ledger_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"geodlq/shared/ledger"
)

// now reads the database clock.
func (b bench) now() time.Time { return scan[time.Time](b, `SELECT now()`).UTC() }

// at runs sql and dates what it appends to the ledger, to the runs and to the
// archive files as if it had happened at a time.
func (b bench) at(when time.Time, sql string, args ...any) {
	b.t.Helper()
	last := scan[int64](b, `SELECT coalesce(max(id), 0) FROM dlq_ledger`)
	b.exec(sql, args...)
	b.exec(`UPDATE dlq_ledger SET at = $1 WHERE id > $2`, when, last)
}

func (b bench) close(scheduled time.Time) ledger.Closed {
	b.t.Helper()
	closed, err := b.Close(b.t.Context(), scheduled)
	if err != nil {
		b.t.Fatal(err)
	}
	return closed
}

func (b bench) unpublished() []ledger.Window {
	b.t.Helper()
	windows, _, err := b.Unpublished(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return windows
}

func ptr[T any](v T) *T { return &v }

// untimed leaves out of windows what follows from when the test runs.
func untimed(windows []ledger.Window) []ledger.Window {
	out := append([]ledger.Window{}, windows...)
	for i := range out {
		out[i].OldestPendingAge = nil
	}
	return out
}

func TestTheFirstWindowIsTheLastThatIsOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	due := b.now().Truncate(window)
	for _, late := range []time.Duration{0, 37 * time.Second} { // the second time is a repetition
		b.fold()
		if got := b.close(due.Add(late)); late > 0 && got.Windows != 0 {
			t.Errorf("a repetition closed %d windows", got.Windows)
		}
	}
	want := []ledger.Window{{Start: due.Add(-window), End: due, ReplayFailedByReason: map[string]int64{}, QuarantinedByReason: map[string]int64{},
		ClearedByAge: map[int]int64{}, OldestPendingAge: ptr(0.0)}}
	if d := cmp.Diff(want, b.unpublished()); d != "" {
		t.Error(d)
	}
}

// A day in the life: what happened while metrics did not run is told window by
// window, each as things stood at its end.
func TestMissedWindowsAreMadeUpFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := b.now().Truncate(window)
	start := end.Add(-4 * window)
	b.at(start.Add(time.Minute), `INSERT INTO failed_geotasks (id, batch_id) SELECT i, 'a' FROM generate_series(1, 10) i`)
	b.at(start.Add(window), `UPDATE failed_geotasks SET status = 'quarantined', error_type = 'missing_crs' WHERE id <= 2`)
	b.at(start.Add(2*window-time.Microsecond), `INSERT INTO failed_geotasks (id, batch_id, status, error_type)
		SELECT i, 'b', 'quarantined', 'made up by somebody' FROM generate_series(11, 14) i`)
	b.at(start.Add(2*window), `UPDATE failed_geotasks SET status = 'discarded' WHERE batch_id = 'b'`)
	// Nothing in the fourth window, and one row in the one that is open.
	b.at(end, `UPDATE failed_geotasks SET status = 'replayed', first_seen = now() - interval '100 s' WHERE id = 10`)
	b.fold()
	if got := b.close(end); got.Windows != 4 || got.Behind != 0 || got.Since != nil {
		t.Fatalf("closed %+v, want 4 windows", got)
	}
	none := map[string]int64{}
	ages := map[int]int64{}
	want := []ledger.Window{
		{Start: start, End: start.Add(window), Arrived: 10, ArrivedTotal: 10, Active: 10, PoisonRate: ptr(0.0),
			ReplayFailedByReason: none, QuarantinedByReason: none, ClearedByAge: ages},
		{Start: start.Add(window), End: start.Add(2 * window), Arrived: 4, Quarantined: 6, ArrivedTotal: 14, Active: 8, QuarantinedNow: 6,
			PoisonRate: ptr(0.4286), WorstBatch: ptr("b"), WorstPoisonRate: ptr(1.0),
			ReplayFailedByReason: none, QuarantinedByReason: map[string]int64{"missing_crs": 2, "unknown": 4}, ClearedByAge: ages},
		{Start: start.Add(2 * window), End: start.Add(3 * window), Discarded: 4, ArrivedTotal: 14, Active: 8, QuarantinedNow: 2,
			PoisonRate: ptr(0.1429), WorstBatch: ptr("a"), WorstPoisonRate: ptr(0.2),
			ReplayFailedByReason: none, QuarantinedByReason: none, ClearedByAge: ages},
		// The last one stands for this moment, in which row 10 is cleared already.
		{Start: start.Add(3 * window), End: end, ArrivedTotal: 14, Active: 7, QuarantinedNow: 2,
			PoisonRate: ptr(0.1429), WorstBatch: ptr("a"), WorstPoisonRate: ptr(0.2),
			ReplayFailedByReason: none, QuarantinedByReason: none, ClearedByAge: ages},
	}
	got := b.unpublished()
	if d := cmp.Diff(want, untimed(got)); d != "" {
		t.Error(d)
	}
	for i, w := range got {
		if known := w.OldestPendingAge != nil; known != (i == 3) {
			t.Errorf("window %d knows the oldest pending age: %t", i, known)
		}
	}
	// The window under way is closed early by naming its end.
	if got := b.close(end.Add(window)); got.Windows != 1 {
		t.Fatalf("closed %+v, want the window under way", got)
	}
	last := b.unpublished()[4]
	if last.Cleared != 1 || last.ClearedByAge[26] != 1 || ledger.AgeOf(26) < 91 || ledger.AgeOf(26) > 109 {
		t.Errorf("the row cleared after 100 s is in %+v, whose class 26 stands for %g s", last, ledger.AgeOf(26))
	}
}

func TestWhatComesLateCountsInTheOpenWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := b.now().Truncate(window)
	b.at(end.Add(-time.Second), `INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
	b.fold()
	b.close(end)
	before := b.unpublished()
	b.at(end.Add(-time.Second), `INSERT INTO failed_geotasks (batch_id) VALUES ('a'), ('b')`) // committed late
	b.reconciled()
	b.close(end.Add(window))
	after := b.unpublished()
	if d := cmp.Diff(before, after[:1]); d != "" {
		t.Errorf("the closed window changed: %s", d)
	}
	if before[0].Arrived != 1 || after[1].Arrived != 2 {
		t.Errorf("arrived %d and %d, want 1 and 2: all windows together are what arrived", before[0].Arrived, after[1].Arrived)
	}
}

func TestScheduledTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tc := range []struct {
		situation string
		ahead     time.Duration // of the end of the last window
		windows   int
		err       error
	}{
		{"the last window's end", 0, 1, nil},
		{"within the window under way", window - time.Nanosecond, 1, nil},
		{"the end of the window under way", window, 2, nil},
		{"more than a window ahead", 3 * window, 0, ledger.ErrFuture},
		{"two hours ago", -2 * window, 0, nil},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			b.t = t
			b.reset()
			end := b.now().Truncate(window)
			b.at(end.Add(-time.Second), `INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
			b.fold()
			if tc.ahead < 0 { // books that were closed an hour later already
				b.close(end)
			}
			closed, err := b.Close(t.Context(), end.Add(tc.ahead))
			if !errors.Is(err, tc.err) || closed.Windows != tc.windows {
				t.Errorf("closed %+v, %v; want %d windows, %v", closed, err, tc.windows, tc.err)
			}
		})
	}
}

func TestNoScheduleClosesTheWindowUnderWayNow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := b.now().Truncate(window)
	b.at(end.Add(-time.Second), `INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
	for i := range 3 {
		b.exec(`INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
		b.fold()
		if got := b.close(time.Time{}); got.Windows < 1 || i > 0 && got.Windows != 1 {
			t.Fatalf("call %d closed %d windows", i, got.Windows)
		}
	}
	var arrived int64
	windows := b.unpublished()
	for i, w := range windows {
		if arrived += w.Arrived; i > 0 && !w.Start.Equal(windows[i-1].End) {
			t.Errorf("window %d begins %s, the one before ends %s", i, w.Start, windows[i-1].End)
		}
	}
	if arrived != 4 || *windows[len(windows)-1].OldestPendingAge <= 0 {
		t.Errorf("all windows together have %d rows, want 4; the last is %+v", arrived, windows[len(windows)-1])
	}
	// The schedule goes on from there to the full hour.
	next := windows[len(windows)-1].End.Truncate(window).Add(window)
	b.close(next)
	if last := b.unpublished()[len(windows)]; !last.End.Equal(next) {
		t.Errorf("the schedule's window ends %s, want %s", last.End, next)
	}
}

func TestAMonthWithoutMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := b.now().Truncate(window)
	b.at(end.Add(-30*24*time.Hour), `INSERT INTO failed_geotasks (batch_id) SELECT 'a' FROM generate_series(1, 7)`)
	b.at(end.Add(-20*24*time.Hour), `INSERT INTO failed_geotasks (batch_id) SELECT 'a' FROM generate_series(1, 5)`)
	b.at(end.Add(-2*24*time.Hour), `INSERT INTO failed_geotasks (batch_id) SELECT 'b' FROM generate_series(1, 3)`)
	b.fold()
	first := b.close(end)
	if first.Windows != ledger.MaxClosed || first.Since == nil || first.Behind < 40 {
		t.Fatalf("the first run closed %+v, want as many as one run may, the rest behind", first)
	}
	if w := b.unpublished()[0]; w.Arrived != 12 || b.now().Sub(w.Start) > 14*24*time.Hour {
		t.Errorf("the first window %+v; want the oldest that can be published, with the 12 rows that came before", w)
	}
	for closed := first; closed.Behind > 0; {
		was := closed.Behind
		if closed = b.close(end); closed.Behind >= was || closed.Since != nil {
			t.Fatalf("a further run closed %+v with %d left before", closed, was)
		}
	}
	if got := scan[int64](b, `SELECT sum(arrived)::bigint FROM dlq_windows`); got != 15 {
		t.Errorf("all windows together have %d rows, want 15", got)
	}
	const gaps = `SELECT count(*) FROM (SELECT window_start, lag(window_end) OVER (ORDER BY window_start) AS before FROM dlq_windows) w WHERE before <> window_start`
	if n := scan[int](b, gaps); n > 0 {
		t.Errorf("there are %d gaps between windows", n)
	}
}

func TestWindowsTooOldToPublishAreGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.close(b.now().Truncate(window))
	b.exec(`UPDATE dlq_windows SET window_start = window_start - interval '14 days'`)
	b.close(b.now().Truncate(window).Add(window))
	for _, want := range []int64{1, 0} {
		windows, expired, err := b.Unpublished(t.Context())
		if err != nil || expired != want || len(windows) != 1 {
			t.Errorf("%d windows, %d given up, %v; want 1 and %d", len(windows), expired, err, want)
		}
	}
}

func TestWindowLengthCanChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Books = ledger.New(b.db, 5*time.Minute)
	hour := b.now().Truncate(time.Hour)
	b.at(hour.Add(-50*time.Minute), `INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
	b.fold()
	b.close(hour.Add(-35 * time.Minute)) // three windows of 5 minutes, until 25 minutes past
	longer := bench{ledger.New(b.db, 10*time.Minute), t, b.db}
	b.at(hour.Add(-33*time.Minute), `INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
	b.at(hour.Add(-28*time.Minute), `INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
	longer.fold()
	longer.close(hour)
	type span struct {
		Start, End time.Duration
		Arrived    int64
	}
	var got []span
	for _, w := range b.unpublished() {
		got = append(got, span{w.Start.Sub(hour) / time.Minute, w.End.Sub(hour) / time.Minute, w.Arrived})
	}
	want := []span{{-50, -45, 1}, {-45, -40, 0}, {-40, -35, 0}, {-35, -30, 1}, {-30, -20, 1}, {-20, -10, 0}, {-10, 0, 0}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestFailedReplaysLostLeasesAndStops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := b.now().Truncate(window)
	b.at(end.Add(-time.Second), `INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, error_type, actor) VALUES
		(1, 'a', 'retried', 1, 'coerce_failed', NULL), (1, 'a', 'retried', 2, 'coerce_failed', NULL), (1, 'a', 'quarantined', 3, 'worker_lost', NULL),
		(2, 'b', 'retried', 1, 'no such reason', NULL), (2, 'b', 'lease_lost', 1, 'worker_lost', NULL), (3, 'b', 'lease_lost', 1, 'worker_lost', NULL),
		(4, 'b', 'quarantined', 1, 'missing_crs', 'a person'), (4, 'b', 'requeued', 1, NULL, 'a person')`)
	b.exec(`INSERT INTO replay_runs (id, started_at, ended_at, claimed, replayed, retried, quarantined, released, stopped_because)
		SELECT gen_random_uuid(), $1, $1, 0, 0, 0, 0, 0, s FROM unnest(ARRAY['downstream', 'drained', 'downstream', 'deadline']) s`, end.Add(-time.Second))
	b.fold()
	b.close(end)
	want := ledger.Window{Start: end.Add(-window), End: end, ReplayFailed: 4, LostLeases: 2, DownstreamStops: 2,
		ReplayFailedByReason: map[string]int64{"coerce_failed": 2, "worker_lost": 1, "unknown": 1},
		QuarantinedByReason:  map[string]int64{}, ClearedByAge: map[int]int64{}}
	if d := cmp.Diff([]ledger.Window{want}, untimed(b.unpublished())); d != "" {
		t.Error(d)
	}
}

func TestOldestPendingAge(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rows = `INSERT INTO failed_geotasks (id, first_seen) VALUES (1, now() - interval '3 h'), (2, now() - interval '2 h'), (3, now() - interval '1 h'); `
	for _, tc := range []struct {
		situation, sql string
		hours          float64
	}{
		{"an empty queue", ``, 0},
		{"rows that wait", rows, 3},
		{"the oldest is under a lease", rows + `UPDATE failed_geotasks SET lease_token = gen_random_uuid(), next_attempt_at = now() + interval '5 min' WHERE id = 1`, 3},
		{"all are under a lease that ran out", rows + `UPDATE failed_geotasks SET lease_token = gen_random_uuid(), next_attempt_at = now() - interval '5 min'`, 3},
		{"the oldest lost its worker", rows + `UPDATE failed_geotasks SET lost_leases = 1 WHERE id = 1`, 3},
		{"the oldest is in quarantine", rows + `UPDATE failed_geotasks SET status = 'quarantined' WHERE id = 1`, 2},
		{"nothing is pending any more", rows + `UPDATE failed_geotasks SET status = 'replayed'`, 0},
		{"seen first tomorrow, by the pipeline's clock", `INSERT INTO failed_geotasks (first_seen) VALUES (now() + interval '1 day')`, 0},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			b.t = t
			b.reset()
			b.exec(tc.sql)
			b.fold()
			b.close(time.Time{})
			windows := b.unpublished()
			age := windows[len(windows)-1].OldestPendingAge
			if age == nil || *age < tc.hours*3600 || *age > tc.hours*3600+600 {
				t.Errorf("age %v s, want %g h", age, tc.hours)
			}
		})
	}
}

// Metrics cost what happened, not what is there: this is all that a run reads of the queue.
func TestOldestPendingAgeIsReadFromIndexes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO failed_geotasks (batch_id, status, error_type, first_seen)
		SELECT 'batch-' || i % 7, CASE i % 3 WHEN 0 THEN 'pending' ELSE 'replayed' END, 'missing_crs', now() - make_interval(secs => i)
		FROM generate_series(1, 20000) i`)
	b.exec(`ANALYZE failed_geotasks`)
	rows, err := b.db.Query(t.Context(), `EXPLAIN `+ledger.OldestPendingAge)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "failed_geotasks_waiting") || !strings.Contains(plan, "failed_geotasks_held") {
		t.Errorf("the age of the oldest pending row is read by\n%s", plan)
	}
}

func TestTimeToClearIsClassedByQuarterOctaves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// The update sets first_seen in the statement that clears, so that the age is exact.
	b.exec(`INSERT INTO failed_geotasks (id) SELECT i FROM generate_series(1, 7) i`)
	b.exec(`UPDATE failed_geotasks SET status = 'replayed', first_seen = now() - make_interval(secs => (ARRAY[-5, 0, 1.1, 1.3, 60, 86400, 1e11])[id])`)
	b.fold()
	b.close(time.Time{})
	got := map[int]int64{}
	for _, w := range b.unpublished() {
		for class, n := range w.ClearedByAge {
			got[class] += n
		}
	}
	want := map[int]int64{0: 3, 1: 1, 23: 1, 65: 1, 127: 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, age := range []float64{2, 60, 3600, 86400, 7 * 86400} {
		class := 0
		for ledger.AgeOf(class+1) <= age {
			class++
		}
		if low, high := ledger.AgeOf(class), ledger.AgeOf(class+1); age/low > 1.2 || high/age > 1.2 {
			t.Errorf("%g s lies between the classes of %g s and %g s, which are too far apart", age, low, high)
		}
	}
}

func TestManyKeepTheSameBooksAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, ledger.FoldAtOnce(7))
	start := b.now().Truncate(window).Add(-6 * window)
	for i := range 60 {
		b.at(start.Add(time.Duration(i)*30*time.Second), `INSERT INTO failed_geotasks (batch_id, status) VALUES ('a', 'pending'), ('b', 'quarantined')`)
	}
	var keepers sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		keepers.Go(func() {
			_, folded := b.Fold(t.Context())
			_, closed := b.Close(t.Context(), start.Add(6*window))
			errs[i] = errors.Join(folded, closed)
		})
	}
	keepers.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	b.reconciled()
	windows := b.unpublished()
	if len(windows) != 6 {
		t.Fatalf("%d windows, want 6", len(windows))
	}
	var arrived int64
	for _, w := range windows {
		arrived += w.Arrived
	}
	if left := scan[int64](b, `SELECT coalesce(sum(n), 0)::bigint FROM dlq_activity WHERE window_start >= $1`, start.Add(6*window)); arrived+left != 120 {
		t.Errorf("windows have %d rows and the open one %d, want 120 together", arrived, left)
	}
}

func TestPruneKeepsWhatIsStillNeeded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO failed_geotasks (batch_id) VALUES ('a')`)
	b.fold()
	b.exec(`UPDATE dlq_activity SET window_start = window_start - interval '20 days'`)
	kept := func() int {
		if err := b.Prune(t.Context()); err != nil {
			t.Fatal(err)
		}
		return scan[int](b, `SELECT count(*) FROM dlq_activity`)
	}
	if kept() != 1 {
		t.Fatal("activity that no window has counted yet was pruned")
	}
	for b.close(time.Time{}).Behind > 0 {
	}
	if kept() != 1 {
		t.Fatal("activity whose lineage is not written was pruned")
	}
	windows, err := b.Unmanifested(t.Context())
	for err == nil && len(windows) > 0 {
		if err = b.MarkManifested(context.Background(), windows); err == nil {
			windows, err = b.Unmanifested(t.Context())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if kept() != 0 {
		t.Error("activity that nothing needs any more was kept")
	}
}
