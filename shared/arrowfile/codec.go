package arrowfile

import (
	"io"
	"runtime"

	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/klauspost/compress/zstd"
)

// codec is zstd for arrow's Parquet writer and reader. Arrow's own makes a new
// encoder, with all its tables, for every page, and panics on a damaged page.
type codec struct {
	compress.Codec // the streaming methods, which pages do not use
	enc            *zstd.Encoder
	dec            *zstd.Decoder
}

func init() {
	arrows, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		panic(err) // arrow is built without zstd
	}
	// The fastest level: on GeoJSON the next one takes a third longer for files a few per cent smaller.
	enc, err := zstd.NewWriter(nil, zstd.WithZeroFrames(true), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithWindowSize(windowBytes))
	if err != nil {
		panic(err) // the options above are wrong
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecoderMaxMemory(maxPageBytes))
	if err != nil {
		panic(err)
	}
	compress.RegisterCodec(compress.Codecs.Zstd, codec{arrows, enc, dec})
}

const (
	// windowBytes holds a page, beyond which a larger window finds nothing.
	windowBytes = 1 << 20
	// maxPageBytes is the largest page that is read: a single value can be as large
	// as the largest feature that configuration allows.
	maxPageBytes = 1 << 30
)

func (c codec) Encode(dst, src []byte) []byte { return c.enc.EncodeAll(src, dst[:0]) }

func (c codec) EncodeLevel(dst, src []byte, _ int) []byte { return c.Encode(dst, src) }

// Decode returns nothing for a damaged page; arrow then reports the missing bytes.
func (c codec) Decode(dst, src []byte) []byte {
	out, err := c.dec.DecodeAll(src, dst[:0])
	if err != nil {
		return nil
	}
	return out
}

func (c codec) NewReader(r io.Reader) io.ReadCloser { return c.Codec.NewReader(r) }
