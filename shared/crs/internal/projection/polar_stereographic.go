package projection

import (
	"fmt"
	"math"

	"github.com/wroge/wgs84"
)

// polarStereographic is Polar Stereographic variant A (EPSG method 9810: a scale
// at the pole) and B (9829: a standard parallel).
type polarStereographic struct {
	base
	pole   float64 // +1 north, -1 south
	radius float64 // ρ/t, units of the CRS
}

func newPolarStereographic(s wgs84.Spheroid, p Parameters) (*polarStereographic, error) {
	if p.Latitude == 0 {
		return nil, fmt.Errorf("build polar stereographic: latitude 0 says nothing about which pole")
	}
	t := &polarStereographic{base: newBase(s, p), pole: math.Copysign(1, p.Latitude)}
	// The guidance note's 2/√((1+e)^(1+e)·(1-e)^(1-e)): ρ over t where the scale at
	// the pole is 1.
	atPole := 2 / math.Sqrt(math.Pow(1+t.e, 1+t.e)*math.Pow(1-t.e, 1-t.e))
	switch {
	case p.Method == PolarStereographicA:
		t.radius = t.a * p.Scale * atPole
	case math.Abs(p.Latitude) == 90:
		t.radius = t.a * atPole
	default:
		sin, cos := math.Sincos(math.Abs(radians(p.Latitude)))
		t.radius = t.a * t.m(sin, cos) * math.Exp(t.isometric(sin, cos))
	}
	t.radius *= t.unit
	return t, nil
}

func (t *polarStereographic) Forward(lon, sin, cos float64) (east, north float64) {
	sinLon, cosLon := math.Sincos(lon - t.lon0)
	sin *= t.pole
	// exp(-isometric latitude) without the logarithm; tan(π/4-φ/2) = cos/(1+sin).
	r := t.radius * cos / (1 + sin) * math.Exp(t.e*smallAtanh(t.e*sin))
	return t.east + r*sinLon, t.north - t.pole*r*cosLon
}

func (t *polarStereographic) Inverse(east, north float64) (lon, sin, cos float64) {
	x, y := (east-t.east)/t.radius, (north-t.north)/t.radius
	r2 := x*x + y*y
	if r2 == 0 { // the pole, which has every longitude
		return t.lon0, t.pole, 0
	}
	sin, cos = t.fromExpIsometric(1 / math.Sqrt(r2))
	return wrap(math.Atan2(x, -t.pole*y) + t.lon0), t.pole * sin, cos
}

func (t *polarStereographic) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(t, &t.base, east, north, s)
}

func (t *polarStereographic) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(t, &t.base, lon, lat, s)
}
