package inbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"geodlq/shared/deadletter"
)

// Magic numbers: RFC 1952 section 2.3.1 with the only compression method there is,
// RFC 8878 section 3.1.1, and its skippable frames (section 3.1.2), which some
// writers put first.
var (
	gzipMagic = []byte{0x1f, 0x8b, 0x08}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// maxZstdWindow bounds what one zstd stream may ask to be held: enough for every
// level below --ultra, which stop at 8 MiB.
const maxZstdWindow = 32 << 20

// stream is the object's content after decompression.
type stream struct {
	r       io.Reader
	body    *body
	zstd    *zstd.Decoder
	name    string // of the compression, for messages; empty where there is none
	n       int64  // bytes given out
	limit   int64
	limited bool // the object goes on past limit
}

// body is the stored object. It remembers its error, so that a broken connection
// is told from broken compression, whatever a decompressor makes of it.
type body struct {
	io.ReadCloser
	err error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// openStream opens the object from its first byte. At most limit bytes are given out.
func openStream(ctx context.Context, o *Object, limit int64) (*stream, error) {
	rc, err := o.Open(ctx)
	if err != nil {
		return nil, err
	}
	s := &stream{body: &body{ReadCloser: rc}, limit: limit}
	buffered := bufio.NewReaderSize(s.body, 64<<10)
	magic, err := buffered.Peek(len(zstdMagic))
	if err != nil && s.body.err != nil {
		rc.Close()
		return nil, s.body.err
	}
	s.r = buffered
	skippable := len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		s.name = "gzip"
		s.r = &gzipReader{src: buffered}
	case bytes.Equal(magic, zstdMagic) || skippable:
		s.name = "zstd"
		// One goroutine less and far less memory than decoding ahead; the decoders of records have the other cores.
		s.zstd, err = zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			rc.Close()
			return nil, fmt.Errorf("make zstd decoder: %w", err)
		}
		s.r = s.zstd
	}
	return s, nil
}

// gzipReader opens the stream on the first read, so that a header that is cut off is
// reported like any other break.
type gzipReader struct {
	src *bufio.Reader
	z   *gzip.Reader
}

func (g *gzipReader) Read(p []byte) (int, error) {
	if g.z == nil {
		z, err := gzip.NewReader(g.src)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		g.z = z
	}
	return g.z.Read(p)
}

func (s *stream) Close() error {
	if s.zstd != nil {
		s.zstd.Close()
	}
	return s.body.Close()
}

// Read reads on. An error other than io.EOF is a *deadletter.Fault where the
// content itself cannot be read on, and that of storage or network otherwise.
func (s *stream) Read(p []byte) (int, error) {
	if s.n == s.limit {
		// Look whether the object ends just here.
		var one [1]byte
		if n, err := io.ReadFull(s.r, one[:]); n == 0 {
			return 0, s.classify(err)
		}
		s.limited = true
		what := "object"
		if s.name != "" {
			what = s.name + " object, decompressed,"
		}
		return 0, deadletter.Faultf(deadletter.ReasonFeatureTooLarge, "", "the %s goes on past the %d bytes allowed, and is not read from there on; raise MAX_OBJECT_BYTES or split it", what, s.limit)
	}
	if left := s.limit - s.n; int64(len(p)) > left {
		p = p[:left]
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	if err != nil {
		err = s.classify(err)
	}
	return n, err
}

func (s *stream) classify(err error) error {
	switch {
	case s.body.err != nil:
		return s.body.err
	case err == io.EOF:
		return io.EOF
	case s.name == "":
		return err
	}
	why := err.Error()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "it is cut off"
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		why = fmt.Sprintf("its window is larger than %d MiB; compress it without --long and --ultra", maxZstdWindow>>20)
	}
	return &deadletter.Fault{Reason: deadletter.ReasonInvalidJSON, Err: err,
		Detail: fmt.Sprintf("the %s stream cannot be read on after %d decompressed bytes: %s", s.name, s.n, why)}
}
