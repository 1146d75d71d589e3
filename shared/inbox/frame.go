package inbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
)

// form says what a unit is taken for.
type form uint8

const (
	// formValue is a JSON text of its own: a record, a feature, a destination record, a collection.
	formValue form = iota
	// formDocument is one too, and may have swallowed the next where it lacks a bracket.
	formDocument
	// formElement is an element of an array.
	formElement
	// formFeature is a member of a collection.
	formFeature
	// formBroken is what cannot be taken apart further; the unit says why.
	formBroken
)

// unit is a stretch of the object that is understood, or not, by itself.
type unit struct {
	form   form
	data   []byte // points into the block's buffer; a prefix where the unit is oversized
	offset int64  // in the decompressed object
	length int64
	sha256 string // of an oversized unit; empty otherwise
	fault  *deadletter.Fault
	within *collection // that a feature is a member of
}

// block is a stretch of units that share a buffer.
type block struct {
	buf   []byte
	units []unit
}

// blockBytes is the size of a block's buffer, unless one record needs more.
const blockBytes = 256 << 10

// probeBytes is how much is looked at to tell forms apart.
const probeBytes = 64 << 10

// framer takes an object apart into units. It reads strictly forward and
// understands no more than it must: where lines, sequence elements, values and
// the members of a collection begin and end.
type framer struct {
	src    io.Reader
	limits Limits
	reopen func() (io.ReadCloser, error) // the source from its first byte; nil where all of it is in buf
	emit   func(block) error             // takes a full block; nil where all is in buf
	fresh  func(n int) []byte            // a buffer of at least n bytes

	buf      []byte
	pos, end int   // what is read and not yet framed is buf[pos:end]
	base     int64 // offset of buf[0] in the object
	err      error // of src, once it has one
	over     bool  // that the object ended in the middle of something is told
	units    []unit
	delim    int // byte that ends a record, -1 where values end by themselves
}

const noDelim = -1

// rest is what is read and not yet framed.
func (f *framer) rest() []byte { return f.buf[f.pos:f.end] }

// offset is where rest begins in the object.
func (f *framer) offset() int64 { return f.base + int64(f.pos) }

// more reads on. What rest was stays at its beginning, though perhaps in another
// buffer. The error is that of the source.
func (f *framer) more() error {
	if f.err != nil {
		return f.err
	}
	if f.end == len(f.buf) {
		if err := f.makeRoom(); err != nil {
			return err
		}
	}
	for range 100 {
		n, err := f.src.Read(f.buf[f.end:])
		f.end += n
		f.err = err
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	f.err = io.ErrNoProgress
	return f.err
}

// makeRoom makes room behind rest.
func (f *framer) makeRoom() error {
	rest := f.rest()
	switch {
	case len(f.units) > 0:
		full := f.buf
		n := blockBytes
		if len(rest) > blockBytes/2 {
			n += len(rest)
		}
		f.buf = f.fresh(n)
		copy(f.buf, rest)
		if err := f.emit(block{full, f.units}); err != nil {
			return err
		}
		f.units = nil
	case len(rest) <= len(f.buf)/2 && len(f.buf) > 0:
		copy(f.buf, rest)
	default:
		// A record that outgrows its buffer doubles it, up to what is ever held at once.
		f.buf = f.fresh(max(blockBytes, len(rest)+blockBytes, min(2*len(rest), int(f.limits.maxRecord())+blockBytes)))
		copy(f.buf, rest)
	}
	f.base += int64(f.pos)
	f.pos, f.end = 0, len(rest)
	return nil
}

// flush hands over what has gathered.
func (f *framer) flush() error {
	if len(f.units) == 0 {
		return nil
	}
	units := f.units
	f.units = nil
	return f.emit(block{f.buf, units})
}

// ensure reads on until rest has n bytes or the source has no more.
func (f *framer) ensure(n int) {
	for len(f.rest()) < n {
		if f.more() != nil {
			return
		}
	}
}

// run takes the whole object apart. The error is that of emit, or of storage or network.
func (f *framer) run() error {
	if err := f.frame(); err != nil {
		return err
	}
	return f.flush()
}

func (f *framer) frame() error {
	f.ensure(len(byteOrderMark))
	if bytes.HasPrefix(f.rest(), byteOrderMark) {
		f.pos += len(byteOrderMark)
	}
	// What a line or document looks like shows within a block.
	f.ensure(blockBytes - len(byteOrderMark))
	if f.err != nil && f.err != io.EOF {
		if _, ok := deadletter.AsFault(f.err); !ok {
			return f.err
		}
	}
	switch arrangement(f.rest(), f.err != nil) {
	case arrangedLines:
		f.delim = '\n'
		return f.records()
	case arrangedSequence:
		f.delim = recordSeparator
		return f.records()
	case arrangedValues:
		f.delim = noDelim
		return f.values()
	default:
		return f.broken(f.pos, untilEnd, whatItIsNot(f.rest()))
	}
}

// ended judges an error of more where a record may end: nil at the end of the
// object, and where its content breaks off there after a unit that says so.
func (f *framer) ended(err error) error {
	var fault *deadletter.Fault
	switch {
	case err == io.EOF:
		return nil
	case errors.As(err, &fault):
		return f.cutOff(err, "object")
	}
	return err
}

func (f *framer) add(u unit) { f.units = append(f.units, u) }

// records reads what is delimited by a byte: NDJSON by newlines, a text sequence by
// record separators.
func (f *framer) records() error {
	for {
		seen, probed := 0, false
		for {
			rest := f.rest()
			if i := bytes.IndexByte(rest[seen:], byte(f.delim)); i >= 0 {
				f.record(rest[:seen+i])
				f.pos += seen + i + 1
				break
			}
			seen = len(rest)
			if !probed && seen >= probeBytes {
				probed = true
				if lead := leading(rest); isCollection(rest[lead:]) {
					f.pos += lead
					if err := f.collection(); err != nil {
						return err
					}
					break
				}
			}
			if int64(seen) > f.limits.maxRecord() {
				if err := f.oversized(f.untilDelim(), nil); err != nil {
					return err
				}
				break
			}
			if err := f.more(); err != nil {
				return f.last(err, len(rest))
			}
		}
	}
}

// last frames the record that the end of the object ends.
func (f *framer) last(err error, n int) error {
	var fault *deadletter.Fault
	if err == io.EOF {
		f.record(f.rest()[:n])
		f.pos += n
		return nil
	}
	if errors.As(err, &fault) {
		if lead := leading(f.rest()); isCollection(f.rest()[lead:]) {
			f.pos += lead
			return f.collection()
		}
		return f.cutOff(err, "record")
	}
	return err
}

// record adds a delimited record, unless it is blank.
func (f *framer) record(raw []byte) {
	lead := leading(raw)
	data := bytes.TrimRight(raw[lead:], whitespace)
	if len(data) == 0 {
		return
	}
	f.add(unit{form: formValue, data: data, offset: f.offset() + int64(lead), length: int64(len(data))})
}

const (
	whitespace      = " \t\r\n"
	recordSeparator = 0x1e
)

var byteOrderMark = []byte("\ufeff")

// leading counts the bytes before a record's own: white space, record separators
// and the byte order marks of files that were put one behind the other.
func leading(b []byte) int {
	n := 0
	for n < len(b) {
		switch {
		case b[n] == ' ' || b[n] == '\t' || b[n] == '\r' || b[n] == '\n' || b[n] == recordSeparator:
			n++
		case bytes.HasPrefix(b[n:], byteOrderMark):
			n += len(byteOrderMark)
		default:
			return n
		}
	}
	return n
}

// values reads JSON values that follow each other, on as many lines as they like.
func (f *framer) values() error {
	for {
		c, err := f.token()
		if err != nil {
			return f.ended(err)
		}
		switch c {
		case '{':
			f.ensure(probeBytes)
			if isCollection(f.rest()) {
				err = f.collection()
			} else {
				err = f.value(formDocument, nil)
			}
		case '[':
			err = f.elements(formElement, nil)
			if errors.Is(err, errBreak) && len(f.rest()) == 0 {
				err = f.cutOff(f.err, "array")
			} else if errors.Is(err, errBreak) {
				err = f.broken(f.pos, untilDocument, breakFault("the array", err))
			}
		default:
			err = f.broken(f.pos, untilDocument, deadletter.Faultf(deadletter.ReasonInvalidJSON, "", "found %q where a JSON object should begin", excerpt(f.rest())))
		}
		if err != nil {
			return err
		}
	}
}

// token skips what may stand between tokens and returns the next byte, without
// taking it. The error is that of more.
func (f *framer) token() (byte, error) {
	for {
		f.pos += leading(f.rest())
		// A byte order mark may lie across the end of what is read.
		if rest := f.rest(); len(rest) >= len(byteOrderMark) || len(rest) > 0 && rest[0] != byteOrderMark[0] {
			return rest[0], nil
		}
		if err := f.more(); err != nil {
			if rest := f.rest(); len(rest) > 0 {
				return rest[0], nil
			}
			return 0, err
		}
	}
}

// value frames the value at the beginning of rest.
func (f *framer) value(form form, within *collection) error {
	var extent jsonscan.Extent
	seen := 0
	for {
		n, done := extent.Scan(f.rest()[seen:])
		seen += n
		if done {
			f.add(unit{form: form, data: f.rest()[:seen:seen], offset: f.offset(), length: int64(seen), within: within})
			f.pos += seen
			return nil
		}
		if int64(seen) > f.limits.maxRecord() {
			// Either it is that large, or a bracket is missing and it has swallowed its neighbours.
			if at := breakIn(f.rest()); at >= 0 {
				next := f.untilFeature()
				if form == formDocument {
					next = untilDocument
				}
				return f.broken(f.pos+at, next, deadletter.Faultf(deadletter.ReasonInvalidJSON, "", "the record breaks off %d bytes after its beginning, and the next one was looked for", at))
			}
			return f.oversized(func(p []byte) (int, bool) { return extent.Scan(p) }, within)
		}
		if err := f.more(); err != nil {
			return f.cutOff(err, "record")
		}
	}
}

// cutOff frames the rest of the object, in which something is left open, once.
func (f *framer) cutOff(err error, what string) error {
	var fault *deadletter.Fault
	switch {
	case f.over:
		return nil
	case err == io.EOF:
		fault = deadletter.Faultf(deadletter.ReasonInvalidJSON, "", "the object ends within this %s", what)
	case errors.As(err, &fault):
	default:
		return err
	}
	err = f.broken(f.pos, untilEnd, fault)
	f.over = true
	return err
}

// breakIn returns where b, which begins with a JSON value, is broken, and -1 where
// it is sound as far as it goes.
func breakIn(b []byte) int {
	s := jsonscan.New(b, maxDepth)
	s.Value()
	var e *jsonscan.Error
	if errors.As(s.Err(), &e) && e.Offset < len(b) {
		return e.Offset
	}
	return -1
}

// stop tells where a stretch of bytes ends: how many bytes of p belong to it, and
// whether it ends there. It may hold bytes back by counting fewer than it was given.
type stop func(p []byte) (n int, done bool)

func untilEnd(p []byte) (int, bool) { return len(p), false }

// untilDelim stops after the delimiter, which does not belong to the record.
func (f *framer) untilDelim() stop {
	return func(p []byte) (int, bool) {
		if i := bytes.IndexByte(p, byte(f.delim)); i >= 0 {
			return i, true
		}
		return len(p), false
	}
}

// featureStart is where the next member of a broken collection is looked for.
var featureStart = regexp.MustCompile(`\{\s{0,64}"type"\s{0,64}:\s{0,64}"Feature"`)

// featureStartMax is the longest match of featureStart.
const featureStartMax = 1 + 3*64 + len(`"type":"Feature"`)

// untilDocument stops before a brace at the beginning of a line.
func untilDocument(p []byte) (int, bool) {
	if i := bytes.Index(p, documentStart); i >= 0 {
		return i + 1, true
	}
	return max(0, len(p)-len(documentStart)), false
}

var documentStart = []byte("\n{")

// untilFeature stops before the next feature, and at the delimiter.
func (f *framer) untilFeature() stop {
	return func(p []byte) (int, bool) {
		at := -1
		if m := featureStart.FindIndex(p); m != nil {
			at = m[0]
		}
		if f.delim != noDelim {
			if i := bytes.IndexByte(p, byte(f.delim)); i >= 0 && (at < 0 || i < at) {
				at = i
			}
		}
		if at >= 0 {
			return at, true
		}
		return max(0, len(p)-featureStartMax), false
	}
}

// broken frames a stretch that is broken: all from the beginning of rest to from, an
// index into buf, and from there on as far as end says.
func (f *framer) broken(from int, end stop, fault *deadletter.Fault) error {
	return f.stretch(from-f.pos, end, unit{form: formBroken, fault: fault})
}

// oversized frames a record that is larger than what is held at once, of which
// rest is the beginning and was looked at already.
func (f *framer) oversized(end stop, within *collection) error {
	return f.stretch(len(f.rest()), end, unit{form: formValue, within: within, sha256: "pending"})
}

// stretch frames rest[:seen] and what follows up to end as the unit u. It keeps
// all of it where that is no more than a record may be, else the prefix.
func (f *framer) stretch(seen int, end stop, u unit) error {
	u.offset = f.offset()
	var kept []byte // of an oversized unit
	var sum hash.Hash
	var failed *deadletter.Fault
	for {
		n, done := 0, false
		if rest := f.rest(); len(rest) > seen {
			n, done = end(rest[seen:])
			seen += n
		}
		whole := sum == nil && int64(seen) <= f.limits.maxRecord() && u.sha256 == ""
		if done && whole {
			break
		}
		if !whole {
			if sum == nil {
				sum = sha256.New()
				kept = bytes.Clone(f.rest()[:min(seen, Prefix)])
			}
			sum.Write(f.rest()[:seen])
			u.length += int64(seen)
			f.pos += seen
			seen = 0
			if done {
				break
			}
		}
		if err := f.more(); err != nil {
			var fault *deadletter.Fault
			if err != io.EOF && !errors.As(err, &fault) {
				return err
			}
			// Bytes that end held back belong to it after all.
			if sum != nil {
				sum.Write(f.rest())
				u.length += int64(len(f.rest()))
				f.pos = f.end
			} else {
				seen = len(f.rest())
			}
			if fault != nil && fault != u.fault && !f.over {
				failed = fault
			}
			f.over = f.over || fault != nil
			break
		}
	}
	if sum == nil {
		u.data, u.length = bytes.TrimRight(f.rest()[:seen:seen], whitespace), int64(seen)
		f.pos += seen
		u.length = int64(len(u.data))
		u.sha256 = ""
	} else {
		u.data, u.sha256 = kept, hex.EncodeToString(sum.Sum(nil))
	}
	f.add(u)
	if failed != nil {
		// The content breaks off within the stretch; that is a thing of its own to report.
		f.add(unit{form: formBroken, offset: f.base + int64(f.end), fault: failed})
	}
	return nil
}

// whatItIsNot says why an object is in none of the known forms.
func whatItIsNot(b []byte) *deadletter.Fault {
	switch {
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}) || bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		return deadletter.Faultf(deadletter.ReasonInvalidUTF8, "", "the object begins with the byte order mark of UTF-16; write it as UTF-8")
	case !validPrefix(b):
		return deadletter.Faultf(deadletter.ReasonInvalidUTF8, "", "the object is no text in UTF-8; it begins with %q", excerpt(b))
	}
	return deadletter.Faultf(deadletter.ReasonInvalidJSON, "", "the object is neither NDJSON nor GeoJSON nor a failure record of Lambda; it begins with %q", excerpt(b))
}

func excerpt(b []byte) []byte {
	const most = 32
	return b[:min(len(b), most)]
}

// errBreak is the class of a collection or array that is not closed as it should be.
var errBreak = errors.New("broken")

func breakFault(what string, err error) *deadletter.Fault {
	return &deadletter.Fault{Reason: deadletter.ReasonInvalidJSON, Detail: fmt.Sprintf("%s is %v", what, err), Err: err}
}
