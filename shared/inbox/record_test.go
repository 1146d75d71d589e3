package inbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/inbox"
)

func one(t *testing.T, o inbox.Object, limits inbox.Limits) archive.Row {
	t.Helper()
	rows := read(t, o, limits)
	if len(rows) != 1 {
		t.Fatalf("%d rows, want one: %+v", len(rows), briefs(rows))
	}
	return rows[0]
}

func TestRecordFields(t *testing.T) {
	t.Parallel()
	const id = "0f4d1c5e-95c1-4a0c-8d3b-8f2f1f7b6a10"
	r := one(t, object([]byte(`{"dlq_id":"`+strings.ToUpper(id)+`","feature_id":"parcel-7","batch_id":"parcels/2026","failed_rule":"coerce:built_year->integer",
		"error_type":"ValueError","error_message":"`+strings.Repeat("é", 600)+`","attempts":"3","source_crs":"urn:ogc:def:crs:EPSG::4326",
		"first_seen":"2026-11-29t23:00:00.123456789+01:00","unknown":{"a":[1]},"feature":`+point+`}`)), inbox.Limits{})
	crs := "urn:ogc:def:crs:EPSG::4326"
	dlqID, err := deadletter.ParseUUID(id)
	if err != nil {
		t.Fatal(err)
	}
	want := deadletter.Record{
		DLQID: dlqID, FeatureID: "parcel-7", BatchID: "parcels/2026", FailedRule: "coerce:built_year->integer", ErrorType: "ValueError",
		ErrorMessage: strings.Repeat("é", 500), Attempts: 3, Payload: []byte(point), SourceCRS: &crs,
		FirstSeen: time.Date(2026, 11, 29, 22, 0, 0, 123456000, time.UTC), EPSG: 4326, Geometry: r.Geometry,
		GeomHash:     deadletter.GeomHash("parcel-7", 4326, r.Geometry),
		SourceObject: "s3://geodlq-inbox/incoming/failures.ndjson?versionId=3", ArrivedAt: arrived,
	}
	if diff := cmp.Diff(want, r.Record); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if r.Geometry == nil {
		t.Error("the geometry was not read")
	}
}

func TestRecordDefaults(t *testing.T) {
	t.Parallel()
	bare := one(t, object([]byte(`{"feature":{"type":"Feature","geometry":null,"properties":{}}}`)), inbox.Limits{})
	want := deadletter.Record{
		DLQID:     deadletter.RecordID("geodlq-inbox", "incoming/failures.ndjson", "3", 0),
		FeatureID: "incoming/failures.ndjson#0", BatchID: deadletter.UnattributedBatch,
		Payload: []byte(`{"type":"Feature","geometry":null,"properties":{}}`), FirstSeen: arrived, ArrivedAt: arrived,
		SourceObject: "s3://geodlq-inbox/incoming/failures.ndjson?versionId=3",
	}
	if diff := cmp.Diff(want, bare.Record); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}

	for name, tc := range map[string]struct {
		key      string
		metadata map[string]string
		content  string
		want     string // batch, rule, type, message, CRS
	}{
		"metadata for a bare feature":              {"incoming/a", map[string]string{"batch-id": "run 7", "failed-rule": "r", "error-type": "E", "error-message": "m", "source-crs": "EPSG:4326"}, point, "run 7|r|E|m|EPSG:4326|4326"},
		"metadata that is not ASCII":               {"incoming/a", map[string]string{"batch-id": "=?UTF-8?B?U3RyYcOfZQ==?="}, point, "Straße||||none|0"},
		"a record before metadata":                 {"incoming/a", map[string]string{"batch-id": "m", "failed-rule": "m", "source-crs": "EPSG:3857"}, `{"batch_id":"own","failed_rule":"r","source_crs":"EPSG:4326","feature":` + point + `}`, "own|r|||EPSG:4326|4326"},
		"metadata before the key":                  {"incoming/batch_id=k/a", map[string]string{"batch-id": "m"}, point, "m||||none|0"},
		"the batch in the key":                     {"incoming/batch_id=parcels%2F1/a.ndjson", nil, point, "parcels/1||||none|0"},
		"an empty batch in a record":               {"incoming/batch_id=k/a", nil, `{"batch_id":"","feature":` + point + `}`, "k||||none|0"},
		"a number for a batch":                     {"incoming/a", nil, `{"batch_id":20261130,"feature":` + point + `}`, "20261130||||none|0"},
		"a CRS the record does not know":           {"incoming/a", map[string]string{"source-crs": "EPSG:4326"}, `{"source_crs":null,"feature":` + point + `}`, "unattributed||||none|0"},
		"a CRS the record leaves open":             {"incoming/a", map[string]string{"source-crs": "EPSG:4326"}, `{"feature":` + point + `}`, "unattributed||||EPSG:4326|4326"},
		"a CRS as a number":                        {"incoming/a", nil, `{"source_crs":4326,"feature":` + point + `}`, "unattributed||||4326|4326"},
		"a feature's own CRS before a default":     {"incoming/a", map[string]string{"source-crs": "EPSG:3857"}, strings.Replace(point, `"id"`, `"crs":{"type":"name","properties":{"name":"EPSG:4326"}},"id"`, 1), "unattributed||||none|4326"},
		"a feature's own CRS against the record's": {"incoming/a", nil, `{"source_crs":"EPSG:3857","feature":` + strings.Replace(point, `"id"`, `"crs":{"type":"name","properties":{"name":"EPSG:4326"}},"id"`, 1) + `}`, "unattributed||||EPSG:3857|0"},
		"a CRS nobody knows":                       {"incoming/a", nil, `{"source_crs":"EPSG:999999","feature":` + point + `}`, "unattributed||||EPSG:999999|0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := object([]byte(tc.content))
			o.Key, o.Metadata = tc.key, tc.metadata
			r := one(t, o, inbox.Limits{})
			crs := "none"
			if r.SourceCRS != nil {
				crs = *r.SourceCRS
			}
			if got := fmt.Sprintf("%s|%s|%s|%s|%s|%d", r.BatchID, r.FailedRule, r.ErrorType, r.ErrorMessage, crs, r.EPSG); got != tc.want {
				t.Errorf("batch|rule|type|message|CRS|code = %s, want %s", got, tc.want)
			}
			if (r.GeomHash != "") != (r.EPSG != 0) || (r.Geometry != nil) != (r.EPSG != 0) {
				t.Errorf("code %d, hash %q, geometry %v: want all or none", r.EPSG, r.GeomHash, r.Geometry)
			}
		})
	}
}

func TestLongAndOddIDs(t *testing.T) {
	t.Parallel()
	content := ""
	for _, end := range []string{"a", "b"} {
		content += `{"batch_id":"` + strings.Repeat("é", 400) + end + `","feature_id":"` + strings.Repeat("x", 3000) + end + `\u0000","feature":` + point + "}\n"
	}
	rows := read(t, object([]byte(content)), inbox.Limits{})
	for _, r := range rows {
		if len(r.BatchID) > 512 || len(r.FeatureID) > 512 || strings.ContainsAny(r.BatchID+r.FeatureID, "\x00") {
			t.Errorf("batch of %d bytes, feature id of %d bytes; want at most 512, and no U+0000", len(r.BatchID), len(r.FeatureID))
		}
	}
	if rows[0].BatchID == rows[1].BatchID || rows[0].FeatureID == rows[1].FeatureID {
		t.Error("two ids that differ at their end have become one")
	}
}

// The crs member of a collection is its features' CRS wherever it stands, also in one
// that is not held in memory.
func TestCollectionCRS(t *testing.T) {
	t.Parallel()
	member := func(name string) string { return `"crs":{"type":"name","properties":{"name":"` + name + `"}}` }
	for _, many := range []int{3, 20000} {
		features := `"features":[` + strings.Repeat(point+",\n", many-1) + point + `]`
		for name, tc := range map[string]struct {
			content string
			crs     string // source_crs, "none" for null
			code    int
			reason  deadletter.Reason
		}{
			"before the features":   {`{"type":"FeatureCollection",` + member("urn:ogc:def:crs:OGC:1.3:CRS84") + `,` + features + `}`, "urn:ogc:def:crs:OGC:1.3:CRS84", 4326, ""},
			"behind the features":   {`{"type":"FeatureCollection",` + features + `,"name":"x",` + member("EPSG:4326") + `}`, "EPSG:4326", 4326, ""},
			"none":                  {`{"type":"FeatureCollection",` + features + `}`, "none", 0, ""},
			"null":                  {`{"type":"FeatureCollection",` + features + `,"crs":null}`, "none", 0, ""},
			"twice the same":        {`{` + member("EPSG:4326") + `,"type":"FeatureCollection",` + features + `,` + member("EPSG:4326") + `}`, "EPSG:4326", 4326, ""},
			"twice, and different":  {`{` + member("EPSG:4326") + `,"type":"FeatureCollection",` + features + `,` + member("EPSG:3857") + `}`, "none", 0, deadletter.ReasonAmbiguousJSON},
			"one that nobody knows": {`{"type":"FeatureCollection",` + features + `,` + member("moon") + `}`, "moon", 0, ""},
		} {
			for form, content := range map[string][]byte{"plain": []byte(tc.content), "gzip": gzipped([]byte(tc.content))} {
				t.Run(fmt.Sprintf("%d features, %s, %s", many, name, form), func(t *testing.T) {
					t.Parallel()
					rows := read(t, object(content), inbox.Limits{})
					if len(rows) != many {
						t.Fatalf("%d rows, want %d", len(rows), many)
					}
					for _, r := range rows {
						crs := "none"
						if r.SourceCRS != nil {
							crs = *r.SourceCRS
						}
						if crs != tc.crs || r.EPSG != tc.code || r.Quarantined != (tc.reason != "") || r.Quarantined && r.ErrorType != string(tc.reason) || string(r.Payload) != point {
							t.Fatalf("record %d: CRS %s, code %d, %s %q", r.SourceRecord, crs, r.EPSG, r.ErrorType, r.Payload)
						}
					}
				})
			}
		}
	}
	t.Run("a feature that contradicts it", func(t *testing.T) {
		t.Parallel()
		feature := strings.Replace(point, `"id"`, member("EPSG:3857")+`,"id"`, 1)
		r := one(t, object([]byte(`{"type":"FeatureCollection",`+member("EPSG:4326")+`,"features":[`+feature+`]}`)), inbox.Limits{})
		if r.EPSG != 0 || r.SourceCRS == nil || *r.SourceCRS != "EPSG:4326" {
			t.Errorf("CRS %v, code %d; want the collection's name, and no code, so that the replay reports the conflict", r.SourceCRS, r.EPSG)
		}
	})
}

// A record that is too large costs itself alone and leaves its beginning, length and digest.
func TestOversized(t *testing.T) {
	t.Parallel()
	limits := inbox.Limits{MaxFeatureBytes: 100 << 10}
	feature := func(n int) string {
		return `{"type":"Feature","id":"big","geometry":null,"properties":{"a":"` + strings.Repeat("x", n) + `"}}`
	}
	record := func(n int) string { return `{"batch_id":"b","feature":` + feature(n) + `}` }
	digest := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return hex.EncodeToString(sum[:])
	}
	for name, tc := range map[string]struct {
		before, middle, after string
		batch, payload        string
	}{
		"a line of a feature a little too large":   {point + "\n", record(101 << 10), "\n" + point2, "b", feature(101 << 10)},
		"a line far too large":                     {point + "\n", record(9 << 20), "\n" + point2, "b", record(9 << 20)},
		"the last line, without its end":           {point + "\n", record(300 << 10), "", "b", record(300 << 10)},
		"a bare feature of a collection":           {`{"type":"FeatureCollection","features":[` + point + `,`, feature(2 << 20), `,` + point2 + `]}`, "unattributed", feature(2 << 20)},
		"a bare feature of a collection, a little": {`{"type":"FeatureCollection","features":[` + point + `,`, feature(101 << 10), `,` + point2 + `]}`, "unattributed", feature(101 << 10)},
		"one of a text sequence":                   {"\x1e" + point + "\n\x1e", feature(1<<20) + "\n", "\x1e" + point2, "unattributed", feature(1 << 20)},
		"a line that is no JSON":                   {point + "\n", `{"batch_id":"b",` + strings.Repeat("[", 1<<20), "\n" + point2, "b", `{"batch_id":"b",` + strings.Repeat("[", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := read(t, object([]byte(tc.before+tc.middle+tc.after)), limits)
			want := 3
			if tc.after == "" {
				want = 2
			}
			if len(rows) != want {
				t.Fatalf("%d rows, want %d: %+v", len(rows), want, briefs(rows)[1:])
			}
			r := rows[1]
			if !r.Quarantined || r.ErrorType != string(deadletter.ReasonFeatureTooLarge) || r.BatchID != tc.batch {
				t.Errorf("quarantined %t, %s, batch %s: %s", r.Quarantined, r.ErrorType, r.BatchID, r.ErrorMessage)
			}
			if r.SourceOffset != int64(len(tc.before)) || r.SourceLength != int64(len(tc.middle)) || r.SourceSHA256 != digest(tc.middle) {
				t.Errorf("offset %d, length %d, SHA-256 %s; want %d, %d, %s", r.SourceOffset, r.SourceLength, r.SourceSHA256, len(tc.before), len(tc.middle), digest(tc.middle))
			}
			if string(r.Payload) != tc.payload[:inbox.Prefix] {
				t.Errorf("%d bytes are kept, want the first %d", len(r.Payload), inbox.Prefix)
			}
			if !strings.Contains(r.ErrorMessage, r.SourceSHA256) {
				t.Errorf("message %q does not tell the digest", r.ErrorMessage)
			}
			if rows[0].Quarantined || tc.after != "" && rows[2].Quarantined {
				t.Error("a neighbour suffered")
			}
		})
	}
}

// A decompression bomb is stopped; what came before it is kept.
func TestObjectLimit(t *testing.T) {
	t.Parallel()
	lines := strings.Repeat(point+"\n", 1000)
	bomb := lines + strings.Repeat(" ", 8<<20)
	for name, tc := range map[string]struct {
		content []byte
		limit   int64
		good    int
		last    bool
	}{
		"within":               {gzipped([]byte(lines)), int64(len(lines)), 1000, false},
		"one byte over":        {gzipped([]byte(lines)), int64(len(lines)) - 1, 999, true},
		"plain":                {[]byte(lines), 5000, 5000 / (len(point) + 1), true},
		"gzip bomb":            {gzipped([]byte(bomb)), 1 << 20, 1000, true},
		"zstd bomb":            {zstded([]byte(bomb)), 1 << 20, 1000, true},
		"collection":           {[]byte(`{"type":"FeatureCollection","features":[` + strings.Repeat(point+",", 1000) + point + `]}`), 40 + 10*int64(len(point)+1) + 5, 10, true},
		"collection, streamed": {[]byte(`{"type":"FeatureCollection","features":[` + strings.Repeat(point+",", 20000) + point + `]}`), 40 + 10000*int64(len(point)+1) + 5, 10000, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := read(t, object(tc.content), inbox.Limits{MaxObjectBytes: tc.limit})
			want := tc.good
			if tc.last {
				want++
			}
			if len(rows) != want {
				t.Fatalf("%d rows, want %d; the last: %+v", len(rows), want, rows[len(rows)-1].ErrorMessage)
			}
			for _, r := range rows[:tc.good] {
				if string(r.Payload) != point {
					t.Fatalf("record %d is %q", r.SourceRecord, r.Payload)
				}
			}
			if r := rows[len(rows)-1]; tc.last && (!r.Quarantined || r.ErrorType != "feature_too_large" || !strings.Contains(r.ErrorMessage, "MAX_OBJECT_BYTES")) {
				t.Errorf("the last row is %s: %s", r.ErrorType, r.ErrorMessage)
			}
		})
	}
}

// What Lambda writes to a failure destination, by asynchronous invocation and by event
// source mapping.
func TestLambdaDestinations(t *testing.T) {
	t.Parallel()
	quote := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	async := func(payload string) string {
		return `{"version":"1.0","timestamp":"2026-11-14T18:16:05.568Z","requestContext":{"requestId":"e4b46cbf-b738-xmpl-8880-a18cdf61200e","functionArn":"arn:aws:lambda:eu-central-1:111122223333:function:load-parcel:$LATEST","condition":"RetriesExhausted","approximateInvokeCount":3},"requestPayload":` + payload + `,"responseContext":{"statusCode":200,"executedVersion":"$LATEST","functionError":"Unhandled"},"responsePayload":{"errorMessage":"could not coerce built_year","errorType":"ValueError","stackTrace":[]}}`
	}
	mapping := func(info string) string {
		return `{"requestContext":{"requestId":"c9b8fa9f-5a7f-xmpl-af9c-0c604cde93a5","functionArn":"arn:aws:lambda:eu-central-1:111122223333:function:load-parcel","condition":"RetryAttemptsExhausted","approximateInvokeCount":1},"responseContext":{"statusCode":200,"executedVersion":"$LATEST","functionError":"Unhandled"},"version":"1.0","timestamp":"2026-11-14T18:16:05.568Z",` + info + `}`
	}
	b64 := base64.StdEncoding.EncodeToString
	kinesis := `{"Records":[{"kinesis":{"partitionKey":"1","data":"` + b64([]byte(point)) + `"},"eventSource":"aws:kinesis"},{"kinesis":{"partitionKey":"1","data":"` + b64([]byte(point2)) + `"},"eventSource":"aws:kinesis"}]}`
	both, first := []string{point, point2}, []string{point}
	for name, tc := range map[string]struct {
		content  string
		payloads []string
		want     string // type|message|attempts of the first row
		reason   string
	}{
		"a feature":                       {async(point), first, "ValueError|could not coerce built_year|3", ""},
		"over many lines":                 {strings.ReplaceAll(async(point), `,"`, ",\n\""), []string{strings.ReplaceAll(point, `,"`, ",\n\"")}, "ValueError|could not coerce built_year|3", ""},
		"two to an object, one to a line": {async(point) + "\n" + async(point2), both, "ValueError|could not coerce built_year|3", ""},
		"an array of features":            {async("[" + point + "," + point2 + "]"), both, "ValueError|could not coerce built_year|3", ""},
		"a collection":                    {async(`{"type":"FeatureCollection","features":[` + point + "," + point2 + "]}"), both, "ValueError|could not coerce built_year|3", ""},
		"a dead-letter record":            {async(`{"feature":` + point + `,"error_type":"Own","attempts":9}`), first, "Own|could not coerce built_year|9", ""},
		"SQS messages":                    {async(`{"Records":[{"messageId":"1","body":` + quote(point) + `},{"messageId":"2","body":` + quote(point2) + `}]}`), both, "ValueError|could not coerce built_year|3", ""},
		"SNS in SQS":                      {async(`{"Records":[{"messageId":"1","body":` + quote(`{"Records":[{"Sns":{"Message":`+quote(point)+`}}]}`) + `}]}`), first, "ValueError|could not coerce built_year|3", ""},
		"NDJSON in SQS":                   {async(`{"Records":[{"messageId":"1","body":` + quote(point+"\n"+point2+"\n") + `}]}`), both, "ValueError|could not coerce built_year|3", ""},
		"a feature as text":               {async(quote(point)), first, "ValueError|could not coerce built_year|3", ""},
		"Kinesis":                         {mapping(`"KinesisBatchInfo":{"shardId":"s"},"payload":` + quote(kinesis)), both, "Unhandled|RetryAttemptsExhausted|1", ""},
		"Kafka":                           {mapping(`"payload":` + quote(`{"eventSource":"aws:kafka","records":{"parcels-0":[{"topic":"parcels","value":"`+b64([]byte(point))+`"}]}}`)), first, "Unhandled|RetryAttemptsExhausted|1", ""},
		"pointers only":                   {mapping(`"KinesisBatchInfo":{"shardId":"s"}`), []string{mapping(`"KinesisBatchInfo":{"shardId":"s"}`)}, "not_a_feature", "not_a_feature"},
		"an event without a feature":      {async(`{"detail":{"key":"a"}}`), []string{`{"detail":{"key":"a"}}`}, "not_a_feature", "not_a_feature"},
		"a body that is no JSON":          {async(`{"Records":[{"messageId":"1","body":"hello"}]}`), []string{"hello"}, "invalid_json", "invalid_json"},
		"an empty body":                   {async(`{"Records":[{"messageId":"1","body":""}]}`), []string{""}, "not_a_feature", "not_a_feature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := read(t, object([]byte(tc.content)), inbox.Limits{})
			var payloads []string
			for _, r := range rows {
				payloads = append(payloads, string(r.Payload))
				if r.Quarantined != (tc.reason != "") {
					t.Errorf("record %d: quarantined %t, %s: %s", r.SourceRecord, r.Quarantined, r.ErrorType, r.ErrorMessage)
				}
			}
			if diff := cmp.Diff(tc.payloads, payloads); diff != "" {
				t.Errorf("payloads (-want +got):\n%s", diff)
			}
			r := rows[0]
			got := fmt.Sprintf("%s|%s|%d", r.ErrorType, r.ErrorMessage, r.Attempts)
			if tc.reason != "" {
				got = r.ErrorType
			}
			if got != tc.want {
				t.Errorf("type|message|attempts = %s, want %s", got, tc.want)
			}
			if seen := time.Date(2026, 11, 14, 18, 16, 5, 568e6, time.UTC); !r.FirstSeen.Equal(seen) {
				t.Errorf("first seen %v, want the record's time %v", r.FirstSeen, seen)
			}
		})
	}
}

// Every reading of an object agrees with every other, however many decoders there
// are and however the bytes come.
func TestReadingsAgree(t *testing.T) {
	t.Parallel()
	var content bytes.Buffer
	for i := range 4000 {
		switch i % 7 {
		case 0:
			fmt.Fprintf(&content, `{"type":"FeatureCollection","features":[%s,%s]}`+"\n", point, point2)
		case 1:
			content.WriteString("{broken" + strings.Repeat("x", i) + "\n")
		case 2:
			fmt.Fprintf(&content, `{"feature":%s,"batch_id":"b%d"}`+"\r\n\n", point, i%3)
		default:
			fmt.Fprintf(&content, `{"feature_id":"f%d","batch_id":"b","source_crs":"EPSG:4326","feature":%s}`+"\n", i, point)
		}
	}
	want := read(t, object(content.Bytes()), inbox.Limits{Workers: 1})
	for _, workers := range []int{1, 2, 5} {
		for _, size := range []int{1 << 20, 4093, 7} {
			t.Run(fmt.Sprintf("%d workers, %d bytes at a time", workers, size), func(t *testing.T) {
				t.Parallel()
				o := object(nil)
				o.Open = func(context.Context) (io.ReadCloser, error) {
					return io.NopCloser(&dribble{bytes.NewReader(content.Bytes()), size}), nil
				}
				got := read(t, o, inbox.Limits{Workers: workers})
				if diff := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); diff != "" {
					t.Errorf("rows (-first +this):\n%s", diff)
				}
			})
		}
	}
}

type dribble struct {
	r    io.Reader
	size int
}

func (d *dribble) Read(p []byte) (int, error) { return d.r.Read(p[:min(len(p), d.size)]) }

// What was archived can be located again.
func TestLocate(t *testing.T) {
	t.Parallel()
	r := one(t, object([]byte(`{"source_crs":"EPSG:4326","feature":`+point+`}`)), inbox.Limits{})
	again := r.Record
	again.Geometry = nil
	inbox.Locate(&again)
	if diff := cmp.Diff(r.Record, again); diff != "" {
		t.Errorf("record (-read +located):\n%s", diff)
	}
	unknown := deadletter.Record{Payload: []byte(point)}
	if inbox.Locate(&unknown); unknown.Geometry != nil {
		t.Error("a record without a code was given a geometry")
	}
}
