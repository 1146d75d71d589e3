package redrive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"

	"geodlq/shared/redrive"
)

// object reads a file that an export wrote, by its URI.
func (b *bundle) object(uri string) []byte {
	b.t.Helper()
	key, ok := strings.CutPrefix(uri, "s3://"+b.Bucket+"/")
	if !ok {
		b.t.Fatalf("%s is not in the bucket %s", uri, b.Bucket)
	}
	out, err := b.s3.GetObject(context.Background(), &s3.GetObjectInput{Bucket: &b.Bucket, Key: &key})
	if err != nil {
		b.t.Fatal(err)
	}
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return content
}

func TestExport(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.capture(30, "county", "n/a")
	b.replay()
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, status, error_type, geom, epsg, feature_geojson, payload_raw) VALUES
		('lonlat', 'county', 'quarantined', 'a', ST_SetSRID(ST_Point(7, 51), 4326), 4326, '{"type":"Feature","a":"é"}', NULL),
		('curve', 'county', 'quarantined', 'a', ST_GeomFromText('CIRCULARSTRING (500000 5000000, 500100 5000100, 500200 5000000)', 25832), 25832, NULL, NULL),
		('three dimensions', 'county', 'pending', 'a', ST_GeomFromText('POINT Z (500000 5000000 9)', 25832), 25832, NULL, NULL),
		('swapped', 'county', 'quarantined', 'b', ST_SetSRID(ST_Point(47.6, -122.3), 4326), 4326, NULL, NULL),
		('two CRSs', 'county', 'quarantined', 'b', ST_SetSRID(ST_Point(1, 1), 4326), 26910, NULL, NULL),
		('no CRS', 'county', 'quarantined', 'b', ST_Point(1, 1), NULL, NULL, NULL),
		('no geometry', 'county', 'quarantined', 'b', NULL, NULL, NULL, '\xe9ff'),
		('many positions', 'county', 'quarantined', 'c', ST_Segmentize(ST_GeomFromText('LINESTRING (0 0, 1 1)', 4326), 0.0001), 4326, NULL, NULL),
		('replayed', 'county', 'replayed', NULL, ST_SetSRID(ST_Point(7, 51), 4326), 4326, NULL, NULL),
		('elsewhere', 'village', 'quarantined', 'a', ST_SetSRID(ST_Point(7, 51), 4326), 4326, NULL, NULL)`)
	e := do[redrive.Export](b, "export", object{"filter": county, "actor": "ada", "why": "for the surveyor"})
	if e.Rows != 38 || e.Mapped != 34 || e.Next != 0 {
		t.Errorf("export %+v, want 38 rows, 34 of them on the map", e)
	}
	rows := map[string]int64{}
	for _, f := range e.Files {
		rows[fmt.Sprint(f.Format, " ", f.CRS)] += f.Rows
		content := b.object(f.URI)
		if int64(len(content)) != f.Bytes {
			t.Errorf("%s has %d bytes, the answer says %d", f.URI, len(content), f.Bytes)
		}
		switch f.Format {
		case "geojsonseq":
			seen := map[string]bool{}
			for text := range bytes.SplitSeq(content[1:], []byte{0x1e}) {
				var feature struct {
					Geometry   *struct{ Type string }
					Properties map[string]any
				}
				if err := json.Unmarshal(text, &feature); err != nil {
					t.Fatal(err)
				}
				name := feature.Properties["feature_id"].(string)
				seen[name] = true
				if mapped := !slices.Contains([]string{"swapped", "two CRSs", "no CRS", "no geometry"}, name); mapped != (feature.Geometry != nil) {
					t.Errorf("%s has a geometry: %t", name, feature.Geometry != nil)
				}
				if name == "lonlat" && feature.Properties["feature_geojson"] != `{"type":"Feature","a":"é"}` {
					t.Errorf("payload %v", feature.Properties["feature_geojson"])
				}
				if name == "curve" && feature.Geometry.Type != "LineString" {
					t.Errorf("the curve is a %s", feature.Geometry.Type)
				}
			}
			if len(seen) != 38 {
				t.Errorf("%d features in the sequence", len(seen))
			}
		case "geoparquet":
			r, err := file.NewParquetReader(bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			if r.NumRows() != f.Rows || r.MetaData().KeyValueMetadata().FindValue("geo") == nil {
				t.Errorf("%s: %d rows, metadata %v", f.URI, r.NumRows(), r.MetaData().KeyValueMetadata())
			}
		case "html":
			if !bytes.Contains(content, []byte("38 dead letters, 34 of them on the map")) || len(content) > 200_000 {
				t.Errorf("the page has %d bytes: %.2000s", len(content), content)
			}
		}
	}
	want := map[string]int64{"geojsonseq 0": 38, "html 0": 38, "geoparquet 26910": 30, "geoparquet 4326": 3, "geoparquet 25832": 2, "geoparquet 0": 3}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows by format and CRS (-want +got):\n%s", diff)
	}
	b.want("export ada for the surveyor 38 34", `SELECT concat_ws(' ', action, actor, request ->> 'why', counts ->> 'rows', counts ->> 'mapped') FROM redrive_audit`)

	few := do[redrive.Export](b, "export", object{"filter": county, "actor": "ada", "formats": []string{"geojsonseq"}, "limit": 5})
	if few.Rows != 5 || len(few.Files) != 1 {
		t.Errorf("five rows: %+v", few)
	}
	none := do[redrive.Export](b, "export", object{"filter": object{"batch_id": "moon"}, "actor": "ada"})
	if none.Rows != 0 || len(none.Files) != 1 || none.Files[0].Format != "html" {
		t.Errorf("no rows: %+v", none)
	}
	b.refuse("format", "export", object{"formats": []string{"shapefile"}, "actor": "ada"})
	b.refuse("who asks?", "export", object{"filter": county})
}

func TestExportGoesOnInTheNextInvocation(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, geom, epsg) SELECT i, 'county', ST_Point(i % 100, i % 50), 4326 FROM generate_series(1, 5000) i`)
	request := object{"filter": county, "actor": "ada", "formats": []string{"geojsonseq", "html"}}
	seen := map[float64]int{}
	rows, invocations := int64(0), 0
	for {
		// Time for one page of a thousand rows, and for the margin.
		b.Settings.Margin = time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+50*time.Millisecond)
		answer, err := b.try(ctx, "export", request)
		cancel()
		if invocations++; invocations > 200 {
			t.Fatal("the export does not end")
		}
		if err != nil {
			continue // not even time for one page, on a slow machine
		}
		e := answer.(redrive.Export)
		rows += e.Rows
		for _, f := range e.Files {
			if f.Format != "geojsonseq" {
				continue
			}
			for text := range bytes.SplitSeq(b.object(f.URI)[1:], []byte{0x1e}) {
				var feature struct{ ID float64 }
				if err := json.Unmarshal(text, &feature); err != nil {
					t.Fatal(err)
				}
				seen[feature.ID]++
			}
		}
		if e.Next == 0 {
			break
		}
		request["export"], request["after"] = e.Export, e.Next
	}
	if rows != 5000 || len(seen) != 5000 {
		t.Errorf("%d rows, %d different ones, in %d invocations", rows, len(seen), invocations)
	}
}
