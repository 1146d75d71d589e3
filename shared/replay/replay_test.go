package replay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		worker()
		return
	}
	localtest.Main(m)
}

// script is a transform that does to a feature what the first word of its id says.
type script struct {
	before func(in transform.Input) // called for each feature, if set
}

func (script) Target() transform.Target {
	return transform.Target{EPSG: 3857, Repair: transform.RepairStructure, MaxAreaChange: 0.5}
}

func (script) Version() string { return "script-1" }

func (s script) Transform(ctx context.Context, in transform.Input) (transform.Output, error) {
	if s.before != nil {
		s.before(in)
	}
	word, _, _ := strings.Cut(in.TaskID, "-")
	switch word {
	case "data":
		return transform.Output{}, deadletter.Faultf(deadletter.ReasonCoerceFailed, "coerce:x->integer", "x is no integer")
	case "unknown":
		return transform.Output{}, errors.New("the moon is in the wrong house")
	case "panic":
		panic("index out of range")
	case "hang":
		<-ctx.Done() // and then it does not care
		select {}
	case "downstream":
		return transform.Output{}, fmt.Errorf("ask the geocoder: %w", transform.ErrDownstream)
	case "kill":
		kill()
	}
	return transform.Output{
		FeatureID: in.TaskID, Properties: []byte(`{}`), Geometry: in.Geometry, EPSG: 3857, Engine: crs.EngineIdentity,
		SourceEPSG: 3857, SourceCRS: "EPSG:3857", GeomHash: deadletter.GeomHash(in.TaskID, 3857, in.Geometry),
	}, nil
}

// bundle is an engine on a schema of its own.
type bundle struct {
	*replay.Engine
	pool *pgxpool.Pool
	t    testing.TB
}

func newBundle(t testing.TB, mode pgx.QueryExecMode) *bundle {
	t.Helper()
	return openBundle(t, localtest.Database(t), mode)
}

func openBundle(t testing.TB, url string, mode pgx.QueryExecMode) *bundle {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &bundle{&replay.Engine{
		Queue: queue.New(pool),
		Settings: replay.Settings{
			Policy:  queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: time.Minute},
			Workers: 2, ClaimSize: 50, Lease: time.Minute, RowTimeout: 10 * time.Second, Margin: time.Second,
		},
		Log:  slog.New(slog.NewJSONHandler(io.Discard, nil)),
		Stop: context.Background(),
	}, pool, t}
}

// insert queues n features named kind-1 to kind-n.
func (b *bundle) insert(kind string, n int, batch string) {
	b.t.Helper()
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, geom, epsg)
		SELECT $1 || '-' || i, $3, ST_Point(i, 1, 3857), 3857 FROM generate_series(1, $2) i`, kind, n, batch)
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

func (b *bundle) want(want, sql string, args ...any) {
	b.t.Helper()
	var got string
	if err := b.pool.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&got); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	if got != want {
		b.t.Errorf("%s\n  got %s, want %s", sql, got, want)
	}
}

func (b *bundle) run(ctx context.Context, e replay.Event, t transform.Transformer) replay.Answer {
	b.t.Helper()
	a, err := b.Run(ctx, e, t)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

func (b *bundle) wantAnswer(got, want replay.Answer) {
	b.t.Helper()
	want.ContractVersion = "script-1"
	if want.QuarantinedByReason == nil {
		want.QuarantinedByReason = map[deadletter.Reason]int64{}
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(replay.Answer{}, "Seconds", "RowsPerSecond", "Trouble")); diff != "" {
		b.t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestRunDrainsTheQueue(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pgx.QueryExecMode{"cache_statement": pgx.QueryExecModeCacheStatement, "exec": pgx.QueryExecModeExec} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, mode)
			b.insert("clean", 300, "a")
			b.insert("data", 7, "a")
			b.insert("unknown", 3, "b")
			b.insert("panic", 2, "b")
			b.insert("tidy", 20, "c")
			b.wantAnswer(b.run(t.Context(), replay.Event{}, script{}), replay.Answer{
				Claimed: 332, Replayed: 320, Inserted: 320, Retried: 5, Quarantined: 7,
				QuarantinedByReason: map[deadletter.Reason]int64{deadletter.ReasonCoerceFailed: 7}, StoppedBecause: replay.StopDrained,
			})
			b.want("320", `SELECT count(*) FROM processed_features`)
			b.want("the transform panicked: index out of range", `SELECT DISTINCT error FROM failed_geotasks WHERE task_id LIKE 'panic%'`)
			b.want("332 320 drained", `SELECT concat_ws(' ', claimed, replayed, stopped_because) FROM replay_runs`)
			b.wantAnswer(b.run(t.Context(), replay.Event{}, script{}), replay.Answer{StoppedBecause: replay.StopDrained})
		})
	}
}

func TestRunOfOneBatchWithALimit(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert("clean", 200, "a")
	b.insert("tidy", 200, "b")
	b.wantAnswer(b.run(t.Context(), replay.Event{BatchID: "b", Limit: 120}, script{}), replay.Answer{Claimed: 120, Replayed: 120, Inserted: 120, StoppedBecause: replay.StopLimit})
	b.want("120 b", `SELECT concat_ws(' ', count(*), min(batch_id)) FROM failed_geotasks WHERE status = 'replayed'`)
	b.wantAnswer(b.run(t.Context(), replay.Event{BatchID: "b", Limit: 1000}, script{}), replay.Answer{Claimed: 80, Replayed: 80, Inserted: 80, StoppedBecause: replay.StopDrained})
	if _, err := b.Run(t.Context(), replay.Event{Limit: -1}, script{}); err == nil {
		t.Error("a negative limit is taken")
	}
}

func TestAHangingRowIsAlone(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.Settings.RowTimeout = 50 * time.Millisecond
	b.insert("clean", 30, "a")
	b.insert("hang", 1, "a")
	b.insert("tidy", 30, "a")
	b.wantAnswer(b.run(t.Context(), replay.Event{}, script{}), replay.Answer{Claimed: 61, Replayed: 60, Inserted: 60, Retried: 1, StoppedBecause: replay.StopDrained})
	b.want("the transform took longer than 50ms (ROW_TIMEOUT)", `SELECT error FROM failed_geotasks WHERE task_id = 'hang-1'`)
}

// Where a run must stop, what it has not started is given back as if never claimed.
func TestWhatIsNotStartedIsReleased(t *testing.T) {
	for _, c := range []struct {
		name string
		want replay.StopReason
		// stop makes the run's context, and the hook that meets the trouble at row 10.
		stop func(b *bundle) (ctx context.Context, atTen func())
	}{
		{"the sandbox is shut down", replay.StopTerminated, func(b *bundle) (context.Context, func()) {
			stop, cancel := context.WithCancel(context.Background())
			b.Stop = stop
			return context.Background(), cancel
		}},
		{"the invocation is cancelled", replay.StopTerminated, func(b *bundle) (context.Context, func()) {
			ctx, cancel := context.WithCancel(context.Background())
			return ctx, cancel
		}},
		{"the deadline is near", replay.StopDeadline, func(b *bundle) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			b.t.Cleanup(cancel)
			b.Settings.Margin = 1900 * time.Millisecond
			return ctx, func() { waitUntil(b.t, ctx, 1800*time.Millisecond) }
		}},
		{"a service is down", replay.StopDownstream, func(b *bundle) (context.Context, func()) {
			b.exec(`UPDATE failed_geotasks SET task_id = 'downstream-10' WHERE task_id = 'clean-10'`)
			return context.Background(), func() {}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			b.Settings.Workers = 1
			b.insert("clean", 100, "a")
			ctx, atTen := c.stop(b)
			n := 0
			a := b.run(ctx, replay.Event{}, script{before: func(transform.Input) {
				if n++; n == 10 {
					atTen()
				}
			}})
			if a.StoppedBecause != c.want {
				t.Errorf("stopped because %s, want %s", a.StoppedBecause, c.want)
			}
			if a.Claimed == 0 || a.Released == 0 || a.Replayed+a.Released != a.Claimed {
				t.Errorf("claimed %d, replayed %d, released %d; want some claimed, and the rest of them released", a.Claimed, a.Replayed, a.Released)
			}
			b.want(fmt.Sprintf("%d 0 0", 100-a.Replayed), `SELECT concat_ws(' ', count(*), sum(attempts), count(lease_token)) FROM failed_geotasks WHERE status = 'pending'`)
		})
	}
}

// waitUntil returns when ctx has less than left to its deadline.
func waitUntil(t testing.TB, ctx context.Context, left time.Duration) {
	deadline, ok := ctx.Deadline()
	if !ok {
		t.Fatal("no deadline to wait for")
	}
	<-time.After(time.Until(deadline.Add(-left)))
}

func TestNoClaimWithoutTime(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert("clean", 10, "a")
	b.Settings.Margin = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b.wantAnswer(b.run(ctx, replay.Event{}, script{}), replay.Answer{StoppedBecause: replay.StopDeadline})
}

func TestATargetThatFitsNothingChargesNobody(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert("clean", 100, "a")
	b.exec(`ALTER TABLE processed_features ADD CONSTRAINT never CHECK (feature_id IS NULL)`)
	a := b.run(t.Context(), replay.Event{}, script{})
	if a.StoppedBecause != replay.StopSchema || a.Replayed+a.Retried+a.Quarantined != 0 || a.Released != a.Claimed {
		t.Errorf("answer %+v, want a run stopped by the schema that released all it claimed", a)
	}
	b.want("100 0", `SELECT concat_ws(' ', count(*), sum(attempts)) FROM failed_geotasks WHERE status = 'pending' AND lease_token IS NULL`)
}

func TestRunsMayOverlap(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert("clean", 2000, "a")
	var mu sync.Mutex
	seen := map[string]int{}
	count := script{before: func(in transform.Input) {
		mu.Lock()
		defer mu.Unlock()
		seen[in.TaskID]++
	}}
	var wg sync.WaitGroup
	var replayed [4]int64
	for i := range replayed {
		wg.Go(func() {
			a, err := b.Run(context.Background(), replay.Event{}, count)
			if err != nil {
				t.Error(err)
			}
			replayed[i] = a.Replayed
		})
	}
	wg.Wait()
	if sum := replayed[0] + replayed[1] + replayed[2] + replayed[3]; sum != 2000 || len(seen) != 2000 {
		t.Errorf("four runs replayed %d rows and transformed %d features, want 2000 each", sum, len(seen))
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was transformed %d times", id, n)
		}
	}
}

func TestADatabaseThatIsDownStopsTheRun(t *testing.T) {
	t.Parallel()
	pg := localtest.Postgres(t)
	b := openBundle(t, migrated(t, pg.URL()), pgx.QueryExecModeCacheStatement)
	b.Settings.Workers = 1
	b.insert("clean", 200, "a")
	n := 0
	a := b.run(t.Context(), replay.Event{}, script{before: func(transform.Input) {
		if n++; n == 75 { // in the second claim
			if err := pg.Stop(context.Background(), local.StopImmediate); err != nil {
				t.Error(err)
			}
		}
	}})
	if a.StoppedBecause != replay.StopDownstream || a.Claimed != 100 || a.Quarantined+a.Retried != 0 {
		t.Errorf("answer %+v, want a run stopped downstream in its second claim", a)
	}
	lost := a.Claimed - a.Replayed // the first claim may have been settled in time
	if err := pg.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.exec(`UPDATE failed_geotasks SET next_attempt_at = now() WHERE lease_token IS NOT NULL`) // the lease runs out
	b.wantAnswer(b.run(t.Context(), replay.Event{}, script{}), replay.Answer{
		Claimed: 100 + lost, Replayed: 100 + lost, Inserted: 100 + lost, LostLeases: lost, StoppedBecause: replay.StopDrained,
	})
	b.want("200 1", `SELECT concat_ws(' ', count(*), max(attempts)) FROM failed_geotasks WHERE status = 'replayed'`)
}
