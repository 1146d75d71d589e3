package projection_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/wroge/wgs84"

	"geodlq/shared/crs/internal/projection"
)

type ellipsoid struct{ a, fi float64 }

func (e ellipsoid) A() float64  { return e.a }
func (e ellipsoid) Fi() float64 { return e.fi }

var (
	grs80      = ellipsoid{6378137, 298.257222101}
	wgs        = ellipsoid{6378137, 298.257223563}
	airy       = ellipsoid{6377563.396, 299.3249646}
	bessel     = ellipsoid{6377397.155, 299.1528128}
	clarke1866 = ellipsoid{6378206.4, 294.9786982139}
	krassowsky = ellipsoid{6378245, 298.3}
)

const usFoot = 12 / 39.37

// forward and inverse take latitudes as angles.
func forward(p projection.Projection, lon, lat float64) (east, north float64) {
	sin, cos := math.Sincos(lat)
	return p.Forward(lon, sin, cos)
}

func inverse(p projection.Projection, east, north float64) (lon, lat float64) {
	lon, sin, cos := p.Inverse(east, north)
	return lon, math.Atan2(sin, cos)
}

func dms(sign float64, d, m, s float64) float64 { return sign * (d + m/60 + s/3600) }

// TestGuidanceNote holds every method against the worked example of the EPSG
// Guidance Note 7-2 (IOGP 373-7-2), which is good to a centimetre.
func TestGuidanceNote(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		on          ellipsoid
		p           projection.Parameters
		lon, lat    float64
		east, north float64
	}{
		{
			"transverse Mercator, British National Grid", airy,
			projection.Parameters{Method: projection.TransverseMercator, Latitude: 49, Longitude: -2, Scale: 0.9996012717, East: 400000, North: -100000, Unit: 1},
			0.5, 50.5, 577274.99, 69740.50,
		},
		{
			"Lambert conformal 1SP, Jamaica", clarke1866,
			projection.Parameters{Method: projection.LambertConformal1SP, Latitude: 18, Longitude: -77, Scale: 1, East: 250000, North: 150000, Unit: 1},
			dms(-1, 76, 56, 37.26), dms(1, 17, 55, 55.80), 255966.58, 142493.51,
		},
		{
			"Lambert conformal 2SP, Texas South Central", clarke1866,
			projection.Parameters{Method: projection.LambertConformal2SP, Latitude: dms(1, 27, 50, 0), Longitude: -99, Parallel1: dms(1, 28, 23, 0), Parallel2: dms(1, 30, 17, 0), East: 2000000, Unit: usFoot},
			-96, 28.5, 2963503.91, 254759.80,
		},
		{
			"Albers, Great Lakes", grs80,
			projection.Parameters{Method: projection.Albers, Latitude: dms(1, 45, 34, 8.3172), Longitude: dms(-1, 84, 27, 21.438), Parallel1: dms(1, 42, 7, 21.9864), Parallel2: dms(1, 49, 0, 54.648), East: 1000000, North: 1000000, Unit: 1},
			-78.75, 42.75, 1466493.492, 702903.006,
		},
		{
			"Lambert azimuthal, Europe", grs80,
			projection.Parameters{Method: projection.LambertAzimuthal, Latitude: 52, Longitude: 10, East: 4321000, North: 3210000, Unit: 1},
			5, 50, 3962799.45, 2999718.85,
		},
		{
			"polar stereographic A, UPS North", wgs,
			projection.Parameters{Method: projection.PolarStereographicA, Latitude: 90, Scale: 0.994, East: 2000000, North: 2000000, Unit: 1},
			44, 73, 3320416.75, 632668.43,
		},
		{
			"polar stereographic B, Australian Antarctic", wgs,
			projection.Parameters{Method: projection.PolarStereographicB, Latitude: -71, Longitude: 70, East: 6000000, North: 6000000, Unit: 1},
			120, -75, 7255380.79, 7053389.56,
		},
		{
			"Mercator A, Makassar", bessel,
			projection.Parameters{Method: projection.MercatorA, Longitude: 110, Scale: 0.997, East: 3900000, North: 900000, Unit: 1},
			120, -3, 5009726.58, 569150.82,
		},
		{
			"Mercator B, Caspian Sea", krassowsky,
			projection.Parameters{Method: projection.MercatorB, Latitude: 42, Longitude: 51, Unit: 1},
			53, 53, 165704.29, 5171848.07,
		},
		{
			"web Mercator", wgs,
			projection.Parameters{Method: projection.WebMercator, Unit: 1},
			dms(-1, 100, 20, 0), dms(1, 24, 22, 54.433), -11169055.58, 2800000.00,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := projection.New(tt.on, tt.p)
			if err != nil {
				t.Fatal(err)
			}
			east, north := p.FromLonLat(tt.lon, tt.lat, tt.on)
			if math.Abs(east-tt.east) > 0.01 || math.Abs(north-tt.north) > 0.01 {
				t.Errorf("forward (%v, %v) = (%.3f, %.3f), want (%v, %v)", tt.lon, tt.lat, east, north, tt.east, tt.north)
			}
			lon, lat := p.ToLonLat(tt.east, tt.north, tt.on)
			if math.Abs(lon-tt.lon) > 1e-7 || math.Abs(lat-tt.lat) > 1e-7 {
				t.Errorf("inverse (%v, %v) = (%.9f, %.9f), want (%v, %v)", tt.east, tt.north, lon, lat, tt.lon, tt.lat)
			}
		})
	}
}

// families are one projection of each kind with the area it must be good in.
var families = []struct {
	name                     string
	on                       ellipsoid
	p                        projection.Parameters
	west, south, east, north float64
}{
	{"UTM 10N", grs80, projection.Parameters{Method: projection.TransverseMercator, Longitude: -123, Scale: 0.9996, East: 500000, Unit: 1}, -135, -80, -111, 84},
	{"UTM 60S across the antimeridian", wgs, projection.Parameters{Method: projection.TransverseMercator, Longitude: 177, Scale: 0.9996, East: 500000, North: 1e7, Unit: 1}, 171, -80, 185, 0},
	{"state plane in feet", grs80, projection.Parameters{Method: projection.LambertConformal2SP, Latitude: 36.5, Longitude: -119, Parallel1: 37.75, Parallel2: 39.5, East: 6561666.667, North: 1640416.667, Unit: usFoot}, -130, 25, -110, 50},
	{"Lambert 2SP in the south", grs80, projection.Parameters{Method: projection.LambertConformal2SP, Latitude: -32, Longitude: 135, Parallel1: -28, Parallel2: -36, East: 1000000, North: 2000000, Unit: 1}, 100, -60, 170, 0},
	{"Albers, United States", grs80, projection.Parameters{Method: projection.Albers, Latitude: 23, Longitude: -96, Parallel1: 29.5, Parallel2: 45.5, Unit: 1}, -150, 10, -40, 75},
	{"Albers in the south", grs80, projection.Parameters{Method: projection.Albers, Longitude: 132, Parallel1: -18, Parallel2: -36, Unit: 1}, 90, -70, 175, 5},
	{"Lambert azimuthal, oblique", grs80, projection.Parameters{Method: projection.LambertAzimuthal, Latitude: 52, Longitude: 10, East: 4321000, North: 3210000, Unit: 1}, -60, -10, 80, 89},
	{"Lambert azimuthal, north polar", wgs, projection.Parameters{Method: projection.LambertAzimuthal, Latitude: 90, Longitude: -150, Unit: 1}, -180, 30, 180, 90},
	{"Lambert azimuthal, south polar", wgs, projection.Parameters{Method: projection.LambertAzimuthal, Latitude: -90, Unit: 1}, -180, -90, 180, -30},
	{"polar stereographic, north", wgs, projection.Parameters{Method: projection.PolarStereographicB, Latitude: 70, Longitude: -45, Unit: 1}, -180, 30, 180, 90},
	{"polar stereographic, south", wgs, projection.Parameters{Method: projection.PolarStereographicA, Latitude: -90, Scale: 0.994, East: 2e6, North: 2e6, Unit: 1}, -180, -90, 180, -30},
	{"Mercator A", wgs, projection.Parameters{Method: projection.MercatorA, Scale: 1, Unit: 1}, -180, -85, 180, 85},
	{"Mercator B off centre", wgs, projection.Parameters{Method: projection.MercatorB, Latitude: -41, Longitude: 100, Unit: 1}, 60, -60, 250, 0},
	{"web Mercator", wgs, projection.Parameters{Method: projection.WebMercator, Unit: 1}, -180, -85.06, 180, 85.06},
}

// TestRoundTrip goes there and back at random positions: within a micrometre on
// the ground (two millimetres for Lambert azimuthal, whose prescribed inverse is no
// better), and the same bits each time.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for i, tt := range families {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := projection.New(tt.on, tt.p)
			if err != nil {
				t.Fatal(err)
			}
			within := 1e-6
			if tt.p.Method == projection.LambertAzimuthal {
				within = 2e-3
			}
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 2000 {
				lon := projection.Radians(tt.west + (tt.east-tt.west)*rng.Float64())
				lat := projection.Radians(tt.south + (tt.north-tt.south)*rng.Float64())
				x, y := forward(p, lon, lat)
				lon1, lat1 := inverse(p, x, y)
				dlon := math.Remainder(lon1-lon, 2*math.Pi) * math.Cos(lat)
				if d := math.Hypot(dlon, lat1-lat) * tt.on.a; !(d < within) {
					t.Fatalf("(%.9f, %.9f) -> (%.6f, %.6f) -> (%.9f, %.9f): %g m away",
						projection.Degrees(lon), projection.Degrees(lat), x, y, projection.Degrees(lon1), projection.Degrees(lat1), d)
				}
				if x1, y1 := forward(p, lon, lat); x1 != x || y1 != y {
					t.Fatalf("the same position gave (%v, %v) and then (%v, %v)", x, y, x1, y1)
				}
				if lon1 < -math.Pi || lon1 > math.Pi {
					t.Fatalf("longitude %v is not within half a turn", lon1)
				}
			}
		})
	}
}

// TestShape checks what defines a projection independently of its formulas:
// conformal ones keep right angles and scale alike in both directions, equal-area
// ones keep the area of an infinitesimal cell of the ellipsoid.
func TestShape(t *testing.T) {
	t.Parallel()
	const h = 1e-6
	for i, tt := range families {
		if tt.p.Method == projection.WebMercator {
			continue // neither, which is what it is known for
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := projection.New(tt.on, tt.p)
			if err != nil {
				t.Fatal(err)
			}
			equalArea := tt.p.Method == projection.Albers || tt.p.Method == projection.LambertAzimuthal
			f := 1 / tt.on.fi
			e2 := f * (2 - f)
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for range 200 {
				// Clear of the borders, where a difference would reach beyond a pole or cut.
				lon := projection.Radians(tt.west + (tt.east-tt.west)*(0.01+0.98*rng.Float64()))
				lat := projection.Radians(tt.south + (tt.north-tt.south)*(0.01+0.98*rng.Float64()))
				x0, y0 := forward(p, lon-h, lat)
				x1, y1 := forward(p, lon+h, lat)
				x2, y2 := forward(p, lon, lat-h)
				x3, y3 := forward(p, lon, lat+h)
				w := 1 - e2*math.Sin(lat)*math.Sin(lat)
				parallel := tt.on.a / math.Sqrt(w) * math.Cos(lat)       // metres a radian of longitude
				meridian := tt.on.a * (1 - e2) / (w * math.Sqrt(w))      // and of latitude
				ex, ey := (x1-x0)/(2*h*parallel), (y1-y0)/(2*h*parallel) // unit vector east on the map
				nx, ny := (x3-x2)/(2*h*meridian), (y3-y2)/(2*h*meridian) // and north
				ex, ey, nx, ny = ex*tt.p.Unit, ey*tt.p.Unit, nx*tt.p.Unit, ny*tt.p.Unit
				var err error
				switch scale := math.Hypot(ex, ey); {
				case equalArea && math.Abs(ex*ny-ey*nx-1) > 1e-6:
					err = fmt.Errorf("a cell's area is multiplied by %.9f", ex*ny-ey*nx)
				case !equalArea && math.Abs(ex-ny) > 1e-6*scale, !equalArea && math.Abs(ey+nx) > 1e-6*scale:
					err = fmt.Errorf("east goes to (%.9f, %.9f), north to (%.9f, %.9f)", ex, ey, nx, ny)
				}
				if err != nil {
					t.Fatalf("at %.6f, %.6f: %v", projection.Degrees(lon), projection.Degrees(lat), err)
				}
			}
		})
	}
}

// TestSpecialPositions are those where a formula divides by zero or takes the
// logarithm of one.
func TestSpecialPositions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		p        projection.Parameters
		lon, lat float64
	}{
		{"origin of Lambert azimuthal", projection.Parameters{Method: projection.LambertAzimuthal, Latitude: 52, Longitude: 10, Unit: 1}, 10, 52},
		{"north pole in polar Lambert azimuthal", projection.Parameters{Method: projection.LambertAzimuthal, Latitude: 90, Unit: 1}, 0, 90},
		{"south pole in polar stereographic", projection.Parameters{Method: projection.PolarStereographicB, Latitude: -71, Unit: 1}, 0, -90},
		{"pole in UTM", projection.Parameters{Method: projection.TransverseMercator, Longitude: 9, Scale: 0.9996, East: 500000, Unit: 1}, 9, 90},
		{"pole in Lambert conformal", projection.Parameters{Method: projection.LambertConformal2SP, Latitude: 40, Longitude: -96, Parallel1: 33, Parallel2: 45, Unit: 1}, -96, 90},
		{"equator and prime meridian in Mercator", projection.Parameters{Method: projection.MercatorA, Scale: 1, Unit: 1}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := projection.New(wgs, tt.p)
			if err != nil {
				t.Fatal(err)
			}
			x, y := forward(p, projection.Radians(tt.lon), projection.Radians(tt.lat))
			lon, lat := inverse(p, x, y)
			d := math.Hypot((projection.Degrees(lon)-tt.lon)*math.Cos(projection.Radians(tt.lat)), projection.Degrees(lat)-tt.lat) * 111320
			if !(d < 1e-6) {
				t.Errorf("(%v, %v) -> (%v, %v) -> (%v, %v)", tt.lon, tt.lat, x, y, projection.Degrees(lon), projection.Degrees(lat))
			}
		})
	}
}

// TestRoundedWorldEdge: a Web Mercator x that was rounded up past the edge of the
// map stays at that edge.
func TestRoundedWorldEdge(t *testing.T) {
	t.Parallel()
	for _, method := range []projection.Method{projection.WebMercator, projection.MercatorA} {
		p, err := projection.New(wgs, projection.Parameters{Method: method, Scale: 1, Unit: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []float64{20037508.342789244, 20037508.3428, 20037508.35} {
			if lon, _ := inverse(p, x, 0); lon != math.Pi {
				t.Errorf("method %d: x %v is at %v degrees, want 180", method, x, projection.Degrees(lon))
			}
			if lon, _ := inverse(p, -x, 0); lon != -math.Pi {
				t.Errorf("method %d: x %v is at %v degrees, want -180", method, -x, projection.Degrees(lon))
			}
		}
	}
}

// TestOtherSpheroid moves a projection to another datum through the library's
// interface: the constants must follow the spheroid of the call.
func TestOtherSpheroid(t *testing.T) {
	t.Parallel()
	params := projection.Parameters{Method: projection.TransverseMercator, Latitude: 49, Longitude: -2, Scale: 0.9996012717, East: 400000, North: -100000, Unit: 1}
	onGRS80, err := projection.New(wgs84.GRS80{}, params)
	if err != nil {
		t.Fatal(err)
	}
	east, north := onGRS80.FromLonLat(0.5, 50.5, wgs84.Airy{})
	if math.Abs(east-577274.99) > 0.01 || math.Abs(north-69740.50) > 0.01 {
		t.Errorf("on the Airy spheroid: (%.3f, %.3f), want the guidance note's (577274.99, 69740.50)", east, north)
	}
	lon, lat := onGRS80.ToLonLat(577274.99, 69740.50, wgs84.Airy{})
	if math.Abs(lon-0.5) > 1e-7 || math.Abs(lat-50.5) > 1e-7 {
		t.Errorf("and back: (%.9f, %.9f), want (0.5, 50.5)", lon, lat)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		on   wgs84.Spheroid
		p    projection.Parameters
	}{
		{"unknown method", wgs, projection.Parameters{Method: 9819, Unit: 1}},
		{"no unit", wgs, projection.Parameters{Method: projection.Albers}},
		{"a sphere given as flattening zero", ellipsoid{6371000, 0}, projection.Parameters{Method: projection.Albers, Unit: 1}},
		{"no pole", wgs, projection.Parameters{Method: projection.PolarStereographicA, Scale: 1, Unit: 1}},
	} {
		if p, err := projection.New(tt.on, tt.p); err == nil {
			t.Errorf("%s: New gave %T", tt.name, p)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, tt := range families {
		p, err := projection.New(tt.on, tt.p)
		if err != nil {
			t.Fatal(err)
		}
		lon := projection.Radians((tt.west + tt.east) / 2)
		sin, cos := math.Sincos(projection.Radians((tt.south + tt.north) / 2))
		if n := testing.AllocsPerRun(100, func() {
			east, north := p.Forward(lon, sin, cos)
			p.Inverse(east, north)
		}); n != 0 {
			t.Errorf("%s: %v allocations a position", tt.name, n)
		}
	}
}

// FuzzInverse: whatever the coordinates, an inverse does not panic and gives no
// longitude beyond half a turn; as far as a projection can be used at all, it gives
// no latitude beyond the poles either.
func FuzzInverse(f *testing.F) {
	for i := range families {
		f.Add(i, 500000.0, 5e6)
		f.Add(i, -1e308, 1e308)
		f.Add(i, math.Inf(1), math.NaN())
	}
	f.Fuzz(func(t *testing.T, i int, x, y float64) {
		tt := families[int(uint(i)%uint(len(families)))]
		p, err := projection.New(tt.on, tt.p)
		if err != nil {
			t.Fatal(err)
		}
		lon, lat := inverse(p, x, y)
		if math.Abs(lat) > math.Pi/2+1e-9 && math.Abs(x) < 1.2e7 && math.Abs(y) < 1.2e7 {
			t.Errorf("%s: (%v, %v) is at latitude %v", tt.name, x, y, projection.Degrees(lat))
		}
		if tt.p.Method != projection.WebMercator && math.Abs(lon) > math.Pi {
			t.Errorf("%s: (%v, %v) is at longitude %v", tt.name, x, y, projection.Degrees(lon))
		}
	})
}
