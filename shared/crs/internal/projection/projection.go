// Package projection holds the map projections that package crs computes itself.
//
// Every projection is built once for one ellipsoid, with everything that depends
// on the CRS alone worked out beforehand, is immutable afterwards, and allocates
// nothing per position. Longitudes are radians from the prime meridian; a latitude
// is given by its sine and cosine, which is what nearly every formula wants and
// gives, so that no angle is worked out only to be taken apart again. Easting and
// northing are in the unit of the CRS and always in this order, whatever the
// authority's axis order.
//
// Formulas and names of parameters are those of the EPSG Guidance Note 7-2 (IOGP
// 373-7-2); where a series replaces an iteration, its source is named beside it.
package projection

import (
	"fmt"
	"math"

	"github.com/wroge/wgs84"
)

// Projection turns geographic positions into projected ones and back. It is a
// [wgs84.Projection] too, so it can be plugged into that library; Forward and
// Inverse are the same functions without degrees and without a change of spheroid.
type Projection interface {
	wgs84.Projection
	// Forward projects a longitude, and a latitude with the given sine and cosine, to
	// easting and northing.
	Forward(lon, sin, cos float64) (east, north float64)
	// Inverse is the reverse of Forward. Longitude is within [-π, π]. Outside the
	// domain of the projection the result may be NaN, never a panic.
	Inverse(east, north float64) (lon, sin, cos float64)
}

// Method is the EPSG code of a coordinate operation method.
type Method int

// The methods computed here.
const (
	LambertConformal1SP Method = 9801
	LambertConformal2SP Method = 9802
	MercatorA           Method = 9804
	MercatorB           Method = 9805
	TransverseMercator  Method = 9807
	PolarStereographicA Method = 9810
	LambertAzimuthal    Method = 9820
	Albers              Method = 9822
	PolarStereographicB Method = 9829
	WebMercator         Method = 1024
)

// Parameters define a projected CRS on its ellipsoid. What a method does not use
// stays zero.
type Parameters struct {
	Method    Method
	Latitude  float64 // of natural or false origin; of the standard parallel for polar stereographic B and Mercator B; degrees
	Longitude float64 // of natural or false origin, degrees
	Parallel1 float64 // first standard parallel, degrees
	Parallel2 float64 // second standard parallel, degrees
	Scale     float64 // factor at the natural origin
	East      float64 // false easting, in the unit of the CRS
	North     float64 // false northing, in the unit of the CRS
	Unit      float64 // metres in one unit of the CRS
}

// New builds the projection on spheroid s.
func New(s wgs84.Spheroid, p Parameters) (Projection, error) {
	if !(p.Unit > 0) {
		return nil, fmt.Errorf("build projection method %d: unit %v is not a length in metres", p.Method, p.Unit)
	}
	if !(s.A() > 0) || !(s.Fi() > 1) {
		return nil, fmt.Errorf("build projection method %d: a=%v 1/f=%v is no ellipsoid", p.Method, s.A(), s.Fi())
	}
	switch p.Method {
	case TransverseMercator:
		return newTransverseMercator(s, p), nil
	case LambertConformal1SP, LambertConformal2SP:
		return newLambertConformal(s, p), nil
	case Albers:
		return newAlbers(s, p), nil
	case LambertAzimuthal:
		return newLambertAzimuthal(s, p), nil
	case PolarStereographicA, PolarStereographicB:
		return newPolarStereographic(s, p)
	case MercatorA, MercatorB:
		return newMercator(s, p), nil
	case WebMercator:
		return newWebMercator(s, p), nil
	default:
		return nil, fmt.Errorf("build projection: method EPSG:%d is not computed here", p.Method)
	}
}

// base is what all projections share: the ellipsoid, the frame of the CRS and the
// way into the library's interface.
type base struct {
	params Parameters
	spheroid
	lon0        float64 // radians
	unit        float64 // units of the CRS in one metre
	east, north float64
}

func newBase(s wgs84.Spheroid, p Parameters) base {
	return base{
		params:   p,
		spheroid: newSpheroid(s),
		lon0:     radians(p.Longitude),
		unit:     1 / p.Unit,
		east:     p.East,
		north:    p.North,
	}
}

// on reports whether s is the ellipsoid the constants were worked out for.
func (b *base) on(s wgs84.Spheroid) bool { return s.A() == b.a && s.Fi() == b.fi }

// toLonLat and fromLonLat serve the library's interface: degrees, and a spheroid
// that comes with each call. One that differs from the projection's own means that
// somebody moved the projection to another datum; constants are then worked out anew.
func toLonLat(p Projection, b *base, east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	if !b.on(s) {
		other, err := New(s, b.params)
		if err != nil {
			return math.NaN(), math.NaN()
		}
		p = other
	}
	lon, sin, cos := p.Inverse(east, north)
	return Degrees(lon), Degrees(math.Atan2(sin, cos))
}

func fromLonLat(p Projection, b *base, lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	if !b.on(s) {
		other, err := New(s, b.params)
		if err != nil {
			return math.NaN(), math.NaN()
		}
		p = other
	}
	sin, cos := math.Sincos(radians(lat))
	return p.Forward(radians(lon), sin, cos)
}

const degree = math.Pi / 180

// Degrees turns radians into degrees.
func Degrees(r float64) float64 { return r / degree }

// Radians turns degrees into radians.
func Radians(d float64) float64 { return d * degree }

func radians(d float64) float64 { return d * degree }

// rotate returns sine and cosine of x+d from those of x, for the small corrections
// between auxiliary latitudes.
func rotate(sin, cos, d float64) (s, c float64) {
	sd, cd := smallSincos(d)
	return sin*cd + cos*sd, cos*cd - sin*sd
}

// wrap brings a longitude (or a difference of two) into [-π, π].
func wrap(lon float64) float64 {
	if lon >= -math.Pi && lon <= math.Pi {
		return lon
	}
	return wrapAround(lon)
}

func wrapAround(lon float64) float64 {
	// One turn is exact enough for a sum of two longitudes, and cheap.
	switch {
	case lon > math.Pi && lon <= 3*math.Pi:
		return lon - 2*math.Pi
	case lon < -math.Pi && lon >= -3*math.Pi:
		return lon + 2*math.Pi
	}
	return math.Remainder(lon, 2*math.Pi)
}
