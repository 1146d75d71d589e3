package deadletter

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"

	"github.com/paulmach/orb"
)

// GeomHash is the idempotency key of a feature in the target: hexadecimal SHA-256
// over its identity, the EPSG code of its source CRS and its source geometry as
// float64 bits. It is taken over the source, never the output, so that a better
// projection or repair does not write a second copy.
//
// -0 counts as 0. Where a ring starts, which way it winds and whether its last
// position repeats the first do not matter; the direction of a line and the order
// of parts do. Features that share a shape (stacked condominiums) differ by
// featureID. It is empty when g is nil.
func GeomHash(featureID string, epsg int, g orb.Geometry) string {
	if g == nil {
		return ""
	}
	b := make([]byte, 0, 1024)
	b = append(b, "geodlq\x01"...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(featureID)))
	b = append(b, featureID...)
	b = binary.BigEndian.AppendUint32(b, uint32(epsg))
	b = appendGeometry(b, g)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Type tags are those of well-known binary (OGC 06-103r4), plus one for a bare ring.
const (
	tagPoint = iota + 1
	tagLineString
	tagPolygon
	tagMultiPoint
	tagMultiLineString
	tagMultiPolygon
	tagCollection
)

func appendGeometry(b []byte, g orb.Geometry) []byte {
	switch g := g.(type) {
	case orb.Point:
		return appendPosition(append(b, tagPoint), g)
	case orb.LineString:
		return appendPositions(append(b, tagLineString), g)
	case orb.Ring:
		return appendGeometry(b, orb.Polygon{g})
	case orb.Bound:
		return appendGeometry(b, g.ToPolygon())
	case orb.Polygon:
		b = appendCount(append(b, tagPolygon), len(g))
		for _, r := range g {
			b = appendRing(b, r)
		}
		return b
	case orb.MultiPoint:
		return appendPositions(append(b, tagMultiPoint), g)
	case orb.MultiLineString:
		b = appendCount(append(b, tagMultiLineString), len(g))
		for _, l := range g {
			b = appendPositions(b, l)
		}
		return b
	case orb.MultiPolygon:
		b = appendCount(append(b, tagMultiPolygon), len(g))
		for _, p := range g {
			b = appendGeometry(b, p)
		}
		return b
	case orb.Collection:
		b = appendCount(append(b, tagCollection), len(g))
		for _, m := range g {
			b = appendGeometry(b, m)
		}
		return b
	default:
		panic("deadletter: no geometry type of orb: " + g.GeoJSONType())
	}
}

func appendCount(b []byte, n int) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func appendPosition(b []byte, p orb.Point) []byte {
	// +0 turns -0 into 0 and leaves every other value alone.
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(p[0]+0))
	return binary.BigEndian.AppendUint64(b, math.Float64bits(p[1]+0))
}

func appendPositions[S ~[]orb.Point](b []byte, ps S) []byte {
	b = appendCount(b, len(ps))
	for _, p := range ps {
		b = appendPosition(b, p)
	}
	return b
}

// appendRing writes the ring's positions without the closing one, starting at the
// least rotation of the lesser direction.
func appendRing(b []byte, r orb.Ring) []byte {
	n := len(r)
	if n > 1 && r[0] == r[n-1] {
		n--
	}
	b = appendCount(b, n)
	if n == 0 {
		return b
	}
	r = r[:n]
	least, times := 0, 1
	for i := 1; i < n; i++ {
		switch comparePositions(r[i], r[least]) {
		case -1:
			least, times = i, 1
		case 0:
			times++
		}
	}
	forward, backward := cycle{r, least, 1}, cycle{r, least, -1}
	if times > 1 { // a ring that meets its least position again: rare, and dearer
		forward.start = leastRotation(n, func(i int) orb.Point { return r[i] })
		// Backward, position i of the reversed ring is r[n-1-i].
		backward.start = n - 1 - leastRotation(n, func(i int) orb.Point { return r[n-1-i] })
	}
	c := forward
	for i := range n {
		if d := comparePositions(backward.at(i), forward.at(i)); d != 0 {
			if d < 0 {
				c = backward
			}
			break
		}
	}
	for i, at := 0, c.start; i < n; i, at = i+1, at+c.step {
		if at == n {
			at = 0
		} else if at < 0 {
			at = n - 1
		}
		b = appendPosition(b, r[at])
	}
	return b
}

// cycle reads a closed ring from a start in one direction.
type cycle struct {
	ring  orb.Ring
	start int
	step  int
}

func (c cycle) at(i int) orb.Point {
	n := len(c.ring)
	return c.ring[((c.start+i*c.step)%n+n)%n]
}

// leastRotation returns where the lexicographically least rotation of n positions
// starts, in linear time (two-pointer minimal representation).
func leastRotation(n int, at func(int) orb.Point) int {
	i, j, k := 0, 1, 0
	for i < n && j < n && k < n {
		d := comparePositions(at((i+k)%n), at((j+k)%n))
		if d == 0 {
			k++
			continue
		}
		if d > 0 {
			i += k + 1
		} else {
			j += k + 1
		}
		if i == j {
			j++
		}
		k = 0
	}
	return min(i, j)
}

func comparePositions(a, b orb.Point) int {
	for d := 0; d < 2; d++ {
		if a[d] < b[d] {
			return -1
		}
		if a[d] > b[d] {
			return 1
		}
	}
	return 0
}
