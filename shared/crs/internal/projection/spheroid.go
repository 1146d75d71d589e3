package projection

import (
	"math"

	"github.com/wroge/wgs84"
)

// spheroid is an ellipsoid of revolution with the series between its auxiliary
// latitudes, all to sixth order in the third flattening n. For every ellipsoid of
// the Earth the first term left out is below 1e-18 radians.
type spheroid struct {
	a, fi float64
	e2, e float64
	n     float64
	qp    float64 // q (Snyder 1987, equation 3-12) at the pole

	toConformal   series // geodetic -> conformal latitude
	fromConformal series // conformal -> geodetic latitude
	fromAuthalic  series // authalic -> geodetic latitude
}

func newSpheroid(s wgs84.Spheroid) spheroid {
	f := 1 / s.Fi()
	sp := spheroid{a: s.A(), fi: s.Fi(), e2: f * (2 - f), n: f / (2 - f)}
	sp.e = math.Sqrt(sp.e2)
	sp.qp = sp.q(1)
	sp.toConformal = expand(sp.n, geodeticToConformal)
	sp.fromConformal = expand(sp.n, conformalToGeodetic)
	sp.fromAuthalic = expand(sp.n, authalicToGeodetic)
	return sp
}

// isometric returns the isometric latitude of the latitude with sine s and cosine c.
func (sp *spheroid) isometric(s, c float64) float64 {
	// ln tan(π/4+φ/2) in the form that keeps its digits near the poles.
	psi := math.Log((1 + math.Abs(s)) / c)
	return math.Copysign(psi, s) - sp.e*smallAtanh(sp.e*s)
}

// fromExpIsometric returns sine and cosine of the geodetic latitude whose isometric
// latitude is the logarithm of ex.
func (sp *spheroid) fromExpIsometric(ex float64) (sin, cos float64) {
	// The conformal latitude is the Gudermannian of the isometric one: its cosine is
	// 1/cosh, its sine tanh.
	cos = 2 * ex / (ex*ex + 1)
	sin = (ex - 1) * (ex + 1) / (ex*ex + 1)
	if math.IsInf(ex*ex, 1) {
		sin, cos = 1, 0
	}
	return rotate(sin, cos, sp.fromConformal.sum(2*sin*cos, (cos-sin)*(cos+sin)))
}

// q is Snyder's q of the latitude with sine s: the area between it and the equator.
func (sp *spheroid) q(s float64) float64 {
	es := sp.e * s
	return (1 - sp.e2) * (s/(1-es*es) + smallAtanh(es)/sp.e)
}

// polarQ is q at the pole minus q of the latitude with sine s >= 0 and cosine c,
// without the cancellation of the plain difference near the pole.
func (sp *spheroid) polarQ(s, c float64) float64 {
	d := c * c / (1 + s) // 1-s
	return d*(1+sp.e2*s)/(1-sp.e2*s*s) + (1-sp.e2)/sp.e*smallAtanh(sp.e*d/(1-sp.e2*s))
}

// geodetic returns sine and cosine of the geodetic latitude from those of the
// authalic one.
func (sp *spheroid) geodetic(sin, cos float64) (s, c float64) {
	return rotate(sin, cos, sp.fromAuthalic.sum(2*sin*cos, (cos-sin)*(cos+sin)))
}

// m is the radius of the parallel with sine s and cosine c, in semi-major axes.
func (sp *spheroid) m(s, c float64) float64 { return c / math.Sqrt(1-sp.e2*s*s) }

// series holds the coefficients of Σ c[j-1]·sin 2jx, j from 1 to 6.
type series [6]float64

// sum evaluates the series from sin 2x and cos 2x by Clenshaw's recurrence.
func (c *series) sum(sin2x, cos2x float64) float64 {
	r := 2 * cos2x
	b6 := c[5]
	b5 := r*b6 + c[4]
	b4 := r*b5 - b6 + c[3]
	b3 := r*b4 - b5 + c[2]
	b2 := r*b3 - b4 + c[1]
	b1 := r*b2 - b3 + c[0]
	return sin2x * b1
}

// fromAuthalicE6 is the inverse that EPSG prescribes for Lambert Azimuthal Equal
// Area (guidance note 7-2, method 9820; Snyder 1987, equation 3-18): a series in e²
// that stops at e⁶ and is up to 1.6 mm off on the ground, at 20 degrees of latitude.
// PROJ follows it, so it is used where agreement with PROJ is promised.
func fromAuthalicE6(e2 float64) series {
	e4 := e2 * e2
	e6 := e4 * e2
	return series{
		e2/3 + 31./180*e4 + 517./5040*e6,
		23./360*e4 + 251./3780*e6,
		761. / 45360 * e6,
	}
}

// smallAtanh is the inverse hyperbolic tangent by its power series. Its arguments
// are within the eccentricity, below 0.083 for every ellipsoid of the Earth, where
// the first term left out is below 1e-17.
func smallAtanh(x float64) float64 {
	if math.Abs(x) > 0.09 {
		return math.Atanh(x)
	}
	q := x * x
	return x * (1 + q*(1./3+q*(1./5+q*(1./7+q*(1./9+q*(1./11+q*(1./13)))))))
}

// expand evaluates coefficients that are polynomials in n. Row j starts at n^j.
func expand(n float64, rows [6][6]float64) series {
	var s series
	for j, row := range rows {
		sum, p := 0.0, math.Pow(n, float64(j+1))
		for _, k := range row[:6-j] {
			sum += k * p
			p *= n
		}
		s[j] = sum
	}
	return s
}

// The series are those of C. F. F. Karney, "On auxiliary latitudes", Survey Review
// 56 (2024), appendix A; row j holds the factors of n^j, n^(j+1), … of sin 2jx.
var (
	geodeticToConformal = [6][6]float64{
		{-2, 2. / 3, 4. / 3, -82. / 45, 32. / 45, 4642. / 4725},
		{5. / 3, -16. / 15, -13. / 9, 904. / 315, -1522. / 945},
		{-26. / 15, 34. / 21, 8. / 5, -12686. / 2835},
		{1237. / 630, -12. / 5, -24832. / 14175},
		{-734. / 315, 109598. / 31185},
		{444337. / 155925},
	}
	conformalToGeodetic = [6][6]float64{
		{2, -2. / 3, -2, 116. / 45, 26. / 45, -2854. / 675},
		{7. / 3, -8. / 5, -227. / 45, 2704. / 315, 2323. / 945},
		{56. / 15, -136. / 35, -1262. / 105, 73814. / 2835},
		{4279. / 630, -332. / 35, -399572. / 14175},
		{4174. / 315, -144838. / 6237},
		{601676. / 22275},
	}
	authalicToGeodetic = [6][6]float64{
		{4. / 3, 4. / 45, -16. / 35, -2582. / 14175, 60136. / 467775, 28112932. / 212837625},
		{46. / 45, 152. / 945, -11966. / 14175, -21016. / 51975, 251310128. / 638512875},
		{3044. / 2835, 3802. / 14175, -94388. / 66825, -8797648. / 10945935},
		{6059. / 4725, 41072. / 93555, -1472637812. / 638512875},
		{768272. / 467775, 455935736. / 638512875},
		{4210684958. / 1915538625},
	}
)
