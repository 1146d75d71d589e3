package archive

import (
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/metadata"

	"geodlq/shared/arrowfile"
	"geodlq/shared/deadletter"
)

// Writer writes one archive file. Every [Writer.Write] is one row group; rows
// come out in the order they went in. The same calls make the same bytes.
type Writer struct {
	sink counter
	file *file.Writer
	rows int64
}

// NewWriter begins a file on w. [Writer.Close] ends it and leaves w open.
func NewWriter(w io.Writer) (*Writer, error) {
	aw := &Writer{sink: counter{w: w}}
	err := aw.sink.guard(func() error {
		aw.file = file.NewParquetWriter(&aw.sink, fileSchema, file.WithWriterProps(properties),
			file.WithWriteMetadata(metadata.NewKeyValueMetadata()))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("begin archive file: %w", err)
	}
	return aw, nil
}

// Rows is how many rows were written.
func (w *Writer) Rows() int64 { return w.rows }

// Bytes is how many bytes went to the underlying writer so far.
func (w *Writer) Bytes() int64 { return w.sink.n }

// Write appends rows as one row group. The rows are not kept.
func (w *Writer) Write(rows []Row) error {
	if len(rows) == 0 {
		return nil
	}
	err := w.sink.guard(func() error { return w.rowGroup(rows) })
	if err != nil {
		return fmt.Errorf("write %d rows to the archive file: %w", len(rows), err)
	}
	w.rows += int64(len(rows))
	return nil
}

// Close writes the footer.
func (w *Writer) Close() error {
	// Close of arrow's writer swallows the error of the footer, so that is flushed first.
	err := w.sink.guard(func() error {
		if err := w.file.FlushWithFooter(); err != nil {
			return err
		}
		return w.file.Close()
	})
	if err != nil {
		return fmt.Errorf("end archive file: %w", err)
	}
	return nil
}

// scratch is what a row group's columns are gathered in.
type scratch struct {
	bytes  []parquet.ByteArray
	defs   []int16
	int32s []int32
	int64s []int64
	bools  []bool
	uuids  []byte
	text   []bool // whether a row's payload is UTF-8
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (w *Writer) rowGroup(rows []Row) error {
	s := scratches.Get().(*scratch)
	defer func() {
		clear(s.bytes[:cap(s.bytes)]) // let go of the payloads
		scratches.Put(s)
	}()
	s.prepare(rows)
	group := w.file.AppendRowGroup()
	for i := range columns {
		cw, err := group.NextColumn()
		if err != nil {
			return fmt.Errorf("column %s: %w", columns[i].name, err)
		}
		switch cw := cw.(type) {
		case *file.ByteArrayColumnChunkWriter:
			err = s.writeBytes(cw, i, rows)
		case *file.Int32ColumnChunkWriter:
			err = s.writeInt32(cw, i, rows)
		case *file.Int64ColumnChunkWriter:
			err = s.writeInt64(cw, i, rows)
		case *file.BooleanColumnChunkWriter:
			s.bools = s.bools[:0]
			for k := range rows {
				s.bools = append(s.bools, rows[k].Quarantined)
			}
			_, err = cw.WriteBatch(s.bools, nil, nil)
		default:
			err = fmt.Errorf("no writer for %T", cw)
		}
		if err != nil {
			return fmt.Errorf("column %s: %w", columns[i].name, err)
		}
	}
	// Arrow closes an open row group by itself, but then drops the error.
	return group.Close()
}

func (s *scratch) writeBytes(cw *file.ByteArrayColumnChunkWriter, col int, rows []Row) error {
	s.bytes, s.defs = s.bytes[:0], s.defs[:0]
	optional := columns[col].optional
	values, size := 0, 0
	flush := func() error {
		defs := s.defs
		if !optional {
			defs = nil
		}
		_, err := cw.WriteBatch(s.bytes[values:], defs, nil)
		values, size, s.defs = len(s.bytes), 0, s.defs[:0]
		return err
	}
	for k := range rows {
		v, ok := s.bytesAt(col, k, &rows[k])
		if ok || !optional {
			s.bytes = append(s.bytes, v)
			size += len(v)
		}
		if optional {
			def := int16(0)
			if ok {
				def = 1
			}
			s.defs = append(s.defs, def)
		}
		// Arrow looks whether a page is full only after a thousand values, which
		// may be gigabytes of payload; so hand them over by their size.
		if size >= arrowfile.PageBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if values == len(s.bytes) && len(s.defs) == 0 {
		return nil
	}
	return flush()
}

const uuidLen = 36

// prepare works out what more than one column, or all rows of one, need.
func (s *scratch) prepare(rows []Row) {
	s.uuids, s.text = s.uuids[:0], s.text[:0]
	for k := range rows {
		s.uuids = append(s.uuids, rows[k].DLQID.String()...)
		s.text = append(s.text, utf8.Valid(rows[k].Payload))
	}
}

// bytesAt returns the value that row k has in a text or binary column, and whether
// it is not null.
func (s *scratch) bytesAt(col, k int, r *Row) (parquet.ByteArray, bool) {
	switch col {
	case colSchemaVersion:
		return view(deadletter.SchemaVersion), true
	case colDLQID:
		return s.uuids[k*uuidLen : (k+1)*uuidLen], true
	case colBatchID:
		return view(r.BatchID), true
	case colFeatureID:
		return view(r.FeatureID), true
	case colFailedRule:
		return view(r.FailedRule), r.FailedRule != ""
	case colErrorType:
		return view(r.ErrorType), r.ErrorType != ""
	case colErrorMessage:
		return view(r.ErrorMessage), r.ErrorMessage != ""
	case colFeatureGeoJSON:
		return r.Payload, len(r.Payload) > 0 && s.text[k]
	case colPayloadRaw:
		return r.Payload, len(r.Payload) > 0 && !s.text[k]
	case colSourceCRS:
		if r.SourceCRS == nil {
			return nil, false
		}
		return view(*r.SourceCRS), true
	case colGeomHash:
		return view(r.GeomHash), r.GeomHash != ""
	case colSourceObject:
		return view(r.SourceObject), true
	case colSourceSHA256:
		return view(r.SourceSHA256), r.SourceSHA256 != ""
	}
	return nil, false
}

// view is s without a copy. The writer only reads it, and drops it within Write.
func view(s string) parquet.ByteArray { return unsafe.Slice(unsafe.StringData(s), len(s)) }

func (s *scratch) writeInt32(cw *file.Int32ColumnChunkWriter, col int, rows []Row) error {
	s.int32s, s.defs = s.int32s[:0], s.defs[:0]
	for k := range rows {
		r := &rows[k]
		switch col {
		case colAttempts:
			s.int32s = append(s.int32s, int32(r.Attempts))
		case colReplayCount:
			s.int32s = append(s.int32s, int32(r.ReplayCount))
		case colEPSG:
			def := int16(0)
			if r.EPSG != 0 {
				s.int32s = append(s.int32s, int32(r.EPSG))
				def = 1
			}
			s.defs = append(s.defs, def)
		}
	}
	defs := s.defs
	if !columns[col].optional {
		defs = nil
	}
	_, err := cw.WriteBatch(s.int32s, defs, nil)
	return err
}

func (s *scratch) writeInt64(cw *file.Int64ColumnChunkWriter, col int, rows []Row) error {
	s.int64s = s.int64s[:0]
	for k := range rows {
		r := &rows[k]
		switch col {
		case colFirstSeen:
			s.int64s = append(s.int64s, micros(r.FirstSeen))
		case colArrivedAt:
			s.int64s = append(s.int64s, micros(r.ArrivedAt))
		case colSourceRecord:
			s.int64s = append(s.int64s, r.SourceRecord)
		case colSourceOffset:
			s.int64s = append(s.int64s, r.SourceOffset)
		case colSourceLength:
			s.int64s = append(s.int64s, r.SourceLength)
		}
	}
	_, err := cw.WriteBatch(s.int64s, nil, nil)
	return err
}

// micros is t in microseconds since 1970; the zero time is 0001-01-01, as it is.
func micros(t time.Time) int64 { return t.UnixMicro() }

// counter counts what passes to w and keeps its first error, which arrow
// replaces by its own words in places.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	if c.err == nil {
		c.err = err
	}
	return n, err
}

func (c *counter) guard(f func() error) error {
	err := arrowfile.Guard(f)
	if c.err != nil {
		return c.err
	}
	return err
}
