package capture

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
)

// DB is what [Postgres] needs of a connection pool; *pgxpool.Pool is one.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Postgres is the queue in PostGIS: the tables failed_geotasks and dlq_archive_files.
type Postgres struct{ DB DB }

// recordFiles notes archive files whose rows are all queued once the transaction
// commits. A file that is noted stays as it is.
const recordFiles = `
	INSERT INTO dlq_archive_files (object_key, batch_id, source_object, rows, bytes, sha256)
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[])
	ORDER BY 1
	ON CONFLICT (object_key) DO NOTHING`

// Enqueue implements [Queue].
func (p Postgres) Enqueue(ctx context.Context, records []deadletter.Record, files []File) (inserted int64, err error) {
	err = pgx.BeginFunc(ctx, p.DB, func(tx pgx.Tx) error {
		ok, err := copyInto(ctx, tx, records)
		if inserted = int64(len(records)); !ok && err == nil {
			inserted, err = queue.EnqueueTx(ctx, tx, records)
		}
		if err != nil || len(files) == 0 {
			return err
		}
		n := len(files)
		keys, batches, objects, sums := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		rows, sizes := make([]int64, n), make([]int64, n)
		for i, f := range files {
			keys[i], batches[i], objects[i], sums[i] = f.Key, f.BatchID, f.SourceObject, f.SHA256
			rows[i], sizes[i] = f.Rows, f.Bytes
		}
		if _, err := tx.Exec(ctx, recordFiles, keys, batches, objects, rows, sizes, sums); err != nil {
			return fmt.Errorf("note %d archive files: %w", n, err)
		}
		return nil
	})
	return inserted, err
}

// Recorded implements [Queue].
func (p Postgres) Recorded(ctx context.Context, keys []string) (map[string]bool, error) {
	rows, err := p.DB.Query(ctx, `SELECT object_key FROM dlq_archive_files WHERE object_key = ANY ($1::text[])`, keys)
	if err != nil {
		return nil, fmt.Errorf("look for %d archive files: %w", len(keys), err)
	}
	recorded := make(map[string]bool, len(keys))
	var key string
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error { recorded[key] = true; return nil }); err != nil {
		return nil, fmt.Errorf("look for %d archive files: %w", len(keys), err)
	}
	return recorded, nil
}

// Find implements [Queue].
func (p Postgres) Find(ctx context.Context, records []*deadletter.Record) ([]Standing, error) {
	n := len(records)
	ids, digests := make([][16]byte, n), make([][]byte, n)
	objects, batches, features := make([]string, n), make([]string, n), make([]string, n)
	ordinals := make([]int64, n)
	for i, r := range records {
		sum := sha256.Sum256(r.Payload)
		ids[i], digests[i] = r.DLQID, sum[:]
		objects[i], batches[i], features[i] = deadletter.Text(r.SourceObject), deadletter.Text(r.BatchID), deadletter.Text(r.FeatureID)
		ordinals[i] = r.SourceRecord
	}
	rows, err := p.DB.Query(ctx, `SELECT place, same FROM geodlq_standing($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bytea[])`,
		ids, objects, ordinals, batches, features, digests)
	if err != nil {
		return nil, fmt.Errorf("look for %d dead letters in the queue: %w", n, err)
	}
	standing := make([]Standing, n)
	var place int64
	var same bool
	_, err = pgx.ForEachRow(rows, []any{&place, &same}, func() error {
		standing[place-1] = Other
		if same {
			standing[place-1] = There
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for %d dead letters in the queue: %w", n, err)
	}
	return standing, nil
}
