// Package jsonscan reads JSON text (RFC 8259) where it lies: strictly, in one pass,
// in linear time and without copying. It is for text that must be kept byte for
// byte and cannot be trusted: every value comes as the slice of the input that
// holds it, numbers digit for digit, strings with their quotes and escapes.
//
// A [Scanner] walks one text. Loop over an object with [Scanner.Members] and over
// an array with [Scanner.Elements]; inside the loop read the value with
// [Scanner.Value], look at its [Scanner.Kind] first where the type matters, descend
// with another loop, or leave it: what a loop body does not read is checked and
// skipped. Errors stick, as in bufio.Scanner: the loops end early and every value
// is nil, and [Scanner.End] tells the error, or that something follows the value.
//
//	s := jsonscan.New(line, 64)
//	for name := range s.Members() {
//		switch string(name) {
//		case "feature":
//			feature = s.Value() // verbatim, a slice of line
//		case "feature_geojson":
//			text, err = jsonscan.Unquote(s.Value())
//		}
//	}
//	if err := s.End(); err != nil { // *jsonscan.Error with the byte offset
//
// Names are compared by the caller, so case matters, and they come unescaped:
// "\u0069d" is id. A name that occurs twice comes twice; [Equal] tells whether
// the two values say the same.
//
// What is accepted is the grammar of RFC 8259 and nothing else: no NaN, no comment, no
// trailing comma, no leading zero, no byte order mark, no control character in a
// string. Two things are the caller's to ask for, because it may want to tell
// them apart from broken syntax: that the text is UTF-8 ([Valid] checks it, New
// does not), and that escapes name characters ([Unquote] refuses the escape of
// a lone surrogate with [ErrSurrogate], and [HasUnstorable] finds it).
package jsonscan

import (
	"errors"
	"fmt"
	"iter"
	"unicode/utf8"
)

// Kind is the type of a JSON value.
type Kind uint8

// The types of a JSON value. KindInvalid is no value at all.
const (
	KindInvalid Kind = iota
	KindNull
	KindBool
	KindNumber
	KindString
	KindArray
	KindObject
)

var kindNames = [...]string{"no value", "null", "a boolean", "a number", "a string", "an array", "an object"}

// String names the kind with its article, for messages: "an object".
func (k Kind) String() string { return kindNames[k] }

// KindOf tells the kind of a raw value by its first byte. It does not check the rest.
func KindOf(raw []byte) Kind {
	if len(raw) == 0 {
		return KindInvalid
	}
	switch c := raw[0]; {
	case c == '"':
		return KindString
	case c == '{':
		return KindObject
	case c == '[':
		return KindArray
	case c == '-' || '0' <= c && c <= '9':
		return KindNumber
	case c == 't' || c == 'f':
		return KindBool
	case c == 'n':
		return KindNull
	default:
		return KindInvalid
	}
}

// The classes of [Error].
var (
	ErrSyntax    = errors.New("invalid JSON")
	ErrUTF8      = errors.New("invalid UTF-8")
	ErrDepth     = errors.New("JSON nested too deeply")
	ErrKind      = errors.New("unexpected kind of JSON value")
	ErrSurrogate = errors.New("escape of a lone surrogate")
)

// Error says what is wrong with a text and at which byte.
type Error struct {
	Class  error // one of ErrSyntax, ErrUTF8, ErrDepth, ErrKind, ErrSurrogate
	Offset int   // bytes before the offending one, from the start of the text given
	Detail string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v at byte %d: %s", e.Class, e.Offset, e.Detail)
}

// Unwrap returns the class, so that errors.Is(err, jsonscan.ErrDepth) works.
func (e *Error) Unwrap() error { return e.Class }

// Valid reports whether b is UTF-8 and holds one JSON value and nothing else but
// white space, nested at most maxDepth deep. The error is an [*Error].
func Valid(b []byte, maxDepth int) error {
	if err := validUTF8(b); err != nil {
		return err
	}
	s := New(b, maxDepth)
	s.Value()
	return s.End()
}

// validUTF8 returns an [*Error] with the offset of the first byte that is not UTF-8.
func validUTF8(b []byte) error {
	if utf8.Valid(b) {
		return nil
	}
	i := 0
	for i < len(b) {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		i += n
	}
	return &Error{Class: ErrUTF8, Offset: i, Detail: fmt.Sprintf("byte 0x%02X begins no character", b[i])}
}

// Scanner walks one JSON text. It holds on to the text, which must not change
// while the scanner or any slice it gave out is in use.
type Scanner struct {
	b     []byte
	i     int
	due   bool   // a loop announced a value that nobody has read yet
	open  []byte // the brackets that are open, outermost first
	max   int
	deep  int // the most brackets that were open at once since Deepest was asked
	err   *Error
	space [32]byte // first home of open
}

// New returns a scanner at the start of text. maxDepth is how many arrays and
// objects may be open at once: a bare number needs 0, [1] needs 1.
func New(text []byte, maxDepth int) *Scanner {
	s := &Scanner{b: text, max: maxDepth}
	s.open = s.space[:0]
	return s
}

// Offset is the number of bytes read so far.
func (s *Scanner) Offset() int { return s.i }

// Deepest returns the largest number of arrays and objects that were open at once since it was
// last called. A caller whose limit depends on the part of the text goes by it.
func (s *Scanner) Deepest() int {
	deepest := s.deep
	s.deep = len(s.open)
	return deepest
}

// Err returns the first error met, nil while there is none.
func (s *Scanner) Err() error {
	if s.err == nil {
		return nil
	}
	return s.err
}

// End checks that nothing but white space follows the value that was read, and
// returns the first error met.
func (s *Scanner) End() error {
	if s.err == nil {
		if s.skipSpace(); s.i < len(s.b) {
			s.unexpected("the end of the text")
		}
	}
	return s.Err()
}

// Kind tells the kind of the value that comes next, without reading it. A comma,
// bracket or any other byte that begins no value is [KindInvalid].
func (s *Scanner) Kind() Kind {
	if s.err != nil {
		return KindInvalid
	}
	s.skipSpace()
	return KindOf(s.b[s.i:])
}

// Value reads the next value of any kind, checks it to the bottom and returns it
// verbatim, without the white space around it. It is nil after an error.
func (s *Scanner) Value() []byte {
	if s.err != nil {
		return nil
	}
	s.due = false
	s.skipSpace()
	start := s.i
	if !s.skipValue() {
		return nil
	}
	return s.b[start:s.i:s.i]
}

// Members reads an object: it yields the name of each member, unescaped, and
// expects the loop body to read its value or leave it. The name is a slice of the
// text unless it had escapes. In it the escape of a lone surrogate becomes the three bytes
// that UTF-8 would have for it, so that different names stay different; utf8.Valid tells.
//
// After a break the scanner stands inside the object and is of no more use than
// for Err and Offset. A next value that is no object is an error of class [ErrKind].
func (s *Scanner) Members() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if !s.enter('{', KindObject) {
			return
		}
		if s.skipSpace(); s.at('}') {
			s.leave()
			return
		}
		for {
			name, ok := s.name()
			if !ok {
				return
			}
			s.due = true
			if !yield(name) || s.err != nil || s.due && s.Value() == nil {
				return
			}
			s.skipSpace()
			switch {
			case s.at(','):
				s.i++
				s.skipSpace()
			case s.at('}'):
				s.leave()
				return
			default:
				s.unexpected("',' or '}' after a member")
				return
			}
		}
	}
}

// Elements reads an array: it yields the index of each element and expects the
// loop body to read the value or leave it. What Members says of breaks and kinds holds here.
func (s *Scanner) Elements() iter.Seq[int] {
	return func(yield func(int) bool) {
		if !s.enter('[', KindArray) {
			return
		}
		if s.skipSpace(); s.at(']') {
			s.leave()
			return
		}
		for index := 0; ; index++ {
			s.due = true
			if !yield(index) || s.err != nil || s.due && s.Value() == nil {
				return
			}
			s.skipSpace()
			switch {
			case s.at(','):
				s.i++
			case s.at(']'):
				s.leave()
				return
			default:
				s.unexpected("',' or ']' after an element")
				return
			}
		}
	}
}

// enter steps into the array or object that must come next.
func (s *Scanner) enter(bracket byte, want Kind) bool {
	if s.err != nil {
		return false
	}
	s.due = false
	s.skipSpace()
	if !s.at(bracket) {
		if k := KindOf(s.b[s.i:]); k == KindInvalid {
			s.unexpected("a value")
		} else {
			s.fail(ErrKind, s.i, "want %v, found %v", want, k)
		}
		return false
	}
	return s.push(bracket)
}

func (s *Scanner) leave() {
	s.i++
	s.open = s.open[:len(s.open)-1]
}

func (s *Scanner) push(bracket byte) bool {
	if len(s.open) >= s.max {
		s.fail(ErrDepth, s.i, "more than %d arrays and objects inside each other", s.max)
		return false
	}
	s.open = append(s.open, bracket)
	s.deep = max(s.deep, len(s.open))
	s.i++
	return true
}

// at reports whether the next byte is c.
func (s *Scanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

func (s *Scanner) skipSpace() {
	b, i := s.b, s.i
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	s.i = i
}

// name reads a member's name and the colon after it.
func (s *Scanner) name() (name []byte, ok bool) {
	if !s.at('"') {
		s.unexpected("a member name in double quotes")
		return nil, false
	}
	start := s.i
	escaped, ok := s.skipString()
	if !ok {
		return nil, false
	}
	name = s.b[start+1 : s.i-1 : s.i-1]
	if escaped {
		name, _ = appendUnescaped(make([]byte, 0, len(name)), name, true)
	}
	return name, s.colon()
}

func (s *Scanner) colon() bool {
	if s.skipSpace(); !s.at(':') {
		s.unexpected("':' after a member name")
		return false
	}
	s.i++
	return true
}

// skipValue reads one value of any kind. It uses the stack of open brackets
// instead of recursion, so that depth costs one byte a level.
func (s *Scanner) skipValue() bool {
	base := len(s.open)
	for {
		// A value is due.
		s.skipSpace()
		if s.i >= len(s.b) {
			s.unexpected("a value")
			return false
		}
		switch c := s.b[s.i]; {
		case c == '"':
			if _, ok := s.skipString(); !ok {
				return false
			}
		case c == '-' || '0' <= c && c <= '9':
			if !s.skipNumber() {
				return false
			}
		case c == '[':
			if s.skipNumbers() {
				break
			}
			if !s.push('[') {
				return false
			}
			if s.skipSpace(); !s.at(']') {
				continue
			}
			s.leave()
		case c == '{':
			if !s.push('{') {
				return false
			}
			if s.skipSpace(); !s.at('}') {
				if !s.skipName() {
					return false
				}
				continue
			}
			s.leave()
		default:
			if !s.skipLiteral(c) {
				return false
			}
		}
		// A value has ended: take the brackets that end with it, up to the next comma.
	ended:
		for len(s.open) > base {
			s.skipSpace()
			if s.i >= len(s.b) {
				s.unexpected("the end of an array or object")
				return false
			}
			object := s.open[len(s.open)-1] == '{'
			switch c := s.b[s.i]; {
			case c == ',':
				s.i++
				if object {
					if s.skipSpace(); !s.skipName() {
						return false
					}
				}
				break ended
			case c == ']' && !object, c == '}' && object:
				s.leave()
			case object:
				s.unexpected("',' or '}' after a member")
				return false
			default:
				s.unexpected("',' or ']' after an element")
				return false
			}
		}
		if len(s.open) == base {
			return true
		}
	}
}

// skipNumbers reads an array that holds nothing but numbers without exponents, one or more, as
// positions are and most of a feature's text is. Anything else it leaves unread to skipValue.
func (s *Scanner) skipNumbers() bool {
	if len(s.open) >= s.max {
		return false
	}
	b, i := s.b, s.i+1
	for {
		for i < len(b) && b[i] == ' ' {
			i++
		}
		if i < len(b) && b[i] == '-' {
			i++
		}
		first := i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		if i == first || i == len(b) || b[first] == '0' && i > first+1 {
			return false
		}
		if b[i] == '.' {
			i++
			first = i
			for i < len(b) && b[i]-'0' <= 9 {
				i++
			}
			if i == first || i == len(b) {
				return false
			}
		}
		switch b[i] {
		case ',':
			i++
		case ']':
			s.i = i + 1
			s.deep = max(s.deep, len(s.open)+1)
			return true
		default:
			return false
		}
	}
}

func (s *Scanner) skipName() bool {
	if !s.at('"') {
		s.unexpected("a member name in double quotes")
		return false
	}
	if _, ok := s.skipString(); !ok {
		return false
	}
	return s.colon()
}

func (s *Scanner) skipLiteral(first byte) bool {
	word := ""
	switch first {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	case 'n':
		word = "null"
	default:
		s.unexpected("a value")
		return false
	}
	for k := 1; k < len(word); k++ {
		if s.i+k >= len(s.b) || s.b[s.i+k] != word[k] {
			s.i += k
			s.unexpected(word)
			return false
		}
	}
	s.i += len(word)
	return true
}

// skipNumber reads -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (s *Scanner) skipNumber() bool {
	b, i := s.b, s.i
	if b[i] == '-' {
		i++
	}
	first := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == first {
		s.i = i
		s.unexpected("a digit")
		return false
	}
	if b[first] == '0' && i > first+1 {
		s.fail(ErrSyntax, first, "a number may not begin with a needless zero")
		return false
	}
	if i < len(b) && b[i] == '.' {
		i++
		first = i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		if i == first {
			s.i = i
			s.unexpected("a digit after the decimal point")
			return false
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		first = i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		if i == first {
			s.i = i
			s.unexpected("a digit in the exponent")
			return false
		}
	}
	s.i = i
	return true
}

// plain marks the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// skipString reads a string with its quotes and reports whether it has escapes.
func (s *Scanner) skipString() (escaped, ok bool) {
	b, i := s.b, s.i+1
	for {
		for i < len(b) && plain[b[i]] {
			i++
		}
		if i >= len(b) {
			s.i = i
			s.unexpected("the closing quote of a string")
			return escaped, false
		}
		switch b[i] {
		case '"':
			s.i = i + 1
			return escaped, true
		case '\\':
			escaped = true
			i++
			if i >= len(b) {
				s.i = i
				s.unexpected("the rest of an escape")
				return escaped, false
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i++
			case 'u':
				i++
				for k := 0; k < 4; k++ {
					if i >= len(b) || hexValue(b[i]) < 0 {
						s.i = i
						s.unexpected("four hexadecimal digits after \\u")
						return escaped, false
					}
					i++
				}
			default:
				s.i = i
				s.unexpected("an escape that JSON has")
				return escaped, false
			}
		default:
			s.fail(ErrSyntax, i, "control character U+%04X must be escaped in a string", b[i])
			return escaped, false
		}
	}
}

func hexValue(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	default:
		return -1
	}
}

// unexpected records that something else than wanted stands at the current byte.
func (s *Scanner) unexpected(wanted string) {
	if s.i >= len(s.b) {
		s.fail(ErrSyntax, len(s.b), "the text ends where %s should be", wanted)
		return
	}
	r, n := utf8.DecodeRune(s.b[s.i:])
	if r == utf8.RuneError && n == 1 {
		s.fail(ErrSyntax, s.i, "found byte 0x%02X where %s should be", s.b[s.i], wanted)
		return
	}
	s.fail(ErrSyntax, s.i, "found %q where %s should be", r, wanted)
}

func (s *Scanner) fail(class error, offset int, format string, args ...any) {
	if s.err == nil {
		s.err = &Error{Class: class, Offset: offset, Detail: fmt.Sprintf(format, args...)}
	}
}
