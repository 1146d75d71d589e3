package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/deadletter"
)

// An insert statement carries at most so many rows and payload bytes.
const (
	enqueueRows  = 2000
	enqueueBytes = 8 << 20
)

// insertRecords queues records. A record that is there already stays as it is, so a
// repeated event changes nothing, whatever has become of its rows. Sorted by the
// unique key, so that two deliveries of one event wait for, not deadlock, each other.
const insertRecords = `
	INSERT INTO failed_geotasks (dlq_id, task_id, feature_id, batch_id, status, upstream_attempts,
	    failed_rule, error_type, error, source_crs, epsg, geom, geom_hash,
	    feature_geojson, payload_raw, source_object, source_record, first_seen)
	SELECT i.dlq_id, i.feature_id, i.feature_id, i.batch_id, i.status, i.upstream_attempts,
	    nullif(i.failed_rule, ''), nullif(i.error_type, ''), nullif(i.error, ''), i.source_crs, nullif(i.epsg, 0),
	    CASE WHEN i.wkb IS NOT NULL THEN ST_GeomFromWKB(i.wkb, i.epsg) END, nullif(i.geom_hash, ''),
	    i.feature_geojson, i.payload_raw, i.source_object, i.source_record, i.first_seen
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[],
	            $9::text[], $10::int[], $11::bytea[], $12::text[], $13::text[], $14::bytea[], $15::text[], $16::bigint[], $17::timestamptz[])
	     AS i (dlq_id, feature_id, batch_id, status, upstream_attempts, failed_rule, error_type, error,
	           source_crs, epsg, wkb, geom_hash, feature_geojson, payload_raw, source_object, source_record, first_seen)
	ORDER BY i.dlq_id
	ON CONFLICT (dlq_id) DO NOTHING`

// Enqueue adds records to the queue in one transaction, pending or, where they are
// marked so, quarantined. It returns how many were new; the others were there
// already. A geometry that PostGIS cannot hold is left out of its row; the payload
// has it, and the replay will say what is wrong with it.
func (q *Queue) Enqueue(ctx context.Context, records []deadletter.Record) (inserted int64, err error) {
	err = pgx.BeginFunc(ctx, q.db, func(tx pgx.Tx) error {
		inserted, err = EnqueueTx(ctx, tx, records)
		return err
	})
	return inserted, err
}

// EnqueueTx is [Queue.Enqueue] inside the caller's transaction.
func EnqueueTx(ctx context.Context, tx pgx.Tx, records []deadletter.Record) (inserted int64, err error) {
	for start := 0; start < len(records); {
		end, size := start, 0
		for end < len(records) && end-start < enqueueRows && (size == 0 || size < enqueueBytes) {
			size += len(records[end].Payload) + 1
			end++
		}
		n, err := insertHalving(ctx, tx, records[start:end], true)
		if err != nil {
			return 0, fmt.Errorf("queue %d dead letters: %w", len(records), err)
		}
		inserted += n
		start = end
	}
	return inserted, nil
}

// insertHalving inserts rows under a savepoint and, if PostGIS refuses a geometry
// that looked storable, halves them until the one is alone, and inserts that
// without its geometry.
func insertHalving(ctx context.Context, tx pgx.Tx, records []deadletter.Record, geometry bool) (int64, error) {
	var n int64
	err := pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
		tag, err := sp.Exec(ctx, insertRecords, insertArgs(records, geometry)...)
		n = tag.RowsAffected()
		return err
	})
	var refused *pgconn.PgError
	if err == nil || !geometry || !errors.As(err, &refused) || refused.Code != "XX000" && refused.Code[:2] != "22" {
		return n, err
	}
	if len(records) == 1 {
		return insertHalving(ctx, tx, records, false)
	}
	half := len(records) / 2
	a, err := insertHalving(ctx, tx, records[:half], true)
	if err != nil {
		return 0, err
	}
	b, err := insertHalving(ctx, tx, records[half:], true)
	return a + b, err
}

func insertArgs(records []deadletter.Record, geometry bool) []any {
	n := len(records)
	var (
		ids      = make([]string, n)
		features = make([]string, n)
		batches  = make([]string, n)
		statuses = make([]string, n)
		attempts = make([]int32, n)
		rules    = make([]string, n)
		types    = make([]string, n)
		messages = make([]string, n)
		sources  = make([]*string, n)
		codes    = make([]int32, n)
		wkbs     = make([][]byte, n)
		hashes   = make([]string, n)
		texts    = make([]*string, n)
		raws     = make([][]byte, n)
		objects  = make([]string, n)
		ordinals = make([]int64, n)
		seen     = make([]time.Time, n)
	)
	for i := range records {
		r := &records[i]
		ids[i], features[i], batches[i] = r.DLQID.String(), deadletter.Text(r.FeatureID), deadletter.Text(r.BatchID)
		statuses[i] = "pending"
		if r.Quarantined {
			statuses[i] = "quarantined"
		}
		attempts[i] = int32(r.Attempts)
		rules[i], types[i], messages[i] = deadletter.Label(r.FailedRule), deadletter.Label(r.ErrorType), deadletter.Message(r.ErrorMessage)
		if r.SourceCRS != nil {
			s := deadletter.Text(*r.SourceCRS)
			sources[i] = &s
		}
		codes[i], hashes[i] = int32(r.EPSG), r.GeomHash
		if geometry && r.Geometry != nil && r.EPSG > 0 && storable(r.Geometry) {
			wkbs[i] = WKB(r.Geometry)
		}
		if len(r.Payload) > 0 {
			if utf8.Valid(r.Payload) && bytes.IndexByte(r.Payload, 0) < 0 {
				s := string(r.Payload)
				texts[i] = &s
			} else {
				raws[i] = r.Payload
			}
		}
		objects[i], ordinals[i], seen[i] = deadletter.Text(r.SourceObject), r.SourceRecord, r.FirstSeen
	}
	return []any{ids, features, batches, statuses, attempts, rules, types, messages, sources, codes, wkbs, hashes, texts, raws, objects, ordinals, seen}
}
