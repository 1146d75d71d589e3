package geojson

import (
	"math"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
)

// Clean makes a geometry fit to be transformed and stored, or says why it cannot be: Decode
// does so with every geometry it reads, and a geometry that came by another way (a row inserted with
// plain SQL) goes through here.
//
// Rings are closed with the bits of their first position. Parts and holes without any
// position are left out, for they add nothing to the set of points. Refused, with a
// *deadletter.Fault, are: nothing left (empty_geometry), an ordinate that is
// not finite (bad_coordinates), a line of fewer than two distinct positions, a ring of fewer than four positions once
// closed, and a polygon whose outer ring encloses no area because all its positions lie on
// one line (degenerate_geometry). The last matters before a reprojection, which bends the
// line a little and so turns the ring into a sliver that is valid.
//
// Whether rings cross or lie right in each other is for PostGIS to say. Clean takes g over: the
// result may share its memory and may have changed it.
func Clean(g orb.Geometry) (orb.Geometry, error) {
	out, p := clean(g)
	if p != nil {
		return nil, p.fault()
	}
	return out, nil
}

func clean(g orb.Geometry) (orb.Geometry, *problem) {
	out, p := cleanType(g)
	if p == nil && out == nil {
		p = problemf(deadletter.ReasonEmptyGeometry, "the geometry has no positions")
	}
	if p != nil {
		return nil, p
	}
	return out, nil
}

// cleanType cleans by type; nil means that nothing is left.
func cleanType(g orb.Geometry) (orb.Geometry, *problem) {
	switch g := g.(type) {
	case nil:
		return nil, nil
	case orb.Point:
		if isEmptyPoint(g) {
			return nil, nil
		}
		if p := finite([]orb.Point{g}); p != nil {
			p.where = "coordinates"
			return nil, p
		}
		return g, nil
	case orb.MultiPoint:
		g = keep(g, func(p orb.Point) bool { return !isEmptyPoint(p) })
		if len(g) == 0 {
			return nil, nil
		}
		return located(g, finite(g))
	case orb.LineString:
		if len(g) == 0 {
			return nil, nil
		}
		return located(g, cleanLine(g))
	case orb.MultiLineString:
		for i, line := range g {
			if len(line) > 0 {
				if p := cleanLine(line); p != nil {
					return nil, p.at(i).in("coordinates")
				}
			}
		}
		g = keep(g, func(line orb.LineString) bool { return len(line) > 0 })
		if len(g) == 0 {
			return nil, nil
		}
		return g, nil
	case orb.Ring:
		return cleanType(orb.Polygon{g})
	case orb.Bound:
		return cleanType(g.ToPolygon())
	case orb.Polygon:
		g, p := cleanPolygon(g)
		if p == nil && len(g) > 0 && onOneLine(g[0]) {
			p = withoutArea(g[0]).at(0)
		}
		if p != nil || len(g) == 0 {
			return located(nil, p)
		}
		return g, nil
	case orb.MultiPolygon:
		for i := range g {
			var p *problem
			if g[i], p = cleanPolygon(g[i]); p != nil {
				return nil, p.at(i).in("coordinates")
			}
		}
		g = keep(g, func(polygon orb.Polygon) bool { return len(polygon) > 0 })
		if len(g) == 0 {
			return nil, nil
		}
		for _, polygon := range g {
			if !onOneLine(polygon[0]) {
				return g, nil // what has no area beside one that has is for repair to drop
			}
		}
		return located(nil, withoutArea(g[0][0]).at(0).at(0))
	case orb.Collection:
		for i := range g {
			member, p := cleanType(g[i])
			if p != nil {
				if p.where != "" {
					p.in(".")
				}
				return nil, p.at(i).in("geometries")
			}
			g[i] = member
		}
		g = keep(g, func(member orb.Geometry) bool { return member != nil })
		if len(g) == 0 {
			return nil, nil
		}
		return g, nil
	default:
		return nil, problemf(deadletter.ReasonUnsupportedGeometryType, "GeoJSON has no geometry type %q", g.GeoJSONType())
	}
}

func located(g orb.Geometry, p *problem) (orb.Geometry, *problem) {
	if p != nil {
		return nil, p.in("coordinates")
	}
	return g, nil
}

// keep returns the elements that ok holds for, and s itself when that is all of them.
func keep[S ~[]E, E any](s S, ok func(E) bool) S {
	for i := range s {
		if !ok(s[i]) {
			out := append(S{}, s[:i]...)
			for _, e := range s[i:] {
				if ok(e) {
					out = append(out, e)
				}
			}
			return out
		}
	}
	return s
}

// isEmptyPoint tells the point that WKB writes for POINT EMPTY.
func isEmptyPoint(p orb.Point) bool { return math.IsNaN(p[0]) && math.IsNaN(p[1]) }

func finite(ps []orb.Point) *problem {
	for i, p := range ps {
		// A difference with itself is 0 for finite numbers alone.
		if p[0]-p[0] != 0 || p[1]-p[1] != 0 {
			return problemf(deadletter.ReasonBadCoordinates, "position (%v, %v) is not finite", p[0], p[1]).at(i)
		}
	}
	return nil
}

func cleanLine(line orb.LineString) *problem {
	if p := finite(line); p != nil {
		return p
	}
	for _, position := range line[1:] {
		if position != line[0] {
			return nil
		}
	}
	if len(line) == 1 {
		return problemf(deadletter.ReasonDegenerateGeometry, "a line of one position, want two at least")
	}
	return problemf(deadletter.ReasonDegenerateGeometry, "a line of %d positions that are all the same", len(line))
}

// cleanPolygon returns nil for a polygon without positions.
func cleanPolygon(polygon orb.Polygon) (orb.Polygon, *problem) {
	for i, ring := range polygon {
		if len(ring) == 0 {
			continue
		}
		if i > 0 && len(polygon[0]) == 0 {
			return nil, problemf(deadletter.ReasonBadGeometry, "a hole in an outer ring that has no positions").at(i)
		}
		if p := finite(ring); p != nil {
			return nil, p.at(i)
		}
		last := len(ring) - 1
		if ring[last] == ring[0] {
			ring[last] = ring[0] // -0 equals 0, but PostGIS compares bits
		} else {
			ring = append(ring, ring[0])
			polygon[i] = ring
		}
		if len(ring) < 4 {
			return nil, problemf(deadletter.ReasonDegenerateGeometry, "a ring of %d positions once closed, want four at least", len(ring)).at(i)
		}
	}
	return keep(polygon, func(ring orb.Ring) bool { return len(ring) > 0 }), nil
}

func withoutArea(ring orb.Ring) *problem {
	return problemf(deadletter.ReasonDegenerateGeometry, "all %d positions of the outer ring lie on one line; it encloses no area", len(ring))
}

// onOneLine reports whether every position of a closed ring lies on the line through its first position and the
// one farthest from it, as exactly as float64 coordinates of that size can say. Linear time, and a
// glance for any ring that has an area.
func onOneLine(ring orb.Ring) bool {
	origin := ring[0]
	var dx, dy, farthest, size float64
	for _, p := range ring {
		x, y := p[0]-origin[0], p[1]-origin[1]
		if d := x*x + y*y; d > farthest {
			dx, dy, farthest = x, y, d
		}
		size = max(size, math.Abs(p[0]), math.Abs(p[1]))
	}
	length := math.Hypot(dx, dy)
	if length == 0 {
		return true
	}
	if math.IsInf(farthest, 0) || math.IsInf(length, 0) {
		return false // beyond any CRS, which is for the reprojection to say
	}
	// A coordinate is off by half a unit in the last place (2^-53 of its size) before any
	// arithmetic, and the cross product adds a few of those; eight are 5e-9 m in UTM.
	const roundings = 0x1p-50
	for _, p := range ring {
		x, y := p[0]-origin[0], p[1]-origin[1]
		if math.Abs(dx*y-dy*x)/length > roundings*size {
			return false
		}
	}
	return true
}
