// Package geojson decodes one GeoJSON Feature (RFC 7946) from text that nobody vouches for, and
// gives back exactly what it says or a named reason why not.
//
// It is strict where a lax reading would be silently wrong: a position is two finite
// numbers, never a default; a member that occurs twice must say the same twice; names are
// case-sensitive; numbers in ids and properties come digit for digit. It is lenient where
// nothing is lost: a byte order mark or record separator before the text, an open
// ring (closed with the very bits of its first position), and ordinates after the second (left
// out, as are holes and parts that have no positions at all).
//
// Work is linear in the size of the text: nesting is capped, and no value is read more
// often than the cap allows.
package geojson

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
)

// The labels that a decoding fault carries in its Rule.
const (
	RuleFeature  = "decode:feature"
	RuleGeometry = "decode:geometry"
)

// Limits bounds what Decode takes. A zero field means its default.
type Limits struct {
	MaxBytes int // largest text, in bytes; default 32 MiB
	MaxDepth int // most arrays and objects inside each other, the feature itself included; default 32
}

// The defaults of [Limits].
const (
	DefaultMaxBytes = 32 << 20
	DefaultMaxDepth = 32
)

// Feature is a decoded feature. Its slices point into the text it was decoded from.
type Feature struct {
	// ID is the feature's id: a string's text, or a number digit for digit. HasID is false when it
	// is absent, null or empty.
	ID    string
	HasID bool
	// Geometry is one of orb's seven GeoJSON types, two-dimensional, rings closed.
	Geometry orb.Geometry
	// Properties are in document order, each name once.
	Properties []Property
	// CRS is the "crs" member of GeoJSON 2008 as written, nil when the feature has none. GeometryCRS is
	// the one inside the geometry, where PostGIS's ST_AsGeoJSON puts it.
	CRS         []byte
	GeometryCRS []byte
}

// Property is one member of a feature's properties.
type Property struct {
	// Name is unescaped. The escape of a lone surrogate makes it invalid UTF-8.
	Name string
	// Raw is the value verbatim: valid JSON, numbers digit for digit, strings quoted and escaped as they were.
	Raw []byte
}

// Decode reads one feature. The error is a *deadletter.Fault whose Rule is [RuleGeometry] when all but
// the geometry is sound, else [RuleFeature].
//
// The feature is never nil: with an error it holds what could be read, so that a record
// that cannot be replayed still has its id. Which fault is reported does not hang on the
// order of members: the size, then UTF-8, then the JSON grammar, then the feature, its
// id and its properties, then the geometry.
func Decode(payload []byte, lim Limits) (*Feature, error) {
	if lim.MaxBytes <= 0 {
		lim.MaxBytes = DefaultMaxBytes
	}
	if lim.MaxDepth <= 0 {
		lim.MaxDepth = DefaultMaxDepth
	}
	d := decoder{feature: new(Feature), maxDepth: lim.MaxDepth}
	if len(payload) > lim.MaxBytes {
		return d.feature, deadletter.Faultf(deadletter.ReasonFeatureTooLarge, RuleFeature,
			"the feature has %d bytes, more than the %d allowed; raise MAX_FEATURE_BYTES or simplify it", len(payload), lim.MaxBytes)
	}
	prefix := prefixLen(payload)
	text := payload[prefix:]
	if !utf8.Valid(text) {
		e := asScanError(jsonscan.Valid(text, 0))
		if d.read(text); utf8.Valid(d.id) {
			d.takeID()
		}
		return d.feature, &deadletter.Fault{Reason: deadletter.ReasonInvalidUTF8, Rule: RuleFeature, Err: e,
			Detail: fmt.Sprintf("byte %d: %s; the text is not UTF-8: convert it from its encoding", prefix+e.Offset, e.Detail)}
	}
	if err := d.read(text); err != nil {
		e := asScanError(err)
		d.takeID()
		return d.feature, &deadletter.Fault{Reason: deadletter.ReasonInvalidJSON, Rule: RuleFeature, Err: e,
			Detail: fmt.Sprintf("byte %d: %s%s", prefix+e.Offset, e.Detail, near(text, e.Offset))}
	}
	d.finish()
	if d.fault != nil {
		return d.feature, d.fault
	}
	return d.feature, nil
}

func asScanError(err error) *jsonscan.Error {
	var e *jsonscan.Error
	if !errors.As(err, &e) {
		panic("geojson: jsonscan returned an error of a foreign type")
	}
	return e
}

// prefixLen is the length of the record separators (RFC 8142) and byte order marks (RFC 8259 section 8.1) before the text.
func prefixLen(b []byte) int {
	n := 0
	for {
		switch {
		case bytes.HasPrefix(b[n:], []byte("\x1e")):
			n++
		case bytes.HasPrefix(b[n:], []byte("\ufeff")):
			n += len("\ufeff")
		default:
			return n
		}
	}
}

// near quotes the text from a byte on, for a message.
func near(text []byte, offset int) string {
	if offset >= len(text) {
		return ""
	}
	return fmt.Sprintf(", at %q", excerpt(text[offset:]))
}

// excerpt shortens b for a message.
func excerpt(b []byte) string {
	const most = 40
	if len(b) <= most {
		return string(b)
	}
	return strings.ToValidUTF8(string(b[:most]), "") + "…"
}

// decoder collects what one feature says. read walks the text once and takes
// the spans of what matters; finish makes sense of them.
type decoder struct {
	feature  *Feature
	maxDepth int
	fault    *deadletter.Fault // the first that finish met

	kind       jsonscan.Kind // of the text itself
	typ, id    []byte
	properties []byte
	geometry   []byte
	members    geometryMembers

	deepProperties, deepGeometry bool           // deepProperties is of all members but the geometry
	doubled                      string         // a member that occurs twice and says different things
	doubledProperty              string         // likewise, among the properties
	doubles                      bool           // doubledProperty is set (a name may be empty)
	index                        map[string]int // of the properties by name, once there are many
}

// fail records a fault unless there is one already.
func (d *decoder) fail(reason deadletter.Reason, rule, format string, args ...any) {
	if d.fault == nil {
		d.fault = deadletter.Faultf(reason, rule, format, args...)
	}
}

// read walks the text from end to end. The error is the scanner's: the text is not JSON.
func (d *decoder) read(text []byte) error {
	// How deep is too deep is a fault like others, to be reported once the text is known to be JSON.
	s := jsonscan.New(text, len(text))
	if d.kind = s.Kind(); d.kind != jsonscan.KindObject {
		s.Value()
		return s.End()
	}
	for name := range s.Members() {
		tooDeep := &d.deepProperties
		switch string(name) {
		case "type":
			d.once(&d.typ, "type", s.Value())
		case "id":
			d.once(&d.id, "id", s.Value())
		case "crs":
			d.once(&d.feature.CRS, "crs", s.Value())
		case "properties":
			if kind := s.Kind(); d.properties != nil || kind != jsonscan.KindObject {
				d.once(&d.properties, "properties", s.Value())
				break
			}
			start := s.Offset()
			d.readProperties(s)
			d.properties = text[start:s.Offset()]
		case "geometry":
			tooDeep = &d.deepGeometry
			if kind := s.Kind(); d.geometry != nil || kind != jsonscan.KindObject {
				d.once(&d.geometry, "geometry", s.Value())
				break
			}
			start := s.Offset()
			d.members.read(s)
			d.geometry = text[start:s.Offset()]
		default:
			s.Value()
		}
		if s.Deepest() > d.maxDepth {
			*tooDeep = true
		}
	}
	return s.End()
}

// once takes the value of a member that may occur only once, or again with the same value.
func (d *decoder) once(member *[]byte, name string, value []byte) {
	if *member == nil {
		*member = value
	} else if d.doubled == "" && value != nil && !jsonscan.Equal(*member, value) {
		d.doubled = name
	}
}

func (d *decoder) readProperties(s *jsonscan.Scanner) {
	f := d.feature
	f.Properties = make([]Property, 0, 8)
	for name := range s.Members() {
		raw := s.Value()
		if raw == nil {
			return
		}
		if at := d.property(name); at < 0 {
			f.Properties = append(f.Properties, Property{string(name), raw})
		} else if !d.doubles && !jsonscan.Equal(f.Properties[at].Raw, raw) {
			d.doubledProperty, d.doubles = string(name), true
		}
	}
}

// property finds a property by name, -1 when it is not there. Beyond a few it keeps an
// index, so that a feature with very many takes no quadratic time.
func (d *decoder) property(name []byte) int {
	const few = 16
	properties := d.feature.Properties
	if len(properties) <= few {
		for i := range properties {
			if properties[i].Name == string(name) {
				return i
			}
		}
		return -1
	}
	if d.index == nil {
		d.index = make(map[string]int, 4*few)
	}
	for i := len(d.index); i < len(properties); i++ {
		d.index[properties[i].Name] = i
	}
	if at, ok := d.index[string(name)]; ok {
		return at
	}
	return -1
}

// finish judges what read took, in a fixed order of faults.
func (d *decoder) finish() {
	if d.doubled != "" {
		d.fail(deadletter.ReasonAmbiguousJSON, RuleFeature, "member %q occurs twice with different values", d.doubled)
	}
	d.checkType()
	d.takeID()
	switch {
	case d.doubles:
		d.fail(deadletter.ReasonAmbiguousJSON, RuleFeature, "property %q occurs twice with different values", excerpt([]byte(d.doubledProperty)))
	case d.deepProperties:
		d.fail(deadletter.ReasonInvalidJSON, RuleFeature, "more than %d arrays and objects inside each other", d.maxDepth)
	}
	if kind := jsonscan.KindOf(d.properties); d.properties != nil && kind != jsonscan.KindObject && kind != jsonscan.KindNull {
		d.fail(deadletter.ReasonNotAFeature, RuleFeature, "properties is %v, want an object or null", kind)
	}
	d.takeGeometry()
}

func (d *decoder) checkType() {
	if d.kind != jsonscan.KindObject {
		d.fail(deadletter.ReasonNotAFeature, RuleFeature, "the text is %v, want a Feature object", d.kind)
		return
	}
	if kind := jsonscan.KindOf(d.typ); kind != jsonscan.KindString {
		if d.typ == nil {
			d.fail(deadletter.ReasonNotAFeature, RuleFeature, `the object has no member "type", want "type":"Feature"`)
		} else {
			d.fail(deadletter.ReasonNotAFeature, RuleFeature, `type is %v, want "Feature"`, kind)
		}
		return
	}
	name, _ := jsonscan.Unquote(d.typ)
	switch string(name) {
	case "Feature":
	case "FeatureCollection":
		d.fail(deadletter.ReasonNotAFeature, RuleFeature, "the text is a FeatureCollection, want one of its features")
	case "Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon", "GeometryCollection":
		d.fail(deadletter.ReasonNotAFeature, RuleFeature, "the text is a bare %s geometry; wrap it in a Feature", name)
	default:
		d.fail(deadletter.ReasonNotAFeature, RuleFeature, `type is %s, want "Feature"`, excerpt(d.typ))
	}
}

// takeID sets the feature's id, where there is one that can be stored.
func (d *decoder) takeID() {
	switch kind := jsonscan.KindOf(d.id); kind {
	case jsonscan.KindInvalid, jsonscan.KindNull:
	case jsonscan.KindNumber:
		d.feature.ID, d.feature.HasID = string(d.id), true
	case jsonscan.KindString:
		if escape, _, bad := jsonscan.HasUnstorable(d.id); bad {
			d.fail(deadletter.ReasonUnstorableText, RuleFeature, "the id %s holds %s, which no text column can", excerpt(d.id), escape)
			return
		}
		text, _ := jsonscan.Unquote(d.id) // fails on a lone surrogate only
		d.feature.ID, d.feature.HasID = string(text), len(text) > 0
	default:
		d.fail(deadletter.ReasonNotAFeature, RuleFeature, "the id is %v, want a string or a number", kind)
	}
}
