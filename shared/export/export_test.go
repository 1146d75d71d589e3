package export_test

import (
	"bytes"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/wkb"

	"geodlq/shared/export"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func marshal(t testing.TB, g orb.Geometry) []byte {
	t.Helper()
	b, err := wkb.Marshal(g, binary.LittleEndian)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// examples are a parcel, a feature without a place, and bytes that are no text.
func examples(t testing.TB) []export.Feature {
	at := time.Date(2026, 11, 30, 8, 15, 0, 123456000, time.UTC)
	return []export.Feature{
		{
			ID: 7, DLQID: "6b0d3f52-9a41-4c7e-8f16-2d95e07bc438", FeatureID: "p-7", BatchID: "county/2026", Status: "quarantined", Reason: "coerce_failed",
			FailedRule: "coerce:built_year->integer", Error: `built_year is "circa 1905" <&>`, Fingerprint: "0123456789abcdef", SourceCRS: "EPSG:26910", EPSG: 26910,
			Attempts: 2, Redrives: 1, ContractVersion: "parcels-1", FirstSeen: at, LastSeen: at.Add(time.Hour),
			Payload: []byte(`{"type":"Feature","id":"p-7","properties":{"area":0.10}}`),
			WKB:     marshal(t, orb.Polygon{{{551234.5, 5190000.25}, {551244.5, 5190000.25}, {551244.5, 5190010.25}, {551234.5, 5190000.25}}}),
			LonLat:  json.RawMessage(`{"type":"Polygon","coordinates":[[[-122.3,46.8],[-122.2,46.8],[-122.2,46.9],[-122.3,46.8]]]}`),
		},
		{ID: 8, DLQID: "0b0d3f52-9a41-4c7e-8f16-2d95e07bc438", FeatureID: "p-8", BatchID: "county/2026", Status: "pending", FirstSeen: at, LastSeen: at, Payload: []byte(`{"type":"Feature"}`)},
		{ID: 9, DLQID: "1b0d3f52-9a41-4c7e-8f16-2d95e07bc438", BatchID: "county/2026", Status: "quarantined", Reason: "invalid_utf8", FirstSeen: at, LastSeen: at, Payload: []byte("Caf\xe9")},
	}
}

func TestSequence(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for _, f := range examples(t) {
		if err := export.WriteSequence(&b, &f); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "features.geojsons", b.Bytes())
	// RFC 8142: each text stands between a record separator and a line feed.
	texts := strings.Split(b.String(), "\x1e")
	if texts[0] != "" || len(texts) != 4 {
		t.Fatalf("%d texts, the first %q", len(texts), texts[0])
	}
	for _, text := range texts[1:] {
		if !json.Valid([]byte(text)) || !strings.HasSuffix(text, "\n") || strings.Count(text, "\n") != 1 {
			t.Errorf("%q is no text of a sequence", text)
		}
	}
}

// parquet writes features as one GeoParquet file and returns its path.
func parquet(t *testing.T, epsg int, features []export.Feature) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "features.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := export.NewGeoParquet(f, epsg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range features {
		if err := w.Write(&features[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func duck(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// one reads one value as text.
func one(t *testing.T, db *sql.DB, query string, args ...any) (s string) {
	t.Helper()
	if err := db.QueryRow("SELECT coalesce(("+query+")::varchar, 'null')", args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

type geoMetadata struct {
	Version string `json:"version"`
	Primary string `json:"primary_column"`
	Columns map[string]struct {
		Encoding string          `json:"encoding"`
		Types    []string        `json:"geometry_types"`
		CRS      json.RawMessage `json:"crs"`
		BBox     []float64       `json:"bbox"`
	} `json:"columns"`
}

func metadata(t *testing.T, db *sql.DB, path string) (text string, m geoMetadata) {
	t.Helper()
	text = one(t, db, `SELECT decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = 'geo'`, path)
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return text, m
}

func TestGeoParquet(t *testing.T) {
	t.Parallel()
	db := duck(t)
	features := examples(t)
	path := parquet(t, 26910, features)
	_, m := metadata(t, db, path)
	column := m.Columns["geometry"]
	if m.Version != "1.1.0" || m.Primary != "geometry" || column.Encoding != "WKB" {
		t.Errorf("metadata %+v", m)
	}
	if diff := cmp.Diff([]string{"Polygon"}, column.Types); diff != "" {
		t.Errorf("geometry types (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{551234.5, 5190000.25, 551244.5, 5190010.25}, column.BBox); diff != "" {
		t.Errorf("bbox (-want +got):\n%s", diff)
	}
	var definition struct {
		Type, Name string
		ID         struct {
			Authority string
			Code      int
		}
	}
	if err := json.Unmarshal(column.CRS, &definition); err != nil || definition.Type != "ProjectedCRS" || definition.Name != "NAD83 / UTM zone 10N" || definition.ID.Code != 26910 || definition.ID.Authority != "EPSG" {
		t.Errorf("crs %s, %v", column.CRS, err)
	}
	from := `FROM read_parquet('` + path + `')`
	for query, want := range map[string]string{
		`SELECT count(*) ` + from:        "3",
		`SELECT count(geometry) ` + from: "1",
		// DuckDB knows GeoParquet: the column is a geometry, in its CRS.
		`SELECT geometry ` + from + ` WHERE id = 7`:                                  "POLYGON ((551234.5 5190000.25, 551244.5 5190000.25, 551244.5 5190010.25, 551234.5 5190000.25))",
		`SELECT typeof(geometry) LIKE '%NAD83 / UTM zone 10N%' ` + from + ` LIMIT 1`: "true",
		`SELECT feature_geojson ` + from + ` WHERE id = 7`:                           string(features[0].Payload),
		`SELECT hex(payload_raw) ` + from + ` WHERE id = 9`:                          fmt.Sprintf("%X", features[2].Payload),
		`SELECT feature_geojson ` + from + ` WHERE id = 9`:                           "null",
		`SELECT reason ` + from + ` WHERE id = 8`:                                    "null",
		`SELECT first_seen AT TIME ZONE 'UTC' ` + from + ` LIMIT 1`:                  "2026-11-30 08:15:00.123456",
		`SELECT epsg ` + from + ` WHERE id = 7`:                                      "26910",
		`SELECT string_agg(column_name || ' ' || column_type, ', ') FROM (DESCRIBE SELECT * ` + from + `)`: "id BIGINT, dlq_id VARCHAR, feature_id VARCHAR, batch_id VARCHAR, status VARCHAR, reason VARCHAR, failed_rule VARCHAR, error VARCHAR, " +
			"fingerprint VARCHAR, source_crs VARCHAR, epsg BIGINT, attempts BIGINT, redrives BIGINT, contract_version VARCHAR, first_seen TIMESTAMP WITH TIME ZONE, last_seen TIMESTAMP WITH TIME ZONE, feature_geojson VARCHAR, payload_raw BLOB, geometry ",
	} {
		got := one(t, db, query)
		if strings.HasSuffix(want, "geometry ") {
			// DuckDB names the type of a GeoParquet column by its version.
			if !strings.HasPrefix(got, want) {
				t.Errorf("columns\n  got  %s\n  want %s…", got, want)
			}
			continue
		}
		if got != want {
			t.Errorf("%s\n  got  %s\n  want %s", query, got, want)
		}
	}
}

func TestGeoParquetSaysWhichCRS(t *testing.T) {
	t.Parallel()
	db := duck(t)
	for _, c := range []struct {
		name string
		epsg int
		want string // how the member crs begins; "" where it is left out
	}{
		{"longitude and latitude are the default", 4326, ""},
		{"a projected CRS of EPSG", 25832, `{"$schema":"https://proj.org/schemas/`},
		{"a geographic CRS", 4269, `{"$schema":"https://proj.org/schemas/`},
		{"a CRS of ESRI", 102008, `{"$schema":"https://proj.org/schemas/`},
		{"the first of the definitions", 2000, `{"$schema":"https://proj.org/schemas/`},
		{"not known", 0, "null"},
		{"somebody's own", 990001, "null"},
	} {
		t.Run(c.name, func(t *testing.T) {
			features := examples(t)[:1]
			text, m := metadata(t, db, parquet(t, c.epsg, features))
			got := string(m.Columns["geometry"].CRS)
			if c.want == "" {
				if strings.Contains(text, `"crs"`) {
					t.Errorf("the metadata name a CRS: %s", text)
				}
				return
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("crs %s, want %s…", got, c.want)
			}
		})
	}
}

func TestGeoParquetLeavesOutWhatNoReaderTakes(t *testing.T) {
	t.Parallel()
	db := duck(t)
	features := []export.Feature{
		{ID: 1, WKB: marshal(t, orb.Point{math.NaN(), 1})},
		{ID: 2, WKB: marshal(t, orb.Point{math.Inf(1), 1})},
		{ID: 3, WKB: []byte{1, 8, 0, 0, 0, 0, 0, 0, 0}}, // CIRCULARSTRING
		{ID: 4, WKB: []byte("no binary")},
		{ID: 5, WKB: marshal(t, orb.MultiPoint{{1, 2}, {3, 4}})},
		{ID: 6, WKB: marshal(t, orb.Collection{orb.Point{9, 9}, orb.LineString{{0, 0}, {1, 1}}})},
		{ID: 7},
	}
	path := parquet(t, 4326, features)
	if got := one(t, db, `SELECT string_agg(id, ' ') FROM read_parquet('`+path+`') WHERE geometry IS NOT NULL`); got != "5 6" {
		t.Errorf("rows with a geometry: %s, want 5 6", got)
	}
	_, m := metadata(t, db, path)
	if diff := cmp.Diff([]string{"GeometryCollection", "MultiPoint"}, m.Columns["geometry"].Types); diff != "" {
		t.Errorf("geometry types (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{0, 0, 9, 9}, m.Columns["geometry"].BBox); diff != "" {
		t.Errorf("bbox (-want +got):\n%s", diff)
	}
	_, m = metadata(t, db, parquet(t, 4326, nil))
	if c := m.Columns["geometry"]; len(c.Types) != 0 || c.BBox != nil {
		t.Errorf("metadata of no rows: %+v", c)
	}
}

func TestGeoParquetOfManyRowGroups(t *testing.T) {
	t.Parallel()
	db := duck(t)
	features := make([]export.Feature, 100_000)
	point := marshal(t, orb.Point{1, 2})
	big := []byte(strings.Repeat("x", 2<<20))
	for i := range features {
		features[i] = export.Feature{ID: int64(i), BatchID: "b", WKB: point, Payload: []byte("{}")}
		if i%10_000 == 0 {
			features[i].Payload = big
		}
	}
	path := parquet(t, 4326, features)
	if got := one(t, db, `SELECT concat_ws(' ', count(*), count(DISTINCT id), sum(length(feature_geojson)), count(geometry)) FROM read_parquet('`+path+`')`); got != fmt.Sprintf("100000 100000 %d 100000", 10*len(big)+2*(100_000-10)) {
		t.Errorf("read back: %s", got)
	}
	if got := one(t, db, `SELECT count(DISTINCT row_group_id) >= 2 FROM parquet_metadata('`+path+`')`); got != "true" {
		t.Error("a hundred thousand rows are in one row group")
	}
}

func TestDefinitionsAreWhole(t *testing.T) {
	t.Parallel()
	n := 0
	for code := 2000; code < 33000; code++ {
		text, ok, err := export.ProjJSON(code)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		n++
		if code%50 != 0 {
			continue
		}
		var d struct {
			ID struct{ Code int }
		}
		if err := json.Unmarshal(text, &d); err != nil || d.ID.Code != code {
			t.Errorf("definition of %d: %v, code %d", code, err, d.ID.Code)
		}
	}
	if n < 5000 {
		t.Errorf("%d definitions, want those of all horizontal CRSs of EPSG", n)
	}
}
