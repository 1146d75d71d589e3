package crs

import (
	"fmt"
	"math"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
)

// walker takes one geometry through a transformer.
type walker struct {
	transformer *Transformer
	whole       orb.Geometry
	n           int  // vertices done
	keep        bool // whether the result is wanted
	after       bool // whether the geometry is in the target CRS already
}

// run transforms the positions of one line, or of unconnected points, into dst,
// which is as long as src, or nil when nobody wants them.
func (w *walker) run(dst, src []orb.Point, connected bool) error {
	t := w.transformer
	sourceTurn, targetTurn := math.Inf(1), math.Inf(1)
	if connected {
		sourceTurn = t.source.turn
		if t.engine != EnginePostGIS {
			targetTurn = t.target.turn
		}
	}
	var before, beforeOut orb.Point
	for i, p := range src {
		q, v := t.position(p)
		if i > 0 && v == good {
			if math.Abs(p[0]-before[0]) > sourceTurn {
				v = acrossSource
			} else if math.Abs(q[0]-beforeOut[0]) > targetTurn {
				v = acrossTarget
			}
		}
		if v != good {
			return w.fault(v, w.n+i, p, q)
		}
		before, beforeOut = p, q
		if dst != nil {
			dst[i] = q
		}
	}
	w.n += len(src)
	return nil
}

// room returns a slice for n results, nil when they are not wanted.
func (w *walker) room(n int) []orb.Point {
	if !w.keep {
		return nil
	}
	return make([]orb.Point, n)
}

func (w *walker) geometry(g orb.Geometry) (orb.Geometry, error) {
	switch g := g.(type) {
	case nil:
		if w.whole == nil {
			return nil, deadletter.Faultf(deadletter.ReasonNullGeometry, "", "there is no geometry to transform")
		}
		return nil, deadletter.Faultf(deadletter.ReasonBadGeometry, "", "a member of the geometry collection is null")
	case orb.Point:
		var out [1]orb.Point
		if err := w.run(out[:], []orb.Point{g}, false); err != nil {
			return nil, err
		}
		return out[0], nil
	case orb.MultiPoint:
		out := w.room(len(g))
		err := w.run(out, g, false)
		return orb.MultiPoint(out), err
	case orb.LineString:
		out := w.room(len(g))
		err := w.run(out, g, true)
		return orb.LineString(out), err
	case orb.Ring:
		out := w.room(len(g))
		err := w.run(out, g, true)
		return orb.Ring(out), err
	case orb.Bound:
		return w.geometry(g.ToPolygon())
	case orb.MultiLineString:
		out := make(orb.MultiLineString, len(g))
		for i, l := range g {
			out[i] = w.room(len(l))
			if err := w.run(out[i], l, true); err != nil {
				return nil, err
			}
		}
		return out, nil
	case orb.Polygon:
		return w.polygon(g)
	case orb.MultiPolygon:
		out := make(orb.MultiPolygon, len(g))
		for i, p := range g {
			var err error
			if out[i], err = w.polygon(p); err != nil {
				return nil, err
			}
		}
		return out, nil
	case orb.Collection:
		out := make(orb.Collection, len(g))
		for i, m := range g {
			var err error
			if out[i], err = w.geometry(m); err != nil {
				return nil, err
			}
		}
		return out, nil
	default:
		return nil, deadletter.Faultf(deadletter.ReasonUnsupportedGeometryType, "", "%T is not a geometry type that can be transformed", g)
	}
}

func (w *walker) polygon(p orb.Polygon) (orb.Polygon, error) {
	out := make(orb.Polygon, len(p))
	for i, r := range p {
		out[i] = w.room(len(r))
		if err := w.run(out[i], r, true); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// locate words where vertex n of a geometry is: its index from 0 through the whole
// geometry, and the way to it where there is more than one part.
func locate(g orb.Geometry, n int) string {
	if path := pathTo(g, n); path != "" {
		return fmt.Sprintf("vertex %d (%s)", n, path)
	}
	return fmt.Sprintf("vertex %d", n)
}

// pathTo words the way to vertex n within g; nothing where n says it all.
func pathTo(g orb.Geometry, n int) string {
	switch g := g.(type) {
	case orb.Bound:
		return pathTo(g.ToPolygon(), n)
	case orb.MultiLineString:
		for i, l := range g {
			if n < len(l) {
				return fmt.Sprintf("line %d, position %d", i, n)
			}
			n -= len(l)
		}
	case orb.Polygon:
		for i, r := range g {
			if n < len(r) && len(g) > 1 {
				return fmt.Sprintf("ring %d, position %d", i, n)
			}
			n -= len(r)
		}
	case orb.MultiPolygon:
		for i, p := range g {
			if c := vertices(p); n >= c {
				n -= c
			} else if inner := pathTo(p, n); inner != "" {
				return fmt.Sprintf("part %d, %s", i, inner)
			} else {
				return fmt.Sprintf("part %d, position %d", i, n)
			}
		}
	case orb.Collection:
		for i, m := range g {
			if c := vertices(m); n >= c {
				n -= c
			} else if inner := pathTo(m, n); inner != "" {
				return fmt.Sprintf("member %d, %s", i, inner)
			} else {
				return fmt.Sprintf("member %d, position %d", i, n)
			}
		}
	}
	return ""
}

// vertices counts the positions of a geometry.
func vertices(g orb.Geometry) int {
	switch g := g.(type) {
	case orb.Point:
		return 1
	case orb.MultiPoint:
		return len(g)
	case orb.LineString:
		return len(g)
	case orb.Ring:
		return len(g)
	case orb.Bound:
		return vertices(g.ToPolygon())
	}
	n := 0
	switch g := g.(type) {
	case orb.MultiLineString:
		for _, l := range g {
			n += len(l)
		}
	case orb.Polygon:
		for _, r := range g {
			n += len(r)
		}
	case orb.MultiPolygon:
		for _, p := range g {
			n += vertices(p)
		}
	case orb.Collection:
		for _, m := range g {
			n += vertices(m)
		}
	}
	return n
}
