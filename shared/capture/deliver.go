package capture

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/inbox"
)

// storers is how many files are stored at once. It matters for objects of many
// batches, whose files are small.
const storers = 16

// store stores files, in no order.
func (r *run) store() error {
	defer close(r.stored)
	group, ctx := errgroup.WithContext(r.ctx)
	group.SetLimit(storers)
	for f := range r.files {
		group.Go(func() error {
			err := r.put(ctx, f)
			var mismatch *archive.MismatchError
			if errors.As(err, &mismatch) {
				// Its rows are not where they belong, so they are not queued; all others are.
				r.memory.mu.Lock()
				r.mismatch = errors.Join(r.mismatch, err)
				r.memory.mu.Unlock()
				r.memory.gone(f)
				return nil
			}
			if err != nil {
				return err
			}
			select {
			case r.stored <- f:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if ctx.Err() != nil {
			break
		}
	}
	return group.Wait()
}

func (r *run) put(ctx context.Context, f *file) error {
	if f.recorded {
		return nil
	}
	stored, err := r.Archive.Put(ctx, f.Key, f.buf)
	if err != nil {
		return err
	}
	f.found = stored.Outcome == archive.AlreadyThere
	f.Bytes, f.SHA256 = stored.Bytes, stored.SHA256
	return nil
}

// entry is a row on its way to the queue.
type entry struct {
	record *deadletter.Record // nil where the entry only ends files
	found  bool               // its file was there before, so its row may be, too
	ends   []*file            // files whose rows are through with it
}

// A statement of the queue gets about so much at a time.
const (
	chunkRows  = 4000
	chunkBytes = 4 << 20
	// readRows is how many rows of a file are read back at a time.
	readRows = 1024
)

// load gathers the rows of stored files for the queue. While the queue is at work it
// gathers more, so that a statement has many rows also where files have few.
func (r *run) load() error {
	defer close(r.chunks)
	l := loader{run: r}
	for {
		from, to := r.stored, r.chunks
		if len(l.chunk) == 0 {
			to = nil
		}
		select {
		case f, ok := <-from:
			if !ok {
				return l.send()
			}
			if err := l.files(f); err != nil {
				return err
			}
		case to <- l.chunk:
			l.chunk, l.size = nil, 0
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
}

type loader struct {
	run   *run
	chunk []entry
	size  int64
}

func (l *loader) send() error {
	if len(l.chunk) == 0 {
		return nil
	}
	select {
	case l.run.chunks <- l.chunk:
		l.chunk, l.size = nil, 0
		return nil
	case <-l.run.ctx.Done():
		return l.run.ctx.Err()
	}
}

// files loads the rows of f, and of other files that are stored by now. Of those
// that were found it asks together whether their rows are queued, too.
func (l *loader) files(f *file) error {
	files := []*file{f}
gather:
	for len(files) < storers {
		select {
		case f, ok := <-l.run.stored:
			if !ok {
				break gather
			}
			files = append(files, f)
		default:
			break gather
		}
	}
	var keys []string
	for _, f := range files {
		if f.found && !f.recorded {
			keys = append(keys, f.Key)
		}
	}
	if len(keys) > 0 {
		recorded := l.run.recorded(keys...)
		for _, f := range files {
			f.recorded = f.recorded || recorded[f.Key]
		}
	}
	for _, f := range files {
		if err := l.file(f); err != nil {
			return err
		}
	}
	return nil
}

// file loads the rows of f.
func (l *loader) file(f *file) error {
	if f.found {
		l.run.counts.FilesThere++
	} else {
		l.run.counts.Files++
	}
	var err error
	switch {
	case f.recorded || l.run.down():
	case f.groups == 1:
		err = l.add(f, f.rows)
	default:
		err = l.readBack(f)
	}
	if err != nil {
		return err
	}
	if len(l.chunk) == 0 {
		l.chunk = append(l.chunk, entry{})
	}
	end := &l.chunk[len(l.chunk)-1]
	end.ends = append(end.ends, f)
	return nil
}

func (l *loader) add(f *file, rows []archive.Row) error {
	for i := range rows {
		if l.chunk == nil {
			l.chunk = make([]entry, 0, min(chunkRows, len(rows)-i))
		}
		l.chunk = append(l.chunk, entry{record: &rows[i].Record, found: f.found})
		if l.size += int64(len(rows[i].Payload)) + rowBytes; len(l.chunk) >= chunkRows || l.size >= chunkBytes {
			if err := l.send(); err != nil {
				return err
			}
		}
	}
	return nil
}

// readBack loads the rows of a file that was too large to keep them beside it, from
// the file itself.
func (l *loader) readBack(f *file) error {
	reader, err := archive.NewReader(f.buf.Reader())
	if err != nil {
		return fmt.Errorf("read back %s: %w", f.Key, err)
	}
	for {
		rows := make([]archive.Row, readRows)
		n, err := reader.Read(rows)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read back %s: %w", f.Key, err)
		}
		for i := range rows[:n] {
			inbox.Locate(&rows[i].Record)
		}
		if err := l.add(f, rows[:n]); err != nil {
			return err
		}
	}
}

// enqueue queues rows. Once the queue has failed it queues no more, but lets the
// object be archived to its end.
func (r *run) enqueue() error {
	for chunk := range r.chunks {
		if err := r.enqueueChunk(chunk); err != nil {
			return err
		}
		for i := range chunk {
			for _, f := range chunk[i].ends {
				r.memory.gone(f)
			}
		}
	}
	return nil
}

func (r *run) enqueueChunk(chunk []entry) error {
	var rows, found []*deadletter.Record
	var files []File
	var counts Counts
	for i := range chunk {
		e := &chunk[i]
		switch {
		case e.record == nil:
		case e.found:
			found = append(found, e.record)
		default:
			rows = append(rows, e.record)
		}
		if e.record != nil && e.record.Quarantined {
			counts.Malformed++
		}
		for _, f := range e.ends {
			if f.recorded {
				counts.Records += f.Rows
				counts.AlreadyThere += f.Rows
				counts.Malformed += f.malformed
			} else {
				files = append(files, f.File)
			}
		}
	}
	if !r.down() && len(rows)+len(found)+len(files) > 0 {
		total := int64(len(rows) + len(found))
		n, err := r.queueRows(rows, found, files)
		if r.ctx.Err() != nil {
			return r.ctx.Err()
		}
		if err != nil {
			r.fail(err)
		}
		counts.Records += total
		counts.Captured += n
		counts.AlreadyThere += total - n
	}
	if !r.down() {
		r.counts.Add(counts)
	}
	return nil
}

// queueRows queues the rows of new files, and those of files that were found which
// are not there yet, and notes files, which end with them. It returns how many
// rows were new.
func (r *run) queueRows(rows, found []*deadletter.Record, files []File) (int64, error) {
	if len(found) > 0 {
		// A retry finds most rows in place; to ask is far cheaper than to send them again.
		standing, err := r.Queue.Find(r.ctx, found)
		if err != nil {
			return 0, err
		}
		for i, rec := range found {
			switch standing[i] {
			case Absent:
				rows = append(rows, rec)
			case Other:
				r.rename(rec)
				rows = append(rows, rec)
			}
		}
	}
	var named []*deadletter.Record // with an id that a pipeline gave
	for _, rec := range rows {
		if rec.DLQID != r.ownID(rec) {
			named = append(named, rec)
		}
	}
	if len(named) == 0 {
		return r.insert(rows, files)
	}
	inserted, err := r.insert(rows, nil)
	if err != nil {
		return inserted, err
	}
	var others []*deadletter.Record
	if inserted < int64(len(rows)) {
		// Some were there. That is as it should be, unless a pipeline gave one id to two
		// different dead letters: then the second one is queued under an id of its own.
		standing, err := r.Queue.Find(r.ctx, named)
		if err != nil {
			return inserted, err
		}
		for i, rec := range named {
			if standing[i] == Other {
				r.rename(rec)
				others = append(others, rec)
			}
		}
	}
	n, err := r.insert(others, files)
	return inserted + n, err
}

// ownID is the id that follows from where a record came from.
func (r *run) ownID(rec *deadletter.Record) deadletter.UUID {
	return deadletter.RecordID(r.object.Bucket, r.object.Key, r.object.Version(), rec.SourceRecord)
}

func (r *run) rename(rec *deadletter.Record) { rec.DLQID = r.ownID(rec) }

// insertTries is how often an insert is tried that another one of the same rows
// ended, by a deadlock.
const insertTries = 4

func (r *run) insert(rows []*deadletter.Record, files []File) (int64, error) {
	if len(rows)+len(files) == 0 {
		return 0, nil
	}
	records := make([]deadletter.Record, len(rows))
	for i, rec := range rows {
		records[i] = *rec
	}
	for try := 1; ; try++ {
		n, err := r.Queue.Enqueue(r.ctx, records, files)
		var pg *pgconn.PgError
		// Class 40, transaction rollback: deadlock and serialization failure.
		if err == nil || try == insertTries || !errors.As(err, &pg) || pg.Code[:2] != "40" {
			return n, err
		}
	}
}
