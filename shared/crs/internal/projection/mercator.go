package projection

import (
	"math"

	"github.com/wroge/wgs84"
)

// mercator is Mercator variant A (EPSG method 9804: a scale at the equator) and B
// (9805: a standard parallel).
type mercator struct {
	base
	radius float64 // units of the CRS
}

func newMercator(s wgs84.Spheroid, p Parameters) *mercator {
	m := &mercator{base: newBase(s, p)}
	scale := p.Scale
	if p.Method == MercatorB {
		sin, cos := math.Sincos(radians(p.Latitude))
		scale = m.m(sin, cos)
	}
	m.radius = m.a * scale * m.unit
	return m
}

func (m *mercator) Forward(lon, sin, cos float64) (east, north float64) {
	return m.radius*wrap(lon-m.lon0) + m.east, m.radius*m.isometric(sin, cos) + m.north
}

func (m *mercator) Inverse(east, north float64) (lon, sin, cos float64) {
	sin, cos = m.fromExpIsometric(math.Exp((north - m.north) / m.radius))
	return wrap(toEdge((east-m.east)/m.radius) + m.lon0), sin, cos
}

func (m *mercator) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(m, &m.base, east, north, s)
}

func (m *mercator) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(m, &m.base, lon, lat, s)
}

// toEdge brings an angle that is past half a turn by no more than a centimetre on
// the ground, as by a rounded 20037508.35, back to half a turn. Wrapped instead, it
// would jump to the other edge of the map.
func toEdge(lon float64) float64 {
	const centimetre = 2e-9
	if a := math.Abs(lon); a > math.Pi && a < math.Pi+centimetre {
		return math.Copysign(math.Pi, lon)
	}
	return lon
}

// webMercator is the Popular Visualisation Pseudo-Mercator, EPSG method 1024: the
// spherical Mercator formula on geodetic latitude.
type webMercator struct {
	base
	radius  float64 // units of the CRS
	inverse float64
}

func newWebMercator(s wgs84.Spheroid, p Parameters) *webMercator {
	w := &webMercator{base: newBase(s, p)}
	w.radius = w.a * w.unit
	w.inverse = 1 / w.radius
	return w
}

func (w *webMercator) Forward(lon, sin, _ float64) (east, north float64) {
	// atanh as one logarithm: the latitudes of this projection keep clear of the
	// poles, where its rounding would show.
	return w.radius*(lon-w.lon0) + w.east, w.radius*0.5*math.Log((1+sin)/(1-sin)) + w.north
}

func (w *webMercator) Inverse(east, north float64) (lon, sin, cos float64) {
	lon = toEdge((east-w.east)*w.inverse) + w.lon0
	// The latitude is the Gudermannian of the northing.
	ex := math.Exp((north - w.north) * w.inverse)
	h := 1 / (ex*ex + 1)
	return lon, (ex - 1) * (ex + 1) * h, 2 * ex * h
}

func (w *webMercator) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(w, &w.base, east, north, s)
}

func (w *webMercator) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(w, &w.base, lon, lat, s)
}
