// Package arrowfile holds what the Parquet files written here have in common: how
// they are laid out, their zstd codec, and how arrow's panics become errors.
package arrowfile

import (
	"fmt"

	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
)

// PageBytes is where a data page ends: large enough for zstd to find what repeats,
// small enough to be decoded in passing when one column is scanned.
const PageBytes = 512 << 10

// Properties are those of every file; dictionaries and statistics are for the caller to
// switch on where they help.
func Properties() []parquet.WriterProperty {
	return []parquet.WriterProperty{
		parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithDataPageVersion(parquet.DataPageV1),
		parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithDataPageSize(PageBytes),
		parquet.WithDictionaryDefault(false),
		parquet.WithStats(false),
		parquet.WithCreatedBy("geodlq"),
	}
}

// Guard runs f and returns a panic as an error: arrow's writer and reader report
// much that way, a failed write among it.
func Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(error); ok {
				err = fmt.Errorf("parquet: %w", e)
				return
			}
			err = fmt.Errorf("parquet: %v", p)
		}
	}()
	return f()
}
