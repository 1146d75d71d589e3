package transform

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"net/mail"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
)

// field is one attribute of the contract: a field of a Table Schema, made ready for use.
type field struct {
	name  string
	index int // in the contract's list
	typ   fieldType

	missing     []string // texts that mean null
	trueValues  []string
	falseValues []string
	decimalChar string
	groupChar   string
	bareNumber  bool
	format      string   // of a string
	pattern     strptime // of a date or time; nil for the default form
	anyForm     bool     // a date or time in any form
	constraints constraints

	requireRule, coerceRule, constrainRule string
}

// fieldType is a type of Table Schema.
type fieldType string

const (
	typeAny       fieldType = "any"
	typeString    fieldType = "string"
	typeInteger   fieldType = "integer"
	typeNumber    fieldType = "number"
	typeBoolean   fieldType = "boolean"
	typeObject    fieldType = "object"
	typeArray     fieldType = "array"
	typeDate      fieldType = "date"
	typeTime      fieldType = "time"
	typeDatetime  fieldType = "datetime"
	typeYear      fieldType = "year"
	typeYearmonth fieldType = "yearmonth"
)

// fieldTypes are the types that are checked.
var fieldTypes = []fieldType{typeString, typeInteger, typeNumber, typeBoolean, typeDate, typeDatetime, typeYear,
	typeTime, typeYearmonth, typeObject, typeArray, typeAny}

// uncheckedTypes are types of Table Schema whose values pass as they are.
var uncheckedTypes = []fieldType{"duration", "list", "geopoint", "geojson"}

func (t fieldType) temporal() (temporalKind, bool) {
	switch t {
	case typeDate:
		return dateKind, true
	case typeTime:
		return timeKind, true
	case typeDatetime:
		return datetimeKind, true
	case typeYearmonth:
		return yearmonthKind, true
	}
	return 0, false
}

func (t fieldType) numeric() bool { return t == typeInteger || t == typeNumber || t == typeYear }

// ordered reports whether minimum and maximum mean something.
func (t fieldType) ordered() bool {
	_, temporal := t.temporal()
	return temporal || t.numeric()
}

// constraints are those of a field.
type constraints struct {
	required             bool
	bounds               []bound
	minLength, maxLength int // -1 without
	pattern              *regexp.Regexp
	patternText          string
	enum                 map[string]struct{} // keys of logical values
	enumText             string
}

// bound is a limit of a number or a moment.
type bound struct {
	side      int // -1 for a minimum, 1 for a maximum
	exclusive bool
	number    decimal
	whole     int64 // number as an int64 where it is a plain integer of at most 18 digits, else 0
	moment    moment
	text      string
}

// logical is a value after coercion: what is stored, and what constraints look at.
type logical struct {
	raw    []byte // JSON; "null" for null
	null   bool
	text   []byte // of a string
	moment moment // of a date or time
}

var nullValue = logical{raw: []byte("null"), null: true}

// coerce reads a raw JSON value as the field's type. The message says what is wrong with it.
func (f *field) coerce(raw []byte) (v logical, message string) {
	switch jsonscan.KindOf(raw) {
	case jsonscan.KindNull:
		return nullValue, ""
	case jsonscan.KindString:
		text, err := jsonscan.Unquote(raw)
		if err != nil {
			// A lone surrogate: no type takes it, and checkStorable names it.
			return logical{raw: raw}, ""
		}
		if f.isMissing(text) {
			return nullValue, ""
		}
		return f.coerceText(raw, text)
	case jsonscan.KindNumber:
		if f.isMissing(raw) {
			return nullValue, ""
		}
		return f.coerceNumber(raw)
	case jsonscan.KindBool:
		switch f.typ {
		case typeAny, typeBoolean:
			return logical{raw: raw}, ""
		case typeString:
			return f.coerceText(jsonscan.AppendQuoted(nil, raw), raw)
		}
	case jsonscan.KindObject:
		if f.typ == typeAny || f.typ == typeObject {
			return logical{raw: raw}, ""
		}
	case jsonscan.KindArray:
		if f.typ == typeAny || f.typ == typeArray {
			return logical{raw: raw}, ""
		}
	}
	return v, f.notOfType(raw, "")
}

func (f *field) notOfType(raw []byte, hint string) string {
	article := "a"
	if strings.IndexByte("aeio", f.typ[0]) >= 0 {
		article = "an"
	}
	return fmt.Sprintf("%s is %s, which is not %s %s%s", label(f.name), quoteExcerpt(raw), article, f.typ, hint)
}

func (f *field) isMissing(text []byte) bool {
	for _, m := range f.missing {
		if m == string(text) {
			return true
		}
	}
	return false
}

func in(list []string, text []byte) bool {
	for _, s := range list {
		if s == string(text) {
			return true
		}
	}
	return false
}

// coerceNumber reads a JSON number.
func (f *field) coerceNumber(raw []byte) (logical, string) {
	switch f.typ {
	case typeAny, typeNumber:
		return logical{raw: raw}, ""
	case typeInteger, typeYear:
		if !bytes.ContainsAny(raw, ".eE") {
			return logical{raw: raw}, ""
		}
		d := parseDecimal(raw)
		if !d.isInteger() {
			return logical{}, f.notOfType(raw, "")
		}
		if whole, ok := d.appendInteger(nil); ok {
			return logical{raw: whole}, ""
		}
		return logical{raw: raw}, ""
	case typeString:
		return f.coerceText(jsonscan.AppendQuoted(nil, raw), raw)
	case typeBoolean:
		return f.coerceText(raw, raw)
	}
	return logical{}, f.notOfType(raw, "")
}

// coerceText reads the text of a JSON string; raw is that string.
func (f *field) coerceText(raw, text []byte) (logical, string) {
	switch f.typ {
	case typeAny:
		return logical{raw: raw, text: text}, ""
	case typeString:
		if !f.hasFormat(string(text)) {
			return logical{}, fmt.Sprintf("%s is %s, which is no %s", label(f.name), quoteExcerpt(raw), f.format)
		}
		return logical{raw: raw, text: text}, ""
	case typeBoolean:
		switch {
		case in(f.trueValues, text):
			return logical{raw: []byte("true")}, ""
		case in(f.falseValues, text):
			return logical{raw: []byte("false")}, ""
		}
		return logical{}, f.notOfType(raw, fmt.Sprintf(": want one of %s", quoteExcerpt([]byte(strings.Join(append(append([]string{}, f.trueValues...), f.falseValues...), ", ")))))
	case typeInteger, typeNumber, typeYear:
		number, hint := f.lexicalNumber(text)
		if number == nil {
			return logical{}, f.notOfType(raw, hint)
		}
		return logical{raw: number}, ""
	case typeObject, typeArray:
		if err := jsonscan.Valid(text, maxNesting); err != nil || f.typ == typeObject && jsonscan.New(text, 0).Kind() != jsonscan.KindObject ||
			f.typ == typeArray && jsonscan.New(text, 0).Kind() != jsonscan.KindArray {
			return logical{}, f.notOfType(raw, "")
		}
		return logical{raw: bytes.TrimSpace(text)}, ""
	}
	kind, _ := f.typ.temporal()
	var m moment
	var ok bool
	switch s := string(text); {
	case f.pattern != nil:
		m, ok = f.pattern.parse(s)
	case f.anyForm:
		m, ok = kind.parseAny(s)
	default:
		if m, ok = kind.parse(s); ok {
			return logical{raw: raw, moment: m}, "" // already in the form that is stored
		}
	}
	if !ok {
		hint := ": want the form " + map[fieldType]string{typeDate: "yyyy-mm-dd", typeTime: "hh:mm:ss", typeDatetime: "yyyy-mm-ddThh:mm:ss", typeYearmonth: "yyyy-mm"}[f.typ]
		if f.pattern != nil {
			hint = ": want the form " + f.format
		} else if f.anyForm {
			hint = " in any form known"
		}
		return logical{}, f.notOfType(raw, hint)
	}
	if stored := kind.text(m); stored != string(text) {
		raw = jsonscan.AppendQuoted(nil, stored)
	}
	return logical{raw: raw, moment: m}, ""
}

// maxNesting caps JSON that stands in a string or in an operator's override as the decoder
// caps that of a feature.
const maxNesting = 30

// lexicalNumber turns the text of a number, by the field's type and its lexical properties, into a JSON number. It
// is nil, and the hint may say why, when the text is none.
func (f *field) lexicalNumber(text []byte) (number []byte, hint string) {
	if isPlainInteger(text) && (f.typ != typeYear || len(text) >= 4) {
		return text, ""
	}
	s := strings.TrimSpace(string(text)) // white space around a number means nothing in XML Schema
	if f.typ == typeYear {
		digits := strings.TrimPrefix(s, "-")
		if len(digits) < 4 || !allDigits(digits) {
			return nil, ": want four digits"
		}
		return appendNumber(nil, strings.HasPrefix(s, "-"), digits, "", ""), ""
	}
	if !f.bareNumber {
		if s, hint = f.strip(s); hint != "" {
			return nil, hint
		}
	}
	switch strings.ToUpper(s) {
	case "NAN", "INF", "-INF", "+INF":
		return nil, "that JSON can hold"
	}
	negative := strings.HasPrefix(s, "-")
	if negative || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	exponent := ""
	fraction, pointed := "", false
	if f.typ == typeNumber {
		if at := strings.IndexAny(s, "eE"); at >= 0 {
			s, exponent = s[:at], s[at+1:]
			if !allDigits(strings.TrimLeft(exponent, "+-")) || len(exponent)-len(strings.TrimLeft(exponent, "+-")) > 1 {
				return nil, ""
			}
			exponent = strings.TrimPrefix(exponent, "+")
		}
		s, fraction, pointed = strings.Cut(s, f.decimalChar)
	}
	if f.groupChar != "" && strings.Contains(s, f.groupChar) {
		groups := strings.Split(s, f.groupChar)
		for i, group := range groups {
			// 1,234,567 and the Indian 12,34,567; but 1,5 is no 15.
			if last := i == len(groups)-1; last && len(group) != 3 || !last && (len(group) == 0 || len(group) > 3) || !last && i > 0 && len(group) == 1 {
				return nil, fmt.Sprintf(": %q does not stand between groups of digits", f.groupChar)
			}
		}
		s = strings.Join(groups, "")
	}
	if s == "" && fraction == "" || s != "" && !allDigits(s) || fraction != "" && !allDigits(fraction) || pointed && f.decimalChar == "" {
		return nil, ""
	}
	return appendNumber(nil, negative, s, fraction, exponent), ""
}

// isPlainInteger reports whether text is an integer as JSON and people write it alike: digits, no
// zero before them, no sign.
func isPlainInteger(text []byte) bool {
	if len(text) == 0 || text[0] == '0' {
		return false
	}
	for _, c := range text {
		if c-'0' > 9 {
			return false
		}
	}
	return true
}

// plainInteger is the value of a plain integer of at most 18 digits.
func plainInteger(text []byte) (n int64) {
	for _, c := range text {
		n = n*10 + int64(c-'0')
	}
	return n
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i]-'0' > 9 {
			return false
		}
	}
	return s != ""
}

// appendNumber writes a number by the grammar of JSON, digit for digit but for needless zeros before it.
func appendNumber(dst []byte, negative bool, whole, fraction, exponent string) []byte {
	whole = strings.TrimLeft(whole, "0")
	if whole == "" {
		whole = "0"
	}
	if negative && (whole != "0" || strings.Trim(fraction, "0") != "") {
		dst = append(dst, '-')
	}
	dst = append(dst, whole...)
	if fraction != "" {
		dst = append(append(dst, '.'), fraction...)
	}
	if exponent != "" {
		dst = append(append(dst, 'e'), exponent...)
	}
	return dst
}

// strip cuts what is not numeric off both ends ("bareNumber": false). Where that would cut off
// a sign, as in -€95 or (95), it refuses: the number left could be the wrong one.
func (f *field) strip(s string) (bare, hint string) {
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	first, last := strings.IndexFunc(s, isDigit), strings.LastIndexFunc(s, isDigit)
	if first < 0 {
		return s, ""
	}
	head, tail := s[:first], s[last+1:]
	if f.typ == typeNumber && strings.HasSuffix(head, f.decimalChar) {
		first -= len(f.decimalChar)
		head = s[:first]
	}
	if strings.HasSuffix(head, "-") || strings.HasSuffix(head, "+") {
		first--
		head = s[:first]
	}
	if strings.ContainsAny(head+tail, "-+−(") {
		return "", ": its sign stands apart from its digits"
	}
	return s[first : last+1], ""
}

// hasFormat checks the formats of the type string.
func (f *field) hasFormat(text string) bool {
	switch f.format {
	case "email":
		address, err := mail.ParseAddress(text)
		return err == nil && address.Address == text
	case "uri":
		u, err := url.Parse(text)
		return err == nil && u.IsAbs()
	case "binary":
		_, err := base64.StdEncoding.DecodeString(text)
		return err == nil
	case "uuid":
		_, err := deadletter.ParseUUID(text)
		return err == nil
	}
	return true
}

// key is the same for logical values that are equal; enum is a set of keys.
func (f *field) key(v logical) string {
	switch {
	case f.typ.numeric():
		return parseDecimal(v.raw).key()
	case f.typ == typeString:
		return string(v.text)
	case f.typ == typeBoolean:
		return string(v.raw)
	}
	if _, temporal := f.typ.temporal(); temporal {
		return v.moment.time.UTC().Format("2006-01-02T15:04:05.999999999")
	}
	return jsonKey(v.raw)
}

// jsonKey is the value without white space, strings with the escapes they need, numbers by value.
func jsonKey(raw []byte) string {
	return string(appendJSONKey(nil, jsonscan.New(raw, len(raw))))
}

func appendJSONKey(dst []byte, s *jsonscan.Scanner) []byte {
	switch s.Kind() {
	case jsonscan.KindObject:
		dst = append(dst, '{')
		for name := range s.Members() {
			dst = append(jsonscan.AppendQuoted(dst, name), ':')
			dst = append(appendJSONKey(dst, s), ',')
		}
		return append(dst, '}')
	case jsonscan.KindArray:
		dst = append(dst, '[')
		for range s.Elements() {
			dst = append(appendJSONKey(dst, s), ',')
		}
		return append(dst, ']')
	case jsonscan.KindNumber:
		return append(dst, parseDecimal(s.Value()).key()...)
	case jsonscan.KindString:
		raw := s.Value()
		if text, err := jsonscan.Unquote(raw); err == nil {
			return jsonscan.AppendQuoted(dst, text)
		}
		return append(dst, raw...)
	default:
		return append(dst, s.Value()...)
	}
}

// check tests a value that is not null against the constraints. The message says which it breaks.
func (f *field) check(v logical) (message string) {
	c := &f.constraints
	says := func(format string, args ...any) string {
		return fmt.Sprintf("%s is %s, %s", label(f.name), quoteExcerpt(v.raw), fmt.Sprintf(format, args...))
	}
	for i := range c.bounds {
		b := &c.bounds[i]
		d := f.compare(v, b) * b.side
		if d < 0 || d == 0 && !b.exclusive {
			continue
		}
		switch {
		case b.side < 0 && b.exclusive:
			return says("which is not over %s", b.text)
		case b.side < 0:
			return says("which is under the minimum of %s", b.text)
		case b.exclusive:
			return says("which is not under %s", b.text)
		default:
			return says("which is over the maximum of %s", b.text)
		}
	}
	if c.minLength >= 0 || c.maxLength >= 0 {
		n := f.length(v)
		if c.minLength >= 0 && n < c.minLength {
			return says("of length %d, under the minimum of %d", n, c.minLength)
		}
		if c.maxLength >= 0 && n > c.maxLength {
			return says("of length %d, over the maximum of %d", n, c.maxLength)
		}
	}
	if c.pattern != nil && !c.pattern.Match(v.text) {
		return says("which does not match the pattern %s", quoteExcerpt([]byte(c.patternText)))
	}
	if c.enum != nil {
		if _, ok := c.enum[f.key(v)]; !ok {
			return says("which is not one of %s", quoteExcerpt([]byte(c.enumText)))
		}
	}
	return ""
}

func (f *field) compare(v logical, b *bound) int {
	if f.typ.numeric() {
		if b.whole > 0 && len(v.raw) <= 18 && isPlainInteger(v.raw) {
			return cmp.Compare(plainInteger(v.raw), b.whole)
		}
		return parseDecimal(v.raw).compare(b.number)
	}
	return v.moment.time.Compare(b.moment.time)
}

// length counts the characters of a string, the elements of an array, the members of an object.
func (f *field) length(v logical) int {
	n := 0
	s := jsonscan.New(v.raw, len(v.raw))
	switch f.typ {
	case typeArray:
		for range s.Elements() {
			n++
		}
	case typeObject:
		for range s.Members() {
			n++
		}
	default:
		n = utf8.RuneCount(v.text)
	}
	return n
}
