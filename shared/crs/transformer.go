package crs

import (
	"fmt"
	"math"
	"sync"

	"github.com/paulmach/orb"

	"geodlq/shared/crs/internal/projection"
	"geodlq/shared/deadletter"
)

// Engine names who transforms positions.
type Engine string

// The engines.
const (
	// EngineIdentity: source and target are the same CRS; positions stay bit for bit.
	EngineIdentity Engine = "identity"
	// EngineComputed: the projections of this package.
	EngineComputed Engine = "geodlq"
	// EnginePostGIS: ST_Transform in the database.
	EnginePostGIS Engine = "postgis"
)

// Option changes what [New] and [CheckTarget] accept.
type Option func(*options)

type options struct{ ballpark bool }

// AllowBallpark accepts a CRS for which PROJ without datum grids has no better than
// a ballpark answer: for databases that have the grids, or users who can live with
// tens of metres.
func AllowBallpark() Option { return func(o *options) { o.ballpark = true } }

func gather(opts []Option) options {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Transformer moves geometries from one CRS to another. It is immutable and safe
// for concurrent use.
type Transformer struct {
	source, target *system
	engine         Engine
	// served limits the source to where PROJ has a datum shift; nil for no limit.
	served []orb.Bound
}

type pair struct {
	source, target int
	opts           options
}

// transformers keeps what [New] made; pairs with unlisted codes, of which there is
// no end, do not enter.
var transformers sync.Map // pair -> *Transformer

// New returns the transformer from one code to another; asking again for the same
// pair is cheap. Codes are numbered as in PostGIS's spatial_ref_sys. It fails with
// a [deadletter.Fault]: unknown_crs for a number that can be no code,
// unsupported_crs for a CRS without positions of two dimensions, and for one that
// PROJ would get wrong by more than a few metres (see [AllowBallpark]).
//
// A code that neither EPSG nor ESRI lists is left to PostGIS, whose spatial_ref_sys
// may have it.
func New(source, target int, opts ...Option) (*Transformer, error) {
	key := pair{source, target, gather(opts)}
	if t, ok := transformers.Load(key); ok {
		return t.(*Transformer), nil
	}
	s, err := systemOf(source)
	if err != nil {
		return nil, err
	}
	t, err := systemOf(target)
	if err != nil {
		return nil, err
	}
	made, err := newTransformer(s, t, key.opts)
	if err != nil {
		return nil, err
	}
	if s.info.Kind == KindUnlisted || t.info.Kind == KindUnlisted {
		return made, nil
	}
	kept, _ := transformers.LoadOrStore(key, made)
	return kept.(*Transformer), nil
}

func newTransformer(source, target *system, o options) (*Transformer, error) {
	for _, s := range []*system{source, target} {
		if s.info.Service == ServiceNone {
			return nil, deadletter.Faultf(deadletter.ReasonUnsupportedCRS, "",
				"%s is %s: it has no positions of two dimensions on the Earth; name the horizontal CRS", s.label(), s.info.Kind)
		}
	}
	t := &Transformer{source: source, target: target, engine: EnginePostGIS}
	if source.info.Code == target.info.Code {
		t.engine = EngineIdentity
		return t, nil
	}
	// Two CRSs on one datum need no shift, so PROJ cannot miss one.
	sameDatum := source.info.Base == target.info.Base && source.info.Base != 0
	if !sameDatum && !o.ballpark {
		for _, s := range []*system{source, target} {
			if s.info.Service == ServiceBallpark {
				return nil, deadletter.Faultf(deadletter.ReasonUnsupportedCRS, "",
					"%s: without a datum grid PROJ has no shift from its datum to WGS 84 that is good to a few metres over its area of use and would store a wrong position without a word; "+
						"transform the data with the grid before sending it, or install the grid in the database and set ALLOW_BALLPARK_CRS=true", s.label())
			}
		}
		t.served = source.info.Served
	}
	// Each computed datum is equal to WGS 84, but two of them need not be to each
	// other: PROJ knows a shift of 1.8 m from GDA94 to GDA2020.
	if source.info.Service == ServiceComputed && target.info.Service == ServiceComputed &&
		(sameDatum || source.info.Base == wgs84Code || target.info.Base == wgs84Code) {
		t.engine = EngineComputed
	}
	return t, nil
}

// Engine says who transforms.
func (t *Transformer) Engine() Engine { return t.engine }

// Source is the code of the CRS that positions come in: of the horizontal one when
// a compound code was asked for.
func (t *Transformer) Source() int { return t.source.info.Code }

// Target is the code of the CRS that positions are wanted in.
func (t *Transformer) Target() int { return t.target.info.Code }

// Transform returns the geometry in the target CRS. It never changes its input.
//
// With [EngineIdentity] and [EngineComputed] the result is a new geometry (a Bound
// becomes its polygon, which no projection keeps a rectangle). With [EnginePostGIS]
// it is g itself, checked as far as that can be done before: the caller lets
// ST_Transform take it from Source to Target, and [CheckTarget] check the outcome.
//
// It fails with a [deadletter.Fault] that names the vertex: coordinates that are
// not finite (bad_coordinates), beyond the range of a geographic source
// (coordinate_out_of_range) or the domain of a projected one
// (coordinate_out_of_domain), a place the target cannot hold
// (out_of_target_domain), neighbours more than half a turn apart (antimeridian), no
// geometry (null_geometry) or a part that is none (bad_geometry).
func (t *Transformer) Transform(g orb.Geometry) (orb.Geometry, error) {
	w := walker{transformer: t, whole: g, keep: t.engine != EnginePostGIS}
	out, err := w.geometry(g)
	if err != nil {
		return nil, err
	}
	if t.engine == EnginePostGIS {
		return g, nil
	}
	return out, nil
}

// CheckTarget checks a geometry that is already in the target CRS, such as one that
// PostGIS transformed: finite, within [Bounds], and no neighbours more than half a
// turn apart. Its faults are those of the target: out_of_target_domain, antimeridian.
func CheckTarget(target int, g orb.Geometry, opts ...Option) error {
	s, err := systemOf(target)
	if err != nil {
		return err
	}
	t := &Transformer{source: s, target: s, engine: EngineIdentity}
	if !gather(opts).ballpark {
		t.served = s.info.Served
	}
	w := walker{transformer: t, whole: g, after: true}
	_, err = w.geometry(g)
	return err
}

// Bounds returns the world of a CRS in its own unit, for checks in SQL: what it can
// hold, or its area of use and a generous margin. It is false for a CRS of which
// nothing is known.
func Bounds(target int) (orb.Bound, bool) {
	s, err := systemOf(target)
	if err != nil {
		return orb.Bound{}, false
	}
	return s.info.Extent, s.info.HasExtent
}

// verdict is what is wrong with a vertex.
type verdict uint8

const (
	good verdict = iota
	notFinite
	outOfSource
	notServed
	outOfTarget
	acrossSource
	acrossTarget
)

// position takes one position from source to target.
func (t *Transformer) position(p orb.Point) (orb.Point, verdict) {
	s := t.source
	// The comparisons are false for NaN.
	if !(p[0] >= s.extent.Min[0] && p[0] <= s.extent.Max[0] && p[1] >= s.extent.Min[1] && p[1] <= s.extent.Max[1]) {
		if !finite(p[0], p[1]) {
			return p, notFinite
		}
		return p, outOfSource
	}
	if t.served != nil && !within(t.served, p) {
		return p, notServed
	}
	if t.engine == EnginePostGIS {
		return p, good
	}
	var lon, sin, cos float64
	if s.projection == nil {
		if t.target.projection == nil {
			return p, good
		}
		lon = projection.Radians(p[0])
		sin, cos = math.Sincos(projection.Radians(p[1]))
	} else {
		lon, sin, cos = s.projection.Inverse(p[0], p[1])
		if !s.window.contains(lon, sin) {
			return p, outOfSource
		}
		if t.engine == EngineIdentity {
			return p, good
		}
	}
	to := t.target
	if to.projection == nil {
		return lonLat(lon, sin, cos), good
	}
	if !to.window.contains(lon, sin) {
		return lonLat(lon, sin, cos), outOfTarget
	}
	var q orb.Point
	q[0], q[1] = to.projection.Forward(lon, sin, cos)
	if !finite(q[0], q[1]) {
		return lonLat(lon, sin, cos), outOfTarget
	}
	return q, good
}

// lonLat is a position in degrees.
func lonLat(lon, sin, cos float64) orb.Point {
	return orb.Point{projection.Degrees(lon), projection.Degrees(math.Atan2(sin, cos))}
}

func within(boxes []orb.Bound, p orb.Point) bool {
	for i := range boxes {
		if boxes[i].Contains(p) {
			return true
		}
	}
	return false
}

// fault words a verdict for the vertex at index n of the geometry.
func (w *walker) fault(v verdict, n int, p, q orb.Point) error {
	at := locate(w.whole, n)
	source, target := w.transformer.source, w.transformer.target
	reason, detail := deadletter.ReasonOutOfTargetDomain, ""
	switch v {
	case notFinite:
		detail = fmt.Sprintf("%s: (%v, %v) is not two finite numbers", at, p[0], p[1])
		if !w.after {
			reason = deadletter.ReasonBadCoordinates
		}
	case outOfSource, notServed:
		switch {
		case source.info.Kind == KindGeographic && v == outOfSource:
			reason = deadletter.ReasonCoordinateOutOfRange
			detail = fmt.Sprintf("%s: (%v, %v) is beyond the range of %s: %s", at, p[0], p[1], source.label(), source.outOfRange(p))
		case v == notServed:
			reason = deadletter.ReasonCoordinateOutOfDomain
			detail = fmt.Sprintf("%s: (%v, %v) lies where PROJ without datum grids has no shift from %s to WGS 84 and would store a wrong position without a word", at, p[0], p[1], source.label())
		default:
			reason = deadletter.ReasonCoordinateOutOfDomain
			detail = fmt.Sprintf("%s: (%v, %v) is far outside the area of use of %s%s", at, p[0], p[1], source.label(), source.looksLike(p))
		}
		if w.after {
			reason = deadletter.ReasonOutOfTargetDomain
		}
	case outOfTarget:
		detail = fmt.Sprintf("%s: longitude %.7g, latitude %.7g is outside what %s holds (%s)", at, q[0], q[1], target.label(), target.holds())
	case acrossSource, acrossTarget:
		reason = deadletter.ReasonAntimeridian
		detail = fmt.Sprintf("%s and the one before it are more than 180 degrees of longitude apart: split the geometry at the antimeridian", at)
	}
	return deadletter.Faultf(reason, "", "%s", detail)
}

// outOfRange says which ordinate of a geographic position is wrong, and whether the
// other order would fit. Nothing is ever swapped: an order that fits can be wrong too.
func (s *system) outOfRange(p orb.Point) string {
	x, y := s.extent.Max[0], s.extent.Max[1]
	switch {
	case math.Abs(p[1]) <= x && math.Abs(p[0]) <= y:
		return "axes swapped? longitude comes first"
	case math.Abs(p[0]) > 2*x:
		return "coordinates of a projected CRS?"
	case math.Abs(p[1]) > y:
		return fmt.Sprintf("latitude ends at ±%g", y)
	default:
		return fmt.Sprintf("longitude ends at ±%g", x)
	}
}

// looksLike hints at what a misplaced projected position may be.
func (s *system) looksLike(p orb.Point) string {
	switch {
	case math.Abs(p[0]) <= 180 && math.Abs(p[1]) <= 90:
		return ": longitude and latitude?"
	case !s.extent.Contains(p) && s.extent.Contains(orb.Point{p[1], p[0]}):
		return ": axes swapped? easting comes first"
	}
	return ""
}

// holds words the domain of a target.
func (s *system) holds() string {
	if s.info.Code == webMercatorCode {
		return fmt.Sprintf("latitude within ±%g", webMercatorLatitude)
	}
	a := s.info.Area
	return fmt.Sprintf("longitude %g to %g, latitude %g to %g and %d degrees around", a.Min[0], a.Max[0], a.Min[1], a.Max[1], margin)
}
