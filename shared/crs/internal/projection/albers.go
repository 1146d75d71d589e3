package projection

import (
	"math"

	"github.com/wroge/wgs84"
)

// albers is Albers Equal Area, EPSG method 9822.
type albers struct {
	base
	cone   float64 // n
	c      float64 // C
	radius float64 // semi-major axis over n, in units of the CRS
	rho0   float64
}

func newAlbers(s wgs84.Spheroid, p Parameters) *albers {
	a := &albers{base: newBase(s, p)}
	s1, c1 := math.Sincos(radians(p.Parallel1))
	m1 := a.m(s1, c1)
	a.cone = s1
	if p.Parallel1 != p.Parallel2 {
		s2, c2 := math.Sincos(radians(p.Parallel2))
		m2 := a.m(s2, c2)
		a.cone = (m1 - m2) * (m1 + m2) / (a.q(s2) - a.q(s1))
	}
	a.c = m1*m1 + a.cone*a.q(s1)
	a.radius = a.a / a.cone * a.unit
	a.rho0 = a.rho(math.Sin(radians(p.Latitude)))
	return a
}

func (a *albers) rho(s float64) float64 { return a.radius * math.Sqrt(a.c-a.cone*a.q(s)) }

func (a *albers) Forward(lon, sin, _ float64) (east, north float64) {
	r := a.rho(sin)
	s, c := math.Sincos(a.cone * wrap(lon-a.lon0))
	return r*s + a.east, a.rho0 - r*c + a.north
}

func (a *albers) Inverse(east, north float64) (lon, sin, cos float64) {
	x, y := east-a.east, a.rho0-(north-a.north)
	if a.cone < 0 {
		x, y = -x, -y
	}
	sin = (a.c - (x*x+y*y)/(a.radius*a.radius)) / (a.cone * a.qp)
	// Beyond the poles the root is NaN, and so is the latitude.
	sin, cos = a.geodetic(sin, math.Sqrt((1-sin)*(1+sin)))
	return wrap(math.Atan2(x, y)/a.cone + a.lon0), sin, cos
}

func (a *albers) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(a, &a.base, east, north, s)
}

func (a *albers) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(a, &a.base, lon, lat, s)
}
