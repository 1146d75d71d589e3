package ledger_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"geodlq/shared/ledger"
)

var update = flag.Bool("update", false, "write the golden files anew")

// schemas compiles the schemas in testdata, which refer to one another by their ids
// and to nothing outside.
func schemas(t *testing.T) *jsonschema.Compiler {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	err := filepath.WalkDir("testdata/openlineage", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			return err
		}
		return c.AddResource(doc.(map[string]any)["$id"].(string), doc)
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// validate checks an event against the schema it names and each of its facets
// against the schema that facet names.
func validate(t *testing.T, c *jsonschema.Compiler, line []byte) {
	t.Helper()
	event, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	against := func(url string, value any) {
		t.Helper()
		schema, err := c.Compile(url)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s\n%v", line, err)
		}
	}
	against("https://openlineage.io/spec/2-0-2/OpenLineage.json", event)
	against(event.(map[string]any)["schemaURL"].(string), event)
	facets := 0
	var visit func(value any)
	visit = func(value any) {
		switch v := value.(type) {
		case []any:
			for _, e := range v {
				visit(e)
			}
		case map[string]any:
			if url, ok := v["_schemaURL"].(string); ok {
				against(url, v)
				facets++
			}
			for _, e := range v {
				visit(e)
			}
		}
	}
	visit(event)
	if facets == 0 {
		t.Errorf("%s has no facet", line)
	}
}

var lineage = ledger.Lineage{Stage: "prod", Archive: "dead-letters-bucket",
	TargetNamespace: "postgres://db.example.org:5432", TargetName: "gis.public.processed_features"}

func TestManifest(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 30, 23, 55, 0, 0, time.UTC)
	five := ledger.Window{Start: start, End: start.Add(5 * time.Minute)}
	digest := strings.Repeat("0123456789abcdef", 4)
	rate := func(s string) *json.Number { return (*json.Number)(&s) }
	for _, tc := range []struct {
		situation string
		batch     ledger.BatchWindow
		key       string
	}{
		{"a batch that arrives and is drained", ledger.BatchWindow{
			Window: five, BatchID: "county-parcels/2026-11-30",
			Arrived: 120, Cleared: 100, ReplayFailed: 21, Quarantined: 15, LostLeases: 1,
			QuarantinedByReason: map[string]int64{"missing_crs": 10, "coerce_failed": 5},
			ArrivedTotal:        120, Active: 5, ClearedTotal: 100, QuarantinedNow: 15, PoisonRate: rate("0.1250"),
			Files: []ledger.ArchiveFile{
				{Key: "dead-letters/batch_id=county-parcels%2F2026-11-30/date=2026-11-30/01.parquet", SourceObject: "s3://inbox/incoming/parcels 1.ndjson?versionId=v1", Rows: 70, Bytes: 9000, SHA256: digest},
				{Key: "dead-letters/batch_id=county-parcels%2F2026-11-30/date=2026-11-30/02.parquet", SourceObject: "s3://inbox/incoming/parcels 1.ndjson?versionId=v1", Rows: 30, Bytes: 4000, SHA256: digest},
				{Key: "dead-letters/batch_id=county-parcels%2F2026-11-30/date=2026-11-30/03.parquet", SourceObject: "s3://inbox/incoming/what?.ndjson", Rows: 20, Bytes: 3000, SHA256: digest},
			},
		}, "lineage/date=2026-11-30/window=20261130T235500Z/aa274147-6a7d-50d2-813d-87252f2e7ce7.ndjson"},
		{"rows that a pipeline inserted itself", ledger.BatchWindow{
			Window:  ledger.Window{Start: start.Add(90*time.Second + 250*time.Millisecond), End: start.Add(5 * time.Minute)},
			BatchID: "direct", Arrived: 3, QuarantinedByReason: map[string]int64{}, ArrivedTotal: 3, Active: 3, PoisonRate: rate("0.0000"),
		}, "lineage/date=2026-11-30/window=20261130T235630.25Z/a08945cc-1b5b-5c99-aab1-980068aab65a.ndjson"},
		{"a batch that went to another name", ledger.BatchWindow{Window: five, BatchID: "<renamed>\n", QuarantinedByReason: map[string]int64{}},
			"lineage/date=2026-11-30/window=20261130T235500Z/7b311d6e-4fe0-5527-9618-a435c8b63bad.ndjson"},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			key, content, err := lineage.Object(tc.batch)
			if err != nil {
				t.Fatal(err)
			}
			if key != tc.key {
				t.Errorf("key %s, want %s", key, tc.key)
			}
			c := schemas(t)
			for line := range bytes.Lines(content) {
				validate(t, c, line)
			}
			golden := filepath.Join("testdata", strings.ReplaceAll(tc.situation, " ", "_")+".ndjson")
			if *update {
				if err := os.WriteFile(golden, content, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), string(content)); d != "" {
				t.Error(d)
			}
			if again, same, err := lineage.Object(tc.batch); err != nil || again != key || !bytes.Equal(same, content) {
				t.Errorf("a repetition writes something else to %s, %v", again, err)
			}
		})
	}
}

// The schemas refuse what is no event, so that passing them means something.
func TestSchemasRefuse(t *testing.T) {
	t.Parallel()
	c := schemas(t)
	// Without a run it would be a job event, which the whole schema takes too.
	schema, err := c.Compile("https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent")
	if err != nil {
		t.Fatal(err)
	}
	const event = `{"eventType":"START","eventTime":"2026-11-30T23:55:00Z","run":{"runId":"4174dcf1-6f52-5c58-a86e-4ad9b8d2e1a4","facets":{"x":{"_producer":"urn:a:b","_schemaURL":"urn:a:c"}}},
		"job":{"namespace":"n","name":"j"},"producer":"urn:a:b","schemaURL":"https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"}`
	for _, tc := range []struct{ situation, old, new string }{
		{"nothing wrong", "", ""},
		{"no run", `"run"`, `"walk"`},
		{"a run id that is no UUID", "4174dcf1-", ""},
		{"no event time", `"eventTime"`, `"time"`},
		{"a time without a zone", "23:55:00Z", "23:55:00"},
		{"no producer", `"producer":"urn:a:b",`, ``},
		{"an unknown event type", "START", "BEGIN"},
		{"a facet without a schema", `"_schemaURL":"urn:a:c"`, `"a":1`},
		{"a job without a name", `,"name":"j"`, ``},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(event, tc.old, tc.new, 1)))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(doc); (err == nil) != (tc.old == "") {
				t.Errorf("validation says %v", err)
			}
		})
	}
}

func TestBatchesInAWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Books = ledger.New(b.db, 5*time.Minute)
	end := b.now().Truncate(5 * time.Minute)
	file := `INSERT INTO dlq_archive_files (object_key, batch_id, source_object, rows, bytes, sha256, at) VALUES ($1, $2, 's3://inbox/a', 5, 100, 'ab', $3)`
	b.at(end.Add(-8*time.Minute), `INSERT INTO failed_geotasks (id, batch_id) SELECT i, 'a' FROM generate_series(1, 6) i`)
	b.exec(file, "k1", "a", end.Add(-8*time.Minute))
	b.at(end.Add(-2*time.Minute), `UPDATE failed_geotasks SET status = 'quarantined', error_type = 'missing_crs' WHERE id = 1`)
	b.at(end.Add(-time.Minute), `UPDATE failed_geotasks SET status = 'replayed' WHERE id = 2`)
	b.exec(file, "k3", "nothing new in it", end.Add(-time.Minute))
	b.exec(file, "k2", "nothing new in it", end.Add(-time.Minute))
	b.at(end, `UPDATE failed_geotasks SET status = 'discarded' WHERE id <= 2`) // in the open window
	b.fold()
	b.close(end)
	var got []ledger.BatchWindow
	windows, err := b.Unmanifested(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range windows {
		batches, err := b.In(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range batches {
			if !x.Window.Start.Equal(w.Start) {
				t.Errorf("batch %q of window %d says window %s", x.BatchID, i, x.Window.Start)
			}
			x.Window = ledger.Window{}
			got = append(got, x)
		}
	}
	one := func(key string) ledger.ArchiveFile {
		return ledger.ArchiveFile{Key: key, SourceObject: "s3://inbox/a", Rows: 5, Bytes: 100, SHA256: "ab"}
	}
	want := []ledger.BatchWindow{
		{BatchID: "a", Arrived: 6, QuarantinedByReason: map[string]int64{}, ArrivedTotal: 6, Active: 6,
			PoisonRate: ptr(json.Number("0.0000")), Files: []ledger.ArchiveFile{one("k1")}},
		{BatchID: "a", Cleared: 1, Quarantined: 1, QuarantinedByReason: map[string]int64{"missing_crs": 1}, ArrivedTotal: 6, Active: 4,
			ClearedTotal: 1, QuarantinedNow: 1, PoisonRate: ptr(json.Number("0.1667")), Files: []ledger.ArchiveFile{}},
		{BatchID: "nothing new in it", QuarantinedByReason: map[string]int64{}, Files: []ledger.ArchiveFile{one("k2"), one("k3")}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if name, err := b.TargetTable(t.Context()); err != nil || !strings.HasSuffix(name, ".processed_features") || strings.Count(name, ".") != 2 {
		t.Errorf("the target table is %q, %v", name, err)
	}
	if err := b.MarkManifested(t.Context(), windows); err != nil {
		t.Fatal(err)
	}
	if left, err := b.Unmanifested(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%d windows are still without lineage, %v", len(left), err)
	}
}
