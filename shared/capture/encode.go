package capture

import (
	"context"
	"sync"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
)

// file is an archive file on its way.
type file struct {
	File
	buf       *archive.Buffer
	writer    *archive.Writer
	groups    int
	malformed int64
	// rows are the file's rows with their geometries, where they are all in one row
	// group. Of a larger file they are read back from buf.
	rows []archive.Row
	held int64 // what rows count in memory
	// found says that the file was in the archive before, and recorded that all its
	// rows were in the queue, too.
	found, recorded bool
}

func (r *run) newFile(p *part) (*file, error) {
	f := &file{buf: new(archive.Buffer), File: File{BatchID: p.batch, SourceObject: deadletter.Text(r.object.URI())}}
	f.Key = archive.Part{
		Bucket: r.object.Bucket, Key: r.object.Key, Version: r.object.Version(),
		BatchID: p.batch, Day: r.day(), First: p.first,
	}.ObjectKey()
	w, err := archive.NewWriter(f.buf)
	f.writer = w
	return f, err
}

// encode makes files of row groups.
func (r *run) encode() error {
	defer close(r.files)
	for j := range r.jobs {
		f := j.part.file
		if f == nil {
			var err error
			if f, err = r.newFile(j.part); err != nil {
				return err
			}
			j.part.file = f
			if !j.last {
				// It will be a large file; a retry need not make it again.
				recorded := r.recorded(f.Key)[f.Key]
				if f.found, f.recorded = recorded, recorded; recorded {
					f.buf = new(archive.Buffer)
				}
			}
		}
		f.Rows += int64(len(j.rows))
		for i := range j.rows {
			if j.rows[i].Quarantined {
				f.malformed++
			}
		}
		if !f.recorded {
			if err := r.write(f, j); err != nil {
				return err
			}
		}
		if !j.last {
			continue
		}
		r.memory.finished()
		select {
		case r.files <- f:
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
	return nil
}

// write encodes a row group, and keeps its rows where they are all the file has.
func (r *run) write(f *file, j job) error {
	if err := r.memory.wait(r.ctx); err != nil {
		return err
	}
	before := f.buf.Len()
	if f.groups == 0 {
		before = 0 // what the writer began with counts, too
	}
	if err := f.writer.Write(j.rows); err != nil {
		return err
	}
	f.groups++
	if j.last {
		if err := f.writer.Close(); err != nil {
			return err
		}
		f.writer = nil
		f.Bytes = f.buf.Len()
	}
	r.memory.encoded(f.buf.Len() - before)
	if j.last && f.groups == 1 {
		if err := r.memory.hold(r.ctx, j.held); err != nil {
			return err
		}
		f.rows, f.held = j.rows, j.held
	}
	return nil
}

// recorded asks the queue which files it has noted: none, where it has failed.
func (r *run) recorded(keys ...string) map[string]bool {
	if r.down() {
		return nil
	}
	recorded, err := r.Queue.Recorded(r.ctx, keys)
	if err != nil && r.ctx.Err() == nil {
		r.fail(err)
	}
	return recorded
}

// memory bounds what files hold: encoding waits while they hold too much and some
// are on their way out.
type memory struct {
	mu       sync.Mutex
	changed  *sync.Cond
	bytes    int64 // in buffers of files, open ones included
	rows     int64 // cost of rows that wait to be queued
	underway int   // files that are complete
}

const (
	maxEncoded = 40 << 20
	maxHeld    = 16 << 20
)

func (m *memory) init() { m.changed = sync.NewCond(&m.mu) }

// wait waits until another row group may be encoded.
func (m *memory) wait(ctx context.Context) error {
	return m.until(ctx, func() bool { return m.bytes < maxEncoded || m.underway == 0 })
}

// hold waits until there is room for rows that cost n, and takes it. A file that
// costs more than there is at all goes alone.
func (m *memory) hold(ctx context.Context, n int64) error {
	if err := m.until(ctx, func() bool { return m.rows == 0 || m.rows+n <= maxHeld }); err != nil {
		return err
	}
	m.mu.Lock()
	m.rows += n
	m.mu.Unlock()
	return nil
}

func (m *memory) until(ctx context.Context, ok func() bool) error {
	defer context.AfterFunc(ctx, m.wake)()
	m.mu.Lock()
	defer m.mu.Unlock()
	for !ok() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.changed.Wait()
	}
	return nil
}

func (m *memory) wake() {
	m.mu.Lock()
	m.changed.Broadcast()
	m.mu.Unlock()
}

func (m *memory) encoded(n int64) {
	m.mu.Lock()
	m.bytes += n
	m.mu.Unlock()
}

func (m *memory) finished() {
	m.mu.Lock()
	m.underway++
	m.mu.Unlock()
}

// gone takes back what a file held.
func (m *memory) gone(f *file) {
	m.mu.Lock()
	m.bytes -= f.buf.Len()
	m.rows -= f.held
	m.underway--
	m.changed.Broadcast()
	m.mu.Unlock()
}
