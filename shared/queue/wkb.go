package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/paulmach/orb"
)

// WKB returns g as the queue writes it, see [appendWKB].
func WKB(g orb.Geometry) []byte { return appendWKB(nil, g) }

// appendWKB appends g as little-endian 2D well-known binary (OGC 06-103r4, section
// 8). It does what orb's encoder does without its allocations; the settling of a
// batch spends a good part of its time here.
func appendWKB(b []byte, g orb.Geometry) []byte {
	switch g := g.(type) {
	case orb.Point:
		return appendPosition(appendHeader(b, 1), g)
	case orb.LineString:
		return appendPositions(appendHeader(b, 2), g)
	case orb.Ring:
		return appendWKB(b, orb.Polygon{g})
	case orb.Bound:
		return appendWKB(b, g.ToPolygon())
	case orb.Polygon:
		b = appendCount(appendHeader(b, 3), len(g))
		for _, r := range g {
			b = appendPositions(b, r)
		}
		return b
	case orb.MultiPoint:
		b = appendCount(appendHeader(b, 4), len(g))
		for _, p := range g {
			b = appendWKB(b, p)
		}
		return b
	case orb.MultiLineString:
		b = appendCount(appendHeader(b, 5), len(g))
		for _, l := range g {
			b = appendWKB(b, l)
		}
		return b
	case orb.MultiPolygon:
		b = appendCount(appendHeader(b, 6), len(g))
		for _, p := range g {
			b = appendWKB(b, p)
		}
		return b
	case orb.Collection:
		b = appendCount(appendHeader(b, 7), len(g))
		for _, m := range g {
			b = appendWKB(b, m)
		}
		return b
	default:
		panic(fmt.Sprintf("queue: no geometry type of orb: %T", g))
	}
}

func appendHeader(b []byte, kind uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, 1), kind)
}

func appendCount(b []byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

func appendPosition(b []byte, p orb.Point) []byte {
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(p[0]))
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(p[1]))
}

func appendPositions[S ~[]orb.Point](b []byte, ps S) []byte {
	b = appendCount(b, len(ps))
	for _, p := range ps {
		b = appendPosition(b, p)
	}
	return b
}

// storable reports whether PostGIS's parser takes g: no empty parts, lines of two
// positions, closed rings of four.
func storable(g orb.Geometry) bool {
	switch g := g.(type) {
	case orb.Point, orb.Bound:
		return true
	case orb.MultiPoint:
		return len(g) > 0
	case orb.LineString:
		return len(g) >= 2
	case orb.Ring:
		return len(g) >= 4 && g[0] == g[len(g)-1]
	case orb.Polygon:
		return all(g)
	case orb.MultiLineString:
		return all(g)
	case orb.MultiPolygon:
		return all(g)
	case orb.Collection:
		return all(g)
	}
	return false
}

func all[S ~[]G, G orb.Geometry](parts S) bool {
	for _, p := range parts {
		if !storable(p) {
			return false
		}
	}
	return len(parts) > 0
}

// ParseWKB reads 2D well-known binary of the seven types that GeoJSON has, in either
// byte order. It stands in for orb's reader, which takes a type that it does not know
// for one that it does: PostGIS's TRIANGLE becomes a point at 0, and a position with
// a height shifts all that follow it.
func ParseWKB(b []byte) (orb.Geometry, error) {
	r := wkbReader{rest: b}
	g, err := r.geometry(0)
	if err == nil && len(r.rest) > 0 {
		err = fmt.Errorf("%d bytes follow the geometry", len(r.rest))
	}
	if err != nil {
		return nil, fmt.Errorf("read well-known binary: %w", err)
	}
	return g, nil
}

// wkbDepth bounds how deep collections nest.
const wkbDepth = 64

type wkbReader struct{ rest []byte }

func (r *wkbReader) geometry(depth int) (orb.Geometry, error) {
	if depth > wkbDepth {
		return nil, fmt.Errorf("collections nest deeper than %d", wkbDepth)
	}
	if len(r.rest) < 5 || r.rest[0] > 1 {
		return nil, errors.New("there is no geometry where one must begin")
	}
	var order binary.ByteOrder = binary.BigEndian
	if r.rest[0] == 1 {
		order = binary.LittleEndian
	}
	kind := order.Uint32(r.rest[1:])
	r.rest = r.rest[5:]
	switch kind {
	case 1:
		ps, err := r.positions(order, 1)
		if err != nil {
			return nil, err
		}
		return ps[0], nil
	case 2:
		ps, err := r.countedPositions(order)
		return orb.LineString(ps), err
	case 3:
		n, err := r.count(order, 4)
		p := make(orb.Polygon, 0, n)
		for i := 0; i < n && err == nil; i++ {
			var ps []orb.Point
			ps, err = r.countedPositions(order)
			p = append(p, ps)
		}
		return p, err
	case 4, 5, 6, 7:
		parts, err := r.parts(order, depth)
		if err != nil {
			return nil, err
		}
		return collect(kind, parts)
	}
	return nil, fmt.Errorf("type %d is none of the seven of GeoJSON in two dimensions", kind)
}

func (r *wkbReader) parts(order binary.ByteOrder, depth int) ([]orb.Geometry, error) {
	n, err := r.count(order, 5)
	parts := make([]orb.Geometry, 0, n)
	for i := 0; i < n && err == nil; i++ {
		var g orb.Geometry
		g, err = r.geometry(depth + 1)
		parts = append(parts, g)
	}
	return parts, err
}

// collect makes the multi type (4 to 6) or collection (7) of its parts.
func collect(kind uint32, parts []orb.Geometry) (orb.Geometry, error) {
	var (
		points   orb.MultiPoint
		lines    orb.MultiLineString
		polygons orb.MultiPolygon
	)
	for i, g := range parts {
		switch g := g.(type) {
		case orb.Point:
			points = append(points, g)
		case orb.LineString:
			lines = append(lines, g)
		case orb.Polygon:
			polygons = append(polygons, g)
		}
		if have := []int{len(points), len(lines), len(polygons)}; kind < 7 && have[kind-4] != i+1 {
			return nil, fmt.Errorf("part %d of a multi type (%d) is a %s", i, kind, g.GeoJSONType())
		}
	}
	switch kind {
	case 4:
		return points, nil
	case 5:
		return lines, nil
	case 6:
		return polygons, nil
	}
	return orb.Collection(parts), nil
}

// count reads how many elements of at least size bytes follow. What the rest cannot
// hold is an error before anything is allocated for it.
func (r *wkbReader) count(order binary.ByteOrder, size int) (int, error) {
	if len(r.rest) < 4 {
		return 0, io.ErrUnexpectedEOF
	}
	n := order.Uint32(r.rest)
	r.rest = r.rest[4:]
	if int64(n)*int64(size) > int64(len(r.rest)) {
		return 0, fmt.Errorf("%d elements are announced, %d bytes are left", n, len(r.rest))
	}
	return int(n), nil
}

func (r *wkbReader) countedPositions(order binary.ByteOrder) ([]orb.Point, error) {
	n, err := r.count(order, 16)
	if err != nil {
		return nil, err
	}
	return r.positions(order, n)
}

func (r *wkbReader) positions(order binary.ByteOrder, n int) ([]orb.Point, error) {
	if len(r.rest) < 16*n {
		return nil, io.ErrUnexpectedEOF
	}
	ps := make([]orb.Point, n)
	for i := range ps {
		ps[i] = orb.Point{math.Float64frombits(order.Uint64(r.rest)), math.Float64frombits(order.Uint64(r.rest[8:]))}
		r.rest = r.rest[16:]
	}
	return ps, nil
}
