package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/inbox"
)

var arrived = time.Date(2026, 11, 30, 5, 12, 44, 0, time.UTC)

// object is an inbox object that holds content.
func object(content []byte) inbox.Object {
	return inbox.Object{
		Bucket: "geodlq-inbox", Key: "incoming/failures.ndjson", VersionID: "3", ETag: "e", LastModified: arrived,
		Open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
	}
}

// read returns copies of all rows of an object.
func read(t testing.TB, o inbox.Object, limits inbox.Limits) []archive.Row {
	t.Helper()
	var all []archive.Row
	stats, err := inbox.Read(t.Context(), o, limits, func(rows []archive.Row) error {
		for _, r := range rows {
			if r.Payload != nil {
				r.Payload = bytes.Clone(r.Payload)
			}
			all = append(all, r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	malformed := int64(0)
	for i, r := range all {
		if r.Quarantined {
			malformed++
		}
		if r.SourceRecord != int64(i) {
			t.Errorf("row %d is record %d", i, r.SourceRecord)
		}
	}
	if stats.Records != int64(len(all)) || stats.Malformed != malformed {
		t.Errorf("stats %+v, but %d rows, %d malformed", stats, len(all), malformed)
	}
	return all
}

const (
	point  = `{"type":"Feature","id":"p1","geometry":{"type":"Point","coordinates":[11.5,48.1]},"properties":{"name":"a"}}`
	point2 = `{"type":"Feature","id":2,"geometry":{"type":"Point","coordinates":[11.6,48.2]},"properties":null}`
)

// brief is what a table of situations compares of a row.
type brief struct {
	Feature, Batch, Rule, Type string
	Payload                    string
	Offset                     int64
	Quarantined                bool
}

func briefs(rows []archive.Row) []brief {
	var bs []brief
	for _, r := range rows {
		bs = append(bs, brief{r.FeatureID, r.BatchID, r.FailedRule, r.ErrorType, string(r.Payload), r.SourceOffset, r.Quarantined})
	}
	return bs
}

func TestForms(t *testing.T) {
	t.Parallel()
	record := `{"feature_id":"f1","batch_id":"b1","failed_rule":"r","error_type":"E","feature":` + point + `}`
	const un = deadletter.UnattributedBatch
	good := brief{Feature: "f1", Batch: "b1", Rule: "r", Type: "E", Payload: point}
	p1 := brief{Feature: "p1", Batch: un, Payload: point}
	p2 := brief{Feature: "2", Batch: un, Payload: point2}
	at := func(b brief, offset int) brief { b.Offset = int64(offset); return b }
	bad := func(reason deadletter.Reason, offset int, payload string, n int) brief {
		rule := "decode:feature"
		return brief{Feature: fmt.Sprintf("incoming/failures.ndjson#%d", n), Batch: un, Rule: rule, Type: string(reason), Payload: payload, Offset: int64(offset), Quarantined: true}
	}
	norule := func(b brief) brief { b.Rule = ""; return b }
	for name, tc := range map[string]struct {
		content string
		want    []brief
	}{
		"nothing":                          {"", nil},
		"white space":                      {" \r\n\n\t", nil},
		"a byte order mark alone":          {"\ufeff", nil},
		"one record without final newline": {record, []brief{good}},
		"two records, CRLF, blank lines":   {record + "\r\n\r\n  \n" + record + "\r\n", []brief{good, at(good, len(record)+7)}},
		"byte order mark":                  {"\ufeff" + record + "\n", []brief{at(good, 3)}},
		"byte order mark on a later line":  {record + "\n\ufeff" + record + "\n", []brief{good, at(good, len(record)+4)}},
		"bare features, one to a line":     {point + "\n" + point2 + "\n", []brief{p1, at(p2, len(point)+1)}},
		"text sequence":                    {"\x1e" + point + "\n\x1e" + point2 + "\n", []brief{at(p1, 1), at(p2, len(point)+3)}},
		"text sequence over many lines":    {"\x1e{\n" + point[1:] + "\n\x1e\n\x1e" + point2, []brief{at(brief{Feature: "p1", Batch: un, Payload: "{\n" + point[1:]}, 1), at(p2, len(point)+6)}},
		"collection on one line":           {`{"type":"FeatureCollection","features":[` + point + `,` + point2 + `]}`, []brief{at(p1, 40), at(p2, 41+len(point))}},
		"collection over many lines":       {"{\n\"type\": \"FeatureCollection\",\n\"features\": [\n" + point + ",\n" + point2 + "\n]\n}\n", []brief{at(p1, 45), at(p2, 47+len(point))}},
		"collection with features first":   {`{"features":[` + point + `],"type":"FeatureCollection"}`, []brief{at(p1, 13)}},
		"empty collection":                 {`{"type":"FeatureCollection","features":[]}`, nil},
		"collection among records":         {record + "\n" + `{"type":"FeatureCollection","features":[` + point + `]}` + "\n" + record, []brief{good, at(p1, len(record)+41), at(good, len(record)+len(point)+44)}},
		"collection, then records":         {`{"type":"FeatureCollection","features":[` + point + `]}` + "\n{broken\n" + record, []brief{at(p1, 40), bad("invalid_json", len(point)+43, "{broken", 1), at(good, len(point)+51)}},
		"one document over many lines":     {"{\n" + point[1:], []brief{{Feature: "p1", Batch: un, Payload: "{\n" + point[1:]}}},
		"documents over many lines":        {"{\n" + point[1:] + "\n{\n" + point2[1:] + "\n", []brief{{Feature: "p1", Batch: un, Payload: "{\n" + point[1:]}, at(brief{Feature: "2", Batch: un, Payload: "{\n" + point2[1:]}, len(point)+2)}},
		"array of features":                {"[\n" + point + ",\n" + point2 + "]", []brief{at(p1, 2), at(p2, len(point)+4)}},
		"array of records":                 {"[" + record + "]", []brief{at(good, 1)}},
		"empty array":                      {"[]", nil},
		"first line broken":                {"{\"feature_id\":\"a\",\n" + record + "\n", []brief{{Feature: "a", Batch: un, Rule: "decode:feature", Type: "invalid_json", Payload: "{\"feature_id\":\"a\",", Quarantined: true}, at(good, 19)}},
		"first line broken in a string":    {"{\"batch_id\":\"b\",\"feature_id\":\"a\n" + record + "\n", []brief{{Feature: "incoming/failures.ndjson#0", Batch: "b", Rule: "decode:feature", Type: "invalid_json", Payload: "{\"batch_id\":\"b\",\"feature_id\":\"a", Quarantined: true}, at(good, 32)}},
		"first line broken before a value": {"{\"feature\":\n" + record, []brief{bad("invalid_json", 0, "{\"feature\":", 0), at(good, 12)}},
		"first line no JSON":               {"#comment\n" + record, []brief{bad("invalid_json", 0, "#comment", 0), at(good, 9)}},
		"a line of each fault": {
			record + "\n{\"feature\":{}}\n{\"feature\":null,\"feature_id\":\"n\"}\n[1]\n\"x\"\n{\"type\":\"Point\",\"coordinates\":[1,2]}\n" + record,
			[]brief{good,
				bad("not_a_feature", len(record)+1, "{}", 1),
				{Feature: "n", Batch: un, Rule: "decode:feature", Type: "not_a_feature", Payload: `{"feature":null,"feature_id":"n"}`, Offset: int64(len(record) + 16), Quarantined: true},
				bad("not_a_feature", len(record)+51, "1", 3),
				bad("not_a_feature", len(record)+54, `"x"`, 4),
				bad("not_a_feature", len(record)+58, `{"type":"Point","coordinates":[1,2]}`, 5),
				at(good, len(record)+95)}},
		"not UTF-8 in a feature":           {strings.Replace(record, `"name":"a"`, "\"name\":\"\xe9\"", 1), []brief{{Feature: "f1", Batch: "b1", Rule: "decode:feature", Type: "invalid_utf8", Payload: strings.Replace(point, `"name":"a"`, "\"name\":\"\xe9\"", 1), Quarantined: true}}},
		"NaN in a feature keeps the line":  {strings.Replace(record, `11.5`, "NaN", 1), []brief{{Feature: "f1", Batch: "b1", Rule: "decode:feature", Type: "invalid_json", Payload: strings.Replace(record, `11.5`, "NaN", 1), Quarantined: true}}},
		"feature as text":                  {`{"feature_id":"f1","feature_geojson":"{\"type\":\"Feature\",\"geometry\":null,\"properties\":{\"a\":\"\\u00e9\"}}"}`, []brief{{Feature: "f1", Batch: un, Payload: `{"type":"Feature","geometry":null,"properties":{"a":"\u00e9"}}`}}},
		"feature as broken text":           {`{"feature_id":"f1","feature_geojson":"{\"type\":"}`, []brief{{Feature: "f1", Batch: un, Rule: "decode:feature", Type: "invalid_json", Payload: `{"type":`, Quarantined: true}}},
		"feature as text of no characters": {`{"feature_id":"f1","feature_geojson":"\ud800"}`, []brief{{Feature: "f1", Batch: un, Rule: "decode:feature", Type: "invalid_utf8", Payload: `"\ud800"`, Quarantined: true}}},
		"two different features":           {`{"feature_id":"f1","feature":{"type":"Feature"},"feature_geojson":"{}"}`, []brief{{Feature: "f1", Batch: un, Rule: "decode:feature", Type: "ambiguous_json", Payload: `{"feature_id":"f1","feature":{"type":"Feature"},"feature_geojson":"{}"}`, Quarantined: true}}},
		"the same feature twice":           {`{"feature_id":"f1","feature":{"type":"Feature","geometry":null,"properties":{}},"feature_geojson":"{\"type\":\"Feature\",\"geometry\":null,\"properties\":{}}"}`, []brief{{Feature: "f1", Batch: un, Payload: `{"type":"Feature","geometry":null,"properties":{}}`}}},
		"a batch named twice":              {`{"feature_id":"f1","batch_id":"a","batch_id":"b","feature":` + point + `}`, []brief{{Feature: "f1", Batch: "a", Rule: "decode:feature", Type: "ambiguous_json", Payload: point, Quarantined: true}}},
		"broken member of a collection": {
			`{"type":"FeatureCollection","features":[` + point + `,{"type":"Feature","id":NaN},` + point2 + `]}`,
			[]brief{at(p1, 40), bad("invalid_json", 41+len(point), `{"type":"Feature","id":NaN}`, 1), at(p2, 69+len(point))}},
		"member of a collection without its end": {
			"{\"type\":\"FeatureCollection\",\"features\":[\n" + `{"type":"Feature","id":"x","geometry":{"type":"Point","coordinates":[1,2}` + ",\n" + point + ",\n" + point2 + "\n]}",
			[]brief{{Feature: "x", Batch: un, Type: "invalid_json", Rule: "decode:feature", Payload: `{"type":"Feature","id":"x","geometry":{"type":"Point","coordinates":[1,2}`, Offset: 41, Quarantined: true}, at(p1, 116), at(p2, 118+len(point))}},
		"collection that is cut off": {
			`{"type":"FeatureCollection","features":[` + point + `,` + point2[:20],
			[]brief{at(p1, 40), norule(brief{Feature: "incoming/failures.ndjson#1", Batch: un, Type: "invalid_json", Payload: point2[:20], Offset: int64(41 + len(point)), Quarantined: true})}},
		"collection that is cut off between features": {
			"{\n\"type\":\"FeatureCollection\",\"features\":[" + point + `,`,
			[]brief{at(p1, 41), norule(bad("invalid_json", 42+len(point), "", 1))}},
		"text":     {"name,lat,lon\nx,1,2\n", []brief{norule(bad("invalid_json", 0, "name,lat,lon\nx,1,2", 0))}},
		"an image": {"\x89PNG\r\n\x1a\n\x00\x00", []brief{norule(bad("invalid_utf8", 0, "\x89PNG\r\n\x1a\n\x00\x00", 0))}},
		"UTF-16":   {"\xff\xfe{\x00}\x00", []brief{norule(bad("invalid_utf8", 0, "\xff\xfe{\x00}\x00", 0))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, briefs(read(t, object([]byte(tc.content)), inbox.Limits{}))); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

func gzipped(parts ...[]byte) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&b)
		w.Write(p)
		w.Close()
	}
	return b.Bytes()
}

func zstded(p []byte) []byte {
	w, _ := zstd.NewWriter(nil)
	return w.EncodeAll(p, nil)
}

func TestCompression(t *testing.T) {
	t.Parallel()
	plain := []byte(point + "\n" + point2 + "\n")
	want := briefs(read(t, object(plain), inbox.Limits{}))
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3}, zstded(plain)...)
	for name, content := range map[string][]byte{
		"gzip":                          gzipped(plain),
		"gzip of two members":           gzipped(plain[:20], plain[20:]),
		"zstd":                          zstded(plain),
		"zstd of two frames":            append(zstded(plain[:33]), zstded(plain[33:])...),
		"zstd behind a skippable frame": skippable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want, briefs(read(t, object(content), inbox.Limits{}))); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}

	many := []byte(strings.Repeat(point+"\n", 20000))
	for name, content := range map[string][]byte{
		"gzip cut off":     gzipped(many)[:len(gzipped(many))/2],
		"gzip flipped":     flip(gzipped(many)),
		"zstd cut off":     zstded(many)[:len(zstded(many))/2],
		"gzip header only": gzipped(many)[:5],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := read(t, object(content), inbox.Limits{})
			last := rows[len(rows)-1]
			if !last.Quarantined || !strings.Contains(last.ErrorMessage, "stream cannot be read on") {
				t.Errorf("the last of %d rows is %+v, want one that tells of the break", len(rows), briefs(rows[len(rows)-1:]))
			}
			if len(rows) > 2 && string(rows[0].Payload) != point {
				t.Errorf("the first of %d rows is %q", len(rows), rows[0].Payload)
			}
		})
	}
}

func flip(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)*2/3] ^= 0x40
	return b
}

// What storage or the network does wrong is an error, never a dead letter.
func TestReadErrors(t *testing.T) {
	t.Parallel()
	reset := errors.New("connection reset")
	lines := []byte(strings.Repeat(point+"\n", 50000))
	for name, content := range map[string][]byte{"plain": lines, "gzip": gzipped(lines), "zstd": zstded(lines),
		"collection": []byte(`{"type":"FeatureCollection","features":[` + strings.Repeat(point+",", 20000) + point + `]}`)} {
		for _, after := range []int{0, 1, 3, 300, len(content) * 2 / 3} {
			t.Run(fmt.Sprintf("%s after %d bytes", name, after), func(t *testing.T) {
				t.Parallel()
				o := object(nil)
				o.Open = func(context.Context) (io.ReadCloser, error) {
					return io.NopCloser(io.MultiReader(bytes.NewReader(content[:after]), failing{reset})), nil
				}
				_, err := inbox.Read(t.Context(), o, inbox.Limits{}, func(rows []archive.Row) error {
					for _, r := range rows {
						if r.Quarantined {
							t.Errorf("record %d is malformed: %s", r.SourceRecord, r.ErrorMessage)
						}
					}
					return nil
				})
				if !errors.Is(err, reset) {
					t.Errorf("error %v, want %v", err, reset)
				}
			})
		}
	}
	t.Run("open", func(t *testing.T) {
		t.Parallel()
		o := object(nil)
		o.Open = func(context.Context) (io.ReadCloser, error) { return nil, reset }
		if _, err := inbox.Read(t.Context(), o, inbox.Limits{}, nil); !errors.Is(err, reset) {
			t.Errorf("error %v, want %v", err, reset)
		}
	})
	t.Run("yield", func(t *testing.T) {
		t.Parallel()
		full := errors.New("full")
		if _, err := inbox.Read(t.Context(), object(lines), inbox.Limits{}, func([]archive.Row) error { return full }); !errors.Is(err, full) {
			t.Errorf("error %v, want %v", err, full)
		}
	})
	t.Run("a caller that gives up", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("deadline near")
		o := object(nil)
		o.Open = func(ctx context.Context) (io.ReadCloser, error) { return endless{ctx, []byte(point + "\n")}, nil }
		_, err := inbox.Read(ctx, o, inbox.Limits{}, func([]archive.Row) error { cancel(gone); return nil })
		if !errors.Is(err, gone) && !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v", err, gone)
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// endless repeats a text until its context ends.
type endless struct {
	ctx  context.Context
	text []byte
}

func (e endless) Read(p []byte) (int, error) {
	if err := context.Cause(e.ctx); err != nil {
		return 0, err
	}
	return copy(p, e.text), nil
}

func (endless) Close() error { return nil }
