package inbox

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"geodlq/shared/jsonscan"
)

// arranged says how records are laid out in an object.
type arranged uint8

const (
	arrangedNot      arranged = iota // in no way that is known
	arrangedLines                    // one to a line
	arrangedSequence                 // each after a record separator
	arrangedValues                   // JSON values on any number of lines: a collection, an array, single documents
)

// maxDepth is how deep records may be nested. A feature may be 32 deep; the rest
// is for what a record or a Lambda event wraps around it.
const maxDepth = 512

// arrangement tells from the beginning of an object how it is laid out. all says
// that the beginning is the whole object.
//
// The hard case is a first line that is no JSON by itself: it may be a broken
// record among good ones, or the "{" that opens a document of many lines. What
// decides is whether JSON goes on across the line's end.
func arrangement(b []byte, all bool) arranged {
	lead := leading(b)
	if bytes.IndexByte(b[:lead], recordSeparator) >= 0 {
		return arrangedSequence
	}
	if lead == len(b) {
		return arrangedLines // nothing, or nothing but white space
	}
	switch b[lead] {
	case '{':
		if isCollection(b[lead:]) {
			// On one line it may be followed by other lines.
			if value, _ := cut(b[lead:]); bytes.IndexByte(value, '\n') < 0 {
				return arrangedLines
			}
			return arrangedValues
		}
		s := jsonscan.New(b[lead:], maxDepth)
		value := s.Value()
		if value != nil {
			if bytes.IndexByte(value, '\n') >= 0 {
				return arrangedValues
			}
			return arrangedLines
		}
		if bytes.IndexByte(b[lead:], '\n') < 0 {
			return arrangedLines // a single line, whole or not
		}
		var e *jsonscan.Error
		if !all && errors.As(s.Err(), &e) && e.Offset == len(b)-lead {
			return arrangedValues // sound over many lines, as far as it is known
		}
		if hasRecordLine(b, all) {
			return arrangedLines
		}
		return arrangedValues
	case '[':
		first := b[lead+1:]
		first = first[leading(first):]
		if len(first) > 0 && (first[0] == '{' || first[0] == ']') {
			return arrangedValues
		}
	}
	if hasRecordLine(b, all) {
		return arrangedLines
	}
	return arrangedNot
}

// hasRecordLine reports whether some line looks like a record: it begins with a
// brace, not indented as lines within a document are, and ends with one. A
// last line that goes on beyond b counts as if it ended so.
func hasRecordLine(b []byte, all bool) bool {
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest
		line = bytes.TrimPrefix(bytes.TrimPrefix(line, byteOrderMark), []byte{recordSeparator})
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		if !ended && !all {
			return true
		}
		if line = bytes.TrimRight(line, whitespace); line[len(line)-1] == '}' {
			return true
		}
	}
	return false
}

// isCollection reports whether the JSON object that b begins with, or is the
// beginning of, is a FeatureCollection: its type says so, or features come before
// its type does. It goes by brackets, so that a broken feature does not hide it.
func isCollection(b []byte) bool {
	if len(b) == 0 || b[0] != '{' {
		return false
	}
	for i := 1; ; {
		i += leading(b[i:])
		switch {
		case i >= len(b) || b[i] == '}':
			return false
		case b[i] == ',':
			i++
			continue
		case b[i] != '"':
			return false
		}
		name, n := cut(b[i:])
		i += n
		i += leading(b[i:])
		if i >= len(b) || b[i] != ':' {
			return false
		}
		i++
		i += leading(b[i:])
		if i >= len(b) {
			return false
		}
		switch string(name) {
		case `"type"`:
			value, _ := cut(b[i:])
			return string(value) == `"FeatureCollection"`
		case `"features"`:
			return b[i] == '['
		}
		if _, n = cut(b[i:]); n == 0 {
			return false
		}
		i += n
	}
}

// cut returns the value that b begins with, going by brackets, and its length; all
// of b where the value does not end in it.
func cut(b []byte) ([]byte, int) {
	var extent jsonscan.Extent
	n, _ := extent.Scan(b)
	return b[:n], n
}

// validPrefix reports whether b is UTF-8, but perhaps for a character that its end cuts.
func validPrefix(b []byte) bool {
	for i := 1; i <= utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				b = b[:len(b)-i]
			}
			break
		}
	}
	return utf8.Valid(b)
}
