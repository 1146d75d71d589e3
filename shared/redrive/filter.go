package redrive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
)

// Filter selects dead letters; what is given must all be true. A text may be one or
// a list, of which one must match, and, where the field says so, a glob: * stands for
// any text, ? for one character, \ takes the meaning from the character after it. An
// empty text is an error and never "any": it is what a variable that was not set
// becomes.
type Filter struct {
	// All, alone, selects every row: bulk acts take no filter without a condition otherwise.
	All bool `json:"all,omitempty"`

	ID    Numbers `json:"id,omitempty"`
	DLQID Texts   `json:"dlq_id,omitempty"`

	BatchID     Texts `json:"batch_id,omitempty"`    // glob
	Status      Texts `json:"status,omitempty"`      // pending, replayed, quarantined, discarded
	Reason      Texts `json:"reason,omitempty"`      // error_type; glob
	FailedRule  Texts `json:"failed_rule,omitempty"` // glob
	Fingerprint Texts `json:"fingerprint,omitempty"` // as groups shows it
	FeatureID   Texts `json:"feature_id,omitempty"`  // glob; feature_id, else task_id

	// SourceCRS is a CRS in any spelling, which matches all spellings of it, or a glob
	// over the text as it came, or "none".
	SourceCRS Texts `json:"source_crs,omitempty"`
	// BBox is west, south, east, north in degrees of longitude and latitude; west may
	// be greater than east across the antimeridian (RFC 7946 section 5.2). It takes the
	// geometries whose envelope meets it; what has no place on the map is not in it.
	BBox []float64 `json:"bbox,omitempty"`

	FirstSeen *Period `json:"first_seen,omitempty"`
	LastSeen  *Period `json:"last_seen,omitempty"`
	Attempts  *Range  `json:"attempts,omitempty"` // charged since the latest redrive
	Redrives  *Range  `json:"redrives,omitempty"`

	// ContractVersion is that of the latest attempt; "current" is the one in effect. A
	// row that was never tried has none, and so is not the current one.
	ContractVersion    Texts `json:"contract_version,omitempty"`
	NotContractVersion Texts `json:"not_contract_version,omitempty"`
}

// Texts is one text or a list of them in JSON.
type Texts []string

// UnmarshalJSON reads "a" or ["a", "b"].
func (t *Texts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*t = Texts{one}
	} else if err := json.Unmarshal(b, (*[]string)(t)); err != nil {
		return errors.New("want a text or a list of texts")
	}
	if len(*t) == 0 {
		return errors.New("an empty list matches nothing; leave the field out")
	}
	for _, s := range *t {
		if s == "" {
			return errors.New("an empty text matches nothing; leave the field out")
		}
		if s != deadletter.Text(s) {
			return fmt.Errorf("%q is no text that the database can hold", s)
		}
	}
	return nil
}

// Numbers is one whole number or a list of them in JSON.
type Numbers []int64

// UnmarshalJSON reads 7 or [7, 8].
func (n *Numbers) UnmarshalJSON(b []byte) error {
	var one int64
	if json.Unmarshal(b, &one) == nil && string(bytes.TrimSpace(b)) != "null" {
		*n = Numbers{one}
		return nil
	}
	if err := json.Unmarshal(b, (*[]int64)(n)); err != nil || len(*n) == 0 {
		return errors.New("want a whole number or a list of them")
	}
	return nil
}

// Period is a time from From, inclusive, to To, exclusive; either may be left out.
type Period struct {
	From *Moment `json:"from,omitempty"`
	To   *Moment `json:"to,omitempty"`
}

// Moment is an RFC 3339 time, or a date, which is its midnight in UTC.
type Moment struct{ time.Time }

// UnmarshalJSON reads "2026-11-30T08:00:00Z" or "2026-11-30".
func (m *Moment) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New("want a time as text")
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			m.Time = t
			return nil
		}
	}
	return fmt.Errorf("%q is no time: want 2026-11-30 or 2026-11-30T08:00:00Z", s)
}

// Range is a number from Min to Max, both inclusive; either may be left out.
type Range struct {
	Min *int `json:"min,omitempty"`
	Max *int `json:"max,omitempty"`
}

// statuses are what a row can be in.
var statuses = []string{"pending", "replayed", "quarantined", "discarded"}

// conditions reports whether anything narrows the filter.
func (f *Filter) conditions() bool {
	return f.ID != nil || f.DLQID != nil || f.BatchID != nil || f.Status != nil || f.Reason != nil || f.FailedRule != nil ||
		f.Fingerprint != nil || f.FeatureID != nil || f.SourceCRS != nil || f.BBox != nil || f.FirstSeen != nil || f.LastSeen != nil ||
		f.Attempts != nil || f.Redrives != nil || f.ContractVersion != nil || f.NotContractVersion != nil
}

// usesCurrent reports whether the filter asks for the contract in effect.
func (f *Filter) usesCurrent() bool {
	for _, v := range append(append(Texts{}, f.ContractVersion...), f.NotContractVersion...) {
		if v == currentContract {
			return true
		}
	}
	return false
}

const currentContract = "current"

// keysOnly reports whether the filter can be answered from the groups.
func (f *Filter) keysOnly() bool {
	g := *f
	g.All, g.BatchID, g.Status, g.Reason, g.FailedRule, g.Fingerprint = false, nil, nil, nil, nil, nil
	return !g.conditions()
}

// check finds what makes no sense, before anything is asked of the database.
func (f *Filter) check() error {
	if f.All && f.conditions() {
		return errors.New(`filter: "all" stands beside conditions; give one of the two`)
	}
	for _, s := range f.Status {
		known := false
		for _, k := range statuses {
			known = known || s == k
		}
		if !known {
			return fmt.Errorf("filter: status %q: want one of %s", s, strings.Join(statuses, ", "))
		}
	}
	for _, s := range f.DLQID {
		if _, err := deadletter.ParseUUID(s); err != nil {
			return fmt.Errorf("filter: dlq_id: %w", err)
		}
	}
	for _, s := range f.Fingerprint {
		if !fingerprint.MatchString(s) {
			return fmt.Errorf("filter: fingerprint %q: want 16 hexadecimal digits, as groups shows them", s)
		}
	}
	if f.BBox != nil {
		if err := checkBBox(f.BBox); err != nil {
			return err
		}
	}
	return errors.Join(f.FirstSeen.check("first_seen"), f.LastSeen.check("last_seen"), f.Attempts.check("attempts"), f.Redrives.check("redrives"))
}

func (p *Period) check(name string) error {
	switch {
	case p == nil:
		return nil
	case p.From == nil && p.To == nil:
		return fmt.Errorf("filter: %s: want from, to or both", name)
	case p.From != nil && p.To != nil && !p.From.Before(p.To.Time):
		return fmt.Errorf("filter: %s: from is not before to", name)
	}
	return nil
}

func (r *Range) check(name string) error {
	switch {
	case r == nil:
		return nil
	case r.Min == nil && r.Max == nil:
		return fmt.Errorf("filter: %s: want min, max or both", name)
	case r.Min != nil && r.Max != nil && *r.Min > *r.Max:
		return fmt.Errorf("filter: %s: min is greater than max", name)
	}
	return nil
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{16}$`)

func checkBBox(b []float64) error {
	if len(b) != 4 {
		return fmt.Errorf("filter: bbox has %d numbers: want west, south, east, north", len(b))
	}
	for i, v := range b {
		most := 180.0
		if i%2 == 1 {
			most = 90
		}
		if math.IsNaN(v) || math.Abs(v) > most {
			return fmt.Errorf("filter: bbox %v: want degrees, west, south, east, north", b)
		}
	}
	if b[1] > b[3] {
		return fmt.Errorf("filter: bbox %v: south is north of north", b)
	}
	return nil
}

// query gathers the parameters of one statement. No value of a request ever becomes
// part of its text.
type query struct{ args []any }

// arg adds a parameter and returns its place.
func (q *query) arg(v any) string {
	q.args = append(q.args, v)
	return "$" + strconv.Itoa(len(q.args))
}

// where compiles the filter, which was checked, into a condition on failed_geotasks f.
// current is the contract in effect, where the filter asks for it.
func (f *Filter) where(q *query, current string) string {
	var c []string
	add := func(format string, args ...any) { c = append(c, fmt.Sprintf(format, args...)) }
	if f.ID != nil {
		add("f.id = ANY (%s::bigint[])", q.arg([]int64(f.ID)))
	}
	if f.DLQID != nil {
		add("f.dlq_id = ANY (%s::text[]::uuid[])", q.arg([]string(f.DLQID)))
	}
	if f.Status != nil {
		// Of a closed list, and as constants, so that partial indexes apply.
		add("f.status IN ('%s')", strings.Join(f.Status, "', '"))
	}
	texts := func(column string, t Texts) {
		if t != nil {
			add("%s", matches(q, column, t))
		}
	}
	texts("f.batch_id", f.BatchID)
	texts("f.error_type", f.Reason)
	texts("f.failed_rule", f.FailedRule)
	texts("coalesce(f.feature_id, f.task_id)", f.FeatureID)
	if f.Fingerprint != nil {
		add("f.fingerprint = ANY (%s::text[])", q.arg([]string(f.Fingerprint)))
	}
	if f.SourceCRS != nil {
		add("%s", sourceCRS(q, f.SourceCRS))
	}
	if f.BBox != nil {
		add("%s", inBox(q, f.BBox))
	}
	period := func(column string, p *Period) {
		if p != nil && p.From != nil {
			add("%s >= %s::timestamptz", column, q.arg(p.From.Time))
		}
		if p != nil && p.To != nil {
			add("%s < %s::timestamptz", column, q.arg(p.To.Time))
		}
	}
	period("f.first_seen", f.FirstSeen)
	period("f.last_seen", f.LastSeen)
	within := func(column string, r *Range) {
		if r != nil && r.Min != nil {
			add("%s >= %s::int", column, q.arg(*r.Min))
		}
		if r != nil && r.Max != nil {
			add("%s <= %s::int", column, q.arg(*r.Max))
		}
	}
	within("f.attempts - f.attempts_forgiven", f.Attempts)
	within("f.redrives", f.Redrives)
	if f.ContractVersion != nil {
		add("f.contract_version = ANY (%s::text[])", q.arg(resolved(f.ContractVersion, current)))
	}
	if f.NotContractVersion != nil {
		add("coalesce(f.contract_version <> ALL (%s::text[]), true)", q.arg(resolved(f.NotContractVersion, current)))
	}
	if len(c) == 0 {
		return "true"
	}
	return strings.Join(c, " AND ")
}

func resolved(versions Texts, current string) []string {
	out := make([]string, len(versions))
	for i, v := range versions {
		if v == currentContract {
			v = current
		}
		out[i] = v
	}
	return out
}

// matches compiles texts and globs over a column.
func matches(q *query, column string, texts Texts) string {
	var plain, patterns []string
	for _, t := range texts {
		if pattern, glob := like(t); glob {
			patterns = append(patterns, pattern)
		} else {
			plain = append(plain, pattern)
		}
	}
	var c []string
	if plain != nil {
		c = append(c, fmt.Sprintf("%s = ANY (%s::text[])", column, q.arg(plain)))
	}
	if patterns != nil {
		c = append(c, fmt.Sprintf("%s LIKE ANY (%s::text[])", column, q.arg(patterns)))
	}
	return "(" + strings.Join(c, " OR ") + ")"
}

// like makes a pattern of LIKE of a glob, or, where nothing in it stands for other
// text, the plain text itself.
func like(glob string) (pattern string, isGlob bool) {
	var p, plain strings.Builder
	literal := func(r rune) {
		plain.WriteRune(r)
		if r == '%' || r == '_' || r == '\\' {
			p.WriteByte('\\')
		}
		p.WriteRune(r)
	}
	escaped := false
	for _, r := range glob {
		switch {
		case escaped:
			literal(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '*':
			p.WriteByte('%')
			isGlob = true
		case r == '?':
			p.WriteByte('_')
			isGlob = true
		default:
			literal(r)
		}
	}
	if escaped {
		literal('\\')
	}
	if isGlob {
		return p.String(), true
	}
	return plain.String(), false
}

// noCRS is the filter's word for a row that names no CRS.
const noCRS = "none"

func sourceCRS(q *query, texts Texts) string {
	var c []string
	var codes []int32
	var names Texts
	for _, t := range texts {
		if t == noCRS {
			c = append(c, "(coalesce(f.source_crs, '') = '' AND coalesce(f.epsg, 0) = 0)")
			continue
		}
		names = append(names, t)
		if code, err := crs.Resolve(t); err == nil {
			codes = append(codes, int32(code))
		}
	}
	if codes != nil {
		c = append(c, fmt.Sprintf("f.epsg = ANY (%s::int[])", q.arg(codes)))
	}
	if names != nil {
		c = append(c, matches(q, "f.source_crs", names))
	}
	return "(" + strings.Join(c, " OR ") + ")"
}

// onMap is where a row is in longitude and latitude, written as the index
// failed_geotasks_quarantined_geom has it.
const onMap = "geodlq_lonlat(f.geom, f.epsg)::geometry(Geometry, 4326)"

// inBox compares envelopes, in longitude and latitude: the other way round, a box
// transformed into each source CRS would have curved sides, and none outside its area of use.
func inBox(q *query, b []float64) string {
	box := func(west, east float64) string {
		return fmt.Sprintf("%s && ST_MakeEnvelope(%s::float8, %s::float8, %s::float8, %s::float8, 4326)",
			onMap, q.arg(west), q.arg(b[1]), q.arg(east), q.arg(b[3]))
	}
	if b[0] <= b[2] {
		return "f.geom IS NOT NULL AND " + box(b[0], b[2])
	}
	return "f.geom IS NOT NULL AND (" + box(b[0], 180) + " OR " + box(-180, b[2]) + ")"
}
