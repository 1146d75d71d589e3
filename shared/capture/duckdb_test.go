//go:build cgo

package capture_test

import (
	"database/sql"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/duckdb/duckdb-go/v2" // registers the driver
	"github.com/google/go-cmp/cmp"

	"geodlq/shared/archive"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// An independent reader must find in the archive what is in the queue: the same
// counts by batch, the same bytes, and batch ids of any characters as partitions.
func TestDuckDBReadsTheArchive(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	batches := []string{"parcels-2026-11-30", "0042", "a/b=c", "100 %", "..", "Straße 日", "two\nlines", strings.Repeat("x", 200)}
	var content strings.Builder
	total := 0
	for i, b := range batches {
		for range 50 * (i + 1) {
			content.WriteString(record(b, total))
			content.WriteByte('\n')
			total++
		}
	}
	content.WriteString("{\"batch_id\":\"0042\",\"bytes\":\"\xff\xfe\"\n") // payload_raw
	total++
	s.put("incoming/a.ndjson", content.String())
	s.capture("incoming/a.ndjson")
	dir := s.download()

	db, err := sql.Open("duckdb", "")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// The one-liner of the README, on files.
	from := fmt.Sprintf(`read_parquet('%s/dead-letters/*/*/*.parquet', hive_partitioning = true, hive_types_autocast = false)`, dir)

	type tally struct {
		Batch             string
		Rows, Quarantined int64
		Bytes             int64
		Digest            string
	}
	read := func(query func(string) (rows, error), text string) (all []tally) {
		t.Helper()
		r, err := query(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for r.Next() {
			var x tally
			if err := r.Scan(&x.Batch, &x.Rows, &x.Quarantined, &x.Bytes, &x.Digest); err != nil {
				t.Fatal(err)
			}
			all = append(all, x)
		}
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		return all
	}
	archived := read(func(q string) (rows, error) { return db.QueryContext(t.Context(), q) }, `
		SELECT batch_id, count(*), count(*) FILTER (quarantined), sum(octet_length(coalesce(payload_raw, encode(feature_geojson)))),
		       sha256(string_agg(sha256(coalesce(payload_raw, encode(feature_geojson))), '' ORDER BY source_record))
		FROM `+from+` GROUP BY ALL ORDER BY min(source_record)`)
	queued := read(func(q string) (rows, error) { return s.pool.Query(t.Context(), q) }, `
		SELECT batch_id, count(*), count(*) FILTER (WHERE status = 'quarantined'), sum(octet_length(p))::bigint,
		       encode(sha256(convert_to(string_agg(encode(sha256(p), 'hex'), '' ORDER BY source_record), 'UTF8')), 'hex')
		FROM (SELECT *, coalesce(payload_raw, convert_to(feature_geojson, 'UTF8')) AS p FROM failed_geotasks) q
		GROUP BY batch_id ORDER BY min(source_record)`)
	if diff := cmp.Diff(queued, archived); diff != "" {
		t.Errorf("batches (-queue +archive):\n%s", diff)
	}
	if len(queued) != len(batches) {
		t.Errorf("%d batches, want %d", len(queued), len(batches))
	}

	// The partition that a path names is the batch the file is of.
	var partitions, typed int64
	err = db.QueryRowContext(t.Context(), `
		SELECT count(DISTINCT (batch_id, date)),
		       count(*) FILTER (typeof(first_seen) = 'TIMESTAMP WITH TIME ZONE' AND typeof(attempts) = 'INTEGER' AND typeof(quarantined) = 'BOOLEAN'
		                        AND typeof(payload_raw) = 'BLOB' AND typeof(source_record) = 'BIGINT' AND typeof(dlq_id) = 'VARCHAR')
		FROM `+from).Scan(&partitions, &typed)
	if err != nil {
		t.Fatal(err)
	}
	if partitions != int64(len(batches)) || typed != int64(total) {
		t.Errorf("%d partitions, %d of %d rows of the types they should be", partitions, typed, total)
	}
	// zstd everywhere; statistics and dictionaries where they help, and none on payloads.
	var other, labels, payloads int64
	err = db.QueryRowContext(t.Context(), fmt.Sprintf(`
		SELECT count(*) FILTER (compression <> 'ZSTD'),
		       count(*) FILTER (path_in_schema IN ('batch_id', 'source_record') AND stats_min_value IS NULL),
		       count(*) FILTER (path_in_schema IN ('feature_geojson', 'payload_raw', 'error_message') AND (stats_min_value IS NOT NULL OR encodings LIKE '%%DICT%%'))
		FROM parquet_metadata('%s/dead-letters/*/*/*.parquet')`, dir)).Scan(&other, &labels, &payloads)
	if err != nil {
		t.Fatal(err)
	}
	if other != 0 || labels != 0 || payloads != 0 {
		t.Errorf("%d column chunks without zstd, %d labels without statistics, %d payloads with statistics or a dictionary", other, labels, payloads)
	}
}

type rows interface {
	Next() bool
	Scan(...any) error
	Err() error
}

// download copies the archive into a folder, keys as paths.
func (s *stack) download() (dir string) {
	s.t.Helper()
	dir = s.t.TempDir()
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{Bucket: &s.archive})
	for pages.HasMorePages() {
		page, err := pages.NextPage(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, o := range page.Contents {
			b, err := archive.NewStore(s.client, s.archive).Get(s.t.Context(), *o.Key)
			if err != nil {
				s.t.Fatal(err)
			}
			content, err := io.ReadAll(b.Reader())
			if err != nil {
				s.t.Fatal(err)
			}
			path := filepath.Join(dir, filepath.FromSlash(*o.Key))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				s.t.Fatal(err)
			}
			if err := os.WriteFile(path, content, 0o644); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return dir
}
