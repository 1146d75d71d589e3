package archive

import (
	"fmt"
	"io"
)

// Buffer holds a file while it is written and until it is stored. It grows by
// segments, so that a large file is never copied into a larger array. The zero
// Buffer is empty and ready. It must not be written to while it is read.
type Buffer struct {
	segments [][]byte
	starts   []int64 // offset of each segment
	size     int64
}

// A segment is as large as all before it within these limits: small files stay
// small, large ones waste at most one segment.
const (
	minSegment = 16 << 10
	maxSegment = 1 << 20
)

// Len is the size in bytes.
func (b *Buffer) Len() int64 { return b.size }

// Write appends p; it never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		last := len(b.segments) - 1
		if last < 0 || len(b.segments[last]) == cap(b.segments[last]) {
			b.segments = append(b.segments, make([]byte, 0, min(max(b.size, minSegment), maxSegment)))
			b.starts = append(b.starts, b.size)
			last++
		}
		seg := b.segments[last]
		k := min(len(p), cap(seg)-len(seg))
		b.segments[last] = append(seg, p[:k]...)
		b.size += int64(k)
		p = p[k:]
	}
	return n, nil
}

// ReadAt implements io.ReaderAt.
func (b *Buffer) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read buffer at offset %d: before its start", off)
	}
	n := 0
	for i := b.find(off); i < len(b.segments) && n < len(p); i++ {
		k := copy(p[n:], b.segments[i][off-b.starts[i]:])
		n += k
		off += int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// find returns the segment that holds offset off, len(segments) past the end.
func (b *Buffer) find(off int64) int {
	if off >= b.size {
		return len(b.segments)
	}
	lo, hi := 0, len(b.segments)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if b.starts[mid] <= off {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// Reader returns a reader over what was written so far. Any number may be in use.
func (b *Buffer) Reader() *io.SectionReader { return io.NewSectionReader(b, 0, b.size) }
