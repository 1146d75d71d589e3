package projection

import (
	"math"

	"github.com/wroge/wgs84"
)

// lambertAzimuthal is Lambert Azimuthal Equal Area, EPSG method 9820, oblique,
// equatorial and polar.
type lambertAzimuthal struct {
	base
	sin0, cos0 float64 // of the authalic latitude of origin
	pole       float64 // +1, -1 when the origin is a pole, else 0
	rq         float64 // radius of the authalic sphere, units of the CRS
	d          float64
}

func newLambertAzimuthal(s wgs84.Spheroid, p Parameters) *lambertAzimuthal {
	l := &lambertAzimuthal{base: newBase(s, p)}
	l.fromAuthalic = fromAuthalicE6(l.e2)
	l.rq = l.a * math.Sqrt(l.qp/2) * l.unit
	sin, cos := math.Sincos(radians(p.Latitude))
	if math.Abs(p.Latitude) == 90 {
		l.pole = math.Copysign(1, p.Latitude)
		return l
	}
	l.sin0 = l.q(sin) / l.qp
	l.cos0 = math.Sqrt((1 - l.sin0) * (1 + l.sin0))
	l.d = l.a * l.unit * l.m(sin, cos) / (l.rq * l.cos0)
	return l
}

func (l *lambertAzimuthal) Forward(lon, sinLat, cosLat float64) (east, north float64) {
	sinLon, cosLon := math.Sincos(lon - l.lon0)
	if l.pole != 0 {
		r := l.a * l.unit
		if s := l.pole * sinLat; s >= 0 {
			r *= math.Sqrt(l.polarQ(s, cosLat))
		} else {
			r *= math.Sqrt(l.qp - l.q(s))
		}
		return l.east + r*sinLon, l.north - l.pole*r*cosLon
	}
	sin := l.q(sinLat) / l.qp
	cos := math.Sqrt(math.Max(0, (1-sin)*(1+sin)))
	b := l.rq * math.Sqrt(2/(1+l.sin0*sin+l.cos0*cos*cosLon))
	return l.east + b*l.d*cos*sinLon, l.north + b/l.d*(l.cos0*sin-l.sin0*cos*cosLon)
}

func (l *lambertAzimuthal) Inverse(east, north float64) (lon, sinLat, cosLat float64) {
	x, y := east-l.east, north-l.north
	if l.pole != 0 {
		u := (x*x + y*y) / (l.a * l.a * l.unit * l.unit * l.qp) // 1-sin β
		// Beyond the far pole the root is NaN, and so is the latitude.
		sin, cos := l.geodetic(1-u, math.Sqrt(u*(2-u)))
		return wrap(math.Atan2(x, -l.pole*y) + l.lon0), l.pole * sin, cos
	}
	x, y = x/l.d, y*l.d
	rho := math.Sqrt(x*x + y*y)
	if rho == 0 { // the origin itself has no direction
		sin, cos := math.Sincos(radians(l.params.Latitude))
		return l.lon0, sin, cos
	}
	half := rho / (2 * l.rq) // sine of half the angle from the origin
	if half > 1 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	cosHalf := math.Sqrt((1 - half) * (1 + half))
	sinC, cosC := 2*half*cosHalf, (cosHalf-half)*(cosHalf+half)
	// The position on the authalic sphere as a vector: up, and along the meridian
	// of origin and across it.
	x, y = x*sinC/rho, y*sinC/rho
	up, along := cosC*l.sin0+y*l.cos0, cosC*l.cos0-y*l.sin0
	sinLat, cosLat = l.geodetic(up, math.Sqrt(x*x+along*along))
	return wrap(math.Atan2(x, along) + l.lon0), sinLat, cosLat
}

func (l *lambertAzimuthal) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(l, &l.base, east, north, s)
}

func (l *lambertAzimuthal) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(l, &l.base, lon, lat, s)
}
