package queue_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/paulmach/orb"

	"geodlq/infra/local/localtest"
	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/transform"
)

// modes are the ways a pool may send statements: to Postgres itself, and through a
// proxy that shares sessions.
var modes = map[string]pgx.QueryExecMode{
	"cache_statement": pgx.QueryExecModeCacheStatement,
	"exec":            pgx.QueryExecModeExec,
}

// inEachMode runs a test on a migrated schema of its own in both modes.
func inEachMode(t *testing.T, test func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, mode))
		})
	}
}

// bundle is a queue on a schema of its own.
type bundle struct {
	*queue.Queue
	pool *pgxpool.Pool
	t    *testing.T
}

func newBundle(t *testing.T, mode pgx.QueryExecMode) *bundle {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(localtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &bundle{queue.New(pool), pool, t}
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// one reads one value as text.
func (b *bundle) one(sql string, args ...any) (s string) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&s); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func (b *bundle) want(want, sql string, args ...any) {
	b.t.Helper()
	if got := b.one(sql, args...); got != want {
		b.t.Errorf("%s\n  got %s, want %s", sql, got, want)
	}
}

// insert queues n rows the way a pipeline with PostGIS does, features "f1".."fn".
func (b *bundle) insert(n int, batch string) {
	b.t.Helper()
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, geom, epsg, geom_hash)
		SELECT 'f' || i, $2, ST_SetSRID(ST_Point(550000 + i, 5190000), 26910), 26910, $2 || '-' || i FROM generate_series(1, $1) i`, n, batch)
}

var (
	contract = queue.Contract{
		Target:  transform.Target{EPSG: 3857, Repair: transform.RepairStructure, MaxAreaChange: 0.5},
		Version: "test-1",
	}
	policy = queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second}
)

func claim(limit int) queue.Claim {
	return queue.Claim{Limit: limit, Bytes: 1 << 30, Lease: time.Minute}
}

func (b *bundle) claim(c queue.Claim) queue.Lease {
	b.t.Helper()
	lease, err := b.Claim(context.Background(), c)
	if err != nil {
		b.t.Fatal(err)
	}
	return lease
}

func (b *bundle) settle(lease queue.Lease, cleared []queue.Cleared, failed ...queue.Failed) []queue.Settled {
	b.t.Helper()
	settled, err := b.Settle(context.Background(), lease.Token, contract, policy, cleared, failed)
	if err != nil {
		b.t.Fatal(err)
	}
	return settled
}

// clear makes the outcome of a transform that put the task's feature at g, in 3857.
func clear(task queue.Task, g orb.Geometry) queue.Cleared {
	return queue.Cleared{ID: task.ID, Output: transform.Output{
		FeatureID: cmp.Or(task.FeatureID, task.TaskID), Properties: []byte(`{}`), Geometry: g, EPSG: 3857, Engine: crs.EngineComputed,
		SourceEPSG: 26910, SourceCRS: "EPSG:26910", GeomHash: task.GeomHash, Rule: "reproject:EPSG:26910->EPSG:3857",
	}}
}

func clearAll(lease queue.Lease) (cleared []queue.Cleared) {
	for i, task := range lease.Tasks {
		cleared = append(cleared, clear(task, orb.Point{float64(i), 1}))
	}
	return cleared
}

func fail(task queue.Task, class transform.Class, reason deadletter.Reason) queue.Failed {
	return queue.Failed{ID: task.ID, Class: class, Fault: deadletter.Faultf(reason, "coerce:built_year->integer", "attribute %q is no integer", "built_year")}
}

// results counts outcomes, e.g. {"inserted": 3}.
func results(settled []queue.Settled) map[queue.Result]int {
	m := map[queue.Result]int{}
	for _, s := range settled {
		m[s.Result]++
	}
	return m
}

func (b *bundle) wantResults(settled []queue.Settled, want map[queue.Result]int) {
	b.t.Helper()
	if diff := gocmp.Diff(want, results(settled)); diff != "" {
		b.t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// balanced checks that the books agree with the rows, batch by batch.
func (b *bundle) balanced() {
	b.t.Helper()
	b.want("", `SELECT string_agg(format('%s %s: ledger %s, rows %s', batch_id, status, ledger, rows), '; ')
		FROM (SELECT batch_id, status, sum(n) AS ledger FROM (
		        SELECT batch_id, to_status AS status, n FROM dlq_ledger WHERE to_status IS NOT NULL
		        UNION ALL SELECT batch_id, from_status, -n FROM dlq_ledger WHERE from_status IS NOT NULL) l
		      GROUP BY batch_id, status HAVING sum(n) <> 0) a
		FULL JOIN (SELECT batch_id, status, count(*) AS rows FROM failed_geotasks GROUP BY batch_id, status) c USING (batch_id, status)
		WHERE ledger IS DISTINCT FROM rows`)
}

func TestSettleClearsOnce(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		b.insert(10, "a")
		lease := b.claim(claim(100))
		if len(lease.Tasks) != 10 {
			t.Fatalf("claimed %d rows, want 10", len(lease.Tasks))
		}
		b.wantResults(b.settle(lease, clearAll(lease)), map[queue.Result]int{queue.Inserted: 10})
		b.want("10", `SELECT count(*) FROM processed_features p JOIN failed_geotasks f USING (dlq_id)
			WHERE f.status = 'replayed' AND f.attempts = 1 AND f.lease_token IS NULL AND p.geom_hash = f.geom_hash AND p.contract_version = 'test-1'`)
		// The worker settles again: it lost its answer, say.
		b.wantResults(b.settle(lease, clearAll(lease)), map[queue.Result]int{queue.Stale: 10})
		b.want("10", `SELECT count(*) FROM processed_features`)
		b.balanced()
	})
}

func TestSettleOfAStaleWorkerChangesNothing(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		b.insert(2, "a")
		c := claim(10)
		stale := b.claim(c)
		// The lease runs out and the rows go to another worker, which is working on them.
		b.exec(`UPDATE failed_geotasks SET next_attempt_at = now() - interval '1 second'`)
		if lost, quarantined, err := b.Rescue(t.Context(), policy); err != nil || lost != 2 || quarantined != 0 {
			t.Fatalf("Rescue = %d lost, %d quarantined, %v; want 2, 0", lost, quarantined, err)
		}
		held, err := b.ClaimSuspect(t.Context(), c)
		if err != nil || len(held.Tasks) != 1 {
			t.Fatalf("ClaimSuspect = %d rows, %v; want one", len(held.Tasks), err)
		}
		before := b.one(`SELECT string_agg(f::text, e'\n' ORDER BY id) FROM failed_geotasks f`)
		b.wantResults(b.settle(stale, clearAll(stale)), map[queue.Result]int{queue.Stale: 2})
		b.wantResults(b.settle(stale, nil, fail(stale.Tasks[0], transform.ClassData, deadletter.ReasonCoerceFailed)), map[queue.Result]int{queue.Stale: 1})
		if n, err := b.Release(t.Context(), stale.Token, []int64{stale.Tasks[0].ID, stale.Tasks[1].ID}); n != 0 || err != nil {
			t.Errorf("a stale worker released %d rows, %v", n, err)
		}
		b.want(before, `SELECT string_agg(f::text, e'\n' ORDER BY id) FROM failed_geotasks f`)
		b.want("0", `SELECT count(*) FROM processed_features`)
		b.wantResults(b.settle(held, clearAll(held)), map[queue.Result]int{queue.Inserted: 1})
	})
}

func TestSettleChargesFailures(t *testing.T) {
	for _, c := range []struct {
		name     string
		class    transform.Class
		reason   deadletter.Reason
		attempts int // charged before this one
		want     queue.Result
		backoff  string // seconds, from - to
	}{
		{"data fault goes to quarantine at once", transform.ClassData, deadletter.ReasonCoerceFailed, 0, queue.Quarantined, ""},
		{"unknown waits 30 s", transform.ClassUnknown, deadletter.ReasonUnknown, 0, queue.Retried, "30-36"},
		{"and longer each time", transform.ClassUnknown, deadletter.ReasonUnknown, 3, queue.Retried, "120-144"},
		{"until its cap", transform.ClassUnknown, deadletter.ReasonUnknown, 4, queue.Quarantined, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			b.insert(1, "a")
			b.exec(`UPDATE failed_geotasks SET attempts = $1`, c.attempts)
			lease := b.claim(claim(1))
			settled := b.settle(lease, nil, fail(lease.Tasks[0], c.class, c.reason))
			want := []queue.Settled{{ID: lease.Tasks[0].ID, Result: c.want, Reason: c.reason, Rule: "coerce:built_year->integer", Error: `attribute "built_year" is no integer`}}
			if diff := gocmp.Diff(want, settled); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			b.want(fmt.Sprint(c.attempts+1), `SELECT attempts FROM failed_geotasks WHERE lease_token IS NULL AND failed_rule = 'coerce:built_year->integer' AND error LIKE 'attribute%'`)
			if c.backoff != "" {
				var from, to int
				fmt.Sscanf(c.backoff, "%d-%d", &from, &to)
				b.want("true", fmt.Sprintf(`SELECT next_attempt_at - last_seen BETWEEN interval '%d s' AND interval '%d s' FROM failed_geotasks`, from, to))
			}
			b.want("1", `SELECT count(*) FROM failed_geotasks_history WHERE attempt = $1`, c.attempts+1)
			b.balanced()
		})
	}
}

func TestBackoffIsCapped(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert(1, "a")
	b.exec(`UPDATE failed_geotasks SET attempts = 60`)
	lease := b.claim(claim(1))
	p := policy
	p.MaxAttempts = 100
	if _, err := b.Settle(t.Context(), lease.Token, contract, p, nil, []queue.Failed{fail(lease.Tasks[0], transform.ClassUnknown, deadletter.ReasonUnknown)}); err != nil {
		t.Fatal(err)
	}
	b.want("00:15:00", `SELECT next_attempt_at - last_seen FROM failed_geotasks`)
}

func TestOneBadRowInAThousand(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		b.exec(`ALTER TABLE processed_features ADD CONSTRAINT no_unlucky CHECK (feature_id <> 'f613')`)
		b.insert(1000, "a")
		lease := b.claim(claim(1000))
		b.wantResults(b.settle(lease, clearAll(lease)), map[queue.Result]int{queue.Inserted: 999, queue.Quarantined: 1})
		b.want("f613 target_rejected target:no_unlucky 1", `SELECT concat_ws(' ', task_id, error_type, failed_rule, attempts) FROM failed_geotasks WHERE status <> 'replayed'`)
		b.want("999", `SELECT count(*) FROM processed_features`)
		b.balanced()
	})
}

func TestATargetThatTakesNothingStopsTheRun(t *testing.T) {
	for _, c := range []struct{ name, sql string }{
		{"a constraint that no row meets", `ALTER TABLE processed_features ADD CONSTRAINT never CHECK (feature_id IS NULL)`},
		{"a column that is gone", `ALTER TABLE processed_features DROP COLUMN engine`},
		{"another geometry type", `ALTER TABLE processed_features ALTER COLUMN geom TYPE geometry(MultiPolygon, 3857)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			b.exec(c.sql)
			b.insert(50, "a")
			lease := b.claim(claim(50))
			_, err := b.Settle(t.Context(), lease.Token, contract, policy, clearAll(lease), nil)
			var schema *queue.SchemaFault
			if !asError(err, &schema) {
				t.Fatalf("Settle = %v, want a SchemaFault", err)
			}
			b.want("50", `SELECT count(*) FROM failed_geotasks WHERE status = 'pending' AND lease_token IS NOT NULL`)
		})
	}
}

func TestCheckTarget(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	if err := b.CheckTarget(t.Context(), 3857); err != nil {
		t.Errorf("the declared CRS: %v", err)
	}
	var schema *queue.SchemaFault
	if err := b.CheckTarget(t.Context(), 25832); !asError(err, &schema) {
		t.Errorf("another CRS: got %v, want a SchemaFault", err)
	}
}

func TestConflicts(t *testing.T) {
	type row struct {
		feature, hash, seen, properties string
	}
	for _, c := range []struct {
		name    string
		first   row
		second  row
		want    queue.Result
		reason  deadletter.Reason
		inPlace string // properties in the target afterwards
	}{
		{"the same again", row{"p", "h", "2026-01-01", `{"a":1}`}, row{"p", "h", "2026-01-01", `{"a":1}`}, queue.Unchanged, "", `{"a": 1}`},
		{"older, other attributes", row{"p", "h", "2026-01-02", `{"a":1}`}, row{"p", "h", "2026-01-01", `{"a":2}`}, queue.Unchanged, "", `{"a": 1}`},
		{"newer, same attributes", row{"p", "h", "2026-01-01", `{"a":1}`}, row{"p", "h", "2026-01-02", `{"a": 1}`}, queue.Unchanged, "", `{"a": 1}`},
		{"newer, other attributes", row{"p", "h", "2026-01-01", `{"a":1}`}, row{"p", "h", "2026-01-02", `{"a":2}`}, queue.Updated, "", `{"a": 2}`},
		{"a key given to two features", row{"p", "h", "2026-01-01", `{"a":1}`}, row{"q", "h", "2026-01-02", `{"a":2}`}, queue.Quarantined, deadletter.ReasonTargetRejected, `{"a": 1}`},
	} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in one claim %t", c.name, together), func(t *testing.T) {
				t.Parallel()
				b := newBundle(t, pgx.QueryExecModeCacheStatement)
				properties := map[string]string{}
				add := func(task string, r row) {
					properties[task] = r.properties
					b.exec(`INSERT INTO failed_geotasks (task_id, feature_id, geom, epsg, geom_hash, first_seen) VALUES ($1, $2, ST_Point(1, 1, 4326), 4326, $3, $4::timestamptz)`, task, r.feature, r.hash, r.seen)
				}
				work := func() (settled []queue.Settled) {
					lease := b.claim(claim(10))
					cleared := clearAll(lease)
					for i := range cleared {
						cleared[i].Properties = []byte(properties[b.one(`SELECT task_id FROM failed_geotasks WHERE id = $1`, cleared[i].ID)])
					}
					return b.settle(lease, cleared)
				}
				add("t1", c.first)
				var settled []queue.Settled
				if !together {
					settled = work()
				}
				add("t2", c.second)
				settled = append(settled, work()...)
				last := settled[len(settled)-1]
				if together && last.Result == queue.Inserted {
					last = settled[0]
				}
				if last.Result != c.want || last.Reason != c.reason {
					t.Errorf("the second row ended %s %s, want %s %s", last.Result, last.Reason, c.want, c.reason)
				}
				b.want("1 "+c.inPlace, `SELECT concat_ws(' ', count(*), min(properties::text)) FROM processed_features`)
				b.balanced()
			})
		}
	}
}

// A rehearsal must foretell what the settling then does with a key that is taken.
func TestRehearsalForetellsTakenKeys(t *testing.T) {
	for _, c := range []struct {
		name    string
		feature *string // of the second row
		want    queue.Result
	}{
		{"no feature named", nil, queue.Unchanged},
		{"the same feature", new("p"), queue.Unchanged},
		{"another feature", new("q"), queue.Quarantined},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			const add = `INSERT INTO failed_geotasks (task_id, feature_id, geom, epsg, geom_hash) VALUES ($1, $2, ST_Point(1, 1, 4326), 4326, 'h')`
			b.exec(add, "t1", "p")
			first := b.claim(claim(1))
			b.settle(first, clearAll(first))
			b.exec(add, "t2", c.feature)
			second := b.claim(claim(1))
			foretold, err := b.Rehearse(t.Context(), contract, clearAll(second))
			if err != nil {
				t.Fatal(err)
			}
			b.wantResults(foretold, map[queue.Result]int{c.want: 1})
			b.wantResults(b.settle(second, clearAll(second)), map[queue.Result]int{c.want: 1})
		})
	}
}

func TestRepair(t *testing.T) {
	square := func(x, y, s float64) orb.Ring {
		return orb.Ring{{x, y}, {x + s, y}, {x + s, y + s}, {x, y + s}, {x, y}}
	}
	for _, c := range []struct {
		name   string
		method transform.Repair
		g      orb.Geometry
		want   string // type and area, or reason
	}{
		{"valid is not touched", transform.RepairStructure, orb.Polygon{square(0, 0, 10)}, "POLYGON 100 untouched"},
		{"clockwise shell is valid", transform.RepairStructure, orb.Polygon{{{0, 0}, {0, 10}, {10, 10}, {10, 0}, {0, 0}}}, "POLYGON 100 untouched"},
		{"bow-tie keeps both lobes", transform.RepairStructure, orb.Polygon{{{0, 0}, {10, 10}, {10, 0}, {0, 10}, {0, 0}}}, "MULTIPOLYGON 50 structure"},
		{"uneven bow-tie", transform.RepairStructure, orb.Polygon{{{0, 0}, {40, 40}, {40, 20}, {0, 10}, {0, 0}}}, "MULTIPOLYGON 333 structure"},
		{"overlapping parts are united", transform.RepairStructure, orb.MultiPolygon{{square(0, 0, 10)}, {square(5, 5, 10)}}, "MULTIPOLYGON 175 structure"},
		{"overlapping parts, linework", transform.RepairLinework, orb.MultiPolygon{{square(0, 0, 10)}, {square(5, 5, 10)}}, "MULTIPOLYGON 150 linework"},
		{"spike is cut off", transform.RepairLinework, orb.Polygon{{{0, 0}, {10, 0}, {10, 10}, {20, 10}, {10, 10}, {0, 10}, {0, 0}}}, "POLYGON 100 linework"},
		{"collinear ring", transform.RepairStructure, orb.Polygon{{{0, 0}, {10, 0}, {5, 0}, {0, 0}}}, "degenerate_geometry"},
		{"hole as large as the shell", transform.RepairStructure, orb.Polygon{square(0, 0, 10), square(0, 0, 10)}, "degenerate_geometry"},
		{"line of one place", transform.RepairStructure, orb.LineString{{5, 5}, {5, 5}}, "degenerate_geometry"},
		{"part without area is dropped", transform.RepairStructure, orb.MultiPolygon{{square(0, 0, 10)}, {{{20, 20}, {30, 20}, {25, 20}, {20, 20}}}}, "MULTIPOLYGON 100 structure"},
		{"repair is off", transform.RepairOff, orb.Polygon{{{0, 0}, {10, 10}, {10, 0}, {0, 10}, {0, 0}}}, "bad_geometry"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			b.insert(2, "a")
			lease := b.claim(claim(2))
			k := contract
			k.Target.Repair = c.method
			// A valid neighbour rides along.
			cleared := []queue.Cleared{clear(lease.Tasks[0], c.g), clear(lease.Tasks[1], orb.Point{1, 1})}
			if _, err := b.Settle(t.Context(), lease.Token, k, policy, cleared, nil); err != nil {
				t.Fatal(err)
			}
			b.want(c.want, `SELECT coalesce((SELECT concat_ws(' ', GeometryType(geom), round(ST_Area(geom)), coalesce(split_part(repair, ':', 1), 'untouched')) FROM processed_features p WHERE p.geom_hash = f.geom_hash AND ST_IsValid(geom)), f.error_type)
				FROM failed_geotasks f WHERE id = $1`, lease.Tasks[0].ID)
			b.want("replayed", `SELECT status FROM failed_geotasks WHERE id = $1`, lease.Tasks[1].ID)
			b.balanced()
		})
	}
}

func TestReprojectionByPostGIS(t *testing.T) {
	for _, c := range []struct {
		name string
		epsg int
		g    orb.Geometry
		want string // reason, or "" for right to a millimetre
	}{
		{"British grid", 27700, orb.LineString{{530000, 180000}, {530100, 180100}}, ""},
		{"Dutch grid", 28992, orb.Point{155000, 463000}, ""},
		{"code that no table has", 99999, orb.Point{1, 1}, "unknown_crs"},
		{"far outside", 27700, orb.Point{1e12, 1e12}, "coordinate_out_of_domain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			b.insert(2, "a")
			lease := b.claim(claim(2))
			row := clear(lease.Tasks[0], c.g)
			row.EPSG, row.SourceEPSG, row.Engine = c.epsg, c.epsg, crs.EnginePostGIS
			b.settle(lease, []queue.Cleared{row, clear(lease.Tasks[1], orb.Point{1, 1})})
			b.want(c.want, `SELECT error_type FROM failed_geotasks WHERE id = $1`, row.ID)
			if c.want == "" {
				b.want("true", `SELECT ST_HausdorffDistance(p.geom, ST_Transform(ST_GeomFromText($1, $2), 3857)) < 0.001 FROM processed_features p WHERE engine = 'postgis'`, text(c.g), c.epsg)
			}
			b.want("replayed", `SELECT status FROM failed_geotasks WHERE id = $1`, lease.Tasks[1].ID)
		})
	}
}
