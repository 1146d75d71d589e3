package archive

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"

	"geodlq/shared/arrowfile"
	"geodlq/shared/deadletter"
)

// Source is what an archive file is read from: bytes.Reader, os.File and
// [Buffer.Reader] are ones.
type Source = parquet.ReaderAtSeeker

// ErrNotArchive is the class of a file that is no archive file: no Parquet, or
// without a column that every archive file has.
var ErrNotArchive = errors.New("not an archive file")

// Reader gives back the rows of one archive file in their order, payloads byte for
// byte. It holds one page of each column at a time.
type Reader struct {
	file  *file.Reader
	index [numColumns]int // place of each column in the file, -1 where it is absent
	group int             // row group that is being read
	left  int64           // rows left in it
	cols  [numColumns]file.ColumnChunkReader

	// Arrow may put the values of a batch behind each other; these take them.
	bytes  []parquet.ByteArray
	defs   []int16
	int32s []int32
	int64s []int64
	bools  []bool
	last   [numColumns]*string // latest value of a column whose values repeat
}

// readBatch is how many rows are decoded at a time.
const readBatch = 1024

// NewReader opens the file that r holds. The error is of class [ErrNotArchive]
// where r is no such file.
func NewReader(r Source) (*Reader, error) {
	ar := &Reader{group: -1}
	err := arrowfile.Guard(func() error {
		// Go's allocator never takes a page back that a payload still points into.
		f, err := file.NewParquetReader(r, file.WithReadProps(parquet.NewReaderProperties(memory.NewGoAllocator())))
		if err != nil {
			return err
		}
		ar.file = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotArchive, err)
	}
	schema := ar.file.MetaData().Schema
	for i, c := range columns {
		at := schema.ColumnIndexByName(c.name)
		ar.index[i] = at
		switch {
		case at < 0 && !c.optional:
			return nil, fmt.Errorf("%w: it has no column %s", ErrNotArchive, c.name)
		case at >= 0 && schema.Column(at).PhysicalType() != c.physical:
			return nil, fmt.Errorf("%w: column %s is of type %v, want %v", ErrNotArchive, c.name, schema.Column(at).PhysicalType(), c.physical)
		case at >= 0 && (schema.Column(at).MaxRepetitionLevel() > 0 || schema.Column(at).MaxDefinitionLevel() > 1):
			return nil, fmt.Errorf("%w: column %s is nested", ErrNotArchive, c.name)
		}
	}
	return ar, nil
}

// NumRows is how many rows the file holds.
func (r *Reader) NumRows() int64 { return r.file.NumRows() }

// Read fills dst with the next rows of one row group and returns how many they
// are, which may be fewer than dst has room for; at the end of the file it returns
// 0 and io.EOF. Payloads stay valid after the next Read.
func (r *Reader) Read(dst []Row) (int, error) {
	n := 0
	err := arrowfile.Guard(func() error {
		for n < len(dst) {
			if r.left == 0 && n > 0 {
				return nil
			}
			if r.left == 0 {
				if r.group+1 >= r.file.NumRowGroups() {
					return nil
				}
				if err := r.nextGroup(); err != nil {
					return err
				}
				continue
			}
			batch := min(int64(len(dst)-n), r.left, readBatch)
			rows := dst[n : n+int(batch)]
			clear(rows)
			for i := range columns {
				if r.cols[i] == nil {
					continue
				}
				if err := r.column(i, rows); err != nil {
					return fmt.Errorf("row group %d, column %s: %w", r.group, columns[i].name, err)
				}
			}
			n += len(rows)
			r.left -= batch
		}
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("read archive file: %w", err)
	}
	if n == 0 && len(dst) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (r *Reader) nextGroup() error {
	r.group++
	group := r.file.RowGroup(r.group)
	r.left = group.NumRows()
	for i, at := range r.index {
		r.cols[i] = nil
		if at < 0 {
			continue
		}
		col, err := group.Column(at)
		if err != nil {
			return fmt.Errorf("row group %d, column %s: %w", r.group, columns[i].name, err)
		}
		r.cols[i] = col
	}
	return nil
}

// column reads the next len(rows) values of a column into rows.
func (r *Reader) column(i int, rows []Row) error {
	n := len(rows)
	if cap(r.defs) < n {
		r.defs = make([]int16, readBatch)
		r.bytes = make([]parquet.ByteArray, readBatch)
		r.int32s = make([]int32, readBatch)
		r.int64s = make([]int64, readBatch)
		r.bools = make([]bool, readBatch)
	}
	defs := r.defs[:n]
	nullable := r.cols[i].Descriptor().MaxDefinitionLevel() > 0
	var levels int64
	var values int
	var err error
	switch col := r.cols[i].(type) {
	case *file.ByteArrayColumnChunkReader:
		levels, values, err = col.ReadBatch(int64(n), r.bytes[:n], defs, nil)
	case *file.Int32ColumnChunkReader:
		levels, values, err = col.ReadBatch(int64(n), r.int32s[:n], defs, nil)
	case *file.Int64ColumnChunkReader:
		levels, values, err = col.ReadBatch(int64(n), r.int64s[:n], defs, nil)
	case *file.BooleanColumnChunkReader:
		levels, values, err = col.ReadBatch(int64(n), r.bools[:n], defs, nil)
	default:
		err = fmt.Errorf("no reader for %T", col)
	}
	if err != nil {
		return err
	}
	if levels != int64(n) || !nullable && values != n {
		return fmt.Errorf("the column ends %d rows early", int64(n)-levels)
	}
	next := 0
	for k := range rows {
		if nullable && defs[k] == 0 {
			continue
		}
		if next >= values {
			return fmt.Errorf("%d values for more rows", values)
		}
		if err := r.set(&rows[k], i, next); err != nil {
			return err
		}
		next++
	}
	return nil
}

// set puts value v of the batch of column i into row.
func (r *Reader) set(row *Row, i, v int) error {
	switch i {
	case colSchemaVersion:
		if version := string(r.bytes[v]); version != deadletter.SchemaVersion {
			return fmt.Errorf("schema_version %q is none this program reads; it reads %q", version, deadletter.SchemaVersion)
		}
	case colDLQID:
		id, err := deadletter.ParseUUID(string(r.bytes[v]))
		if err != nil {
			return err
		}
		row.DLQID = id
	case colBatchID:
		row.BatchID = *r.repeated(i, v)
	case colFeatureID:
		row.FeatureID = string(r.bytes[v])
	case colFailedRule:
		row.FailedRule = *r.repeated(i, v)
	case colErrorType:
		row.ErrorType = *r.repeated(i, v)
	case colErrorMessage:
		row.ErrorMessage = string(r.bytes[v])
	case colAttempts:
		row.Attempts = int(r.int32s[v])
	case colReplayCount:
		row.ReplayCount = int(r.int32s[v])
	case colQuarantined:
		row.Quarantined = r.bools[v]
	case colFeatureGeoJSON, colPayloadRaw:
		row.Payload = r.bytes[v]
	case colSourceCRS:
		row.SourceCRS = r.repeated(i, v)
	case colEPSG:
		row.EPSG = int(r.int32s[v])
	case colGeomHash:
		row.GeomHash = string(r.bytes[v])
	case colFirstSeen:
		row.FirstSeen = time.UnixMicro(r.int64s[v]).UTC()
	case colArrivedAt:
		row.ArrivedAt = time.UnixMicro(r.int64s[v]).UTC()
	case colSourceObject:
		row.SourceObject = *r.repeated(i, v)
	case colSourceRecord:
		row.SourceRecord = r.int64s[v]
	case colSourceOffset:
		row.SourceOffset = r.int64s[v]
	case colSourceLength:
		row.SourceLength = r.int64s[v]
	case colSourceSHA256:
		row.SourceSHA256 = string(r.bytes[v])
	}
	return nil
}

// repeated returns value v of a column whose neighbours are mostly equal, and
// shares it among those that are.
func (r *Reader) repeated(col, v int) *string {
	if last := r.last[col]; last != nil && *last == string(r.bytes[v]) {
		return last
	}
	s := string(r.bytes[v])
	r.last[col] = &s
	return &s
}
