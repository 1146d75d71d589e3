package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/migrations"
	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

// bench is a migrated schema of its own. Rows are made once into the table "made"
// and copied from there before each run.
type bench struct {
	pool    *pgxpool.Pool
	schema  string
	columns string // of failed_geotasks, for a copy
}

func open(ctx context.Context, url string) (*bench, error) {
	schema := fmt.Sprintf("bench_replay_%d", time.Now().UnixNano())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS postgis`); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `CREATE SCHEMA `+schema); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 10
	cfg.MinConns = cfg.MaxConns // no session ends and takes its processor time with it
	cfg.ConnConfig.RuntimeParams["search_path"] = schema + ",public"
	cfg.ConnConfig.RuntimeParams["application_name"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	b := &bench{pool: pool, schema: schema}
	err = b.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, _, err := migrations.Migrate(ctx, c.Conn())
		return err
	})
	return b, err
}

func (b *bench) close(ctx context.Context) error {
	_, err := b.pool.Exec(ctx, `DROP SCHEMA `+b.schema+` CASCADE`)
	b.pool.Close()
	return err
}

func (b *bench) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := b.pool.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// makeRows enqueues n dead letters as capture does and keeps a copy of the table.
func (b *bench) makeRows(ctx context.Context, n int) error {
	q := queue.New(b.pool)
	crs := "EPSG:32610"
	for start := 0; start < n; start += 10_000 {
		var records []deadletter.Record
		for i := start; i < min(start+10_000, n); i++ {
			r := deadletter.Record{
				DLQID: deadletter.RecordID("bench", "parcels", "1", int64(i)), FeatureID: fmt.Sprintf("P-%07d", i),
				BatchID: fmt.Sprintf("county-%d", i%4), FailedRule: "coerce:built_year->integer", ErrorType: "ValueError",
				ErrorMessage: "invalid literal for int() with base 10: 'n/a'", Attempts: 3, SourceCRS: &crs, FirstSeen: time.Now(),
				Payload: parcel(i), SourceObject: "s3://bench/parcels", SourceRecord: int64(i),
			}
			in := transform.Input{FeatureID: r.FeatureID, Payload: r.Payload, SourceCRS: &crs}
			out, err := contract().Transform(ctx, in)
			if err != nil {
				return err
			}
			r.Geometry, r.EPSG, r.GeomHash = out.SourceGeometry, out.SourceEPSG, out.GeomHash
			records = append(records, r)
		}
		if _, err := q.Enqueue(ctx, records); err != nil {
			return err
		}
	}
	// What the database computes is left out of the copy.
	if err := b.pool.QueryRow(ctx, `SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'failed_geotasks'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''`).Scan(&b.columns); err != nil {
		return err
	}
	return b.exec(ctx, `CREATE TABLE made AS SELECT `+b.columns+` FROM failed_geotasks`, `ALTER TABLE made ADD PRIMARY KEY (id)`)
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

func contract() *transform.Contract {
	c, err := transform.LoadContract(context.Background(), "", nil, transform.Options{})
	if err != nil {
		panic(err) // the built-in contract
	}
	return c
}

// reset puts the first n made rows into an otherwise empty queue and target.
func (b *bench) reset(ctx context.Context, n int) error {
	return b.exec(ctx,
		`TRUNCATE failed_geotasks, processed_features, failed_geotasks_history, dlq_ledger`,
		fmt.Sprintf(`INSERT INTO failed_geotasks (%s) SELECT %s FROM made ORDER BY id LIMIT %d`, b.columns, b.columns, n),
		`VACUUM ANALYZE failed_geotasks`, `VACUUM ANALYZE processed_features`, `CHECKPOINT`)
}

// verify checks that a run did its work.
func (b *bench) verify(ctx context.Context, n int) error {
	var settled, landed int
	err := b.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM failed_geotasks WHERE status = 'replayed'), (SELECT count(*) FROM processed_features WHERE properties ? 'built_year' AND ST_IsValid(geom))`).Scan(&settled, &landed)
	if err == nil && (settled != n || landed != n) {
		err = fmt.Errorf("%d rows are settled and %d features landed, want %d", settled, landed, n)
	}
	return err
}

// each runs work in so many goroutines.
func each(workers int, work func() error) error {
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { errs[i] = work() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// loop is the baseline that everybody starts with.
func (b *bench) loop(ctx context.Context, workers int) error {
	t := contract()
	return each(workers, func() error {
		for {
			n := 0
			err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
				rows, err := tx.Query(ctx, `SELECT id, feature_id, batch_id, dlq_id::text, feature_geojson, source_crs FROM failed_geotasks
					WHERE status = 'pending' AND next_attempt_at <= now() ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED`)
				if err != nil {
					return err
				}
				type task struct {
					ID                             int64
					Feature, Batch, DLQ, JSON, CRS string
				}
				tasks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[task])
				if err != nil {
					return err
				}
				n = len(tasks)
				for _, task := range tasks {
					out, err := t.Transform(ctx, transform.Input{FeatureID: task.Feature, BatchID: task.Batch, Payload: []byte(task.JSON), SourceCRS: &task.CRS})
					if err != nil {
						return err
					}
					_, err = tx.Exec(ctx, `INSERT INTO processed_features (feature_id, batch_id, dlq_id, geom, geom_hash, properties, source_crs)
						SELECT $1, $2, $3::uuid, g, $4, $5::text::jsonb, $6 FROM (SELECT ST_GeomFromWKB($7, 3857) AS g) s WHERE ST_IsValid(g)
						ON CONFLICT (geom_hash) DO NOTHING`, task.Feature, task.Batch, task.DLQ, out.GeomHash, string(out.Properties), task.CRS, queue.WKB(out.Geometry))
					if err != nil {
						return err
					}
					if _, err := tx.Exec(ctx, `UPDATE failed_geotasks SET status = 'replayed', attempts = attempts + 1, last_seen = now() WHERE id = $1`, task.ID); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil || n == 0 {
				return err
			}
		}
	})
}

// sql is the baseline of one statement that does it all, one for each worker.
func (b *bench) sql(ctx context.Context, workers int) error {
	var n int
	if err := b.pool.QueryRow(ctx, `SELECT count(*) FROM failed_geotasks`).Scan(&n); err != nil {
		return err
	}
	share := (n + workers - 1) / workers
	return each(workers, func() error {
		_, err := b.pool.Exec(ctx, `
			WITH claimed AS MATERIALIZED (
			    SELECT id, feature_id, batch_id, dlq_id, geom_hash, source_crs, feature_geojson, ST_Transform(geom, 3857) AS g FROM failed_geotasks
			    WHERE status = 'pending' AND next_attempt_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED
			), checked AS MATERIALIZED (
			    SELECT *, ST_IsValid(g) AS valid FROM claimed
			), landed AS (
			    INSERT INTO processed_features (feature_id, batch_id, dlq_id, geom, geom_hash, properties, source_crs)
			    SELECT feature_id, batch_id, dlq_id, g, geom_hash, feature_geojson::jsonb -> 'properties', source_crs FROM checked WHERE valid
			    ON CONFLICT (geom_hash) DO NOTHING
			)
			UPDATE failed_geotasks f SET status = 'replayed', attempts = attempts + 1, last_seen = now() FROM checked c WHERE f.id = c.id AND c.valid`, share)
		return err
	})
}

// geodlq is the engine with its default claim size.
func (b *bench) geodlq(ctx context.Context, workers int) error {
	e := &replay.Engine{
		Queue: queue.New(b.pool),
		Settings: replay.Settings{
			Policy:  queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second},
			Workers: workers, ClaimSize: 500, Lease: 5 * time.Minute, RowTimeout: 10 * time.Second, Margin: time.Second,
		},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Stop: ctx,
	}
	a, err := e.Run(ctx, replay.Event{}, contract())
	if err == nil && a.StoppedBecause != replay.StopDrained {
		err = fmt.Errorf("the run stopped because %s: %s", a.StoppedBecause, a.Trouble)
	}
	return err
}

// fill brings the table to n rows that are not due: nine in ten replayed, the others
// in backoff. The ledger is left out of it, the rows are no arrivals.
func (b *bench) fill(ctx context.Context, n int) error {
	return b.exec(ctx, `ALTER TABLE failed_geotasks DISABLE TRIGGER USER`, fmt.Sprintf(`
		INSERT INTO failed_geotasks (task_id, feature_id, batch_id, status, attempts, next_attempt_at, geom_hash, source_crs)
		SELECT i, 'R-' || i, 'county-' || i %% 40, CASE WHEN i %% 10 = 0 THEN 'pending' ELSE 'replayed' END, 1,
		       now() + interval '1 day', md5(i::text), 'EPSG:32610'
		FROM generate_series((SELECT count(*) FROM failed_geotasks), %d) i`, n),
		`ALTER TABLE failed_geotasks ENABLE TRIGGER USER`, `VACUUM ANALYZE failed_geotasks`, `CHECKPOINT`)
}

// addDue adds rows that are due, after those of the run before were taken away.
func (b *bench) addDue(ctx context.Context, n int) error {
	if err := b.exec(ctx, `DELETE FROM failed_geotasks WHERE source_object = 's3://bench/due'`, `TRUNCATE processed_features`); err != nil {
		return err
	}
	crs := "EPSG:32610"
	var records []deadletter.Record
	for i := range n {
		records = append(records, deadletter.Record{
			DLQID: deadletter.NewUUID(), FeatureID: fmt.Sprintf("P-%07d", i), BatchID: fmt.Sprintf("county-%d", i%4),
			SourceCRS: &crs, FirstSeen: time.Now(), Payload: parcel(i), SourceObject: "s3://bench/due", SourceRecord: int64(i),
		})
	}
	_, err := queue.New(b.pool).Enqueue(ctx, records)
	return err
}

// claims times n claims of so many rows and gives the rows back.
func (b *bench) claims(ctx context.Context, n, size int) (took []time.Duration, err error) {
	q := queue.New(b.pool)
	for range n {
		start := time.Now()
		lease, err := q.Claim(ctx, queue.Claim{Limit: size, Bytes: 1 << 30, Lease: time.Minute})
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		if len(lease.Tasks) != size {
			return nil, fmt.Errorf("claimed %d rows, want %d", len(lease.Tasks), size)
		}
		ids := make([]int64, len(lease.Tasks))
		for i, t := range lease.Tasks {
			ids[i] = t.ID
		}
		if _, err := q.Release(ctx, lease.Token, ids); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// tenRounds claims and releases all due rows ten times and returns the dead tuples
// that leaves and the size of the table before and after.
func (b *bench) tenRounds(ctx context.Context, due int) (dead, before, after int64, err error) {
	if err := b.addDue(ctx, due); err != nil {
		return 0, 0, 0, err
	}
	if err := b.exec(ctx, `VACUUM failed_geotasks`); err != nil {
		return 0, 0, 0, err
	}
	size := func() (n int64, err error) {
		err = b.pool.QueryRow(ctx, `SELECT pg_total_relation_size('failed_geotasks')`).Scan(&n)
		return n, err
	}
	if before, err = size(); err != nil {
		return 0, 0, 0, err
	}
	for range 10 {
		if _, err := b.claims(ctx, 1, due); err != nil {
			return 0, 0, 0, err
		}
	}
	if after, err = size(); err != nil {
		return 0, 0, 0, err
	}
	_, err = b.pool.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pgstattuple`)
	if err == nil {
		err = b.pool.QueryRow(ctx, `SELECT dead_tuple_count FROM pgstattuple('failed_geotasks')`).Scan(&dead)
	}
	return dead, before, after, err
}
