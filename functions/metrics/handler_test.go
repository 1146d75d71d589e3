package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local/localtest"
	"geodlq/shared/ledger"
	"geodlq/shared/telemetry"
	"geodlq/shared/telemetry/gauge"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// window is as long as windows can be, so that hardly a test meets the end of one.
const window = time.Hour

// bench is the function on a database, a bucket and a namespace of the test's own.
type bench struct {
	*Handler
	t        testing.TB
	db       *pgxpool.Pool
	recorder *localtest.Recorder
	bucket   string
	log      *bytes.Buffer
}

func setup(t testing.TB) bench {
	t.Helper()
	db := localtest.Pool(t, localtest.Database(t))
	b := bench{t: t, db: db, recorder: localtest.CloudWatch(t), bucket: localtest.Bucket(t), log: &bytes.Buffer{}}
	b.Handler = &Handler{
		Books:           ledger.New(db, window),
		Publisher:       gauge.NewPublisher(b.recorder.Client(), b.recorder.Namespace, time.Minute),
		Objects:         localtest.S3(t),
		Log:             telemetry.NewLogger(b.log, slog.LevelInfo),
		Stage:           "test",
		Bucket:          b.bucket,
		TargetNamespace: "postgres://db:5432",
		Threshold:       0.05,
	}
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

// lastHour is the window that ended last.
func (b bench) lastHour() (start, end time.Time) {
	b.t.Helper()
	if err := b.db.QueryRow(b.t.Context(), `SELECT date_trunc('hour', now())`).Scan(&end); err != nil {
		b.t.Fatal(err)
	}
	return end.UTC().Add(-window), end.UTC()
}

// happened runs sql as if it had been in the window that ended last.
func (b bench) happened(sql string) {
	b.t.Helper()
	b.exec(sql)
	_, end := b.lastHour()
	b.exec(`UPDATE dlq_ledger SET at = $1`, end.Add(-time.Minute))
}

func (b bench) handle(event Event) Answer {
	b.t.Helper()
	answer, err := b.Handle(b.t.Context(), event)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

// published are the recorded data, one a line, but for the age of the oldest
// pending row, which depends on when the test runs.
func (b bench) published() []string {
	b.t.Helper()
	var lines []string
	for _, d := range b.recorder.Data(b.t) {
		line := d.Timestamp.Format(time.RFC3339) + " " + d.Name
		if reason := d.Dimensions["Reason"]; reason != "" {
			line += "[" + reason + "]"
		}
		switch {
		case d.Name == metricOldestPendingAge:
			line += " some"
		case d.Value != nil:
			line += fmt.Sprint(" ", *d.Value)
		default:
			line += fmt.Sprintf(" %.1f x %v", d.Values, d.Counts)
		}
		if d.Dimensions["Service"] != "geodlq" || d.Dimensions["Stage"] != "test" || len(d.Dimensions) > 3 {
			b.t.Errorf("%s has the dimensions %v", line, d.Dimensions)
		}
		lines = append(lines, line)
	}
	return lines
}

// errorLines are the log lines at error level.
func (b bench) errorLines() []map[string]any {
	b.t.Helper()
	var lines []map[string]any
	for line := range bytes.Lines(b.log.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			b.t.Fatalf("%s: %v", line, err)
		}
		if fields["level"] == "ERROR" {
			delete(fields, "timestamp")
			delete(fields, "level")
			lines = append(lines, fields)
		}
	}
	return lines
}

func (b bench) manifests() map[string]string {
	b.t.Helper()
	prefix := ledger.Prefix
	listed, err := localtest.S3(b.t).ListObjectsV2(b.t.Context(), &s3.ListObjectsV2Input{Bucket: &b.bucket, Prefix: &prefix})
	if err != nil {
		b.t.Fatal(err)
	}
	objects := map[string]string{}
	for _, o := range listed.Contents {
		got, err := localtest.S3(b.t).GetObject(b.t.Context(), &s3.GetObjectInput{Bucket: &b.bucket, Key: o.Key})
		if err != nil {
			b.t.Fatal(err)
		}
		var body bytes.Buffer
		if _, err := body.ReadFrom(got.Body); err != nil {
			b.t.Fatal(err)
		}
		objects[*o.Key] = body.String()
	}
	return objects
}

const batches = `
	INSERT INTO failed_geotasks (batch_id, status, error_type, failed_rule, first_seen)
	SELECT 'county', s, t, r, now() - interval '100 s' FROM (VALUES
	    ('pending', NULL, NULL, 80), ('quarantined', 'missing_crs', 'reproject', 3), ('quarantined', 'coerce_failed', 'coerce:built_year->integer', 4)) v (s, t, r, n),
	    generate_series(1, n);
	UPDATE failed_geotasks SET status = 'replayed' WHERE id <= 50;
	INSERT INTO failed_geotasks (batch_id) SELECT 'roads' FROM generate_series(1, 13);
	INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, error_type) VALUES (1, 'county', 'retried', 1, 'coerce_failed'), (1, 'county', 'lease_lost', 1, 'worker_lost')`

func TestAWindowIsPublishedWithWhatHappenedInIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.happened(batches)
	start, end := b.lastHour()
	answer := b.handle(Event{ScheduledTime: end, ExecutionID: "e-1"})
	at := start.Format(time.RFC3339) + " "
	want := []string{
		at + "Arrived 100", at + "Cleared 50", at + "ReplayFailed 1", at + "Quarantined 7", at + "Discarded 0", at + "LostLeases 1", at + "DownstreamStops 0",
		at + "Active 43", at + "QuarantinedNow 7", at + "PoisonRate 0.07", at + "WorstBatchPoisonRate 0.0805", at + "OldestPendingAgeSeconds some",
		at + "TimeToClearSeconds [98.7] x [50]",
		at + "ReplayFailed[coerce_failed] 1", at + "Quarantined[coerce_failed] 4", at + "Quarantined[missing_crs] 3",
	}
	if d := cmp.Diff(want, b.published()); d != "" {
		t.Error(d)
	}
	if answer.Published != 1 || len(answer.Windows) != 1 || answer.Systemic != 1 || answer.Manifests != 2 || answer.Folded == 0 {
		t.Errorf("answer %+v", answer.Kept)
	}
	var names []string
	for _, batch := range answer.Batches {
		names = append(names, batch.BatchID)
	}
	if !slices.Equal(names, []string{"county", "roads"}) {
		t.Errorf("batches %v, want the worst first", names)
	}
	wantLog := []map[string]any{{
		"message":  "poison rate of a batch is above the threshold: its failures are systemic",
		"batch_id": "county", "poison_rate": 0.0805, "threshold": 0.05, "arrived": 87.0, "quarantined": 7.0,
		"causes": []any{
			map[string]any{"failed_rule": "coerce:built_year->integer", "error_type": "coerce_failed", "rows": 4.0},
			map[string]any{"failed_rule": "reproject", "error_type": "missing_crs", "rows": 3.0},
		},
	}}
	if d := cmp.Diff(wantLog, b.errorLines()); d != "" {
		t.Error(d)
	}
	manifests := b.manifests()
	prefix := "lineage/date=" + start.Format("2006-01-02") + "/window=" + start.Format("20060102T150405Z") + "/"
	for key, content := range manifests {
		if !strings.HasPrefix(key, prefix) || strings.Count(content, "\n") != 2 {
			t.Errorf("manifest %s: %s", key, content)
		}
	}
	if len(manifests) != 2 {
		t.Errorf("%d manifests, want one a batch", len(manifests))
	}

	// The same invocation again, as Lambda repeats it.
	again := b.handle(Event{ScheduledTime: end, ExecutionID: "e-1"})
	if d := cmp.Diff(want, b.published()); d != "" {
		t.Errorf("the repetition published something: %s", d)
	}
	if again.Published != 0 || again.Manifests != 0 || again.Systemic != 1 {
		t.Errorf("answer of the repetition %+v", again.Kept)
	}
	if d := cmp.Diff(manifests, b.manifests()); d != "" {
		t.Errorf("the repetition changed manifests: %s", d)
	}
}

// failing is a publisher whose answer may be lost.
type failing struct {
	Publisher
	before, after error
}

func (f failing) Publish(ctx context.Context, metrics []gauge.Metric) error {
	if f.before != nil {
		return f.before
	}
	return errors.Join(f.Publisher.Publish(ctx, metrics), f.after)
}

func TestAPublicationThatFailsIsRepeatedWithTheSameValues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.happened(batches)
	_, end := b.lastHour()
	cloudwatch := b.Publisher
	noRoute, lost := errors.New("no route"), errors.New("answer lost")

	b.Publisher = failing{cloudwatch, noRoute, nil}
	if _, err := b.Handle(t.Context(), Event{ScheduledTime: end}); !errors.Is(err, noRoute) {
		t.Fatalf("error %v, want the publisher's: what fails to be published fails the invocation", err)
	}
	if len(b.errorLines()) != 1 || len(b.manifests()) != 2 {
		t.Errorf("%d error lines and %d manifests, want 1 and 2: CloudWatch's trouble does not hide the rest", len(b.errorLines()), len(b.manifests()))
	}
	b.Publisher = failing{cloudwatch, nil, lost}
	if _, err := b.Handle(t.Context(), Event{ScheduledTime: end}); !errors.Is(err, lost) {
		t.Fatalf("error %v, want the publisher's", err)
	}
	first := b.published()
	// Meanwhile things change, and another window begins.
	b.exec(`UPDATE failed_geotasks SET status = 'discarded' WHERE status = 'quarantined'`)
	b.Publisher = cloudwatch
	answer := b.handle(Event{ScheduledTime: end})
	if got := b.published()[len(first):]; answer.Published != 1 || !slices.Equal(got, first) {
		t.Errorf("the repetition published\n%s\nat first it was\n%s", strings.Join(got, "\n"), strings.Join(first, "\n"))
	}
}

func TestTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.happened(batches)
	_, end := b.lastHour()
	var runs sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		runs.Go(func() {
			h := *b.Handler
			h.Log = slog.New(slog.DiscardHandler)
			_, errs[i] = h.Handle(t.Context(), Event{ScheduledTime: end})
		})
	}
	runs.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	values := map[string]bool{}
	names := map[string]bool{}
	for _, line := range b.published() {
		name, _, _ := strings.Cut(strings.SplitN(line, " ", 2)[1], " ")
		names[name], values[line] = true, true
	}
	if len(values) != len(names) || len(values) != 16 {
		t.Errorf("%d metrics were published with %d different values", len(names), len(values))
	}
	if n := len(b.manifests()); n != 2 {
		t.Errorf("%d manifests, want 2", n)
	}
	if check := b.handle(Event{Check: true}); check.Differing != 0 {
		t.Errorf("the books differ: %+v", check.Mismatches)
	}
}

func TestNothingEverArrived(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, end := b.lastHour()
	answer, err := json.Marshal(b.handle(Event{ScheduledTime: end}))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range b.published() {
		if strings.Contains(line, "Rate") || strings.Contains(line, "TimeToClear") {
			t.Errorf("published %s, which is not defined", line)
		}
	}
	if len(b.errorLines()) > 0 || !strings.Contains(string(answer), `"batches":[]`) {
		t.Errorf("error lines %v, answer %s", b.errorLines(), answer)
	}
}

func TestACheckReportsEveryDifference(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.happened(batches)
	if got := b.handle(Event{Check: true}); got.Checked != 2 || got.Differing != 0 || len(b.errorLines()) != 0 {
		t.Errorf("answer %+v, error lines %v; want 2 batches that do not differ", got.Check, b.errorLines())
	}
	b.exec(`ALTER TABLE failed_geotasks DISABLE TRIGGER USER`)
	b.exec(`DELETE FROM failed_geotasks WHERE batch_id = 'roads' AND id % 2 = 0`)
	b.exec(`ALTER TABLE failed_geotasks ENABLE TRIGGER USER`)
	got := b.handle(Event{Check: true})
	var left int64
	if err := b.db.QueryRow(t.Context(), `SELECT count(*) FROM failed_geotasks WHERE batch_id = 'roads'`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	want := []ledger.Mismatch{{BatchID: "roads", Booked: ledger.Rows{Pending: 13}, Counted: ledger.Rows{Pending: left}}}
	if d := cmp.Diff(want, got.Mismatches); d != "" || got.Differing != 1 {
		t.Errorf("%d differ %s", got.Differing, d)
	}
	if lines := b.errorLines(); len(lines) != 1 || lines[0]["batch_id"] != "roads" {
		t.Errorf("error lines %v, want one about roads", lines)
	}
	var values []float64
	for _, d := range b.recorder.Data(t) {
		if d.Name != metricLedgerMismatch {
			t.Errorf("a check published %s", d.Name)
		}
		values = append(values, *d.Value)
	}
	if !slices.Equal(values, []float64{0, 1}) {
		t.Errorf("LedgerMismatch %v, want 0 and 1", values)
	}
}

func TestMoreBatchesThanAreLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO failed_geotasks (batch_id, status) SELECT 'b' || i, 'quarantined' FROM generate_series(1, $1::int) i`, logged+7)
	answer := b.handle(Event{})
	lines := b.errorLines()
	if len(lines) != logged+1 || lines[logged]["batches"] != 7.0 {
		t.Errorf("%d error lines, the last %v; want %d and one that says there are 7 more", len(lines), lines[len(lines)-1], logged)
	}
	if answer.Systemic != logged+7 || len(answer.Batches) != listed {
		t.Errorf("answer has %d of %d batches", len(answer.Batches), answer.Systemic)
	}
}

// The function signs in as a role of its own and, behind a pooler, may not prepare
// statements.
func TestWithTheRightsOfItsRole(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.happened(batches)
			b.exec(`INSERT INTO replay_runs (id, started_at, claimed, replayed, retried, quarantined, released, stopped_because) VALUES (gen_random_uuid(), now(), 0, 0, 0, 0, 0, 'downstream')`)
			b.exec(`INSERT INTO dlq_archive_files (object_key, batch_id, source_object, rows, bytes, sha256) VALUES ('k', 'county', 's3://inbox/a', 1, 1, 'ab')`)
			config := b.db.Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, `SET ROLE geodlq_metrics`)
				return err
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			b.Books = ledger.New(pool, window)
			_, end := b.lastHour()
			if got := b.handle(Event{ScheduledTime: end}); got.Published != 1 || got.Manifests != 2 {
				t.Errorf("answer %+v", got.Kept)
			}
			if got := b.handle(Event{}); got.Windows[0].DownstreamStops != 1 || got.Manifests != 1 {
				t.Errorf("answer %+v, want the run and the file of the window under way", got.Kept)
			}
			if got := b.handle(Event{Check: true}); got.Checked != 2 || got.Differing != 0 {
				t.Errorf("answer %+v", got.Check)
			}
		})
	}
}

func TestAScheduleFarAheadIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, end := b.lastHour()
	if _, err := b.Handle(t.Context(), Event{ScheduledTime: end.Add(3 * window)}); !errors.Is(err, ledger.ErrFuture) {
		t.Errorf("error %v, want ErrFuture", err)
	}
}
