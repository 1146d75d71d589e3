package projection

import (
	"math"

	"github.com/wroge/wgs84"
)

// transverseMercator is EPSG method 9807 in Krüger's series of sixth order in n:
// C. F. F. Karney, "Transverse Mercator with an accuracy of a few nanometers",
// Journal of Geodesy 85 (2011), equations 11, 12, 14, 35 and 36. It is good to
// nanometres within 3,900 km of the central meridian, so nothing limits it to a
// zone of six degrees.
type transverseMercator struct {
	base
	radius float64 // of the rectifying sphere times scale, in units of the CRS
	perR   float64 // 1/radius
	north0 float64 // northing of the equator on the central meridian
	alpha  series
	beta   series
}

var (
	krugerAlpha = [6][6]float64{
		{1. / 2, -2. / 3, 5. / 16, 41. / 180, -127. / 288, 7891. / 37800},
		{13. / 48, -3. / 5, 557. / 1440, 281. / 630, -1983433. / 1935360},
		{61. / 240, -103. / 140, 15061. / 26880, 167603. / 181440},
		{49561. / 161280, -179. / 168, 6601661. / 7257600},
		{34729. / 80640, -3418889. / 1995840},
		{212378941. / 319334400},
	}
	krugerBeta = [6][6]float64{
		{1. / 2, -2. / 3, 37. / 96, -1. / 360, -81. / 512, 96199. / 604800},
		{1. / 48, 1. / 15, -437. / 1440, 46. / 105, -1118711. / 3870720},
		{17. / 480, -37. / 840, -209. / 4480, 5569. / 90720},
		{4397. / 161280, -11. / 504, -830251. / 7257600},
		{4583. / 161280, -108847. / 3991680},
		{20648693. / 638668800},
	}
)

func newTransverseMercator(s wgs84.Spheroid, p Parameters) *transverseMercator {
	t := &transverseMercator{base: newBase(s, p)}
	n := t.n
	n2 := n * n
	rectifying := t.a / (1 + n) * (1 + n2/4 + n2*n2/64 + n2*n2*n2/256)
	t.radius = rectifying * p.Scale * t.unit
	t.perR = 1 / t.radius
	t.alpha = expand(n, krugerAlpha)
	t.beta = expand(n, krugerBeta)
	// The meridian arc to the latitude of origin is the forward series at longitude 0.
	sin, cos := math.Sincos(radians(p.Latitude))
	xi, _ := t.rectify(sin, cos, 0, 1)
	t.north0 = t.north - t.radius*xi
	return t
}

// rectify returns ξ and η of a position given by sine and cosine of its latitude
// and of its longitude from the central meridian.
func (t *transverseMercator) rectify(sin, cos, sinLon, cosLon float64) (xi, eta float64) {
	// Conformal latitude: rotate by the small angle that the series gives.
	sin, cos = rotate(sin, cos, t.toConformal.sum(2*sin*cos, (cos-sin)*(cos+sin)))

	// ξ' and η' of the Gauss-Schreiber projection, and the functions of 2ξ', 2η'
	// that the series wants, which are algebraic in what is at hand.
	c := cos * cosLon
	e := cos * sinLon
	h2 := 1 / (sin*sin + c*c)
	s2, c2 := 2*sin*c*h2, (c-sin)*(c+sin)*h2
	sh2, ch2 := 2*e*h2, (1+e*e)*h2
	dxi, deta := complexSum(&t.alpha, s2, c2, sh2, ch2)
	return math.Atan2(sin, c) + dxi, math.Log((1+e)/(1-e))/2 + deta
}

func (t *transverseMercator) Forward(lon, sin, cos float64) (east, north float64) {
	sinLon, cosLon := math.Sincos(lon - t.lon0)
	xi, eta := t.rectify(sin, cos, sinLon, cosLon)
	return t.radius*eta + t.east, t.radius*xi + t.north0
}

func (t *transverseMercator) Inverse(east, north float64) (lon, sin, cos float64) {
	xi := (north - t.north0) * t.perR
	eta := (east - t.east) * t.perR
	s, c := math.Sincos(xi)
	ex := math.Exp(eta)
	sh, ch := (ex-1/ex)/2, (ex+1/ex)/2
	dxi, deta := complexSum(&t.beta, 2*s*c, (c-s)*(c+s), 2*sh*ch, ch*ch+sh*sh)

	// sin, cos of ξ-dξ and sinh, cosh of η-dη, without going back to transcendentals.
	s, c = rotate(s, c, -dxi)
	shd, chd := smallSinhCosh(deta)
	sh, ch = sh*chd-ch*shd, ch*chd-sh*shd

	// Back from the sphere: sin χ = sin ξ'/cosh η', tan λ = sinh η'/cos ξ'.
	h := 1 / ch
	sin, cos = s*h, math.Sqrt(sh*sh+c*c)*h
	sin, cos = rotate(sin, cos, t.fromConformal.sum(2*sin*cos, (cos-sin)*(cos+sin)))
	return wrap(math.Atan2(sh, c) + t.lon0), sin, cos
}

func (t *transverseMercator) ToLonLat(east, north float64, s wgs84.Spheroid) (lon, lat float64) {
	return toLonLat(t, &t.base, east, north, s)
}

func (t *transverseMercator) FromLonLat(lon, lat float64, s wgs84.Spheroid) (east, north float64) {
	return fromLonLat(t, &t.base, lon, lat, s)
}

// complexSum is Σ c[j-1]·sin 2jζ for ζ = ξ+iη by Clenshaw's recurrence, from sin
// and cos of 2ξ and sinh and cosh of 2η; it returns real and imaginary part.
func complexSum(c *series, s2, c2, sh2, ch2 float64) (re, im float64) {
	// 2·cos 2ζ
	rr, ri := 2*c2*ch2, -2*s2*sh2
	ar, ai := c[5], 0.0
	br, bi := rr*ar+c[4], ri*ar
	ar, ai, br, bi = br, bi, rr*br-ri*bi-ar+c[3], rr*bi+ri*br-ai
	ar, ai, br, bi = br, bi, rr*br-ri*bi-ar+c[2], rr*bi+ri*br-ai
	ar, ai, br, bi = br, bi, rr*br-ri*bi-ar+c[1], rr*bi+ri*br-ai
	br, bi = rr*br-ri*bi-ar+c[0], rr*bi+ri*br-ai
	// sin 2ζ times the last term
	sr, si := s2*ch2, c2*sh2
	return sr*br - si*bi, sr*bi + si*br
}

// smallSincos is sine and cosine by Taylor series. Within 0.01 the first term left
// out is below 1e-18; the corrections of an Earth ellipsoid stay within 0.006
// wherever the series they come from converge.
func smallSincos(x float64) (sin, cos float64) {
	q := x * x
	return x * (1 - q*(1./6-q*(1./120-q*(1./5040)))), 1 - q*(1./2-q*(1./24-q*(1./720)))
}

// smallSinhCosh is the hyperbolic companion of smallSincos.
func smallSinhCosh(x float64) (sinh, cosh float64) {
	q := x * x
	return x * (1 + q*(1./6+q*(1./120+q*(1./5040)))), 1 + q*(1./2+q*(1./24+q*(1./720)))
}
