package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/migrations"
	"geodlq/shared/deadletter"
	"geodlq/shared/ledger"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

// bench is a migrated schema of its own, reached by one connection.
type bench struct {
	pool   *pgxpool.Pool
	schema string
	books  *ledger.Books
	queue  *queue.Queue
	engine *replay.Engine
	target *transform.Contract
	runs   int
}

func open(ctx context.Context, url string) (*bench, error) {
	b := &bench{schema: fmt.Sprintf("bench_ledger_%d", time.Now().UnixNano())}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `CREATE SCHEMA `+b.schema); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["search_path"] = b.schema + ",public"
	if b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	err = b.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, _, err := migrations.Migrate(ctx, c.Conn())
		return err
	})
	if err != nil {
		return nil, err
	}
	if b.target, err = transform.LoadContract(ctx, "", nil, transform.Options{}); err != nil {
		return nil, err
	}
	b.books, b.queue = ledger.New(b.pool, 5*time.Minute), queue.New(b.pool)
	b.engine = &replay.Engine{
		Queue: b.queue,
		Settings: replay.Settings{
			Policy:  queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second},
			Workers: 1, ClaimSize: 500, Lease: 5 * time.Minute, RowTimeout: 10 * time.Second, Margin: time.Second,
		},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Stop: ctx,
	}
	return b, nil
}

func (b *bench) close(ctx context.Context) {
	if _, err := b.pool.Exec(ctx, `DROP SCHEMA `+b.schema+` CASCADE`); err != nil {
		progress("drop the schema %s: %v", b.schema, err)
	}
	b.pool.Close()
}

func (b *bench) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := b.pool.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// measure runs work and returns what it took.
func (b *bench) measure(ctx context.Context, work func() error) (cost, error) {
	before, start := b.processor(ctx), time.Now()
	err := work()
	wall := time.Since(start)
	return cost{wall, b.processor(ctx) - before}, err
}

// processor is the processor time so far of this process and, where it can be read,
// of the backend.
func (b *bench) processor(ctx context.Context) time.Duration {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return 0
	}
	used := time.Duration(self.Utime.Nano() + self.Stime.Nano())
	var backend string
	if err := b.pool.QueryRow(ctx, `SELECT split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)`).Scan(&backend); err == nil {
		if ns, err := strconv.ParseInt(backend, 10, 64); err == nil {
			used += time.Duration(ns)
		}
	}
	return used
}

// parcel is a polygon of 33 positions with five attributes, about 1.2 kB.
func parcel(i int) []byte {
	var s strings.Builder
	x, y, r := 500_000+float64(i%1000)*60, 4_100_000+float64(i/1000)*60, 25.0
	fmt.Fprintf(&s, `{"type":"Feature","id":"P-%07d","properties":{"parcel_id":"P-%07d","owner":"Ramírez & Sons","built_year":"19%02d","assessed":%d.50,"exempt":false},"geometry":{"type":"Polygon","coordinates":[[`, i, i, i%100, i)
	for v := range 32 {
		a := 2 * math.Pi * float64(v) / 32
		fmt.Fprintf(&s, "[%.3f,%.3f],", x+r*math.Cos(a), y+r*math.Sin(a))
	}
	fmt.Fprintf(&s, "[%.3f,%.3f]]]}}", x+r, y)
	return []byte(s.String())
}

// records are rows dead letters of four batches; bad ones name no CRS.
func (b *bench) records(rows int, bad bool) []deadletter.Record {
	b.runs++
	crs := "EPSG:32610"
	records := make([]deadletter.Record, rows)
	for i := range records {
		n := b.runs*rows + i
		records[i] = deadletter.Record{
			DLQID: deadletter.RecordID("bench", "parcels", "1", int64(n)), FeatureID: fmt.Sprintf("P-%07d", n),
			BatchID: fmt.Sprintf("county-%d", i%4), FailedRule: "coerce:built_year->integer", ErrorType: "ValueError",
			ErrorMessage: "invalid literal for int() with base 10: 'n/a'", Attempts: 3, SourceCRS: &crs,
			FirstSeen: time.Now().Add(-time.Duration(i) * time.Second),
			Payload:   parcel(n), SourceObject: "s3://bench/parcels", SourceRecord: int64(n),
		}
		if bad {
			records[i].SourceCRS = nil
		}
	}
	return records
}

func (b *bench) empty(ctx context.Context, _ int) error {
	return b.exec(ctx, `TRUNCATE failed_geotasks, processed_features, failed_geotasks_history`, `TRUNCATE dlq_ledger`, `CHECKPOINT`)
}

func (b *bench) enqueueGood(ctx context.Context, rows int) error {
	_, err := b.queue.Enqueue(ctx, b.records(rows, false))
	return err
}

func (b *bench) refill(ctx context.Context, rows int) error    { return b.fillWith(ctx, rows, false) }
func (b *bench) refillBad(ctx context.Context, rows int) error { return b.fillWith(ctx, rows, true) }

func (b *bench) fillWith(ctx context.Context, rows int, bad bool) error {
	if err := b.empty(ctx, rows); err != nil {
		return err
	}
	if _, err := b.queue.Enqueue(ctx, b.records(rows, bad)); err != nil {
		return err
	}
	return b.exec(ctx, `VACUUM ANALYZE failed_geotasks`, `CHECKPOINT`)
}

// claim claims all rows, 500 at a time.
func (b *bench) claim(ctx context.Context, rows int) error {
	for claimed := 0; claimed < rows; {
		lease, err := b.queue.Claim(ctx, queue.Claim{Limit: 500, Bytes: 1 << 30, Lease: time.Minute})
		if err != nil {
			return err
		}
		if len(lease.Tasks) == 0 {
			return fmt.Errorf("nothing is left to claim after %d of %d rows", claimed, rows)
		}
		claimed += len(lease.Tasks)
	}
	return nil
}

func (b *bench) drain(ctx context.Context, rows int) error {
	a, err := b.engine.Run(ctx, replay.Event{}, b.target)
	if err != nil {
		return err
	}
	var left int
	if err := b.pool.QueryRow(ctx, `SELECT count(*) FROM failed_geotasks WHERE status = 'pending'`).Scan(&left); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d rows are left, the run stopped because %s", left, a.StoppedBecause)
	}
	return nil
}

// fillLedger makes entries as a day of 40 batches leaves them.
func (b *bench) fillLedger(ctx context.Context, entries int) error {
	return b.exec(ctx, `TRUNCATE dlq_ledger, dlq_batches, dlq_batch_causes, dlq_activity`, fmt.Sprintf(`
		INSERT INTO dlq_ledger (at, transition, batch_id, error_type, failed_rule, from_status, to_status, age_class, n)
		SELECT now() - make_interval(secs => i %% 86400), t, 'batch-' || i %% 40,
		       (ARRAY['missing_crs', 'coerce_failed', 'unknown', 'ValueError'])[1 + i %% 4], 'rule-' || i %% 30,
		       f, s, CASE s WHEN 'replayed' THEN 20 + i %% 20 END, 1 + i %% 500
		FROM generate_series(1, %d) i
		CROSS JOIN LATERAL (SELECT (ARRAY['arrived', 'changed', 'changed', 'failed'])[1 + i / 7 %% 4] AS t) x
		CROSS JOIN LATERAL (SELECT CASE t WHEN 'changed' THEN 'pending' END AS f,
		    CASE t WHEN 'arrived' THEN 'pending' WHEN 'changed' THEN (ARRAY['replayed', 'quarantined'])[1 + i / 28 %% 2] END AS s) y`, entries),
		`VACUUM ANALYZE dlq_ledger`, `CHECKPOINT`)
}

// fill makes a queue of n rows: nine in ten replayed, five in a hundred each pending
// and in quarantine, and keeps the books of it.
func (b *bench) fill(ctx context.Context, n int) error {
	err := b.exec(ctx, fmt.Sprintf(`
		INSERT INTO failed_geotasks (feature_id, batch_id, status, error_type, failed_rule, first_seen, feature_geojson)
		SELECT 'P-' || i, 'batch-' || i %% 40, CASE WHEN i %% 20 = 0 THEN 'pending' WHEN i %% 20 = 1 THEN 'quarantined' ELSE 'replayed' END,
		       'missing_crs', 'rule-' || i %% 30, now() - make_interval(secs => i %% 100000), repeat('{"type":"Feature"}', 20)
		FROM generate_series(1, %d) i`, n), `VACUUM ANALYZE failed_geotasks`)
	if err != nil {
		return err
	}
	return b.metrics(ctx)
}

// activity takes 200 rows in, claims them and settles them, one in ten to quarantine.
func (b *bench) activity(ctx context.Context) error {
	return b.exec(ctx,
		`INSERT INTO failed_geotasks (batch_id, contract_version) SELECT 'batch-' || i % 40, 'now' FROM generate_series(1, 200) i`,
		`UPDATE failed_geotasks SET lease_token = gen_random_uuid() WHERE id > (SELECT max(id) - 200 FROM failed_geotasks)`,
		`UPDATE failed_geotasks SET lease_token = NULL, status = CASE WHEN id % 10 = 0 THEN 'quarantined' ELSE 'replayed' END, error_type = 'missing_crs'
		 WHERE id > (SELECT max(id) - 200 FROM failed_geotasks)`)
}

// metrics does what a run of the metrics function does in the database.
func (b *bench) metrics(ctx context.Context) error {
	if _, err := b.books.Fold(ctx); err != nil {
		return err
	}
	if _, err := b.books.Close(ctx, time.Time{}); err != nil {
		return err
	}
	if _, _, err := b.books.Systemic(ctx, 0.05, 100); err != nil {
		return err
	}
	if _, err := b.books.Batches(ctx, 20); err != nil {
		return err
	}
	windows, _, err := b.books.Unpublished(ctx)
	if err != nil {
		return err
	}
	if err := b.books.MarkPublished(ctx, windows); err != nil {
		return err
	}
	for i, w := range windows {
		if _, err := b.books.In(ctx, w); err != nil {
			return err
		}
		if err := b.books.MarkManifested(ctx, windows[i:i+1]); err != nil {
			return err
		}
	}
	return b.books.Prune(ctx)
}

func (b *bench) check(ctx context.Context) error {
	checked, err := b.books.Check(ctx)
	if err == nil && len(checked.Mismatches) > 0 {
		err = fmt.Errorf("the books differ: %+v", checked.Mismatches)
	}
	return err
}
