// Package endtoend_test runs the real bootstraps of capture, replay and metrics over
// real PostGIS and S3, on the files in testdata, and looks at what a user would look
// at: the queue, the target, the archive and the books.
package endtoend_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/shared/archive"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// testdata is the path of a file in the repository's testdata directory.
func testdata(name string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "testdata", filepath.FromSlash(name))
}

func readTestdata(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(testdata(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pipeline is one deployment: buckets, a database schema and the functions on them.
type pipeline struct {
	t           *testing.T
	s3          *s3.Client
	inbox       string
	deadLetters string
	db          *pgxpool.Pool
	recorder    *localtest.Recorder

	capture, replay, metrics *local.Function
}

// deploy starts a pipeline whose functions get the settings beside what they need
// to find each other.
func deploy(t *testing.T, settings map[string]string) *pipeline {
	t.Helper()
	database := localtest.Database(t)
	p := &pipeline{
		t:           t,
		s3:          localtest.S3(t),
		inbox:       localtest.Bucket(t),
		deadLetters: localtest.Bucket(t),
		db:          localtest.Pool(t, database),
		recorder:    localtest.CloudWatch(t),
	}
	env := map[string]string{
		"DATABASE_URL":       database,
		"INBOX_BUCKET":       p.inbox,
		"DEAD_LETTER_BUCKET": p.deadLetters,
		"METRICS_NAMESPACE":  p.recorder.Namespace,
	}
	for name, value := range settings {
		env[name] = value
	}
	patient := func(c *local.FunctionConfig) { c.Timeout = 2 * time.Minute }
	p.capture = localtest.Function(t, "capture", env, patient)
	p.replay = localtest.Function(t, "replay", env, patient)
	p.metrics = localtest.Function(t, "metrics", env, patient)
	return p
}

// put stores an object in the inbox and returns the S3 notification about it.
func (p *pipeline) put(key string, body []byte, metadata map[string]string) (notification []byte) {
	p.t.Helper()
	out, err := p.s3.PutObject(p.t.Context(), &s3.PutObjectInput{
		Bucket: &p.inbox, Key: &key, Body: bytes.NewReader(body), Metadata: metadata,
	})
	if err != nil {
		p.t.Fatalf("put %s into the inbox: %v", key, err)
	}
	object := map[string]any{"key": url.QueryEscape(key), "size": len(body), "sequencer": "0065A1B2C3D4E5F607"}
	if out.VersionId != nil {
		object["versionId"] = *out.VersionId
	}
	if out.ETag != nil {
		if tag, err := strconv.Unquote(*out.ETag); err == nil {
			object["eTag"] = tag
		}
	}
	return marshal(p.t, map[string]any{"Records": []any{map[string]any{
		"eventVersion": "2.1",
		"eventSource":  "aws:s3",
		"eventName":    "ObjectCreated:Put",
		"awsRegion":    "us-west-2",
		"s3": map[string]any{
			"s3SchemaVersion": "1.0",
			"bucket":          map[string]any{"name": p.inbox, "arn": "arn:aws:s3:::" + p.inbox},
			"object":          object,
		},
	}}})
}

// invoke runs a function and reads its answer into a T.
func invoke[T any](t *testing.T, f *local.Function, event []byte) (answer T) {
	t.Helper()
	response, err := f.Invoke(t.Context(), event)
	if err != nil {
		t.Fatalf("invoke with %.200s: %v", event, err)
	}
	if err := json.Unmarshal(response, &answer); err != nil {
		t.Fatalf("read the answer %.400s: %v", response, err)
	}
	return answer
}

// captured is what a test needs of capture's answer.
type captured struct {
	Records      int64 `json:"records"`
	Captured     int64 `json:"captured"`
	AlreadyThere int64 `json:"already_there"`
	Malformed    int64 `json:"malformed"`
}

// replayed is what a test needs of replay's answer.
type replayed struct {
	Claimed        int64  `json:"claimed"`
	Replayed       int64  `json:"replayed"`
	Quarantined    int64  `json:"quarantined"`
	Retried        int64  `json:"retried"`
	StoppedBecause string `json:"stopped_because"`
	Trouble        string `json:"trouble"`
}

// drain replays what is due and requires that nothing stopped it.
func (p *pipeline) drain() replayed {
	p.t.Helper()
	answer := invoke[replayed](p.t, p.replay, []byte(`{}`))
	if answer.StoppedBecause != "drained" {
		p.t.Fatalf("replay stopped because of %s (%s), want drained", answer.StoppedBecause, answer.Trouble)
	}
	return answer
}

// archived returns every row of the archive by its ordinal in the inbox object.
func (p *pipeline) archived() map[int64]archive.Row {
	p.t.Helper()
	rows := map[int64]archive.Row{}
	store := archive.NewStore(p.s3, p.deadLetters)
	pages := s3.NewListObjectsV2Paginator(p.s3, &s3.ListObjectsV2Input{Bucket: &p.deadLetters})
	for pages.HasMorePages() {
		page, err := pages.NextPage(p.t.Context())
		if err != nil {
			p.t.Fatal(err)
		}
		for _, object := range page.Contents {
			if filepath.Ext(*object.Key) != ".parquet" {
				continue
			}
			file, err := store.Get(p.t.Context(), *object.Key)
			if err != nil {
				p.t.Fatal(err)
			}
			reader, err := archive.NewReader(file.Reader())
			if err != nil {
				p.t.Fatalf("open archive file %s: %v", *object.Key, err)
			}
			for left := reader.NumRows(); left > 0; {
				batch := make([]archive.Row, min(left, 500))
				n, err := reader.Read(batch)
				if n == 0 && err != nil {
					p.t.Fatalf("read archive file %s: %v", *object.Key, err)
				}
				for _, row := range batch[:n] {
					if there, twice := rows[row.SourceRecord]; twice {
						p.t.Errorf("record %d is archived twice, as %v and as %v", row.SourceRecord, there.DLQID, row.DLQID)
					}
					rows[row.SourceRecord] = row
				}
				left -= int64(n)
			}
		}
	}
	return rows
}

// query collects the rows of a query into structs by column name.
func query[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(context.Background(), sql, args...)
	if err == nil {
		var out []T
		if out, err = pgx.CollectRows(rows, pgx.RowToStructByName[T]); err == nil {
			return out
		}
	}
	t.Fatalf("%s: %v", sql, err)
	return nil
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
