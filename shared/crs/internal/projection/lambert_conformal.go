package projection

import (
	"math"

	"github.com/wroge/wgs84"
)

// lambertConformal is Lambert Conic Conformal with one (EPSG method 9801) or two
// standard parallels (9802).
type lambertConformal struct {
	base
	cone   float64 // n, sine of the cone's half angle
	radius float64 // of the equator on the map, times scale; units of the CRS
	rho0   float64 // radius at the origin
}

func newLambertConformal(s wgs84.Spheroid, p Parameters) *lambertConformal {
	l := &lambertConformal{base: newBase(s, p)}
	lat1, lat2, scale := p.Parallel1, p.Parallel2, 1.0
	if p.Method == LambertConformal1SP {
		lat1, lat2, scale = p.Latitude, p.Latitude, p.Scale
	}
	s1, c1 := math.Sincos(radians(lat1))
	l.cone = s1
	if lat1 != lat2 {
		s2, c2 := math.Sincos(radians(lat2))
		l.cone = math.Log(l.m(s1, c1)/l.m(s2, c2)) / (l.isometric(s2, c2) - l.isometric(s1, c1))
	}
	l.radius = l.a * scale * l.m(s1, c1) / l.cone * math.Exp(l.cone*l.isometric(s1, c1)) * l.unit
	l.rho0 = l.rho(math.Sincos(radians(p.Latitude)))
	return l
}

// rho is the radius on the map of the parallel with sine s and cosine c; it has
// the sign of the cone.
func (l *lambertConformal) rho(s, c float64) float64 {
	return l.radius * math.Exp(-l.cone*l.isometric(s, c))
}

func (l *lambertConformal) Forward(lon, sin, cos float64) (east, north float64) {
	r := l.rho(sin, cos)
	s, c := math.Sincos(l.cone * wrap(lon-l.lon0))
	return r*s + l.east, l.rho0 - r*c + l.north
}

func (l *lambertConformal) Inverse(east, north float64) (lon, sin, cos float64) {
	x, y := east-l.east, l.rho0-(north-l.north)
	if l.cone < 0 {
		x, y = -x, -y
	}
	r2 := (x*x + y*y) / (l.radius * l.radius)
	sin, cos = l.fromExpIsometric(math.Exp(-math.Log(r2) / (2 * l.cone)))
	return wrap(math.Atan2(x, y)/l.cone + l.lon0), sin, cos
}

func (l *lambertConformal) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(l, &l.base, east, north, s)
}

func (l *lambertConformal) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(l, &l.base, lon, lat, s)
}
