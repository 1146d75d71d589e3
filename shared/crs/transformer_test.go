package crs_test

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/paulmach/orb"
	"github.com/wroge/wgs84"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
)

func transformer(t testing.TB, source, target int, opts ...crs.Option) *crs.Transformer {
	t.Helper()
	tr, err := crs.New(source, target, opts...)
	if err != nil {
		t.Fatalf("New(%d, %d): %v", source, target, err)
	}
	return tr
}

func TestEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		situation      string
		source, target int
		opts           []crs.Option
		engine         crs.Engine
		reason         deadletter.Reason
	}{
		{"same CRS", 3857, 3857, nil, crs.EngineIdentity, ""},
		{"same CRS under another number", 900913, 3857, nil, crs.EngineIdentity, ""},
		{"same horizontal CRS", 4979, 4326, nil, crs.EngineIdentity, ""},
		{"same CRS, left to PostGIS otherwise", 27700, 27700, nil, crs.EngineIdentity, ""},
		{"same unlisted code", 990001, 990001, nil, crs.EngineIdentity, ""},
		{"UTM on WGS 84", 32632, 3857, nil, crs.EngineComputed, ""},
		{"UTM on NAD83", 26910, 3857, nil, crs.EngineComputed, ""},
		{"back to UTM on NAD83", 4326, 26910, nil, crs.EngineComputed, ""},
		{"US state plane in feet", 2263, 3857, nil, crs.EngineComputed, ""},
		{"US state plane on NAD83(2011)", 6540, 3857, nil, crs.EngineComputed, ""},
		{"France", 2154, 3857, nil, crs.EngineComputed, ""},
		{"conformal conic CC48", 3948, 3857, nil, crs.EngineComputed, ""},
		{"Europe", 3035, 3857, nil, crs.EngineComputed, ""},
		{"United States Albers", 5070, 3857, nil, crs.EngineComputed, ""},
		{"New Zealand", 2193, 3857, nil, crs.EngineComputed, ""},
		{"World Mercator", 3395, 3857, nil, crs.EngineComputed, ""},
		{"Arctic polar stereographic", 3413, 3857, nil, crs.EngineComputed, ""},
		{"CGCS2000", 4490, 3857, nil, crs.EngineComputed, ""},
		{"JGD2011 plane", 6677, 3857, nil, crs.EngineComputed, ""},
		{"SIRGAS 2000", 31983, 3857, nil, crs.EngineComputed, ""},
		{"two CRSs on one datum", 25832, 3035, nil, crs.EngineComputed, ""},
		{"two datums that are equal to WGS 84 but not to each other", 28355, 7855, nil, crs.EnginePostGIS, ""},
		{"NAD83 has a shift in Hawaii and the Aleutians", 4269, 3857, nil, crs.EnginePostGIS, ""},
		{"UTM zone of Hawaii on NAD83", 26904, 3857, nil, crs.EnginePostGIS, ""},
		{"UTM zone of the Aleutians on NAD83", 26901, 3857, nil, crs.EnginePostGIS, ""},
		{"British National Grid", 27700, 3857, nil, crs.EnginePostGIS, ""},
		{"Gauss-Krueger in Germany", 31467, 3857, nil, crs.EnginePostGIS, ""},
		{"Dutch RD", 28992, 3857, nil, crs.EnginePostGIS, ""},
		{"Swiss LV03", 21781, 3857, nil, crs.EnginePostGIS, ""},
		{"Czech Krovak", 5514, 3857, nil, crs.EnginePostGIS, ""},
		{"a projection that is not computed here", 8857, 3857, nil, crs.EnginePostGIS, ""},
		{"unlisted code", 990001, 3857, nil, crs.EnginePostGIS, ""},
		{"unlisted target", 3857, 990001, nil, crs.EnginePostGIS, ""},
		{"Esri code", 102008, 3857, nil, crs.EnginePostGIS, ""},
		{"compound code", 7405, 3857, nil, crs.EnginePostGIS, ""},

		{"NAD27", 4267, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"UTM on NAD27", 26710, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"NAD27 state plane", 32024, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"NAD27 as target", 4326, 26710, nil, "", deadletter.ReasonUnsupportedCRS},
		{"NAD27, allowed", 26710, 3857, []crs.Option{crs.AllowBallpark()}, crs.EnginePostGIS, ""},
		{"within NAD27 no shift is due", 26710, 4267, nil, crs.EnginePostGIS, ""},
		{"another Esri Web Mercator", 102113, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"geocentric", 4978, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"vertical", 5703, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"the Moon", 104903, 3857, nil, "", deadletter.ReasonUnsupportedCRS},
		{"zero", 0, 3857, nil, "", deadletter.ReasonUnknownCRS},
		{"minus one", -1, 3857, nil, "", deadletter.ReasonUnknownCRS},
		{"beyond every SRID", 999000, 3857, nil, "", deadletter.ReasonUnknownCRS},
		{"target beyond every SRID", 3857, 1 << 40, nil, "", deadletter.ReasonUnknownCRS},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			t.Parallel()
			tr, err := crs.New(tt.source, tt.target, tt.opts...)
			if reasonOf(err) != tt.reason {
				t.Fatalf("New(%d, %d): %v, want reason %q", tt.source, tt.target, err, tt.reason)
			}
			if err == nil && tr.Engine() != tt.engine {
				t.Errorf("New(%d, %d) is left to %q, want %q", tt.source, tt.target, tr.Engine(), tt.engine)
			}
		})
	}
}

func TestDomain(t *testing.T) {
	t.Parallel()
	inf, nan := math.Inf(1), math.NaN()
	square := func(x, y float64) orb.Polygon {
		return orb.Polygon{{{x, y}, {x + 10, y}, {x + 10, y + 10}, {x, y}}}
	}
	for _, tt := range []struct {
		situation      string
		source, target int
		geometry       orb.Geometry
		reason         deadletter.Reason
		says           string // what the message must hold
	}{
		{"one vertex beyond the pole", 4326, 3857, orb.Polygon{{{-101.5, 40.1}, {-101.4, 40.1}, {-101.4, 91.2}, {-101.5, 40.2}, {-101.5, 40.1}}}, deadletter.ReasonCoordinateOutOfRange, "vertex 2:"},
		{"latitude first", 4326, 3857, orb.Point{44.51, -98.02}, deadletter.ReasonCoordinateOutOfRange, "axes swapped?"},
		{"feet labelled as degrees", 4326, 3857, orb.Point{1607310.5, 433118.25}, deadletter.ReasonCoordinateOutOfRange, "projected"},
		{"longitude beyond half a turn", 4326, 3857, orb.Point{190, 10}, deadletter.ReasonCoordinateOutOfRange, "±180"},
		{"no-data sentinel in degrees", 4326, 3857, orb.Point{-math.MaxFloat64, -math.MaxFloat64}, deadletter.ReasonCoordinateOutOfRange, "vertex 0"},
		{"no-data sentinel in metres", 32610, 3857, orb.Point{1e308, 1e308}, deadletter.ReasonCoordinateOutOfDomain, "vertex 0"},
		{"no-data sentinel, left to PostGIS", 27700, 3857, orb.Point{-1e308, 5}, deadletter.ReasonCoordinateOutOfDomain, "vertex 0"},
		{"no-data sentinel in an unlisted CRS", 990001, 3857, orb.Point{-1e308, 5}, deadletter.ReasonCoordinateOutOfDomain, "vertex 0"},
		{"NaN", 4326, 3857, orb.Point{nan, 1}, deadletter.ReasonBadCoordinates, "finite"},
		{"infinity", 32610, 3857, orb.Point{5, inf}, deadletter.ReasonBadCoordinates, "finite"},
		{"NaN, left to PostGIS", 27700, 3857, orb.Point{5, nan}, deadletter.ReasonBadCoordinates, "finite"},
		{"NaN, nothing to transform", 3857, 3857, orb.Point{5, nan}, deadletter.ReasonBadCoordinates, "finite"},
		{"south pole", 4326, 3857, orb.Point{0, -90}, deadletter.ReasonOutOfTargetDomain, "latitude -90"},
		{"north pole", 4326, 3857, orb.Point{-180, 90}, deadletter.ReasonOutOfTargetDomain, "latitude 90"},
		{"beyond the web maps", 4326, 3857, orb.Point{10, 85.07}, deadletter.ReasonOutOfTargetDomain, "85.06"},
		{"pole of a polar CRS", 3413, 3857, orb.Point{0, 0}, deadletter.ReasonOutOfTargetDomain, "latitude 90"},
		{"UTM position far from its zone", 32610, 3857, orb.Point{13000000, 5000000}, deadletter.ReasonCoordinateOutOfDomain, "area of use"},
		{"degrees labelled as metres", 26910, 3857, orb.Point{-122.3, 47.6}, deadletter.ReasonCoordinateOutOfDomain, "longitude and latitude?"},
		{"northing first", 26910, 3857, orb.Point{5190000, 551234}, deadletter.ReasonCoordinateOutOfDomain, "axes swapped?"},
		{"British grid far from Britain", 27700, 3857, orb.Point{5000000, 200000}, deadletter.ReasonCoordinateOutOfDomain, "area of use"},
		{"British grid where PROJ would be silent", 27700, 3857, orb.Point{720000, 300000}, deadletter.ReasonCoordinateOutOfDomain, "PROJ"},
		{"place the target does not cover", 4326, 26910, orb.Point{10, 50}, deadletter.ReasonOutOfTargetDomain, "longitude 10"},
		{"place the target does not cover, from metres", 32632, 26910, orb.Point{500000, 5000000}, deadletter.ReasonOutOfTargetDomain, ""},
		{"web x past the edge", 3857, 4326, orb.Point{20037600, 0}, deadletter.ReasonCoordinateOutOfDomain, ""},
		{"web y past the edge, nothing to transform", 3857, 3857, orb.Point{0, 20100000}, deadletter.ReasonCoordinateOutOfDomain, ""},
		{"degrees, nothing to transform", 4326, 4326, orb.Point{10, 95}, deadletter.ReasonCoordinateOutOfRange, "axes swapped?"},
		{"second part, hole", 32610, 3857, orb.MultiPolygon{square(550000, 5190000), append(square(560000, 5190000), orb.Ring{{560001, 5190001}, {9e9, 5190001}})}, deadletter.ReasonCoordinateOutOfDomain, "vertex 9 (part 1, ring 1, position 1)"},
		{"line of several", 4326, 3857, orb.MultiLineString{{{1, 1}, {2, 2}}, {{3, 3}, {4, 99}}}, deadletter.ReasonCoordinateOutOfRange, "vertex 3 (line 1, position 1)"},
		{"member of a collection", 4326, 3857, orb.Collection{orb.Point{1, 2}, orb.LineString{{1, 2}, {200, 3}}}, deadletter.ReasonCoordinateOutOfRange, "vertex 2 (member 1, position 1)"},
		{"ring across the antimeridian", 4326, 3857, orb.Polygon{{{179, 10}, {-179, 10}, {-179, 11}, {179, 10}}}, deadletter.ReasonAntimeridian, "vertex 1"},
		{"line across the antimeridian, left to PostGIS", 4269, 3857, orb.LineString{{179, 52}, {-179, 52}}, deadletter.ReasonAntimeridian, "vertex 1"},
		{"line across the antimeridian, nothing to transform", 4326, 4326, orb.LineString{{179, 52}, {-179, 52}}, deadletter.ReasonAntimeridian, "vertex 1"},
		{"UTM line across the antimeridian", 32701, 3857, orb.LineString{{200000, 8000000}, {160000, 8000000}}, deadletter.ReasonAntimeridian, "vertex 1"},
		{"web line round the world", 3857, 4326, orb.LineString{{-15000000, 0}, {15000000, 0}}, deadletter.ReasonAntimeridian, "vertex 1"},
		{"no geometry", 4326, 3857, nil, deadletter.ReasonNullGeometry, ""},
		{"no member", 4326, 3857, orb.Collection{orb.Point{1, 2}, nil}, deadletter.ReasonBadGeometry, ""},

		{"half a turn is no crossing", 4326, 3857, orb.LineString{{-90, 10}, {90, 10}}, "", ""},
		{"points are not neighbours", 4326, 3857, orb.MultiPoint{{179, 10}, {-179, 10}}, "", ""},
		{"corners of the world", 4326, 3857, orb.MultiPoint{{-180, -85.06}, {180, 85.06}}, "", ""},
		{"x rounded up at the edge", 3857, 4326, orb.Point{20037508.35, 0}, "", ""},
		{"UTM line across the antimeridian into a UTM zone", 32701, 32760, orb.LineString{{200000, 8000000}, {160000, 8000000}}, "", ""},
		{"three degrees beyond the zone", 32632, 3857, orb.Point{882250, 5000000}, "", ""},
		{"southern position in a northern zone", 32632, 3857, orb.Point{500000, -200000}, "", ""},
		{"Honolulu in NAD83", 4269, 3857, orb.Point{-157.858, 21.307}, "", ""},
		{"London", 27700, 3857, orb.Point{530000, 180000}, "", ""},
		{"Shetland", 27700, 3857, orb.Point{447000, 1141000}, "", ""},
		{"empty polygon", 4326, 3857, orb.Polygon{}, "", ""},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			t.Parallel()
			before := orb.Clone(tt.geometry)
			_, err := transformer(t, tt.source, tt.target).Transform(tt.geometry)
			if reasonOf(err) != tt.reason {
				t.Fatalf("got %v, want reason %q", err, tt.reason)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the message %q does not say %q", err, tt.says)
			}
			if fmt.Sprint(before) != fmt.Sprint(tt.geometry) {
				t.Errorf("the input was changed to %v", tt.geometry)
			}
		})
	}
}

// TestKnownPositions are positions that the shared cases of the product give, from PROJ.
func TestKnownPositions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		situation string
		source    int
		in, want  orb.Point
	}{
		{"parcel near Portland in NAD83 / UTM zone 10N", 26910, orb.Point{551234.5, 5190000.25}, orb.Point{-13617470.8319, 5919507.7827}},
		{"mast near the edge of UTM zone 32N", 32632, orb.Point{690000, 6100000}, orb.Point{1332654.9898, 7363908.2176}},
		{"bow-tie in UTM zone 10N", 32610, orb.Point{550000, 5190000}, orb.Point{-13619273.6649, 5919522.7126}},
		{"field in Champagne", 4326, orb.Point{4.2511, 48.7311}, orb.Point{473230.2873, 6229357.2491}},
		{"Null Island", 4326, orb.Point{0, 0}, orb.Point{0, 0}},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			t.Parallel()
			g, err := transformer(t, tt.source, 3857).Transform(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			p := g.(orb.Point)
			if d := math.Hypot(p[0]-tt.want[0], p[1]-tt.want[1]); d > 1e-3 {
				t.Errorf("got %.4f, want %.4f: %.4f m off", p, tt.want, d)
			}
		})
	}
}

// sample is a line of testdata/proj.tsv.
type sample struct {
	code          int
	xy, web, back orb.Point
}

func samples(t testing.TB) []sample {
	t.Helper()
	f, err := os.Open("testdata/proj.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []sample
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		var v [7]float64
		for i, field := range strings.Split(s.Text(), "\t") {
			if v[i], err = strconv.ParseFloat(field, 64); err != nil {
				t.Fatalf("testdata/proj.tsv: %v", err)
			}
		}
		list = append(list, sample{int(v[0]), orb.Point{v[1], v[2]}, orb.Point{v[3], v[4]}, orb.Point{v[5], v[6]}})
	}
	if len(list) < 1000 {
		t.Fatalf("testdata/proj.tsv has %d positions", len(list))
	}
	return list
}

// TestPROJSamples holds the package against answers of PROJ that were stored when
// the tables were made: one millimetre, both ways. It needs no database.
func TestPROJSamples(t *testing.T) {
	t.Parallel()
	codes := map[int]bool{}
	for _, s := range samples(t) {
		codes[s.code] = true
		info, err := crs.Describe(s.code)
		if err != nil {
			t.Fatal(err)
		}
		out, err := transformer(t, s.code, 3857).Transform(s.xy)
		if err != nil {
			t.Errorf("%d -> 3857: %v", s.code, err)
			continue
		}
		// Web Mercator stretches the ground by 1/cos(latitude), so a millimetre there is
		// less than one on the ground: the stricter side.
		if p := out.(orb.Point); !(math.Hypot(p[0]-s.web[0], p[1]-s.web[1]) <= 1e-3) {
			t.Errorf("%d: %v -> %v, PROJ has %v", s.code, s.xy, p, s.web)
		}
		back, err := transformer(t, 3857, s.code).Transform(s.web)
		if err != nil {
			t.Errorf("3857 -> %d: %v", s.code, err)
			continue
		}
		if p := back.(orb.Point); !(math.Hypot(p[0]-s.back[0], p[1]-s.back[1])*info.Unit <= 1e-3) {
			t.Errorf("3857 -> %d: %v -> %v, PROJ has %v", s.code, s.web, p, s.back)
		}
	}
	if len(codes) < 150 {
		t.Errorf("only %d codes are sampled", len(codes))
	}
}

// TestEveryComputedCode takes every code of the table there and back at random
// positions of its area of use and margin: the same position to the two millimetres
// that EPSG's inverse of Lambert azimuthal is good to, finite, and the same bits
// each time.
func TestEveryComputedCode(t *testing.T) {
	t.Parallel()
	n := 0
	for info := range crs.Computed() {
		n++
		if info.Service != crs.ServiceComputed || info.Authority != "EPSG" || info.Name == "" || !info.HasExtent || !info.HasArea {
			t.Fatalf("%+v is not fit for the table", info)
		}
		there, back := transformer(t, 4326, info.Code), transformer(t, info.Code, 4326)
		if e := there.Engine(); info.Code != 4326 && e != crs.EngineComputed {
			t.Fatalf("4326 -> %d is left to %q", info.Code, e)
		}
		rng := rand.New(rand.NewPCG(3, uint64(info.Code)))
		for range 40 {
			p := randomPosition(rng, info, 2.9)
			q, err := there.Transform(p)
			if err != nil {
				t.Fatalf("%d: %v", info.Code, err)
			}
			r, err := back.Transform(q)
			if err != nil {
				t.Fatalf("%d, back: %v", info.Code, err)
			}
			dlon := math.Remainder(r.(orb.Point)[0]-p[0], 360) * math.Cos(p[1]*math.Pi/180)
			if d := math.Hypot(dlon, r.(orb.Point)[1]-p[1]) * 111320; !(d < 2e-3) {
				t.Fatalf("%d: %v -> %v -> %v: %g m away", info.Code, p, q, r, d)
			}
			again, err := there.Transform(p)
			if err != nil || again != q {
				t.Fatalf("%d: %v gave %v and then %v, %v", info.Code, p, q, again, err)
			}
		}
	}
	if n < 1500 {
		t.Errorf("the table has %d codes", n)
	}
}

// randomPosition is within the area of use widened by margin degrees, and within
// what a Mercator can hold.
func randomPosition(rng *rand.Rand, info crs.Info, margin float64) orb.Point {
	w, e := info.Area.Min[0], info.Area.Max[0]
	if e < w {
		e += 360
	}
	s, n := math.Max(-89.9, info.Area.Min[1]-margin), math.Min(89.9, info.Area.Max[1]+margin)
	if info.Code == 3857 {
		s, n = -85.06, 85.06
	}
	w, e = w-margin, e+margin
	if e-w > 360 {
		w, e = -180, 180
	}
	lon := w + (e-w)*rng.Float64()
	return orb.Point{math.Remainder(lon, 360), s + (n-s)*rng.Float64()}
}

// TestGeometryTypes: every type keeps its shape, closing positions included, and
// the identity keeps every bit.
func TestGeometryTypes(t *testing.T) {
	t.Parallel()
	negativeZero := math.Copysign(0, -1)
	ring := orb.Ring{{negativeZero, 0.1}, {1.0000000000000002, 0}, {1, 1}, {negativeZero, 0.1}}
	for _, g := range []orb.Geometry{
		orb.Point{negativeZero, 5e-324},
		orb.MultiPoint{{1, 2}, {3, 4}},
		orb.LineString{{1, 2}, {3, 4}, {5, 6}},
		orb.MultiLineString{{{1, 2}, {3, 4}}, {}, {{5, 6}, {7, 8}}},
		ring,
		orb.Polygon{ring, {{0.2, 0.2}, {0.3, 0.2}, {0.3, 0.3}, {0.2, 0.2}}},
		orb.MultiPolygon{{ring}, {ring}},
		orb.Collection{orb.Point{1, 2}, orb.Collection{orb.LineString{{1, 2}, {3, 4}}, ring}},
	} {
		t.Run(g.GeoJSONType()+fmt.Sprintf(" %T", g), func(t *testing.T) {
			t.Parallel()
			same, err := transformer(t, 4326, 4326).Transform(g)
			if err != nil {
				t.Fatal(err)
			}
			// %b writes every bit of a float64, the sign of zero included.
			if want, got := fmt.Sprintf("%T %b", g, g), fmt.Sprintf("%T %b", same, same); got != want {
				t.Errorf("identity made %s of %s", got, want)
			}
			out, err := transformer(t, 4326, 32631).Transform(g)
			if err != nil {
				t.Fatal(err)
			}
			back, err := transformer(t, 32631, 4326).Transform(out)
			if err != nil {
				t.Fatal(err)
			}
			// Rounded to 1e-9 degrees, and +0 for -0, there and back is the same.
			round := func(v float64) string { return strconv.FormatFloat(math.Round(v*1e9)/1e9+0, 'f', 9, 64) }
			if want, got := text(g, round), text(back, round); got != want {
				t.Errorf("there and back made %s of %s", got, want)
			}
		})
	}
}

// text writes a geometry with its numbers as round has them.
func text(g orb.Geometry, round func(float64) string) string {
	return number.ReplaceAllStringFunc(fmt.Sprintf("%T %v", g, g), func(s string) string {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return err.Error()
		}
		return round(v)
	})
}

var number = regexp.MustCompile(`-?[0-9][0-9.]*(e[-+][0-9]+)?`)

func TestBoundBecomesItsPolygon(t *testing.T) {
	t.Parallel()
	b := orb.Bound{Min: orb.Point{9, 50}, Max: orb.Point{10, 51}}
	tr := transformer(t, 4326, 25832)
	got, err := tr.Transform(b)
	if err != nil {
		t.Fatal(err)
	}
	want, err := tr.Transform(b.ToPolygon())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestPostGISGetsTheGeometryItself(t *testing.T) {
	t.Parallel()
	g := orb.LineString{{530000, 180000}, {530100, 180100}}
	out, err := transformer(t, 27700, 3857).Transform(g)
	if err != nil {
		t.Fatal(err)
	}
	if &out.(orb.LineString)[0] != &g[0] {
		t.Error("the geometry was copied although the database transforms it")
	}
}

func TestCheckTarget(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		situation string
		target    int
		geometry  orb.Geometry
		reason    deadletter.Reason
	}{
		{"fine", 3857, orb.Point{1e6, 6e6}, ""},
		{"NaN", 3857, orb.Point{math.NaN(), 0}, deadletter.ReasonOutOfTargetDomain},
		{"infinity", 3857, orb.Point{0, math.Inf(-1)}, deadletter.ReasonOutOfTargetDomain},
		{"pole", 3857, orb.Point{0, -242528680.94}, deadletter.ReasonOutOfTargetDomain},
		{"x beyond the world", 3857, orb.Point{2.1e7, 0}, deadletter.ReasonOutOfTargetDomain},
		{"crossing", 3857, orb.LineString{{-2e7, 0}, {2e7, 1}}, deadletter.ReasonAntimeridian},
		{"latitude beyond the pole", 4326, orb.Point{0, 91}, deadletter.ReasonOutOfTargetDomain},
		{"far from the target's area", 26910, orb.Point{1e7, 5e6}, deadletter.ReasonOutOfTargetDomain},
		{"where the target has no datum shift", 27700, orb.Point{720000, 300000}, deadletter.ReasonOutOfTargetDomain},
		{"unlisted target", 990001, orb.Point{1, 1}, ""},
		{"sentinel in an unlisted target", 990001, orb.Point{1e308, 1}, deadletter.ReasonOutOfTargetDomain},
		{"nothing", 3857, nil, deadletter.ReasonNullGeometry},
		{"no code", 0, orb.Point{1, 1}, deadletter.ReasonUnknownCRS},
	} {
		t.Run(tt.situation, func(t *testing.T) {
			t.Parallel()
			if err := crs.CheckTarget(tt.target, tt.geometry); reasonOf(err) != tt.reason {
				t.Errorf("got %v, want reason %q", err, tt.reason)
			}
		})
	}
	if err := crs.CheckTarget(27700, orb.Point{720000, 300000}, crs.AllowBallpark()); err != nil {
		t.Errorf("ballpark allowed: %v", err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		target int
		within orb.Bound // the bounds hold this
		inside orb.Bound // and lie in this
	}{
		{3857, orb.Bound{Min: orb.Point{-20037508.34, -20048966.10}, Max: orb.Point{20037508.34, 20048966.10}}, orb.Bound{Min: orb.Point{-20037508.36, -20048966.12}, Max: orb.Point{20037508.36, 20048966.12}}},
		{4326, orb.Bound{Min: orb.Point{-180, -90}, Max: orb.Point{180, 90}}, orb.Bound{Min: orb.Point{-180, -90}, Max: orb.Point{180, 90}}},
		{26910, orb.Bound{Min: orb.Point{200000, 3400000}, Max: orb.Point{800000, 9000000}}, orb.Bound{Min: orb.Point{-500000, 0}, Max: orb.Point{1500000, 1e7}}},
		{27700, orb.Bound{Min: orb.Point{0, 0}, Max: orb.Point{700000, 1300000}}, orb.Bound{Min: orb.Point{-1000000, -1000000}, Max: orb.Point{2000000, 3000000}}},
	} {
		b, ok := crs.Bounds(tt.target)
		if !ok || !b.Contains(tt.within.Min) || !b.Contains(tt.within.Max) || !tt.inside.Contains(b.Min) || !tt.inside.Contains(b.Max) {
			t.Errorf("Bounds(%d) = %v, %t", tt.target, b, ok)
		}
	}
	for _, code := range []int{0, 990001, 4978} {
		if b, ok := crs.Bounds(code); ok {
			t.Errorf("Bounds(%d) = %v, want nothing", code, b)
		}
	}
}

// TestReference goes through the library's own machinery, geocentric coordinates
// included, with this package's projections plugged in: the fast path must agree.
func TestReference(t *testing.T) {
	t.Parallel()
	web, err := crs.Reference(3857)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range samples(t) {
		if n++; n%5 != 0 {
			continue
		}
		source, err := crs.Reference(s.code)
		if err != nil {
			t.Fatal(err)
		}
		x, y, _, err := wgs84.SafeTransform(source, web)(s.xy[0], s.xy[1], 0)
		if err != nil {
			continue // on the border of an area of use, which the library takes strictly
		}
		// The trip between two ellipsoids that differ by 0.1 mm shows.
		if d := math.Hypot(x-s.web[0], y-s.web[1]); !(d < 2e-3) {
			t.Errorf("%d: %v -> %v, %v, PROJ has %v", s.code, s.xy, x, y, s.web)
		}
	}
	if _, err := crs.Reference(27700); reasonOf(err) != deadletter.ReasonUnsupportedCRS {
		t.Errorf("Reference(27700): %v", err)
	}
	if _, err := crs.Reference(0); reasonOf(err) != deadletter.ReasonUnknownCRS {
		t.Errorf("Reference(0): %v", err)
	}
	lonLat, err := crs.Reference(4258)
	if err != nil || !lonLat.Contains(10, 50) || lonLat.Contains(-100, 50) {
		t.Errorf("Reference(4258) = %v, %v: its area is Europe", lonLat, err)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for code := 32601; code <= 32660; code++ {
				tr, err := crs.New(code, 3857)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := tr.Transform(orb.Point{500000, 5e6}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestAllocations: what a geometry costs in memory does not grow with its vertices,
// but for the result itself.
func TestAllocations(t *testing.T) {
	tr := transformer(t, 26910, 3857)
	count := func(n int) float64 {
		r := make(orb.Ring, n)
		for i := range r {
			r[i] = orb.Point{500000 + float64(i), 5e6}
		}
		g := orb.Geometry(orb.Polygon{r})
		return testing.AllocsPerRun(20, func() {
			if _, err := tr.Transform(g); err != nil {
				t.Fatal(err)
			}
		})
	}
	if small, large := count(10), count(10000); large > small {
		t.Errorf("%v allocations for 10 vertices, %v for 10,000", small, large)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	utm, err := crs.Describe(26910)
	if err != nil {
		t.Fatal(err)
	}
	if utm.Name != "NAD83 / UTM zone 10N" || utm.Kind != crs.KindProjected || utm.Service != crs.ServiceComputed || utm.Base != 4269 || utm.Accuracy != 4 {
		t.Errorf("26910: %+v", utm)
	}
	if want := (orb.Bound{Min: orb.Point{-126, 30.54}, Max: orb.Point{-119.99, 81.8}}); utm.Area != want {
		t.Errorf("26910: area of use %v, want %v", utm.Area, want)
	}
	grid, err := crs.Describe(27700)
	if err != nil {
		t.Fatal(err)
	}
	if grid.Service != crs.ServiceLimited || len(grid.Served) == 0 {
		t.Errorf("27700: %+v", grid)
	}
	nad27, err := crs.Describe(26710)
	if err != nil {
		t.Fatal(err)
	}
	if nad27.Service != crs.ServiceBallpark {
		t.Errorf("26710: %+v", nad27)
	}
	compound, err := crs.Describe(7405)
	if err != nil || compound.Code != 27700 {
		t.Errorf("7405: %+v, %v", compound, err)
	}
	if own, err := crs.Describe(990001); err != nil || own.Kind != crs.KindUnlisted || own.Service != crs.ServicePostGIS {
		t.Errorf("990001: %+v, %v", own, err)
	}
}
