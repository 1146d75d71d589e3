// Command redrive measures what people wait for when something is in quarantine, on a
// table of millions of rows: counting them by cause, finding them on the map, and
// putting a million of them back into the queue; and what the counts cost a replay.
//
// It needs DATABASE_URL; it works in a schema of its own and drops it at the end.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/paulmach/orb"

	"geodlq/infra/migrations"
	"geodlq/shared/crs"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/redrive"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

func main() {
	log.SetFlags(0)
	rows := flag.Int("rows", 10_000_000, "rows in quarantine")
	requeued := flag.Int("requeue", 1_000_000, "of these, rows to requeue by filter")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("bench redrive: DATABASE_URL is not set; run it by make bench BENCH=redrive")
	}
	ctx := context.Background()
	b, err := open(ctx, url)
	if err != nil {
		log.Fatal("bench redrive: ", err)
	}
	err = b.run(ctx, *rows, *requeued)
	if closeErr := b.close(ctx); err == nil {
		err = closeErr
	}
	if err != nil {
		log.Fatal("bench redrive: ", err)
	}
}

type bench struct {
	pool    *pgxpool.Pool
	schema  string
	service *redrive.Service
}

func open(ctx context.Context, url string) (*bench, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	schema := fmt.Sprintf("bench_redrive_%d", time.Now().UnixNano())
	cfg.ConnConfig.RuntimeParams["search_path"] = schema + ",public"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	b := &bench{pool: pool, schema: schema}
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := c.Exec(ctx, `CREATE SCHEMA `+schema); err != nil {
			return err
		}
		_, _, err := migrations.Migrate(ctx, c.Conn())
		return err
	})
	contract, contractErr := transform.LoadContract(ctx, "", nil, transform.Options{})
	if contractErr != nil {
		return nil, contractErr
	}
	b.service = &redrive.Service{
		DB: pool, Queue: queue.New(pool), Log: outcome.New(nowhere{}, "bench"),
		Contract: func(context.Context) (transform.Transformer, error) { return contract, nil },
		Settings: replay.Settings{Policy: policy, Workers: 1, ClaimSize: 500, Lease: time.Minute, RowTimeout: time.Second, Margin: time.Second},
		Logger:   slog.New(slog.DiscardHandler), Stop: ctx,
	}
	return b, err
}

func (b *bench) close(ctx context.Context) error {
	_, err := b.pool.Exec(ctx, `DROP SCHEMA `+b.schema+` CASCADE`)
	b.pool.Close()
	return err
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

const step = 500_000

func (b *bench) run(ctx context.Context, rows, requeued int) error {
	if err := b.upkeep(ctx); err != nil {
		return err
	}
	// The index of the map is made afterwards, which is what a person would do who loads
	// ten million rows at once.
	var index string
	if err := b.pool.QueryRow(ctx, `SELECT pg_get_indexdef('failed_geotasks_quarantined_geom'::regclass)`).Scan(&index); err != nil {
		return err
	}
	if _, err := b.pool.Exec(ctx, `DROP INDEX failed_geotasks_quarantined_geom`); err != nil {
		return err
	}
	began := time.Now()
	for from := 1; from <= rows; from += step {
		// 200 batches with a dozen causes each, all over California; one row in so many
		// has the cause that will be requeued.
		_, err := b.pool.Exec(ctx, `INSERT INTO failed_geotasks (task_id, batch_id, status, attempts, error_type, failed_rule, error, source_crs, epsg, geom, contract_version)
			SELECT 'p' || i, 'county-' || i % 200, 'quarantined', 1,
			       CASE WHEN i % $3 = 0 THEN 'missing_crs' ELSE 'coerce_failed' END,
			       CASE WHEN i % $3 = 0 THEN 'resolve:crs' ELSE 'coerce:attribute_' || i % 12 || '->integer' END,
			       CASE WHEN i % $3 = 0 THEN 'neither the record nor the feature names a CRS' ELSE format('attribute_%s is "circa %s", which is not an integer', i % 12, i) END,
			       'EPSG:26910', 26910, ST_SetSRID(ST_Point(500000 + (i * 7919) % 400000, 3900000 + (i * 104729) % 700000), 26910), 'contract-1'
			FROM generate_series($1::bigint, $2::bigint) i`, from, min(from+step-1, rows), max(1, rows/requeued))
		if err != nil {
			return err
		}
		progress("%d rows, %.0f a second", min(from+step-1, rows), float64(min(from+step-1, rows))/time.Since(began).Seconds())
	}
	for _, sql := range []string{`SET maintenance_work_mem = '512MB'; ` + index, `VACUUM ANALYZE failed_geotasks`} {
		if _, err := b.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	var last int64
	if err := b.pool.QueryRow(ctx, `SELECT max(id) FROM failed_geotasks`).Scan(&last); err != nil {
		return err
	}
	fmt.Printf("| on %d rows in quarantine | seconds |\n| --- | --- |\n", rows)
	for _, q := range []struct{ name, request string }{
		{"groups, the first time", `{"action": "groups"}`},
		{"groups", `{"action": "groups"}`},
		{"groups of a batch", `{"action": "groups", "filter": {"batch_id": "county-7"}}`},
		{"groups by reason alone", `{"action": "groups", "by": ["reason"]}`},
		{"groups in a box of 10 km", `{"action": "groups", "filter": {"status": "quarantined", "bbox": [-122.1, 37.3, -122.0, 37.4]}}`},
		{"list, a box of 10 km", `{"action": "list", "filter": {"status": "quarantined", "bbox": [-122.1, 37.3, -122.0, 37.4]}}`},
		{"list, a batch", `{"action": "list", "filter": {"status": "quarantined", "batch_id": "county-7"}}`},
		{"show", `{"action": "show", "id": ` + fmt.Sprint(last) + `}`},
	} {
		began := time.Now()
		if _, err := b.service.Do(ctx, redrive.Caller{}, []byte(q.request)); err != nil {
			return err
		}
		fmt.Printf("| %s | %.3f |\n", q.name, time.Since(began).Seconds())
	}
	began = time.Now()
	if _, err := b.pool.Exec(ctx, `SELECT batch_id, error_type, failed_rule, fingerprint, count(*) FROM failed_geotasks WHERE status = 'quarantined' GROUP BY 1, 2, 3, 4`); err != nil {
		return err
	}
	fmt.Printf("| the same as a GROUP BY over the rows | %.3f |\n", time.Since(began).Seconds())
	return b.requeue(ctx, requeued)
}

// requeue puts rows of one cause back into the queue and watches the memory that takes.
func (b *bench) requeue(ctx context.Context, want int) error {
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	began := time.Now()
	answer, err := b.service.Do(ctx, redrive.Caller{Identity: "bench"}, []byte(`{"action": "requeue", "filter": {"reason": "missing_crs"}, "dry_run": false}`))
	if err != nil {
		return err
	}
	took := time.Since(began)
	close(stop)
	run := answer.(redrive.Run)
	var frozen float64
	err = b.pool.QueryRow(ctx, `SELECT extract(epoch FROM min(c.done_at) - r.started_at) FROM redrive_runs r JOIN redrive_chunks c ON c.run = r.id WHERE r.id = $1::text::uuid GROUP BY r.started_at`, run.ID).Scan(&frozen)
	if err != nil {
		return err
	}
	text, err := json.Marshal(run.Counts)
	if err != nil {
		return err
	}
	if run.Counts.Changed < int64(want)*9/10 {
		return fmt.Errorf("requeued %s, want about %d", text, want)
	}
	fmt.Printf("| requeue of %d rows by reason, to the first chunk | %.1f |\n| to the last | %.1f (%.0f rows a second) |\n\npeak heap %d MiB\n",
		run.Counts.Changed, frozen, took.Seconds(), float64(run.Counts.Changed)/took.Seconds(), <-peak>>20)
	return nil
}

var policy = queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second}

// upkeep measures what the triggers that keep the groups add to a claim, to a
// settlement that clears its rows, and to one that fails them: batches of 500 with and
// without them in turn, and the median of each.
func (b *bench) upkeep(ctx context.Context) error {
	const size, rounds = 500, 40
	_, err := b.pool.Exec(ctx, `INSERT INTO failed_geotasks (task_id, feature_id, batch_id, geom, epsg, geom_hash, error_type, failed_rule, error, feature_geojson)
		SELECT 'p' || i, 'p' || i, 'county-' || i % 3, ST_SetSRID(ST_Point(550000 + i, 4100000), 26910), 26910, 'h' || i, 'ValueError', 'coerce:year->integer', 'invalid literal: ''' || i || '''', repeat('x', 400)
		FROM generate_series(1, $1::int) i`, size*rounds*4)
	if err != nil {
		return err
	}
	contract := queue.Contract{Target: transform.Target{EPSG: 3857, Repair: transform.RepairStructure, MaxAreaChange: 0.5}, Version: "bench"}
	times := map[string][]float64{}
	for round := range rounds * 4 {
		with, fails := round%2 == 0, round%4 >= 2
		switched := "DISABLE"
		if with {
			switched = "ENABLE"
		}
		if _, err := b.pool.Exec(ctx, `ALTER TABLE failed_geotasks `+switched+` TRIGGER failure_groups_update`); err != nil {
			return err
		}
		began := time.Now()
		lease, err := b.service.Queue.Claim(ctx, queue.Claim{Limit: size, Bytes: 1 << 30, Lease: time.Minute})
		if err != nil {
			return err
		}
		name := func(what string) string { return fmt.Sprintf("%s %t", what, with) }
		times[name("claim")] = append(times[name("claim")], time.Since(began).Seconds())
		var cleared []queue.Cleared
		var failed []queue.Failed
		for _, t := range lease.Tasks {
			if fails {
				failed = append(failed, queue.Failed{ID: t.ID, Class: transform.ClassData, Fault: fault(t.ID)})
			} else {
				cleared = append(cleared, queue.Cleared{ID: t.ID, Output: transform.Output{
					FeatureID: t.FeatureID, Properties: []byte("{}"), Geometry: orb.Point{-13e6, 4e6}, EPSG: 3857, SourceEPSG: 26910, SourceCRS: "EPSG:26910",
					GeomHash: t.FeatureID, Engine: crs.EngineComputed,
				}})
			}
		}
		began = time.Now()
		if _, err := b.service.Queue.Settle(ctx, lease.Token, contract, policy, cleared, failed); err != nil {
			return err
		}
		what := "settle cleared"
		if fails {
			what = "settle failed"
		}
		times[name(what)] = append(times[name(what)], time.Since(began).Seconds())
	}
	fmt.Println("| 500 rows, ms | without groups | with | more |\n| --- | --- | --- | --- |")
	for _, what := range []string{"claim", "settle cleared", "settle failed"} {
		without, with := median(times[what+" false"]), median(times[what+" true"])
		fmt.Printf("| %s | %.2f | %.2f | %.1f %% |\n", what, without*1000, with*1000, 100*(with/without-1))
	}
	fmt.Println()
	_, err = b.pool.Exec(ctx, `ALTER TABLE failed_geotasks ENABLE TRIGGER failure_groups_update`)
	if err == nil {
		_, err = b.pool.Exec(ctx, `TRUNCATE failed_geotasks, processed_features, failed_geotasks_history`)
	}
	return err
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
