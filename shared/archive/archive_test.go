package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
)

func ptr[T any](v T) *T { return &v }

// rowsOfAllKinds has one row for each thing a column may hold.
func rowsOfAllKinds() []archive.Row {
	seen := time.Date(2026, 11, 30, 5, 12, 44, 101_203_000, time.UTC)
	base := archive.Row{
		Record: deadletter.Record{
			DLQID: deadletter.RecordID("b", "k", "v", 0), FeatureID: "parcel-1", BatchID: "parcels-2026-11-30",
			FailedRule: "coerce:built_year->integer", ErrorType: "ValueError", ErrorMessage: "invalid literal: 'ca. 1890'",
			Attempts: 3, Payload: []byte(`{"type":"Feature","id":"parcel-1","geometry":null,"properties":{"a":1.50,"b":"\u00e9"}}`),
			SourceCRS: ptr("urn:ogc:def:crs:EPSG::26910"), FirstSeen: seen,
			EPSG: 26910, GeomHash: strings.Repeat("0f", 32),
			SourceObject: "s3://geodlq-inbox/incoming/a.ndjson?versionId=3", SourceRecord: 0, SourceOffset: 0,
			ArrivedAt: seen.Add(time.Hour),
		},
		SourceLength: 412,
	}
	bare := archive.Row{Record: deadletter.Record{DLQID: deadletter.RecordID("b", "k", "v", 1), FeatureID: "f", BatchID: deadletter.UnattributedBatch, FirstSeen: seen, ArrivedAt: seen}}
	raw := base
	raw.DLQID = deadletter.RecordID("b", "k", "v", 2)
	raw.Payload = []byte("{\"type\":\"Feature\",\xff\xfe}")
	raw.Quarantined, raw.ErrorType = true, string(deadletter.ReasonInvalidUTF8)
	raw.SourceRecord, raw.SourceOffset = 2, 1<<40
	oversized := base
	oversized.DLQID = deadletter.RecordID("b", "k", "v", 3)
	oversized.SourceSHA256, oversized.SourceLength, oversized.ReplayCount = strings.Repeat("ab", 32), 1<<33, 2
	emptyCRS := base
	emptyCRS.DLQID, emptyCRS.SourceCRS = deadletter.RecordID("b", "k", "v", 4), ptr("")
	odd := base
	odd.DLQID = deadletter.RecordID("b", "k", "v", 5)
	odd.Payload = []byte("\x00\r\n\t \u2028 {\"no\": feature")
	odd.FeatureID, odd.ErrorMessage = "Ω/≈ç√", "日本語\nline two"
	return []archive.Row{base, bare, raw, oversized, emptyCRS, odd}
}

func write(t testing.TB, groups ...[]archive.Row) *archive.Buffer {
	t.Helper()
	b := new(archive.Buffer)
	w, err := archive.NewWriter(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, rows := range groups {
		if err := w.Write(rows); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

func readAll(t testing.TB, src archive.Source, size int) []archive.Row {
	t.Helper()
	r, err := archive.NewReader(src)
	if err != nil {
		t.Fatal(err)
	}
	var all []archive.Row
	for {
		rows := make([]archive.Row, size)
		n, err := r.Read(rows)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows[:n]...)
	}
	if int64(len(all)) != r.NumRows() {
		t.Errorf("read %d rows, the footer says %d", len(all), r.NumRows())
	}
	return all
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	many := make([]archive.Row, 0, 5000)
	for i := range 5000 {
		r := rowsOfAllKinds()[i%6]
		r.DLQID, r.SourceRecord = deadletter.RecordID("b", "k", "v", int64(i)), int64(i)
		r.FeatureID = fmt.Sprint("f", i)
		many = append(many, r)
	}
	large := rowsOfAllKinds()[:1]
	large[0].Payload = bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	for name, groups := range map[string][][]archive.Row{
		"a row of every kind":        {rowsOfAllKinds()},
		"several row groups":         {many[:1], many[1:1500], nil, many[1500:]},
		"a value larger than a page": {large, rowsOfAllKinds()},
		"nothing":                    {},
	} {
		for _, size := range []int{1, 7, 4096} {
			t.Run(fmt.Sprintf("%s, %d at a time", name, size), func(t *testing.T) {
				t.Parallel()
				var want []archive.Row
				for _, g := range groups {
					want = append(want, g...)
				}
				got := readAll(t, write(t, groups...).Reader(), size)
				if diff := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); diff != "" {
					t.Errorf("rows (-written +read):\n%s", diff)
				}
			})
		}
	}
}

// Equal rows must give equal bytes, or a retry would not know its own file.
func TestWriterIsDeterministic(t *testing.T) {
	t.Parallel()
	first := contents(t, write(t, rowsOfAllKinds(), rowsOfAllKinds()))
	for range 20 {
		if !bytes.Equal(first, contents(t, write(t, rowsOfAllKinds(), rowsOfAllKinds()))) {
			t.Fatal("two files of the same rows differ")
		}
	}
}

func contents(t testing.TB, b *archive.Buffer) []byte {
	t.Helper()
	all, err := io.ReadAll(b.Reader())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReaderRefuses(t *testing.T) {
	t.Parallel()
	good := contents(t, write(t, rowsOfAllKinds()))
	for name, b := range map[string][]byte{
		"nothing":                           nil,
		"text":                              []byte("{\"feature_id\":1}\n"),
		"a cut file":                        good[:len(good)/2],
		"a footer that points past the end": append(append([]byte("PAR1"), 0xff, 0xff, 0xff, 0x7f), "PAR1"...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := archive.NewReader(bytes.NewReader(b)); !errors.Is(err, archive.ErrNotArchive) {
				t.Errorf("error %v, want one of class ErrNotArchive", err)
			}
		})
	}
	t.Run("a damaged page", func(t *testing.T) {
		t.Parallel()
		b := bytes.Clone(good)
		for i := 200; i < 400; i++ {
			b[i] ^= 0xA5
		}
		r, err := archive.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := r.Read(make([]archive.Row, 10)); err == nil {
			t.Errorf("read %d rows from a damaged file, want an error", n)
		}
	})
}

func TestWriterReportsTheSink(t *testing.T) {
	t.Parallel()
	full := errors.New("no space")
	for limit := range 40 {
		w, err := archive.NewWriter(&limited{left: limit * 64, err: full})
		if err == nil {
			err = w.Write(rowsOfAllKinds())
		}
		if err == nil {
			err = w.Close()
		}
		if !errors.Is(err, full) {
			t.Errorf("with room for %d bytes: error %v, want %v", limit*64, err, full)
		}
	}
}

type limited struct {
	left int
	err  error
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, l.err
	}
	l.left -= len(p)
	return len(p), nil
}

func TestBuffer(t *testing.T) {
	t.Parallel()
	var b archive.Buffer
	var want []byte
	for i := 0; b.Len() < 5<<20; i++ {
		p := bytes.Repeat([]byte{byte(i)}, 1+i*37%70000)
		if n, err := b.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		want = append(want, p...)
	}
	if !bytes.Equal(contents(t, &b), want) {
		t.Error("the buffer reads back differently")
	}
	for _, off := range []int64{0, 1, 16<<10 - 1, 16 << 10, 1 << 20, b.Len() - 3} {
		p := make([]byte, 3)
		if n, err := b.ReadAt(p, off); n != 3 || err != nil || !bytes.Equal(p, want[off:off+3]) {
			t.Errorf("3 bytes at %d: %d, %v, %x", off, n, err, p)
		}
	}
	if n, err := b.ReadAt(make([]byte, 10), b.Len()-4); n != 4 || err != io.EOF {
		t.Errorf("across the end: %d, %v; want 4 and io.EOF", n, err)
	}
	if _, err := b.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset is read")
	}
}
