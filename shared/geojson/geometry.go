package geojson

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
)

// geometryMembers are the members of one geometry object that matter, as written.
type geometryMembers struct {
	typ, coordinates, geometries, crs []byte
	doubled                           string // one that occurs twice and says different things
}

// read takes the members of the object that the scanner stands before.
func (m *geometryMembers) read(s *jsonscan.Scanner) {
	for name := range s.Members() {
		var member *[]byte
		switch string(name) {
		case "type":
			member = &m.typ
		case "coordinates":
			member = &m.coordinates
		case "geometries":
			member = &m.geometries
		case "crs":
			member = &m.crs
		default:
			continue
		}
		value := s.Value()
		if *member == nil {
			*member = value
		} else if m.doubled == "" && value != nil && !jsonscan.Equal(*member, value) {
			m.doubled = string(name)
		}
	}
}

// problem is a fault on its way up: each level puts its index before where.
type problem struct {
	reason deadletter.Reason
	where  string
	detail string
}

func problemf(reason deadletter.Reason, format string, args ...any) *problem {
	return &problem{reason: reason, detail: fmt.Sprintf(format, args...)}
}

func (p *problem) at(index int) *problem {
	p.where = "[" + strconv.Itoa(index) + "]" + p.where
	return p
}

func (p *problem) in(member string) *problem {
	p.where = member + p.where
	return p
}

func (p *problem) fault() *deadletter.Fault {
	if p.where == "" {
		return deadletter.Faultf(p.reason, RuleGeometry, "%s", p.detail)
	}
	return deadletter.Faultf(p.reason, RuleGeometry, "%s: %s", p.where, p.detail)
}

// takeGeometry sets the feature's geometry.
func (d *decoder) takeGeometry() {
	switch kind := jsonscan.KindOf(d.geometry); kind {
	case jsonscan.KindInvalid:
		d.fail(deadletter.ReasonNullGeometry, RuleGeometry, "the feature has no geometry member")
		return
	case jsonscan.KindNull:
		d.fail(deadletter.ReasonNullGeometry, RuleGeometry, "the geometry is null")
		return
	case jsonscan.KindObject:
	default:
		d.fail(deadletter.ReasonBadGeometry, RuleGeometry, "the geometry is %v, want an object", kind)
		return
	}
	if d.deepGeometry {
		d.fail(deadletter.ReasonBadGeometry, RuleGeometry, "more than %d arrays and objects inside each other", d.maxDepth)
		return
	}
	g, p := d.assemble(&d.members)
	if p == nil {
		g, p = clean(g)
	}
	if p != nil {
		if d.fault == nil {
			d.fault = p.fault()
		}
		return
	}
	d.feature.Geometry = g
}

// assemble builds the geometry that the members describe. Collections recurse, as deep as the
// nesting cap lets them.
func (d *decoder) assemble(m *geometryMembers) (orb.Geometry, *problem) {
	if m.doubled != "" {
		return nil, problemf(deadletter.ReasonAmbiguousJSON, "member %q of the geometry occurs twice with different values", m.doubled)
	}
	if m.crs != nil {
		if have := d.feature.GeometryCRS; have == nil {
			d.feature.GeometryCRS = m.crs
		} else if !jsonscan.Equal(have, m.crs) {
			return nil, problemf(deadletter.ReasonCRSConflict, "the geometries of the collection have different crs members")
		}
	}
	if m.typ == nil {
		return nil, problemf(deadletter.ReasonBadGeometry, "the geometry has no type")
	}
	if kind := jsonscan.KindOf(m.typ); kind != jsonscan.KindString {
		return nil, problemf(deadletter.ReasonBadGeometry, "the type of the geometry is %v, want a string", kind)
	}
	name, _ := jsonscan.Unquote(m.typ)
	c := coordinates{b: m.coordinates}
	var g orb.Geometry
	var p *problem
	switch string(name) {
	case "GeometryCollection":
		return d.collection(m.geometries)
	case "Point":
		if p = c.begin(); p == nil {
			g, p = c.point()
		}
	case "MultiPoint":
		if p = c.begin(); p == nil {
			var ps []orb.Point
			ps, p = c.positions()
			g = orb.MultiPoint(ps)
		}
	case "LineString":
		if p = c.begin(); p == nil {
			var ps []orb.Point
			ps, p = c.positions()
			g = orb.LineString(ps)
		}
	case "MultiLineString":
		if p = c.begin(); p == nil {
			var lines orb.MultiLineString
			p = c.array("an array of lines", func() *problem {
				ps, p := c.positions()
				lines = append(lines, ps)
				return p
			})
			g = lines
		}
	case "Polygon":
		if p = c.begin(); p == nil {
			g, p = c.polygon()
		}
	case "MultiPolygon":
		if p = c.begin(); p == nil {
			var polygons orb.MultiPolygon
			p = c.array("an array of polygons", func() *problem {
				polygon, p := c.polygon()
				polygons = append(polygons, polygon)
				return p
			})
			g = polygons
		}
	default:
		return nil, unsupportedType(string(name))
	}
	if p != nil {
		return nil, p.in("coordinates")
	}
	return g, nil
}

func unsupportedType(name string) *problem {
	for _, known := range []string{"Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon", "GeometryCollection"} {
		if strings.EqualFold(name, known) {
			return problemf(deadletter.ReasonUnsupportedGeometryType, "geometry type %q: type names are case-sensitive, want %q", name, known)
		}
	}
	switch name {
	case "CircularString", "CompoundCurve", "CurvePolygon", "MultiCurve", "MultiSurface":
		return problemf(deadletter.ReasonUnsupportedGeometryType, "GeoJSON has no curves such as %s; write it with straight segments", name)
	}
	return problemf(deadletter.ReasonUnsupportedGeometryType, "GeoJSON has no geometry type %q", excerpt([]byte(name)))
}

func (d *decoder) collection(raw []byte) (orb.Geometry, *problem) {
	if kind := jsonscan.KindOf(raw); kind != jsonscan.KindArray {
		if raw == nil {
			return nil, problemf(deadletter.ReasonBadGeometry, `the GeometryCollection has no member "geometries"`)
		}
		return nil, problemf(deadletter.ReasonBadGeometry, "geometries is %v, want an array", kind)
	}
	members := orb.Collection{}
	s := jsonscan.New(raw, len(raw))
	for i := range s.Elements() {
		if kind := s.Kind(); kind != jsonscan.KindObject {
			return nil, problemf(deadletter.ReasonBadGeometry, "%v, want a geometry object", kind).at(i).in("geometries")
		}
		var m geometryMembers
		m.read(s)
		g, p := d.assemble(&m)
		if p != nil {
			if p.where != "" {
				p.in(".")
			}
			return nil, p.at(i).in("geometries")
		}
		members = append(members, g)
	}
	return members, nil
}

// coordinates reads a coordinates member that is known to be JSON. Positions of all its
// arrays share one backing array.
type coordinates struct {
	b      []byte
	i      int
	points []orb.Point
}

// begin checks that there is an array and makes room for its positions.
func (c *coordinates) begin() *problem {
	if c.b == nil {
		return problemf(deadletter.ReasonBadGeometry, "the geometry has none")
	}
	// Every position has a bracket and, with a comma, six bytes at least: [0,0],
	c.points = make([]orb.Point, 0, min(bytes.Count(c.b, []byte{'['}), (len(c.b)+1)/6))
	return nil
}

func (c *coordinates) space() {
	for c.b[c.i] == ' ' || c.b[c.i] == '\n' || c.b[c.i] == '\r' || c.b[c.i] == '\t' {
		c.i++
	}
}

// found is the value at the current byte, for a message.
func (c *coordinates) found() string {
	if kind := jsonscan.KindOf(c.b[c.i:]); kind == jsonscan.KindArray || kind == jsonscan.KindObject {
		return kind.String()
	}
	return excerpt(jsonscan.New(c.b[c.i:], 0).Value())
}

// next steps to the element with the given index and reports whether there is one.
func (c *coordinates) next(index int) bool {
	c.space()
	switch {
	case c.b[c.i] == ']':
		c.i++
		return false
	case index > 0:
		c.i++ // the comma
	}
	c.space()
	return true
}

// array reads an array with one call of element for each.
func (c *coordinates) array(what string, element func() *problem) *problem {
	c.space()
	if c.b[c.i] != '[' {
		return problemf(deadletter.ReasonBadGeometry, "found %s, want %s", c.found(), what)
	}
	c.i++
	for n := 0; c.next(n); n++ {
		if p := element(); p != nil {
			return p.at(n)
		}
	}
	return nil
}

func (c *coordinates) polygon() (orb.Polygon, *problem) {
	var polygon orb.Polygon
	p := c.array("an array of rings", func() *problem {
		ps, p := c.positions()
		polygon = append(polygon, ps)
		return p
	})
	return polygon, p
}

// point reads the coordinates of a Point. An empty array is an empty point, which orb has no
// value for; it comes as two NaN, as in WKB.
func (c *coordinates) point() (orb.Point, *problem) {
	c.space()
	if c.b[c.i] == '[' {
		start := c.i
		if c.i++; !c.next(0) {
			return orb.Point{math.NaN(), math.NaN()}, nil
		}
		c.i = start
	}
	return c.position()
}

// positions reads an array of positions.
func (c *coordinates) positions() ([]orb.Point, *problem) {
	c.space()
	if c.b[c.i] != '[' {
		return nil, problemf(deadletter.ReasonBadGeometry, "found %s, want an array of positions", c.found())
	}
	c.i++
	start := len(c.points)
	for n := 0; c.next(n); n++ {
		point, p := c.position()
		if p != nil {
			return nil, p.at(n)
		}
		c.points = append(c.points, point)
	}
	return c.points[start:len(c.points):len(c.points)], nil
}

// position reads [x, y]. Further ordinates are left out; they must be numbers or null.
func (c *coordinates) position() (point orb.Point, p *problem) {
	if c.b[c.i] != '[' {
		return point, problemf(deadletter.ReasonBadCoordinates, "found %s, want a position of two numbers", c.found())
	}
	c.i++
	n := 0
	for ; c.next(n); n++ {
		if !isNumber(c.b[c.i]) {
			if n < 2 {
				return point, problemf(deadletter.ReasonBadCoordinates, "%s is %s, want a number", axis[n], c.found())
			}
			if c.b[c.i] != 'n' {
				return point, problemf(deadletter.ReasonBadCoordinates, "ordinate %d is %s, want a number", n, c.found())
			}
			c.i += len("null")
			continue
		}
		start := c.i
		value, exact := c.shortNumber()
		if n >= 2 {
			continue
		}
		if !exact {
			var err error
			if value, err = strconv.ParseFloat(string(c.b[start:c.i]), 64); err != nil {
				return point, problemf(deadletter.ReasonBadCoordinates, "%s is %s, which no float64 can hold", axis[n], excerpt(c.b[start:c.i]))
			}
		}
		point[n] = value
	}
	if n < 2 {
		return point, problemf(deadletter.ReasonBadCoordinates, "a position needs two numbers, found %d", n)
	}
	return point, nil
}

func isNumber(c byte) bool { return c-'0' <= 9 || c == '-' }

// shortNumber reads the number at the current byte. Its value is exact when the digits, as one
// integer, and the power of ten they are divided by are both float64 values: the one division then
// rounds as IEEE 754 asks (Clinger 1990, "How to read floating point numbers accurately"). That holds for
// nearly every coordinate people write; strconv.ParseFloat is for the rest.
func (c *coordinates) shortNumber() (value float64, exact bool) {
	b, i := c.b, c.i
	negative := b[i] == '-'
	if negative {
		i++
	}
	first := i
	var digits uint64
	for ; b[i]-'0' <= 9; i++ {
		digits = digits*10 + uint64(b[i]-'0')
	}
	length, decimals := i-first, 0
	if b[i] == '.' {
		i++
		first = i
		for ; b[i]-'0' <= 9; i++ {
			digits = digits*10 + uint64(b[i]-'0')
		}
		decimals = i - first
	}
	if b[i]|0x20 == 'e' {
		for i++; b[i]-'0' <= 9 || b[i] == '+' || b[i] == '-'; i++ {
		}
		c.i = i
		return 0, false
	}
	c.i = i
	// 19 digits fit into 64 bits.
	if length+decimals > 19 || digits > 1<<53 || decimals >= len(powersOfTen) {
		return 0, false
	}
	value = float64(digits) / powersOfTen[decimals]
	if negative {
		value = -value
	}
	return value, true
}

// powersOfTen are those that float64 holds exactly.
var powersOfTen = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

var axis = [2]string{"x", "y"}
