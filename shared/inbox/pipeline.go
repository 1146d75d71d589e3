package inbox

import (
	"context"
	"io"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"geodlq/shared/archive"
)

// maxInFlight bounds the bytes of blocks that are framed and not yet yielded. A
// larger block goes alone.
const maxInFlight = 16 << 20

// largeBuffer is the size of a buffer from which on it is alone in flight.
const largeBuffer = 4 << 20

// job is a block on its way from the framer through a decoder to yield. The chain
// of first channels carries the ordinal of each block's first record from one to
// the next: it is known when the block before is decoded, however long yielding takes.
type job struct {
	block
	weight    int64
	first     chan int64 // from the block before
	next      chan int64 // the next block's first
	done      chan struct{}
	rows      []archive.Row
	malformed int64
}

// read is [Read] with defaults filled in: one goroutine frames, several decode, and
// one yields, in order.
func read(ctx context.Context, o *Object, limits Limits, yield func([]archive.Row) error) (Stats, error) {
	workers := limits.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var stats Stats
	group, ctx := errgroup.WithContext(ctx) // its end ends a read from a slow connection, too
	src, err := openStream(ctx, o, limits.MaxObjectBytes)
	if err != nil {
		return stats, err
	}
	defer src.Close()
	room := semaphore.NewWeighted(maxInFlight)
	todo := make(chan *job, workers)
	ordered := make(chan *job, workers*4)
	var pools pools

	group.Go(func() error {
		defer close(todo)
		defer close(ordered)
		first := make(chan int64, 1)
		first <- 0
		f := &framer{
			src: src, limits: limits,
			fresh: func(n int) []byte {
				if n > largeBuffer {
					// A record this large is read alone: wait for what is in flight. Where the
					// context ends instead, the next emit returns.
					if room.Acquire(ctx, maxInFlight) == nil {
						room.Release(maxInFlight)
					}
				}
				return pools.buffer(n)
			},
			reopen: func() (io.ReadCloser, error) { return openStream(ctx, o, limits.MaxObjectBytes) },
			emit: func(b block) error {
				j := &job{block: b, weight: min(int64(len(b.buf)), maxInFlight), first: first, next: make(chan int64, 1), done: make(chan struct{})}
				first = j.next
				if err := room.Acquire(ctx, j.weight); err != nil {
					return context.Cause(ctx)
				}
				for _, to := range []chan *job{ordered, todo} {
					select {
					case to <- j:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				return nil
			},
		}
		return f.run()
	})
	for range workers {
		group.Go(func() error {
			d := newDecoder(o, limits)
			for j := range todo {
				j.rows = pools.rowSlice()
				for i := range j.units {
					j.rows = d.unit(&j.units[i], nil, j.rows)
				}
				select {
				case first := <-j.first:
					j.next <- first + int64(len(j.rows))
					j.malformed = d.finish(j.rows, first)
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				close(j.done)
			}
			return nil
		})
	}
	group.Go(func() error {
		for j := range ordered {
			select {
			case <-j.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			stats.Records += int64(len(j.rows))
			stats.Malformed += j.malformed
			if len(j.rows) > 0 {
				if err := yield(j.rows); err != nil {
					return err
				}
			}
			pools.put(j)
			room.Release(j.weight)
		}
		return nil
	})
	err = group.Wait()
	stats.Bytes = src.n
	return stats, err
}

// pools take buffers and rows back for the next block.
type pools struct {
	buffers, rows sync.Pool
}

func (p *pools) buffer(n int) []byte {
	if n == blockBytes {
		if b, ok := p.buffers.Get().(*[]byte); ok {
			return *b
		}
	}
	return make([]byte, n)
}

func (p *pools) rowSlice() []archive.Row {
	if rows, ok := p.rows.Get().(*[]archive.Row); ok {
		return (*rows)[:0]
	}
	return make([]archive.Row, 0, 256)
}

func (p *pools) put(j *job) {
	if len(j.buf) == blockBytes {
		p.buffers.Put(&j.buf)
	}
	if cap(j.rows) <= 4096 {
		clear(j.rows)
		p.rows.Put(&j.rows)
	}
}
