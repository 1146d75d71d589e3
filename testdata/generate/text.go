package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// member is one name/value pair of an object.
type member struct {
	name  string
	value any
}

// object is a JSON object whose members stay in the order they were written in,
// repeated names included.
type object []member

// array is a JSON array.
type array []any

// raw is text that stands as it is where a value is expected: a number with the
// digits it was given, or what a broken writer made of one.
type raw string

// dialect is how a JSON writer lays out its text. The pipelines of a county do
// not share one.
type dialect struct {
	comma, colon string
	open, close  string // inside the braces of an object that has members
	ascii        bool   // escape everything beyond ASCII
}

var (
	python  = dialect{comma: ", ", colon: ": ", ascii: true}                      // json.dumps
	browser = dialect{comma: ",", colon: ":"}                                     // JSON.stringify
	gdal    = dialect{comma: ", ", colon: ": ", open: " ", close: " "}            // ogr2ogr -f GeoJSONSeq
	legacy  = dialect{comma: ",", colon: ":", open: " ", close: " ", ascii: true} // a hand-written exporter
)

// encode appends the text of v to b.
func (d dialect) encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case raw:
		return append(b, v...)
	case string:
		return d.quote(b, v)
	case array:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, d.comma...)
			}
			b = d.encode(b, e)
		}
		return append(b, ']')
	case object:
		if len(v) == 0 {
			return append(b, "{}"...)
		}
		b = append(append(b, '{'), d.open...)
		for i, m := range v {
			if i > 0 {
				b = append(b, d.comma...)
			}
			b = append(d.quote(b, m.name), d.colon...)
			b = d.encode(b, m.value)
		}
		return append(append(b, d.close...), '}')
	default:
		panic(fmt.Sprintf("no JSON for a %T", v))
	}
}

func (d dialect) quote(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r < 0x20 || d.ascii && r > 0x7e && r <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, r)
		case d.ascii && r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// decimal writes v/10^places the way Python prints a float: no trailing zeros,
// at least one digit after the point.
func decimal(v int64, places int) raw {
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	}
	s := strconv.FormatInt(v, 10)
	if len(s) <= places {
		s = strings.Repeat("0", places+1-len(s)) + s
	}
	whole, fraction := s[:len(s)-places], strings.TrimRight(s[len(s)-places:], "0")
	if fraction == "" {
		fraction = "0"
	}
	return raw(sign + whole + "." + fraction)
}

// thousands writes n with a comma between groups of three digits.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
