package queue_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/paulmach/orb"

	"geodlq/shared/queue"
)

var shapes = []orb.Geometry{
	orb.Point{1, 2},
	orb.LineString{{0, 0}, {1, 1}},
	orb.Polygon{{{0, 0}, {4, 0}, {4, 4}, {0, 0}}, {{1, 0.5}, {2, 0.5}, {2, 1}, {1, 0.5}}},
	orb.MultiPoint{{1, 2}, {3, 4}},
	orb.MultiLineString{{{0, 0}, {1, 1}}, {{2, 2}, {3, 3}}},
	orb.MultiPolygon{{{{0, 0}, {4, 0}, {4, 4}, {0, 0}}}, {{{9, 9}, {10, 9}, {10, 10}, {9, 9}}}},
	orb.Collection{orb.Point{1, 2}, orb.Collection{orb.LineString{{0, 0}, {1, 1}}}},
	orb.LineString{},
	orb.Polygon{},
	orb.Collection{},
}

func TestWKBComesBack(t *testing.T) {
	t.Parallel()
	for _, g := range shapes {
		got, err := queue.ParseWKB(queue.WKB(g))
		if err != nil {
			t.Errorf("%s: %v", text(g), err)
		}
		if diff := cmp.Diff(g, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s came back otherwise (-want +got):\n%s", text(g), diff)
		}
	}
}

// PostGIS reads what is written here, and what PostGIS writes is read here as it was
// meant or not at all.
func TestWKBOfPostGIS(t *testing.T) {
	t.Parallel()
	b := newBundle(t, modes["cache_statement"])
	for _, g := range shapes {
		b.want("true", `SELECT ST_AsText(ST_GeomFromWKB($1)) = ST_AsText(ST_GeomFromText($2))`, queue.WKB(g), text(g))
	}
	for _, c := range []struct {
		wkt string
		ok  bool
	}{
		{"POINT(1 2)", true},
		{"POLYGON((0 0,1 0,0 1,0 0))", true},
		{"GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))", true},
		{"TRIANGLE((0 0,1 0,0 1,0 0))", false},
		{"GEOMETRYCOLLECTION(TRIANGLE((0 0,1 0,0 1,0 0)))", false},
		{"TIN(((0 0,1 0,0 1,0 0)))", false},
		{"POLYHEDRALSURFACE(((0 0,1 0,0 1,0 0)))", false},
		{"CIRCULARSTRING(0 0,1 1,2 0)", false},
		{"CURVEPOLYGON(CIRCULARSTRING(0 0,1 1,2 0,1 -1,0 0))", false},
		{"POINT Z(1 2 3)", false},
		{"POLYGON M((0 0 9,1 0 9,0 1 9,0 0 9))", false},
	} {
		for _, order := range []string{"NDR", "XDR"} {
			raw, err := hex.DecodeString(b.one(`SELECT encode(ST_AsBinary(ST_GeomFromText($1), $2), 'hex')`, c.wkt, order))
			if err != nil {
				t.Fatal(err)
			}
			g, err := queue.ParseWKB(raw)
			if (err == nil) != c.ok {
				t.Errorf("%s (%s) is read as %v, %v", c.wkt, order, g, err)
			}
			if err == nil {
				b.want("true", `SELECT ST_AsText(ST_GeomFromText($1)) = ST_AsText(ST_GeomFromText($2))`, c.wkt, text(g))
			}
		}
	}
}

func FuzzParseWKB(f *testing.F) {
	for _, g := range shapes {
		f.Add(queue.WKB(g))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := queue.ParseWKB(b)
		if err != nil {
			return
		}
		// By bytes, because NaN is unlike itself.
		once := queue.WKB(g)
		again, err := queue.ParseWKB(once)
		if err != nil || !bytes.Equal(queue.WKB(again), once) {
			t.Errorf("%v became %v, %v", g, again, err)
		}
	})
}
