package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
)

// collection is what a FeatureCollection says about all its features.
type collection struct {
	crs    []byte // its "crs" member as written, nil where it has none
	double bool   // it has two that differ
}

// maxCRSMember bounds the "crs" member of a collection.
const maxCRSMember = 64 << 10

// collection frames the FeatureCollection that rest begins with, member by member.
//
// Its "crs" member may stand behind its features, where GDAL does not put it but
// others do. So the collection is read twice: first for that, then for its features.
func (f *framer) collection() error {
	within, err := f.lookAhead()
	if err != nil {
		return err
	}
	for features := 0; ; features++ {
		var err error
		if features == 0 {
			err = f.members(func(name []byte) error { return f.collectionMember(name, within) })
		} else {
			// After a break: go on with the feature that was found behind it.
			err = f.elementsOn(formFeature, within)
			if err == nil {
				err = f.membersOn(func(name []byte) error { return f.collectionMember(name, within) })
			}
		}
		if !errors.Is(err, errBreak) {
			return err
		}
		if len(f.rest()) == 0 {
			if n := len(f.units); f.err == io.EOF && n > 0 && f.units[n-1].within == within && breakIn(f.units[n-1].data) >= 0 {
				return nil // the last feature has swallowed the end, and is reported itself
			}
			return f.cutOff(f.err, "collection")
		}
		if err := f.broken(f.pos, f.untilFeature(), breakFault("the collection", err)); err != nil {
			return err
		}
		if !featureStart.Match(f.rest()[:min(len(f.rest()), featureStartMax)]) {
			return nil // the object or the record has ended
		}
	}
}

func (f *framer) collectionMember(name []byte, within *collection) error {
	if string(name) == `"features"` && f.rest()[0] == '[' {
		return f.elements(formFeature, within)
	}
	_, err := f.skipValue(0)
	return err
}

// lookAhead reads the members of the collection that rest begins with, without
// framing it.
func (f *framer) lookAhead() (*collection, error) {
	ahead := &framer{limits: f.limits, delim: noDelim, fresh: func(n int) []byte { return make([]byte, n) }}
	var extent jsonscan.Extent
	if _, done := extent.Scan(f.rest()); done || f.err == io.EOF {
		ahead.buf, ahead.end, ahead.err = f.rest(), len(f.rest()), io.EOF
	} else {
		src, err := f.reopen()
		if err != nil {
			return nil, err
		}
		defer src.Close()
		ahead.src = src
		if _, err := io.CopyN(io.Discard, src, f.offset()); err != nil {
			if ended, fault := contentEnds(err); ended || fault {
				return new(collection), nil // it will be met again, and reported, when the features are read
			}
			return nil, err
		}
		if err := ahead.more(); err != nil {
			if ended, fault := contentEnds(err); ended || fault {
				return new(collection), nil
			}
			return nil, err
		}
	}
	c := new(collection)
	err := ahead.members(func(name []byte) error {
		if string(name) != `"crs"` {
			_, err := ahead.skipValue(0)
			return err
		}
		value, err := ahead.skipValue(maxCRSMember)
		if err != nil {
			return err
		}
		if c.crs == nil {
			c.crs = value
		} else if !bytes.Equal(c.crs, value) && (jsonscan.Valid(c.crs, maxDepth) != nil || jsonscan.Valid(value, maxDepth) != nil || !jsonscan.Equal(c.crs, value)) {
			c.double = true
		}
		return nil
	})
	if ended, fault := contentEnds(err); err != nil && !ended && !fault && !errors.Is(err, errBreak) {
		return nil, err
	}
	return c, nil
}

// contentEnds tells the end of the content, and content that breaks off, from an
// error of storage or network.
func contentEnds(err error) (ended, broken bool) {
	_, broken = deadletter.AsFault(err)
	return err == io.EOF, broken
}

// members walks the JSON object that rest begins with and calls member for each
// name, as written, with rest at the value; member takes the value. The error is
// of class errBreak where the object is broken or ends too early.
func (f *framer) members(member func(name []byte) error) error {
	f.pos++
	return f.membersOn(member)
}

func (f *framer) membersOn(member func(name []byte) error) error {
	for {
		c, err := f.token()
		if err != nil {
			return f.early(err)
		}
		switch c {
		case '}':
			f.pos++
			return nil
		case ',':
			f.pos++
			continue
		case '"':
		default:
			return fmt.Errorf("%w: found %q where a member should begin", errBreak, excerpt(f.rest()))
		}
		name, err := f.skipValue(probeBytes)
		if err != nil {
			return err
		}
		if c, err = f.token(); err != nil {
			return f.early(err)
		}
		if c != ':' {
			return fmt.Errorf("%w: found %q where ':' should follow a member's name", errBreak, excerpt(f.rest()))
		}
		f.pos++
		if _, err = f.token(); err != nil {
			return f.early(err)
		}
		if err := member(name); err != nil {
			return err
		}
	}
}

// early makes the end of the content a break, and leaves other errors alone.
func (f *framer) early(err error) error {
	if ended, fault := contentEnds(err); ended || fault {
		return fmt.Errorf("%w: it is cut off", errBreak)
	}
	return err
}

// elements frames the elements of the array that rest begins with.
func (f *framer) elements(form form, within *collection) error {
	f.pos++
	return f.elementsOn(form, within)
}

func (f *framer) elementsOn(form form, within *collection) error {
	for {
		c, err := f.token()
		if err != nil {
			return f.early(err)
		}
		switch c {
		case ']':
			f.pos++
			return nil
		case ',':
			f.pos++
		case '}':
			// A broken element has swallowed the ']'; it is reported itself.
			return nil
		case ':':
			return fmt.Errorf("%w: found ':' where an element should begin", errBreak)
		default:
			if err := f.value(form, within); err != nil {
				return err
			}
		}
	}
}

// skipValue takes the value that rest begins with and returns its first keep bytes,
// as a copy.
func (f *framer) skipValue(keep int) ([]byte, error) {
	var extent jsonscan.Extent
	var kept []byte
	for {
		n, done := extent.Scan(f.rest())
		if room := keep - len(kept); room > 0 {
			kept = append(kept, f.rest()[:min(n, room)]...)
		}
		f.pos += n
		if done {
			return kept, nil
		}
		if err := f.more(); err != nil {
			return nil, f.early(err)
		}
	}
}
