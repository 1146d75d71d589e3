package export

import (
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/metadata"
	"github.com/apache/arrow/go/v17/parquet/schema"

	"geodlq/shared/arrowfile"
)

// A row group ends at so many rows or bytes of values, so that a file of any length is
// written in bounded memory.
const (
	groupRows  = 64 << 10
	groupBytes = 16 << 20
)

// kind is the type of a column.
type kind int

const (
	kindText   kind = iota // BYTE_ARRAY, UTF-8
	kindBinary             // BYTE_ARRAY
	kindInt                // INT64
	kindTime               // INT64, microseconds since 1970 in UTC
)

// column is one column of a file; all are nullable.
type column struct {
	name    string
	kind    kind
	repeats bool // few different values: with a dictionary and statistics
}

// columnWriter writes a flat Parquet file row by row, a cell at a time. What is not set
// is null. It stands on parquet/file: pqarrow would bring gRPC and the compute kernels
// into the function.
type columnWriter struct {
	file    *file.Writer
	columns []column
	cells   []cells
	rows    int // in the open row group
	size    int
}

// cells are the values of one column in the open row group.
type cells struct {
	set   bool // in the open row
	bytes []parquet.ByteArray
	ints  []int64
	defs  []int16 // 1 where there is a value
}

func newColumnWriter(w io.Writer, root string, columns []column) (*columnWriter, error) {
	opts := arrowfile.Properties()
	fields := make(schema.FieldList, len(columns))
	for i, c := range columns {
		var logical schema.LogicalType = schema.NoLogicalType{}
		physical := parquet.Types.ByteArray
		switch c.kind {
		case kindText:
			logical = schema.StringLogicalType{}
		case kindInt:
			physical = parquet.Types.Int64
		case kindTime:
			physical = parquet.Types.Int64
			logical = schema.NewTimestampLogicalType(true /* UTC */, schema.TimeUnitMicros)
		}
		node, err := schema.NewPrimitiveNodeLogical(c.name, parquet.Repetitions.Optional, logical, physical, -1, -1)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", c.name, err)
		}
		fields[i] = node
		if c.repeats {
			opts = append(opts, parquet.WithDictionaryFor(c.name, true))
		}
		if c.repeats || physical == parquet.Types.Int64 {
			opts = append(opts, parquet.WithStatsFor(c.name, true))
		}
	}
	node, err := schema.NewGroupNode(root, parquet.Repetitions.Required, fields, -1)
	if err != nil {
		return nil, err
	}
	cw := &columnWriter{columns: columns, cells: make([]cells, len(columns))}
	err = arrowfile.Guard(func() error {
		cw.file = file.NewParquetWriter(w, node, file.WithWriterProps(parquet.NewWriterProperties(opts...)),
			file.WithWriteMetadata(metadata.NewKeyValueMetadata()))
		return nil
	})
	return cw, err
}

// bytes sets a cell. b is kept until the row group is written.
func (w *columnWriter) bytes(column int, b []byte) {
	c := &w.cells[column]
	c.bytes, c.set = append(c.bytes, b), true
	w.size += len(b)
}

// text sets a cell unless s is empty, which stands for null.
func (w *columnWriter) text(column int, s string) {
	if s != "" {
		w.bytes(column, []byte(s))
	}
}

func (w *columnWriter) int(column int, v int64) {
	c := &w.cells[column]
	c.ints, c.set = append(c.ints, v), true
	w.size += 8
}

func (w *columnWriter) time(column int, t time.Time) {
	if !t.IsZero() {
		w.int(column, t.UnixMicro())
	}
}

func (w *columnWriter) endRow() error {
	for i := range w.cells {
		c := &w.cells[i]
		def := int16(0)
		if c.set {
			def, c.set = 1, false
		}
		c.defs = append(c.defs, def)
	}
	w.rows++
	if w.rows >= groupRows || w.size >= groupBytes {
		return w.flush()
	}
	return nil
}

func (w *columnWriter) flush() error {
	if w.rows == 0 {
		return nil
	}
	err := arrowfile.Guard(func() error {
		group := w.file.AppendRowGroup()
		for i := range w.columns {
			chunk, err := group.NextColumn()
			if err == nil {
				err = w.cells[i].write(chunk)
			}
			if err != nil {
				return fmt.Errorf("column %s: %w", w.columns[i].name, err)
			}
		}
		// Arrow closes an open row group by itself, but then drops the error.
		return group.Close()
	})
	if err != nil {
		return fmt.Errorf("write %d rows to Parquet: %w", w.rows, err)
	}
	for i := range w.cells {
		c := &w.cells[i]
		clear(c.bytes) // let go of the values
		c.bytes, c.ints, c.defs = c.bytes[:0], c.ints[:0], c.defs[:0]
	}
	w.rows, w.size = 0, 0
	return nil
}

func (c *cells) write(chunk file.ColumnChunkWriter) error {
	switch chunk := chunk.(type) {
	case *file.Int64ColumnChunkWriter:
		_, err := chunk.WriteBatch(c.ints, c.defs, nil)
		return err
	case *file.ByteArrayColumnChunkWriter:
		// Arrow looks whether a page is full only after a thousand values, which may be
		// gigabytes; so hand them over by their size.
		value, firstValue, firstDef, size := 0, 0, 0, 0
		for k, def := range c.defs {
			if def == 1 {
				size += len(c.bytes[value])
				value++
			}
			if size >= arrowfile.PageBytes || k == len(c.defs)-1 {
				if _, err := chunk.WriteBatch(c.bytes[firstValue:value], c.defs[firstDef:k+1], nil); err != nil {
					return err
				}
				firstValue, firstDef, size = value, k+1, 0
			}
		}
		return nil
	}
	return fmt.Errorf("no writer for %T", chunk)
}

// close writes what is open, the metadata and the footer.
func (w *columnWriter) close(metadata map[string]string) error {
	if err := w.flush(); err != nil {
		return err
	}
	for key, value := range metadata {
		if err := w.file.AppendKeyValueMetadata(key, value); err != nil {
			return fmt.Errorf("write the metadata %q: %w", key, err)
		}
	}
	// Close of arrow's writer swallows the error of the footer, so that is flushed first.
	return arrowfile.Guard(func() error {
		if err := w.file.FlushWithFooter(); err != nil {
			return err
		}
		return w.file.Close()
	})
}
