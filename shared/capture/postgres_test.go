package capture_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/paulmach/orb"

	"geodlq/infra/local/localtest"
	"geodlq/shared/capture"
	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
)

// kinds has a record for everything a column of the queue may hold.
func kinds() []deadletter.Record {
	crs, empty := "urn:ogc:def:crs:EPSG::26910", ""
	ring := orb.Ring{{500000, 5000000}, {500100, 5000000}, {500100, 5000100}, {500000, 5000000}}
	base := deadletter.Record{
		FeatureID: "f", BatchID: "b", FailedRule: "r", ErrorType: "E", ErrorMessage: "m", Attempts: 3,
		Payload: []byte(`{"type":"Feature","id":"Straße"}`), SourceCRS: &crs, FirstSeen: time.Date(2026, 11, 30, 5, 12, 44, 101203000, time.UTC),
		Geometry: orb.Polygon{ring}, EPSG: 26910, GeomHash: strings.Repeat("0f", 32),
		SourceObject: "s3://b/k?versionId=1", SourceRecord: 7, ArrivedAt: time.Now(),
	}
	all := []deadletter.Record{base}
	with := func(change func(*deadletter.Record)) {
		r := base
		change(&r)
		all = append(all, r)
	}
	with(func(r *deadletter.Record) {
		*r = deadletter.Record{FeatureID: "bare", BatchID: "b", FirstSeen: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)}
	})
	with(func(r *deadletter.Record) {
		r.Quarantined, r.Payload, r.Geometry, r.EPSG, r.GeomHash = true, []byte("\xff\xfe{"), nil, 0, ""
	})
	with(func(r *deadletter.Record) { r.Payload = []byte("{\x00}") })
	with(func(r *deadletter.Record) { r.SourceCRS = &empty })
	with(func(r *deadletter.Record) {
		r.FeatureID, r.ErrorMessage, r.FailedRule = "a\x00b", strings.Repeat("é", 900), strings.Repeat("x", 900)
	})
	for _, g := range []orb.Geometry{
		orb.Point{1, 2}, orb.MultiPoint{{1, 2}, {3, 4}}, orb.LineString{{1, 2}, {3, 4}}, orb.MultiLineString{{{1, 2}, {3, 4}}},
		orb.MultiPolygon{{ring}, {ring}}, orb.Collection{orb.Point{1, 2}, orb.LineString{{1, 2}, {3, 4}}},
	} {
		with(func(r *deadletter.Record) { r.Geometry = g })
	}
	for i := range all {
		all[i].DLQID = deadletter.RecordID("b", "k", "v", int64(i))
	}
	return all
}

// contents returns every column of the queue that says what a record is.
func contents(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT concat_ws('|', dlq_id, task_id, feature_id, batch_id, status, upstream_attempts, coalesce(failed_rule, '<null>'), coalesce(error_type, '<null>'),
		       coalesce(error, '<null>'), coalesce(source_crs, '<null>'), coalesce(epsg::text, '<null>'), coalesce(ST_AsEWKT(geom), '<null>'), coalesce(geom_hash, '<null>'),
		       coalesce(feature_geojson, '<null>'), coalesce(payload_raw::text, '<null>'), source_object, source_record, first_seen AT TIME ZONE 'UTC', attempts, lease_token)
		FROM failed_geotasks ORDER BY dlq_id`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Rows that are new go in by COPY, all others as the queue takes them; both make the
// same rows, in every mode that a pool may have.
func TestEnqueueAsTheQueueDoes(t *testing.T) {
	t.Parallel()
	reference := localtest.Pool(t, localtest.Database(t))
	if n, err := queue.New(reference).Enqueue(t.Context(), kinds()); err != nil || n != int64(len(kinds())) {
		t.Fatal(n, err)
	}
	want := contents(t, reference)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := modePool(t, mode)
			p := capture.Postgres{DB: pool}
			files := []capture.File{{Key: "dead-letters/a.parquet", BatchID: "b", SourceObject: "s3://b/k", Rows: 12, Bytes: 1, SHA256: "00"}}
			for round, inserted := range []int64{int64(len(kinds())), 0} {
				if n, err := p.Enqueue(t.Context(), kinds(), files); err != nil || n != inserted {
					t.Fatalf("round %d: %d inserted, %v; want %d", round, n, err, inserted)
				}
				if diff := cmp.Diff(want, contents(t, pool)); diff != "" {
					t.Fatalf("round %d, rows (-queue +capture):\n%s", round, diff)
				}
			}
			recorded, err := p.Recorded(t.Context(), []string{"dead-letters/a.parquet", "dead-letters/b.parquet"})
			if diff := cmp.Diff(map[string]bool{"dead-letters/a.parquet": true}, recorded); err != nil || diff != "" {
				t.Errorf("recorded files (-want +got):\n%s, %v", diff, err)
			}
			// The books see rows that came by COPY, too.
			var arrived int64
			if err := pool.QueryRow(t.Context(), `SELECT sum(n) FROM dlq_ledger WHERE transition = 'arrived'`).Scan(&arrived); err != nil || arrived != int64(len(kinds())) {
				t.Errorf("%d arrivals in the ledger, %v; want %d", arrived, err, len(kinds()))
			}
		})
	}
}

func modePool(t *testing.T, mode pgx.QueryExecMode) *pgxpool.Pool {
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
	return pool
}

// One geometry that PostGIS refuses costs the row its geometry and no other row anything.
func TestEnqueueGeometryThatPostGISRefuses(t *testing.T) {
	t.Parallel()
	pool := localtest.Pool(t, localtest.Database(t))
	records := kinds()
	records[0].Geometry = orb.Polygon{{{0, 0}, {1, 1}, {0, 0}}}
	if n, err := (capture.Postgres{DB: pool}).Enqueue(t.Context(), records, nil); err != nil || n != int64(len(records)) {
		t.Fatalf("%d inserted, %v", n, err)
	}
	var without string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(source_record::text, ',') FROM failed_geotasks WHERE geom IS NULL AND geom_hash IS NOT NULL`).Scan(&without); err != nil || without != "7" {
		t.Errorf("rows without geometry: %s, %v; want the one", without, err)
	}
}

// What the queue knows of an id.
func TestFind(t *testing.T) {
	t.Parallel()
	pool := localtest.Pool(t, localtest.Database(t))
	p := capture.Postgres{DB: pool}
	records := kinds()
	if _, err := p.Enqueue(t.Context(), records, nil); err != nil {
		t.Fatal(err)
	}
	change := func(i int, f func(*deadletter.Record)) *deadletter.Record {
		r := records[i]
		f(&r)
		return &r
	}
	for name, tc := range map[string]struct {
		record *deadletter.Record
		want   capture.Standing
	}{
		"itself":                              {&records[0], capture.There},
		"itself, read by other rules":         {change(0, func(r *deadletter.Record) { r.Payload = nil; r.BatchID = "c" }), capture.There},
		"bytes that are no text":              {change(2, func(r *deadletter.Record) { r.SourceRecord = 99 }), capture.There},
		"the same from another object":        {change(0, func(r *deadletter.Record) { r.SourceObject = "s3://b/other" }), capture.There},
		"another payload from another object": {change(0, func(r *deadletter.Record) { r.SourceObject = "s3://b/other"; r.Payload = []byte("{}") }), capture.Other},
		"another batch from another record":   {change(0, func(r *deadletter.Record) { r.SourceRecord = 99; r.BatchID = "c" }), capture.Other},
		"another feature from another record": {change(0, func(r *deadletter.Record) { r.SourceRecord = 99; r.FeatureID = "g" }), capture.Other},
		"an id that nobody has":               {change(0, func(r *deadletter.Record) { r.DLQID = deadletter.RecordID("b", "k", "v", 1000) }), capture.Absent},
		"no payload, from another record":     {change(1, func(r *deadletter.Record) { r.SourceRecord = 99 }), capture.There},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := p.Find(t.Context(), []*deadletter.Record{&records[3], tc.record})
			if err != nil || got[0] != capture.There || got[1] != tc.want {
				t.Errorf("standing %v, %v; want %v", got, err, tc.want)
			}
		})
	}
}

// Capture's role may do what capture does, and may not read the queue.
func TestCaptureRole(t *testing.T) {
	t.Parallel()
	pool := localtest.Pool(t, localtest.Database(t))
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET ROLE geodlq_capture`); err != nil {
		t.Fatal(err)
	}
	defer conn.Exec(t.Context(), `RESET ROLE`)
	p := capture.Postgres{DB: conn}
	files := []capture.File{{Key: "dead-letters/a.parquet", BatchID: "b", SourceObject: "s3://b/k", Rows: 12, Bytes: 1, SHA256: "00"}}
	records := kinds()
	for range 2 {
		if _, err := p.Enqueue(t.Context(), records, files); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Find(t.Context(), []*deadletter.Record{&records[0]}); err != nil {
		t.Error(err)
	}
	if _, err := p.Recorded(t.Context(), []string{"dead-letters/a.parquet"}); err != nil {
		t.Error(err)
	}
	var payload string
	if err := conn.QueryRow(t.Context(), `SELECT feature_geojson FROM failed_geotasks LIMIT 1`).Scan(&payload); err == nil {
		t.Errorf("the role reads a payload: %s", fmt.Sprint(payload))
	}
}
