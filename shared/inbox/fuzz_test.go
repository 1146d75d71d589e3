package inbox_test

import (
	"bytes"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/archive"
	"geodlq/shared/inbox"
)

// FuzzRead reads anything as an inbox object. It must end without an error, and account for
// all that is no white space; a second reading must agree; and what it makes of the
// object must survive the archive.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"", "\n", point, point + "\n" + point2, "\x1e" + point + "\n\x1e" + point2, "\ufeff" + point,
		`{"feature_id":"f1","batch_id":"b1","feature":` + point + "}\n{broken\n",
		`{"feature_geojson":"{\"type\":\"Feature\"}","dlq_id":"0f4d1c5e-95c1-4a0c-8d3b-8f2f1f7b6a10"}`,
		`{"type":"FeatureCollection","features":[` + point + `,{"type":"Feature",` + point2 + `],"crs":{"type":"name","properties":{"name":"EPSG:4326"}}}`,
		"{\n\"type\":\"FeatureCollection\",\n\"features\":[\n" + point + ",\n{\"type\":\"Feature\",\"a\":[1,\n" + point2 + "\n]}",
		"[" + point + ",1,null,[[]]]", "[1,2", "{\n" + point[1:] + "\n{\n\"a\":[\n{\n" + point2[1:],
		`{"requestContext":{"condition":"RetriesExhausted"},"requestPayload":{"Records":[{"body":"` + `{}` + `"}]}}`,
		"name,lat\nx,1", "\x89PNG\r\n\x1a\n", "\xff\xfe{\x00", string(gzipped([]byte(point))), string(zstded([]byte(point)[:40])), "\x1f\x8b\x08",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		limits := inbox.Limits{MaxFeatureBytes: 2048, MaxObjectBytes: 1 << 20}
		rows := read(t, object(content), limits)
		for _, r := range rows {
			if r.FeatureID == "" || r.BatchID == "" || len(r.FeatureID) > 512 || len(r.BatchID) > 512 {
				t.Errorf("record %d: feature id %q, batch %q", r.SourceRecord, r.FeatureID, r.BatchID)
			}
			for _, text := range []string{r.FeatureID, r.BatchID, r.FailedRule, r.ErrorType, r.ErrorMessage, r.SourceObject} {
				if !utf8.ValidString(text) || bytes.IndexByte([]byte(text), 0) >= 0 {
					t.Errorf("record %d: text %q cannot be stored", r.SourceRecord, text)
				}
			}
			if r.Quarantined == (r.ErrorType == "") && r.Quarantined {
				t.Errorf("record %d is quarantined without a reason", r.SourceRecord)
			}
			if r.SourceOffset < 0 || r.SourceLength < 0 || r.Geometry != nil && r.GeomHash == "" {
				t.Errorf("record %d: %+v", r.SourceRecord, r)
			}
		}
		if len(rows) == 0 && len(bytes.Trim(content, " \t\r\n\x1e\ufeff[]{},\"")) > 0 && !bytes.Contains(content, []byte(`"features"`)) &&
			!bytes.HasPrefix(content, []byte{0x1f, 0x8b}) && !bytes.HasPrefix(content, []byte{0x28, 0xb5}) && !bytes.Contains(content, []byte{0x2a, 0x4d, 0x18}) {
			t.Errorf("nothing was made of %q", content)
		}
		if diff := cmp.Diff(rows, read(t, object(content), inbox.Limits{MaxFeatureBytes: 2048, MaxObjectBytes: 1 << 20, Workers: 3})); diff != "" {
			t.Errorf("a second reading differs (-first +second):\n%s", diff)
		}
		back := roundTrip(t, rows)
		for i := range rows {
			rows[i].Geometry = nil
		}
		if diff := cmp.Diff(rows, back); diff != "" {
			t.Errorf("rows (-read +archived):\n%s", diff)
		}
	})
}

func roundTrip(t *testing.T, rows []archive.Row) []archive.Row {
	t.Helper()
	var b archive.Buffer
	w, err := archive.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := archive.NewReader(b.Reader())
	if err != nil {
		t.Fatal(err)
	}
	back := make([]archive.Row, len(rows))
	if len(rows) == 0 {
		return nil
	}
	if n, err := r.Read(back); n != len(rows) || err != nil {
		t.Fatalf("read %d of %d rows: %v", n, len(rows), err)
	}
	return back
}
