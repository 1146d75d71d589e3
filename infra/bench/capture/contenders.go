//go:build cgo

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	_ "github.com/duckdb/duckdb-go/v2" // registers the driver
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local"
	"geodlq/infra/migrations"
	"geodlq/shared/archive"
	"geodlq/shared/capture"
	"geodlq/shared/deadletter"
	"geodlq/shared/inbox"
)

// bench holds the file and what the contenders work on.
type bench struct {
	path, dir      string
	url, schema    string
	pool           *pgxpool.Pool
	client         *s3.Client
	inbox, archive string
	rounds         int
	dump           string // of the queue, for copy
	took           run    // of the latest run, without what prepared it; zero where nothing did
}

func open(ctx context.Context, url, path, dir string) (*bench, error) {
	b := &bench{path: path, dir: dir, url: url, schema: fmt.Sprintf("bench_capture_%d", time.Now().UnixNano()),
		inbox: os.Getenv("INBOX_BUCKET"), archive: os.Getenv("DEAD_LETTER_BUCKET")}
	cfg, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, err
	}
	b.client = s3.NewFromConfig(cfg)
	schemaURL, err := local.CreateSchema(ctx, url, b.schema)
	if err != nil {
		return nil, err
	}
	b.pool, err = pgxpool.New(ctx, schemaURL)
	if err != nil {
		return nil, err
	}
	return b, b.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, _, err := migrations.Migrate(ctx, c.Conn())
		return err
	})
}

func (b *bench) close(ctx context.Context) error {
	b.pool.Close()
	return local.DropSchema(ctx, b.url, b.schema)
}

// object is the file as an inbox object.
func (b *bench) object() (inbox.Object, error) {
	info, err := os.Stat(b.path)
	return inbox.Object{
		Bucket: b.inbox, Key: "incoming/failures.ndjson", VersionID: fmt.Sprint(b.rounds), LastModified: info.ModTime(),
		Open: func(context.Context) (io.ReadCloser, error) { return os.Open(b.path) },
	}, err
}

// duckdb writes the file as one Parquet file.
func (b *bench) duckdb(ctx context.Context, verbatim bool) (string, error) {
	db, err := sql.Open("duckdb", "")
	if err != nil {
		return "", err
	}
	defer db.Close()
	options := ""
	if verbatim {
		options = `, columns = {feature_id: 'VARCHAR', batch_id: 'VARCHAR', failed_rule: 'VARCHAR', error_type: 'VARCHAR', error_message: 'VARCHAR',
			attempts: 'INTEGER', source_crs: 'VARCHAR', first_seen: 'TIMESTAMPTZ', feature: 'JSON'}`
	}
	out := filepath.Join(b.dir, "duckdb.parquet")
	defer os.Remove(out)
	if _, err := db.ExecContext(ctx, fmt.Sprintf(`COPY (SELECT * FROM read_ndjson('%s'%s)) TO '%s' (FORMAT parquet, COMPRESSION zstd)`, b.path, options, out)); err != nil {
		return "", err
	}
	info, err := os.Stat(out)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f MB in 1 file", float64(info.Size())/1e6), nil
}

// folder is an archive in a folder.
type folder struct {
	dir   string
	mu    sync.Mutex
	bytes int64
	files int
}

func (f *folder) Put(_ context.Context, key string, b *archive.Buffer) (archive.Stored, error) {
	f.mu.Lock()
	f.bytes += b.Len()
	f.files++
	f.mu.Unlock()
	return archive.Stored{Outcome: archive.Created, Bytes: b.Len()}, makeFile(filepath.Join(f.dir, path.Base(key)), func(w io.Writer) error {
		_, err := io.Copy(w, b.Reader())
		return err
	})
}

// closed is a queue that takes nothing: the object is archived and no more.
type closed struct{}

var errClosed = errors.New("the queue is closed")

func (closed) Enqueue(context.Context, []deadletter.Record, []capture.File) (int64, error) {
	return 0, errClosed
}

func (closed) Recorded(context.Context, []string) (map[string]bool, error) { return nil, errClosed }

func (closed) Find(context.Context, []*deadletter.Record) ([]capture.Standing, error) {
	return nil, errClosed
}

// parquet captures the file into a folder, without a queue.
func (b *bench) parquet(ctx context.Context) (string, error) {
	o, err := b.object()
	if err != nil {
		return "", err
	}
	out := &folder{dir: filepath.Join(b.dir, "archive")}
	if err := os.MkdirAll(out.dir, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(out.dir)
	c := &capture.Capturer{Archive: out, Queue: closed{}}
	if _, err := c.Capture(ctx, ctx, o); !errors.Is(err, errClosed) {
		return "", err
	}
	return fmt.Sprintf("%.0f MB in %d files", float64(out.bytes)/1e6, out.files), nil
}

// capture captures the file from S3 to S3 and the queue.
func (b *bench) capture(ctx context.Context) (string, error) {
	if err := b.empty(ctx); err != nil {
		return "", err
	}
	b.rounds++
	key := fmt.Sprintf("incoming/failures-%d.ndjson", b.rounds)
	f, err := os.Open(b.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.inbox, Key: &key, Body: f}); err != nil {
		return "", err
	}
	began, cpu := time.Now(), cpuTime()
	o, err := capture.Open(ctx, b.client, b.inbox, key, "")
	if err != nil {
		return "", err
	}
	c := &capture.Capturer{Archive: archive.NewStore(b.client, b.archive), Queue: capture.Postgres{DB: b.pool}}
	counts, err := c.Capture(ctx, ctx, o)
	if err != nil {
		return "", err
	}
	b.took = run{time.Since(began), cpuTime() - cpu, ""}
	if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.inbox, Key: &key, VersionId: aws.String(o.VersionID)}); err != nil {
		return "", err
	}
	if b.dump == "" {
		if err := b.dumpQueue(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d captured, %d files", counts.Captured, counts.Files), nil
}

func (b *bench) empty(ctx context.Context) error {
	for _, statement := range []string{`TRUNCATE failed_geotasks`, `TRUNCATE dlq_ledger`} {
		if _, err := b.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// dumpQueue writes the queue's rows to a file, as \copy to does.
func (b *bench) dumpQueue(ctx context.Context) error {
	b.dump = filepath.Join(b.dir, "queue.copy")
	return makeFile(b.dump, func(w io.Writer) error {
		return b.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			_, err := c.Conn().PgConn().CopyTo(ctx, w, "COPY failed_geotasks TO STDOUT")
			return err
		})
	})
}

// copy loads the rows that capture queued, as \copy from does.
func (b *bench) copy(ctx context.Context) (string, error) {
	if err := b.empty(ctx); err != nil {
		return "", err
	}
	f, err := os.Open(b.dump)
	if err != nil {
		return "", err
	}
	defer f.Close()
	began, cpu := time.Now(), cpuTime()
	var n int64
	err = b.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		tag, err := c.Conn().PgConn().CopyFrom(ctx, f, "COPY failed_geotasks FROM STDIN")
		n = tag.RowsAffected()
		return err
	})
	b.took = run{time.Since(began), cpuTime() - cpu, ""}
	return fmt.Sprintf("%d rows", n), err
}
