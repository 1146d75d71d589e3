package capture

import (
	"container/heap"

	"geodlq/shared/archive"
)

// How an object is cut into parts. What counts is the size of records in the object, so
// that no setting changes the cut. Whoever changes these must change the layout in
// archive.Part.ObjectKey, too.
const (
	// partRows and partBytes of records end a part. GeoJSON compresses to between a
	// half and a fifth, which makes files of 25 to 64 MB.
	partRows  = 100_000
	partBytes = 128 << 20
	// openBytes ends the largest part where several are open and have this many bytes
	// of records together.
	openBytes = 48 << 20
	// pendingBytes encodes, as a row group, the part that holds most rows not yet
	// encoded, when all hold this much together.
	pendingBytes = 10 << 20
	// groupBytes is the smallest row group that is worth keeping a file open for.
	// A part that holds less when room is needed ends with it.
	groupBytes = 64 << 10
	// rowBytes is what a row costs in memory beside its record.
	rowBytes = 768
)

// part is a part that is open: rows of one batch that go into one file.
type part struct {
	batch   string
	first   int64 // ordinal of its first record
	rows    int64
	size    int64 // of its records
	pending []archive.Row
	arena   arena
	held    int64 // what pending costs in memory
	file    *file // where row groups of it are encoded; used by encode alone
	at      [2]int
}

// job is a row group for encode.
type job struct {
	part *part
	rows []archive.Row
	held int64
	last bool // the part ends with it
}

// cutter deals an object's rows out to parts. An object of one batch has one open
// part. Of an object with very many, those that hold least stay open longest.
type cutter struct {
	run      *run
	open     map[string]*part
	bySize   parts
	byHeld   parts
	size     int64 // of all parts that are open
	held     int64
	previous int64 // offset of the record the last row came from
}

func newCutter(r *run) *cutter {
	return &cutter{
		run: r, open: map[string]*part{}, previous: -1,
		bySize: parts{which: 0, of: func(p *part) int64 { return p.size }},
		byHeld: parts{which: 1, of: func(p *part) int64 { return p.held }},
	}
}

// add deals rows out. It copies what it keeps.
func (c *cutter) add(rows []archive.Row) error {
	for i := range rows {
		row := &rows[i]
		size := row.SourceLength
		if row.SourceOffset == c.previous {
			// One record of many features, such as Lambda writes, is not counted for each.
			size = int64(len(row.Payload))
		}
		c.previous = row.SourceOffset
		p := c.open[row.BatchID]
		if p == nil {
			p = &part{batch: row.BatchID, first: row.SourceRecord}
			c.open[row.BatchID] = p
			heap.Push(&c.bySize, p)
			heap.Push(&c.byHeld, p)
		}
		p.pending = append(p.pending, *row)
		kept := &p.pending[len(p.pending)-1]
		kept.Payload = p.arena.keep(row.Payload)
		p.rows++
		p.size += size
		p.held += size + rowBytes
		c.size += size
		c.held += size + rowBytes
		heap.Fix(&c.bySize, p.at[0])
		heap.Fix(&c.byHeld, p.at[1])
		if err := c.settle(p); err != nil {
			return err
		}
	}
	return nil
}

// settle ends and encodes what the bounds ask for after a row went into p.
func (c *cutter) settle(p *part) error {
	if p.rows >= partRows || p.size >= partBytes {
		if err := c.flush(p, true); err != nil {
			return err
		}
	}
	for len(c.open) > 1 && c.size >= openBytes {
		if err := c.flush(c.bySize.list[0], true); err != nil {
			return err
		}
	}
	for c.held >= pendingBytes {
		largest := c.byHeld.list[0]
		if err := c.flush(largest, largest.held < groupBytes); err != nil {
			return err
		}
	}
	return nil
}

// end ends all parts that are open, in the order of their beginnings.
func (c *cutter) end() error {
	c.bySize.of = func(p *part) int64 { return -p.first }
	heap.Init(&c.bySize)
	for len(c.bySize.list) > 0 {
		if err := c.flush(c.bySize.list[0], true); err != nil {
			return err
		}
	}
	return nil
}

// flush hands the rows that p holds to encode.
func (c *cutter) flush(p *part, last bool) error {
	j := job{part: p, rows: p.pending, held: p.held, last: last}
	c.held -= p.held
	p.pending, p.arena, p.held = nil, arena{}, 0
	if last {
		c.size -= p.size
		delete(c.open, p.batch)
		heap.Remove(&c.bySize, p.at[0])
		heap.Remove(&c.byHeld, p.at[1])
	} else {
		heap.Fix(&c.byHeld, p.at[1])
	}
	select {
	case c.run.jobs <- j:
		return nil
	case <-c.run.ctx.Done():
		return c.run.ctx.Err()
	}
}

// parts is a heap with the largest part first, and of equal ones the one begun first.
type parts struct {
	which int // index into part.at
	of    func(*part) int64
	list  []*part
}

func (h *parts) Len() int { return len(h.list) }

func (h *parts) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	if x, y := h.of(a), h.of(b); x != y {
		return x > y
	}
	return a.first < b.first
}

func (h *parts) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].at[h.which], h.list[j].at[h.which] = i, j
}

func (h *parts) Push(x any) {
	p := x.(*part)
	p.at[h.which] = len(h.list)
	h.list = append(h.list, p)
}

func (h *parts) Pop() any {
	p := h.list[len(h.list)-1]
	h.list[len(h.list)-1] = nil
	h.list = h.list[:len(h.list)-1]
	return p
}

// arena keeps payloads behind each other. Its pieces grow with it: a part of
// few rows costs little, and many parts may be open.
type arena struct {
	piece []byte
	size  int
}

const (
	minPiece = 4 << 10
	maxPiece = 1 << 20
)

func (a *arena) keep(p []byte) []byte {
	if len(p) == 0 {
		return nil
	}
	if cap(a.piece)-len(a.piece) < len(p) {
		if len(p) >= maxPiece {
			return append([]byte(nil), p...)
		}
		a.piece = make([]byte, 0, max(len(p), min(max(a.size, minPiece), maxPiece)))
	}
	start := len(a.piece)
	a.piece = append(a.piece, p...)
	a.size += len(p)
	return a.piece[start:len(a.piece):len(a.piece)]
}
