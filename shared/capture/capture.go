// Package capture takes one inbox object in: its dead letters go to the archive
// and then to the queue, each once, however often and by however many it is tried.
//
// The object is read as a stream and cut into parts, one Parquet file each. Where a
// part ends follows from the object's bytes alone, never from time or memory, so
// every try makes the same files under the same keys, and whoever comes second finds
// them there. Rows are queued when their file is durable, never before; a row that
// is queued already stays as it is.
//
// Memory is bounded whatever the size of the object: a file is held compressed until
// it is stored and its rows are queued, and a few thousand rows besides.
package capture

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/inbox"
)

// Archive stores the files; *archive.Store is one.
type Archive interface {
	Put(ctx context.Context, key string, b *archive.Buffer) (archive.Stored, error)
}

// Queue takes the rows; [Postgres] is one.
type Queue interface {
	// Enqueue adds records and returns how many were new. One whose DLQID is there is
	// left out. In the same transaction it notes files, whose rows are all queued then.
	Enqueue(ctx context.Context, records []deadletter.Record, files []File) (inserted int64, err error)
	// Recorded tells which files were noted.
	Recorded(ctx context.Context, keys []string) (map[string]bool, error)
	// Find tells of each record what the queue knows of its id.
	Find(ctx context.Context, records []*deadletter.Record) ([]Standing, error)
}

// File is an archive file whose rows are all queued.
type File struct {
	Key, BatchID, SourceObject string
	Rows, Bytes                int64
	SHA256                     string // of its bytes, hexadecimal
}

// Standing says what the queue knows of a record's id.
type Standing int

const (
	Absent Standing = iota // nothing
	There                  // it is the row of this record, or of the same dead letter from elsewhere
	Other                  // it is the row of another dead letter
)

// GCPercent is the garbage collection target percentage (see debug.SetGCPercent) with
// which an object of any size is captured within 200 MB. What is live stays near
// 100 MB; at Go's default of 100 the collector would let garbage double that. A memory
// limit instead would have it run without end where single features need more.
const GCPercent = 30

// Capturer takes objects in. It is safe for concurrent use.
type Capturer struct {
	Archive Archive
	Queue   Queue
	Limits  inbox.Limits
}

// Counts says what became of an object, or of several.
type Counts struct {
	Records      int64 // dead letters that are archived and queued; Captured + AlreadyThere
	Captured     int64 // of these, queued by this try
	AlreadyThere int64 // of these, there before
	Malformed    int64 // of Records, quarantined on arrival
	Bytes        int64 // read, after decompression
	Files        int64 // archive files written by this try
	FilesThere   int64 // archive files found
}

// Add adds other to c.
func (c *Counts) Add(other Counts) {
	c.Records += other.Records
	c.Captured += other.Captured
	c.AlreadyThere += other.AlreadyThere
	c.Malformed += other.Malformed
	c.Bytes += other.Bytes
	c.Files += other.Files
	c.FilesThere += other.FilesThere
}

// ErrStopped is the class of an error that says where Capture stopped because its
// time ran out. What it had brought to an end stays; another try goes on from there.
var ErrStopped = errors.New("stopped before the end of the object, for lack of time; a retry goes on from there")

// Capture takes the object in. When stop is done, nothing new is begun: files that
// are complete are still stored and queued, under ctx, and the error is of class
// [ErrStopped].
//
// When the queue cannot be reached, the whole object is archived all the same, and
// the error says that it is not queued. Counts holds what was done also where there
// is an error.
func (c *Capturer) Capture(ctx, stop context.Context, object inbox.Object) (Counts, error) {
	group, gctx := errgroup.WithContext(ctx)
	run := &run{Capturer: c, object: &object, ctx: gctx}
	run.init()

	group.Go(func() error {
		defer close(run.jobs)
		cut := newCutter(run)
		stats, err := inbox.Read(gctx, object, c.Limits, func(rows []archive.Row) error {
			if stop.Err() != nil {
				return fmt.Errorf("%w: record %d of %s, after %d bytes", ErrStopped, rows[0].SourceRecord, object.URI(), rows[0].SourceOffset)
			}
			return cut.add(rows)
		})
		run.counts.Bytes = stats.Bytes
		switch {
		case errors.Is(err, ErrStopped):
			run.stopped = err // no failure of the group: what is complete goes its way
			return nil
		case err != nil:
			return err
		}
		return cut.end()
	})
	group.Go(run.encode)
	group.Go(run.store)
	group.Go(run.load)
	group.Go(run.enqueue)
	err := group.Wait()
	errs := []error{err, run.stopped, run.mismatch}
	if unqueued := run.unqueued.Load(); unqueued != nil {
		errs = append(errs, *unqueued)
	}
	return run.counts, errors.Join(errs...)
}

// run is the capture of one object: a line of goroutines that reads and cuts,
// encodes, stores, loads and queues.
type run struct {
	*Capturer
	object *inbox.Object
	ctx    context.Context

	jobs   chan job     // from the cutter to encode
	files  chan *file   // from encode to store
	stored chan *file   // from store to load
	chunks chan []entry // from load to enqueue
	memory memory

	counts   Counts
	stopped  error // of class ErrStopped
	mismatch error // of archive files that hold other rows

	unqueued atomic.Pointer[error] // how the queue failed, which is asked no more then
}

// fail notes that the queue has failed.
func (r *run) fail(err error) {
	err = fmt.Errorf("queue %s, which is archived: %w", r.object.URI(), err)
	r.unqueued.CompareAndSwap(nil, &err)
}

// down reports whether the queue has failed.
func (r *run) down() bool { return r.unqueued.Load() != nil }

func (r *run) init() {
	r.jobs = make(chan job)
	r.files = make(chan *file)
	r.stored = make(chan *file, storers)
	r.chunks = make(chan []entry)
	r.memory.init()
}

// day is the UTC day of the object's arrival, the date of all its rows.
func (r *run) day() time.Time { return r.object.LastModified }
