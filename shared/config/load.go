package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// Load reads the configuration of one function from the process environment:
//
//	cfg, err := config.Load[config.Replay]()
//
// The error, if any, is a [*Error] that names every variable that is wrong.
func Load[T any, P interface {
	*T
	function
}]() (T, error) {
	return LoadFrom[T, P](env.ToMap(os.Environ()))
}

// LoadFrom is [Load] on an environment given as a map.
func LoadFrom[T any, P interface {
	*T
	function
}](environ map[string]string) (T, error) {
	var cfg T
	fn := P(&cfg)
	p := &problems{}

	fields := fieldsOf(reflect.TypeFor[T]())
	byField := make(map[string]field, len(fields))
	for _, f := range fields {
		byField[f.path] = f
	}

	err := env.ParseWithOptions(&cfg, env.Options{Environment: nonNil(environ)})
	for _, e := range flatten(err) {
		var unread env.ParseError
		if !errors.As(e, &unread) {
			return cfg, fmt.Errorf("configuration of %s: %w", fn.name(), e)
		}
		f := byField[unread.Name]
		p.add(f.key, f.shown(environ[f.key]), f.unreadable(), f.permitted())
	}
	for _, f := range fields {
		f.check(reflect.ValueOf(&cfg).Elem().FieldByIndex(f.index), environ[f.key], p)
	}
	// Checks between settings only make sense on values that could be read.
	if len(p.list) == 0 {
		fn.complete(p)
	}
	if len(p.list) > 0 {
		return cfg, &Error{Function: fn.name(), Problems: p.list}
	}
	return cfg, nil
}

// Error says everything that is wrong with a function's environment.
type Error struct {
	Function string
	Problems []Problem
}

// Problem is one variable that cannot be used. Value is what was read, quoted, or
// a placeholder where it may be secret; it is empty when nothing was read.
type Problem struct {
	Variable, Value, Why, Allowed string
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "configuration of %s: %d of its environment variables cannot be used:", e.Function, len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		b.WriteString(p.String())
	}
	return b.String()
}

func (p Problem) String() string {
	s := p.Variable
	if p.Value != "" {
		s += "=" + p.Value
	}
	s += " " + p.Why
	if p.Allowed != "" {
		s += "; allowed: " + p.Allowed
	}
	return s
}

type problems struct{ list []Problem }

func (p *problems) add(variable, value, why, allowed string) {
	p.list = append(p.list, Problem{variable, value, why, allowed})
}

// field is one struct field that is read from the environment.
type field struct {
	key   string // environment variable
	path  string // Go name, as the parser reports it
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
}

// fieldsOf lists the fields of t that are read from the environment, embedded
// parts in their place.
func fieldsOf(t reflect.Type) []field {
	var list []field
	for _, sf := range reflect.VisibleFields(t) {
		key, _, _ := strings.Cut(sf.Tag.Get("env"), ",")
		if key == "" {
			continue
		}
		list = append(list, field{key: key, path: sf.Name, index: sf.Index, typ: sf.Type, tag: sf.Tag})
	}
	return list
}

func (f field) secret() bool   { return f.typ == reflect.TypeFor[Secret]() }
func (f field) required() bool { return f.tag.Get("required") == "true" }

// shown is a value as an error may print it.
func (f field) shown(raw string) string {
	switch {
	case raw == "":
		return ""
	case f.secret():
		return Secret(raw).String()
	}
	return quote(raw)
}

func (f field) unreadable() string {
	switch f.typ {
	case reflect.TypeFor[time.Duration]():
		return "is not a duration such as 30s or 5m"
	case reflect.TypeFor[Bytes]():
		return "is not a size such as 32MiB or 1048576"
	}
	switch f.typ.Kind() {
	case reflect.Bool:
		return "is not true or false"
	case reflect.Float64:
		return "is not a number"
	case reflect.Int, reflect.Uint16:
		if f.tag.Get("oneof") == "" {
			return "is not a whole number"
		}
	}
	return "is none of its values"
}

// permitted says in words what the variable may hold.
func (f field) permitted() string {
	if v := f.tag.Get("allowed"); v != "" {
		return v
	}
	if v := f.tag.Get("oneof"); v != "" {
		return strings.ReplaceAll(v, "|", ", ")
	}
	if low, high, ok := strings.Cut(f.tag.Get("range"), ".."); ok {
		return low + " to " + high
	}
	if f.typ.Kind() == reflect.Bool {
		return "true, false"
	}
	return ""
}

// check holds a value that could be read against the field's tags. raw is the
// variable's text; an empty one stands for the default, which a test has checked.
func (f field) check(v reflect.Value, raw string, p *problems) {
	if raw == "" {
		if f.required() {
			p.add(f.key, "", "is not set", f.permitted())
		}
		return
	}
	if p.has(f.key) {
		return
	}
	if set := f.tag.Get("oneof"); set != "" && !oneOf(set, raw) {
		p.add(f.key, f.shown(raw), "is none of its values", f.permitted())
	}
	if form := f.tag.Get("form"); form != "" && !forms[form](raw) {
		p.add(f.key, f.shown(raw), "does not have the right form", f.permitted())
	}
	if low, high, ok := strings.Cut(f.tag.Get("range"), ".."); ok {
		n := number(v)
		// Written so that NaN, which compares with nothing, is out of range.
		if !(n >= f.bound(low) && n <= f.bound(high)) {
			p.add(f.key, f.shown(raw), "is out of range", f.permitted())
		}
	}
}

// number is a value of any numeric kind as float64; the largest bound used is
// 1 TiB, far below where float64 leaves whole numbers out.
func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// bound reads one end of a range tag, which is written like a value of the field.
func (f field) bound(s string) float64 {
	v := reflect.New(f.typ)
	switch p := v.Interface().(type) {
	case *Bytes:
		if p.UnmarshalText([]byte(s)) == nil {
			return float64(*p)
		}
	case *time.Duration:
		if d, err := time.ParseDuration(s); err == nil {
			return float64(d)
		}
	default:
		if n, err := strconv.ParseFloat(s, 64); err == nil {
			return n
		}
	}
	panic("config: " + f.key + ": range tag cannot be read: " + s)
}

func (p *problems) has(variable string) bool {
	for _, q := range p.list {
		if q.Variable == variable {
			return true
		}
	}
	return false
}

func oneOf(set, v string) bool {
	for _, s := range strings.Split(set, "|") {
		if s == v {
			return true
		}
	}
	return false
}

// nonNil keeps an empty environment empty: the parser takes a nil map to mean the
// process environment.
func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func flatten(err error) []error {
	if err == nil {
		return nil
	}
	var all env.AggregateError
	if errors.As(err, &all) {
		return all.Errors
	}
	return []error{err}
}

func isReservedNamespace(s string) bool { return strings.HasPrefix(s, "AWS/") }

func quote(s string) string {
	const longest = 200
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "…"
	}
	return strconv.Quote(s)
}

func itoa(n int) string { return strconv.Itoa(n) }
