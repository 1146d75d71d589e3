package transform

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"geodlq/shared/jsonscan"
)

// Problem is one thing that is wrong with a document, and where.
type Problem struct {
	Pointer string // JSON pointer (RFC 6901) to the value; "" is the whole document
	Message string
}

func (p Problem) String() string {
	if p.Pointer == "" {
		return p.Message
	}
	return p.Pointer + ": " + p.Message
}

// DocumentError says everything that is wrong with a contract or an override. It is nobody's
// data fault: the run stops before it claims a row.
type DocumentError struct {
	Document string // what it is and where it came from
	Problems []Problem
}

func (e *DocumentError) Error() string {
	problems := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		problems[i] = p.String()
	}
	count := "1 problem"
	if len(problems) != 1 {
		count = strconv.Itoa(len(problems)) + " problems"
	}
	return fmt.Sprintf("%s has %s: %s", e.Document, count, strings.Join(problems, "; "))
}

// document reads a JSON document and collects what is wrong with it.
type document struct {
	problems []Problem
	warnings []Problem
}

// node is one value of the document.
type node struct {
	raw     []byte
	pointer string
}

func (n node) kind() jsonscan.Kind { return jsonscan.KindOf(n.raw) }

// child is the pointer to a member or element; a very long name is cut in it.
func (n node) child(name string) string {
	return n.pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(label(name))
}

func (d *document) problem(pointer, format string, args ...any) {
	d.problems = append(d.problems, Problem{pointer, fmt.Sprintf(format, args...)})
}

func (d *document) warning(pointer, format string, args ...any) {
	d.warnings = append(d.warnings, Problem{pointer, fmt.Sprintf(format, args...)})
}

// root checks that text is one JSON object.
func (d *document) root(text []byte) (node, bool) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if err := jsonscan.Valid(text, 64); err != nil {
		message := err.Error()
		var e *jsonscan.Error
		if errors.As(err, &e) {
			line := 1 + bytes.Count(text[:e.Offset], []byte{'\n'})
			column := e.Offset - bytes.LastIndexByte(text[:e.Offset], '\n')
			message = fmt.Sprintf("line %d, column %d: %v: %s", line, column, e.Class, e.Detail)
		}
		d.problem("", "%s", message)
		return node{}, false
	}
	root := node{raw: jsonscan.New(text, 64).Value()}
	if root.kind() != jsonscan.KindObject {
		d.problem("", "want an object, found %v", root.kind())
		return node{}, false
	}
	return root, true
}

// members yields the members of an object, in order; one that is no object is a problem, and so is a name that occurs twice.
func (d *document) members(n node) iter.Seq2[string, node] {
	return func(yield func(string, node) bool) {
		if !d.want(n, jsonscan.KindObject) {
			return
		}
		seen := make(map[string]bool)
		s := jsonscan.New(n.raw, len(n.raw))
		for raw := range s.Members() {
			name := string(raw)
			member := node{s.Value(), n.child(name)}
			if seen[name] {
				d.problem(member.pointer, "the member occurs twice")
				continue
			}
			seen[name] = true
			if !yield(name, member) {
				return
			}
		}
	}
}

// elements yields the elements of an array.
func (d *document) elements(n node) iter.Seq2[int, node] {
	return func(yield func(int, node) bool) {
		if !d.want(n, jsonscan.KindArray) {
			return
		}
		s := jsonscan.New(n.raw, len(n.raw))
		for i := range s.Elements() {
			if !yield(i, node{s.Value(), n.child(strconv.Itoa(i))}) {
				return
			}
		}
	}
}

func (d *document) want(n node, kind jsonscan.Kind) bool {
	if n.kind() != kind {
		d.problem(n.pointer, "want %v, found %v", kind, n.kind())
		return false
	}
	return true
}

// text reads a string.
func (d *document) text(n node) (string, bool) {
	if !d.want(n, jsonscan.KindString) {
		return "", false
	}
	text, err := jsonscan.Unquote(n.raw)
	if err != nil || bytes.IndexByte(text, 0) >= 0 {
		d.problem(n.pointer, "the string holds U+0000 or a lone surrogate")
		return "", false
	}
	return string(text), true
}

// word reads a string that must be one of a list; similar spellings are suggested.
func (d *document) word(n node, words ...string) (string, bool) {
	text, ok := d.text(n)
	if !ok {
		return "", false
	}
	for _, w := range words {
		if text == w {
			return w, true
		}
	}
	d.problem(n.pointer, "%q is none of %s%s", text, strings.Join(words, ", "), suggest(text, words))
	return "", false
}

func (d *document) boolean(n node) (value, ok bool) {
	if !d.want(n, jsonscan.KindBool) {
		return false, false
	}
	return n.raw[0] == 't', true
}

// number reads a number of float64.
func (d *document) number(n node) (float64, bool) {
	if !d.want(n, jsonscan.KindNumber) {
		return 0, false
	}
	value, err := strconv.ParseFloat(string(n.raw), 64)
	if err != nil {
		d.problem(n.pointer, "%s is beyond float64", quoteExcerpt(n.raw))
		return 0, false
	}
	return value, true
}

// integer reads a whole number of at least zero.
func (d *document) integer(n node) (int, bool) {
	if !d.want(n, jsonscan.KindNumber) {
		return 0, false
	}
	value, err := strconv.Atoi(string(n.raw))
	if err != nil || value < 0 {
		d.problem(n.pointer, "want a whole number, not negative, found %s", quoteExcerpt(n.raw))
		return 0, false
	}
	return value, true
}

// texts reads an array of strings.
func (d *document) texts(n node) []string {
	out := []string{}
	for _, element := range d.elements(n) {
		if text, ok := d.text(element); ok {
			out = append(out, text)
		}
	}
	return out
}

// unknown reports a member that means nothing where it stands.
func (d *document) unknown(n node, name string, known []string) {
	d.problem(n.pointer, "there is no such member; known are %s%s", strings.Join(known, ", "), suggest(name, known))
}

// custom takes a member that the format leaves to its users, unless it looks like a slip of one that matters.
func (d *document) custom(n node, name string, known []string) {
	if near := nearest(name, known); near != "" {
		d.problem(n.pointer, "there is no such member; did you mean %s? (a custom member must not be one letter off a known one)", near)
	}
}

func suggest(word string, words []string) string {
	if near := nearest(word, words); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// nearest finds a word that differs in case, in separators, or by one slip of the fingers.
func nearest(word string, words []string) string {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	for _, w := range words {
		if a, b := plain(word), plain(w); a == b || len(b) >= 4 && oneSlip(a, b) {
			return w
		}
	}
	return ""
}

// oneSlip reports whether one letter inserted, left out, changed or swapped with the next makes a of b.
func oneSlip(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch len(b) - len(a) {
	case 0:
		return i == len(a) || a[i+1:] == b[i+1:] ||
			i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
	case 1:
		return a[i:] == b[i+1:]
	}
	return false
}
