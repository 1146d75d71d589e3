package crs

import (
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/paulmach/orb"
	"github.com/wroge/wgs84"

	"geodlq/shared/crs/internal/projection"
	"geodlq/shared/deadletter"
)

// margin is how far beyond its area of use a CRS takes positions, in degrees. The
// generator checks the projections against PROJ as far as that.
const margin = 3

// webMercatorLatitude is where the square world of the web maps ends (85.0511
// degrees), rounded up.
const webMercatorLatitude = 85.06

// edge is how far past the edge of a map of the whole world a coordinate may lie:
// a centimetre, for 20037508.35 and its like.
const edge = 0.01

// hugeCoordinate is beyond the coordinates of any CRS in any unit of length; no-data
// sentinels are far above it.
const hugeCoordinate = 1e9

// system is a CRS ready for work. It is immutable.
type system struct {
	info Info
	// computed CRSs only
	datum      wgs84.Datum
	projection projection.Projection // nil for a geographic CRS
	window     window

	extent orb.Bound // where coordinates are accepted; as large as floats go where nothing is known
	// turn is half a turn round the Earth in the unit of x, +Inf where x is not
	// proportional to longitude. Neighbours further apart cross the antimeridian.
	turn float64
}

// window is an area whose longitudes, in radians, are compared round the circle and
// whose latitudes are compared by their sines.
type window struct {
	middle, half float64
	south, north float64
}

func (w *window) contains(lon, sin float64) bool {
	d := lon - w.middle
	if d > math.Pi {
		d -= 2 * math.Pi
	} else if d < -math.Pi {
		d += 2 * math.Pi
	}
	return d >= -w.half && d <= w.half && sin >= w.south && sin <= w.north
}

// windowOf widens an area by a margin in degrees, and by a centimetre, so that a
// position on the border is inside however it is rounded.
func windowOf(area orb.Bound, margin float64) window {
	const hair = 1e-7
	margin += hair
	west, east := area.Min[0], area.Max[0]
	if east < west {
		east += 360
	}
	middle := (west + east) / 2
	if middle > 180 {
		middle -= 360
	}
	return window{
		middle: projection.Radians(middle),
		half:   projection.Radians(math.Min(180+hair, (east-west)/2+margin)),
		south:  sine(area.Min[1] - margin),
		north:  sine(area.Max[1] + margin),
	}
}

// sine of a latitude in degrees; beyond a pole it is out of reach of any latitude's,
// rounding errors included.
func sine(lat float64) float64 {
	if math.Abs(lat) >= 90 {
		return math.Copysign(2, lat)
	}
	return math.Sin(projection.Radians(lat))
}

// systems holds what has been asked for. It is bounded by the registry: codes that
// are not listed do not enter.
var systems sync.Map // int -> *system

// systemOf returns the CRS that positions labelled with a code are in, or a Fault
// when the code can be no SRID.
func systemOf(code int) (*system, error) {
	if s, ok := systems.Load(code); ok {
		return s.(*system), nil
	}
	if code <= 0 || code > maxSRID {
		return nil, deadletter.Faultf(deadletter.ReasonUnknownCRS, "", "%d is not a CRS code: codes are 1 to %d", code, maxSRID)
	}
	to, alias := aliasOf(code)
	if e, ok := lookup(code); ok && e.kind == "=" && !alias {
		to, alias = e.base, true
	}
	var s *system
	if alias {
		horizontal, err := systemOf(to)
		if err != nil {
			return nil, err
		}
		s = horizontal
	} else {
		e, listed := lookup(code)
		s = build(code, e, listed)
		if !listed {
			return s, nil
		}
	}
	kept, _ := systems.LoadOrStore(code, s)
	return kept.(*system), nil
}

// What the letters in registry.tsv stand for. An alias (kind "=") has no service; its
// base is the horizontal CRS.
var (
	kinds = map[string]Kind{
		"g": KindGeographic, "p": KindProjected, "x": KindGeocentric, "v": KindVertical, "o": KindOtherBody,
	}
	services = map[string]Service{
		"c": ServiceComputed, "s": ServicePostGIS, "l": ServiceLimited, "b": ServiceBallpark, "": ServiceNone,
	}
	everywhere = orb.Bound{
		Min: orb.Point{-hugeCoordinate, -hugeCoordinate},
		Max: orb.Point{hugeCoordinate, hugeCoordinate},
	}
)

func build(code int, e entry, listed bool) *system {
	s := &system{extent: everywhere, turn: math.Inf(1)}
	if !listed {
		s.info = Info{Code: code, Kind: KindUnlisted, Service: ServicePostGIS}
		return s
	}
	s.info = Info{
		Code: code, Authority: e.authority, Name: e.name,
		Kind: kinds[e.kind], Service: services[e.class], Base: e.base,
	}
	if s.info.Kind == "" || s.info.Service == "" {
		panic(fmt.Sprintf("crs: registry.tsv is damaged at code %d", code))
	}
	if e.accuracy != "" {
		s.info.Accuracy = number(e.accuracy)
	}
	if e.area != "" {
		s.info.Area, s.info.HasArea = bound(e.area), true
	}
	if e.served != "" {
		for _, b := range strings.Split(e.served, ";") {
			s.info.Served = append(s.info.Served, bound(b))
		}
	}
	if s.info.Service != ServiceNone {
		s.info.Unit = 1
		if e.unit != "" {
			s.info.Unit = number(e.unit)
		}
	}
	switch s.info.Kind {
	case KindGeographic:
		s.info.Base = code
		unit := s.info.Unit
		s.turn = 180 / unit
		s.extent = orb.Bound{Min: orb.Point{-180 / unit, -90 / unit}, Max: orb.Point{180 / unit, 90 / unit}}
		s.info.Extent, s.info.HasExtent = s.extent, true
	case KindProjected:
		if e.extent != "" {
			s.extent = bound(e.extent)
			s.info.Extent, s.info.HasExtent = s.extent, true
		}
	}
	if s.info.Service == ServiceComputed {
		s.compute(code)
	}
	return s
}

// ellipsoid is a [wgs84.Spheroid] that the library has no name for.
type ellipsoid struct{ a, fi float64 }

func (e ellipsoid) A() float64  { return e.a }
func (e ellipsoid) Fi() float64 { return e.fi }

func spheroidOf(a, fi float64) wgs84.Spheroid {
	grs80, wgs := wgs84.GRS80{}, wgs84.WGS84().Spheroid
	switch {
	case a == grs80.A() && fi == grs80.Fi():
		return grs80
	case a == wgs.A() && fi == wgs.Fi():
		return wgs
	default:
		return ellipsoid{a, fi}
	}
}

// compute adds datum, projection and domain of a computed CRS.
func (s *system) compute(code int) {
	a, fi, p, ok := parametersOf(code)
	if !ok || !s.info.HasArea {
		panic(fmt.Sprintf("crs: computed.tsv and registry.tsv disagree about code %d", code))
	}
	s.datum = wgs84.Datum{Spheroid: spheroidOf(a, fi), Area: areaFunc(s.info.Area)}
	if s.info.Kind == KindGeographic {
		return
	}
	var err error
	if s.projection, err = projection.New(s.datum, p); err != nil {
		panic(fmt.Sprintf("crs: computed.tsv is damaged at code %d: %v", code, err))
	}
	s.window = windowOf(s.info.Area, margin)
	switch p.Method {
	case projection.WebMercator:
		// The map is square: latitude ends where y is as large as x can be, and a
		// hundredth of a degree is left for data that was cut with a ruler.
		s.window = windowOf(orb.Bound{Min: orb.Point{-180, -webMercatorLatitude}, Max: orb.Point{180, webMercatorLatitude}}, 0)
		sin, cos := math.Sincos(projection.Radians(webMercatorLatitude))
		x, y := s.projection.Forward(math.Pi, sin, cos)
		s.turn = x
		s.extent = orb.Bound{Min: orb.Point{-x - edge, -y - edge}, Max: orb.Point{x + edge, y + edge}}
	case projection.MercatorA, projection.MercatorB:
		x0, _ := s.projection.Forward(projection.Radians(p.Longitude), 0, 1)
		x1, _ := s.projection.Forward(projection.Radians(p.Longitude)+1, 0, 1)
		s.turn = (x1 - x0) * math.Pi
		s.extent = s.window.project(s.projection)
		// Past the edge of the map there is nothing that is not on it already.
		s.extent.Min[0] = math.Max(s.extent.Min[0], x0-s.turn-edge)
		s.extent.Max[0] = math.Min(s.extent.Max[0], x0+s.turn+edge)
	default:
		s.extent = s.window.project(s.projection)
	}
	s.info.Extent, s.info.HasExtent = s.extent, true
}

// project returns the box around a window in a projection: the extremes of a dense
// grid and one hundredth of its size more, because an extreme may fall between.
func (w *window) project(p projection.Projection) orb.Bound {
	const steps = 48
	b := orb.Bound{Min: orb.Point{math.Inf(1), math.Inf(1)}, Max: orb.Point{math.Inf(-1), math.Inf(-1)}}
	half := math.Min(w.half, math.Pi)
	south, north := math.Asin(math.Max(-1, w.south)), math.Asin(math.Min(1, w.north))
	for i := 0; i <= steps; i++ {
		lon := w.middle + half*(2*float64(i)/steps-1)
		for j := 0; j <= steps; j++ {
			sin, cos := math.Sincos(south + (north-south)*float64(j)/steps)
			x, y := p.Forward(lon, sin, cos)
			if !finite(x, y) {
				continue
			}
			b = b.Extend(orb.Point{x, y})
		}
	}
	pad := math.Max(b.Max[0]-b.Min[0], b.Max[1]-b.Min[1]) / 100
	return b.Pad(pad)
}

func areaFunc(area orb.Bound) wgs84.AreaFunc {
	w := windowOf(area, 0)
	return func(lon, lat float64) bool {
		return w.contains(projection.Radians(lon), math.Sin(projection.Radians(lat)))
	}
}

// finite reports whether both are numbers; the difference of an infinity or NaN
// with itself is NaN.
func finite(x, y float64) bool { return x-x == 0 && y-y == 0 }

// Reference gives a computed CRS in the terms of [github.com/wroge/wgs84], for use
// with that library: its datum on its spheroid, this package's projection, and the
// area of use. A Fault says so when the CRS is not computed here.
func Reference(code int) (wgs84.CoordinateReferenceSystem, error) {
	s, err := systemOf(code)
	if err != nil {
		return nil, err
	}
	switch {
	case s.info.Service != ServiceComputed:
		return nil, deadletter.Faultf(deadletter.ReasonUnsupportedCRS, "", "%s is not computed here but in PostGIS", s.label())
	case s.projection == nil:
		return s.datum.LonLat(), nil
	default:
		return wgs84.ProjectedReferenceSystem{Datum: s.datum, Projection: s.projection, Area: s.datum.Area}, nil
	}
}

// label is how messages name the CRS.
func (s *system) label() string {
	if s.info.Authority == "" {
		return fmt.Sprintf("SRID %d", s.info.Code)
	}
	return fmt.Sprintf("%s:%d (%s)", s.info.Authority, s.info.Code, s.info.Name)
}
