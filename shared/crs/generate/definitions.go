package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"sort"
	"strconv"
	"strings"

	"geodlq/shared/crs/internal/projection"
)

// Kinds and classes as registry.tsv writes them; package crs documents them.
const (
	kindGeographic = "g"
	kindProjected  = "p"
	kindAlias      = "="
	kindGeocentric = "x"
	kindVertical   = "v"
	kindOtherBody  = "o" // the Moon, Mars, …

	classComputed  = "c"
	classServed    = "s"
	classLimited   = "l"
	classBallpark  = "b"
	classUnservice = "" // kinds without positions of their own
)

// box is an area in degrees, or an extent in the unit of a CRS. An area that
// crosses the antimeridian has west > east.
type box struct{ west, south, east, north float64 }

// definition is one CRS of EPSG or ESRI.
type definition struct {
	authority  string
	code       int
	kind       string
	name       string
	deprecated bool
	base       int     // projected: code of the geographic CRS; alias: of the horizontal CRS
	baseName   string  // authority:code of base
	unit       float64 // metres; degrees for a geographic CRS
	a, rf      float64 // ellipsoid
	meridian   float64 // prime meridian, degrees from Greenwich
	area       *box
	conversion *projection.Parameters // when the method is one of package projection

	class    string
	accuracy float64 // published accuracy of the way to WGS 84 over the area of use, metres; 0 unknown
	extent   *box    // area of use and some way beyond, in the unit of the CRS
	served   []box   // class limited: where PROJ has a published operation
	refusal  string  // why a candidate is not computed
}

func (c *definition) id() string { return c.authority + ":" + strconv.Itoa(c.code) }

// definitions is the content of PROJ's database that matters here.
type definitions struct {
	origin string
	list   []*definition // by code
	byID   map[string]*definition
	null   map[string]bool // geographic CRSs with a published null transformation to WGS 84
}

func (d *definitions) geographic() []*definition {
	var g []*definition
	for _, c := range d.list {
		if c.kind == kindGeographic {
			g = append(g, c)
		}
	}
	return g
}

// equalToWGS84 are geographic CRSs whose datum is WGS 84 for every purpose of two
// dimensions although this EPSG release publishes no operation that says so.
var equalToWGS84 = map[string]bool{
	"EPSG:4326": true,
	"EPSG:4490": true, // CGCS2000: ITRF97 at epoch 2000.0 on an ellipsoid 0.1 mm from GRS 1980
}

func query[T any](ctx context.Context, db, sql string) ([]T, error) {
	out, err := exec.CommandContext(ctx, "sqlite3", "-json", "-readonly", db, sql).Output()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", db, err)
	}
	var rows []T
	if len(out) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(out, &rows); err != nil {
		return nil, fmt.Errorf("read rows of %s: %w", db, err)
	}
	return rows, nil
}

type crsRow struct {
	Auth                   string
	Code                   int
	Name                   string
	Kind                   string
	Deprecated             int
	BaseAuth               *string `json:"base_auth"`
	Base                   *int
	Unit                   *float64
	A, Rf, B               *float64
	Meridian               *float64
	MeridianUnit           *int `json:"meridian_unit"`
	Body                   *string
	Method                 *int
	P1, P2, P3, P4, P5, P6 *float64
	U1, U2, U3, U4, U5, U6 *int
	S, W, N, E             *float64
}

// CRSs of the two authorities that PostGIS loads. Several extents of one CRS are
// joined in Go. Only positive codes below PostGIS's limit for SRIDs can occur.
const crsQuery = `
with unit as (
  select a.coordinate_system_auth_name auth, a.coordinate_system_code code, u.conv_factor, a.uom_code
  from axis a join unit_of_measure u on u.auth_name = a.uom_auth_name and u.code = a.uom_code
  where a.coordinate_system_order = 1),
geo as (
  select g.*, e.semi_major_axis * m.conv_factor a, e.inv_flattening rf, e.semi_minor_axis * m.conv_factor b, p.longitude meridian, p.uom_code meridian_unit, e.celestial_body_code body
  from geodetic_crs g
  join geodetic_datum d on d.auth_name = g.datum_auth_name and d.code = g.datum_code
  join ellipsoid e on e.auth_name = d.ellipsoid_auth_name and e.code = d.ellipsoid_code
  join unit_of_measure m on m.auth_name = e.uom_auth_name and m.code = e.uom_code
  join prime_meridian p on p.auth_name = d.prime_meridian_auth_name and p.code = d.prime_meridian_code)
select 'p' kind, c.auth_name auth, c.code, c.name, c.deprecated, c.geodetic_crs_auth_name base_auth, c.geodetic_crs_code base,
  u.conv_factor unit, g.a, g.rf, g.b, g.meridian, g.meridian_unit, g.body,
  case when v.method_auth_name = 'EPSG' then v.method_code end method,
  v.param1_value p1, v.param2_value p2, v.param3_value p3, v.param4_value p4, v.param5_value p5, v.param6_value p6,
  v.param1_uom_code u1, v.param2_uom_code u2, v.param3_uom_code u3, v.param4_uom_code u4, v.param5_uom_code u5, v.param6_uom_code u6,
  x.south_lat s, x.west_lon w, x.north_lat n, x.east_lon e
from projected_crs c
left join geo g on g.auth_name = c.geodetic_crs_auth_name and g.code = c.geodetic_crs_code
left join conversion_table v on v.auth_name = c.conversion_auth_name and v.code = c.conversion_code
left join unit u on u.auth = c.coordinate_system_auth_name and u.code = c.coordinate_system_code
left join usage s on s.object_table_name = 'projected_crs' and s.object_auth_name = c.auth_name and s.object_code = c.code
left join extent x on x.auth_name = s.extent_auth_name and x.code = s.extent_code
where c.auth_name in ('EPSG', 'ESRI')
union all
select case g.type when 'geographic 2D' then 'g' when 'geographic 3D' then '3' else 'x' end, g.auth_name, g.code, g.name, g.deprecated,
  null, null, u.conv_factor, g.a, g.rf, g.b, g.meridian, g.meridian_unit, g.body, null,
  null, null, null, null, null, null, null, null, null, null, null, null,
  x.south_lat, x.west_lon, x.north_lat, x.east_lon
from geo g
left join unit u on u.auth = g.coordinate_system_auth_name and u.code = g.coordinate_system_code
left join usage s on s.object_table_name = 'geodetic_crs' and s.object_auth_name = g.auth_name and s.object_code = g.code
left join extent x on x.auth_name = s.extent_auth_name and x.code = s.extent_code
where g.auth_name in ('EPSG', 'ESRI')
union all
select '=', c.auth_name, c.code, c.name, c.deprecated, c.horiz_crs_auth_name, c.horiz_crs_code,
  null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from compound_crs c where c.auth_name in ('EPSG', 'ESRI')
union all
select 'v', c.auth_name, c.code, c.name, c.deprecated, null, null,
  null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from vertical_crs c where c.auth_name in ('EPSG', 'ESRI')`

func readDefinitions(ctx context.Context, projDB string) (*definitions, error) {
	d := &definitions{byID: map[string]*definition{}, null: map[string]bool{}}
	versions, err := query[struct{ Key, Value string }](ctx, projDB,
		"select key, value from metadata where key in ('PROJ.VERSION', 'EPSG.VERSION', 'ESRI.VERSION') order by key desc")
	if err != nil {
		return nil, err
	}
	var parts []string
	for _, v := range versions {
		parts = append(parts, strings.TrimSuffix(v.Key, ".VERSION")+" "+v.Value)
	}
	d.origin = "the database of " + strings.Join(parts, ", ")

	rows, err := query[crsRow](ctx, projDB, crsQuery)
	if err != nil {
		return nil, err
	}
	flat := map[string][]*definition{} // geographic 2D by datum-ish key, for 3D aliases
	var threeD []*definition
	byCode := map[int]*definition{}
	for _, r := range rows {
		if c := d.byID[r.Auth+":"+strconv.Itoa(r.Code)]; c != nil && c.name == r.Name {
			c.area = union(c.area, rowArea(r))
			continue
		}
		c, err := r.definition()
		if err != nil {
			return nil, err
		}
		// PostGIS gives a code that both authorities use to EPSG.
		if other := byCode[c.code]; other != nil {
			if other.authority == "EPSG" || c.authority != "EPSG" {
				continue
			}
			delete(d.byID, other.id())
		}
		byCode[c.code] = c
		d.byID[c.id()] = c
		switch c.kind {
		case kindGeographic:
			flat[c.name] = append(flat[c.name], c)
		case "3":
			threeD = append(threeD, c)
		}
	}
	for _, c := range threeD {
		c.kind = kindAlias
		for _, f := range flat[c.name] {
			if c.base == 0 || !f.deprecated {
				c.base, c.baseName = f.code, f.id()
			}
		}
		if c.base == 0 {
			delete(d.byID, c.id())
		}
	}
	for _, c := range d.byID {
		if c.kind == kindAlias && d.byID[c.baseName] == nil {
			return nil, fmt.Errorf("%s is an alias of %s, which is not defined", c.id(), c.baseName)
		}
		d.list = append(d.list, c)
	}
	sort.Slice(d.list, func(i, j int) bool { return d.list[i].code < d.list[j].code })

	null, err := query[struct {
		Auth string
		Code int
	}](ctx, projDB, `
select distinct source_crs_auth_name auth, source_crs_code code from helmert_transformation_table
where source_crs_auth_name in ('EPSG', 'ESRI') and target_crs_auth_name = 'EPSG' and target_crs_code = 4326 and deprecated = 0
  and tx = 0 and ty = 0 and tz = 0 and coalesce(rx, 0) = 0 and coalesce(ry, 0) = 0 and coalesce(rz, 0) = 0
  and coalesce(scale_difference, 0) = 0`)
	if err != nil {
		return nil, err
	}
	for _, n := range null {
		d.null[n.Auth+":"+strconv.Itoa(n.Code)] = true
	}
	for id := range equalToWGS84 {
		d.null[id] = true
	}
	return d, nil
}

func (r crsRow) definition() (*definition, error) {
	c := &definition{authority: r.Auth, code: r.Code, kind: r.Kind, name: r.Name, deprecated: r.Deprecated != 0, area: rowArea(r)}
	if r.Base != nil && r.BaseAuth != nil {
		c.base, c.baseName = *r.Base, *r.BaseAuth+":"+strconv.Itoa(*r.Base)
	}
	if r.A != nil {
		c.a = *r.A
		switch {
		case r.Rf != nil:
			c.rf = *r.Rf
		case r.B != nil && *r.B != *r.A:
			c.rf = c.a / (c.a - *r.B)
		}
		var err error
		if c.meridian, err = degreesOf(r.Meridian, r.MeridianUnit); err != nil {
			return nil, fmt.Errorf("prime meridian of %s: %w", c.id(), err)
		}
	}
	if r.Unit != nil {
		c.unit = *r.Unit
		if r.Kind == kindGeographic {
			c.unit = *r.Unit * 180 / math.Pi
			for _, exact := range []float64{1, 0.9} { // degrees, grads
				if math.Abs(c.unit-exact) < 1e-12 {
					c.unit = exact
				}
			}
		}
	}
	if r.Body != nil && *r.Body != "EARTH" {
		c.kind = kindOtherBody
		return c, nil
	}
	if r.Kind == kindProjected && r.Method != nil && r.Unit != nil {
		p, err := r.parameters()
		if err != nil {
			return nil, fmt.Errorf("parameters of %s: %w", c.id(), err)
		}
		c.conversion = p
	}
	return c, nil
}

// parameters reads the conversion in the order EPSG gives a method's parameters in;
// nil for a method that is not computed here.
func (r crsRow) parameters() (*projection.Parameters, error) {
	var err error
	angle := func(v *float64, uom *int) float64 {
		a, e := degreesOf(v, uom)
		if e != nil {
			err = e
		}
		return a
	}
	length := func(v *float64, uom *int) float64 {
		l, e := lengthOf(v, uom, *r.Unit)
		if e != nil {
			err = e
		}
		return l
	}
	number := func(v *float64) float64 {
		if v == nil {
			return 0
		}
		return *v
	}
	p := &projection.Parameters{Method: projection.Method(*r.Method), Unit: surveyFoot(*r.Unit)}
	switch p.Method {
	case projection.TransverseMercator, projection.LambertConformal1SP, projection.MercatorA, projection.PolarStereographicA:
		p.Latitude, p.Longitude, p.Scale = angle(r.P1, r.U1), angle(r.P2, r.U2), number(r.P3)
		p.East, p.North = length(r.P4, r.U4), length(r.P5, r.U5)
	case projection.LambertConformal2SP, projection.Albers:
		p.Latitude, p.Longitude = angle(r.P1, r.U1), angle(r.P2, r.U2)
		p.Parallel1, p.Parallel2 = angle(r.P3, r.U3), angle(r.P4, r.U4)
		p.East, p.North = length(r.P5, r.U5), length(r.P6, r.U6)
	case projection.LambertAzimuthal, projection.PolarStereographicB, projection.MercatorB, projection.WebMercator:
		p.Latitude, p.Longitude = angle(r.P1, r.U1), angle(r.P2, r.U2)
		p.East, p.North = length(r.P3, r.U3), length(r.P4, r.U4)
	default:
		return nil, nil
	}
	return p, err
}

// degreesOf turns an angle into degrees. EPSG 9110 packs degrees, minutes and
// seconds into the digits of one decimal number (30.155 is 30°15'50").
func degreesOf(v *float64, uom *int) (float64, error) {
	if v == nil || uom == nil {
		return 0, nil
	}
	switch *uom {
	case 9102, 9122:
		return *v, nil
	case 9105, 9106:
		return *v * 0.9, nil
	case 9101:
		return *v * 180 / math.Pi, nil
	case 9110:
		s := strconv.FormatFloat(math.Abs(*v), 'f', 12, 64)
		whole, digits, _ := strings.Cut(s, ".")
		d, _ := strconv.ParseFloat(whole, 64)
		m, _ := strconv.ParseFloat(digits[:2], 64)
		sec, _ := strconv.ParseFloat(digits[2:4]+"."+digits[4:], 64)
		return math.Copysign((d*3600+m*60+sec)/3600, *v), nil
	}
	return 0, fmt.Errorf("unit EPSG:%d is no angle known here", *uom)
}

// metres in the units of length that parameters come in.
var metres = map[int]float64{
	9001: 1, 9002: 0.3048, 9003: 12 / 39.37, 9005: 0.3047972654, 9031: 1.0000135965, 9036: 1000, 9037: 0.9143917962,
	9039: 0.201166195164, 9040: 0.914398414616029, 9041: 0.304799471538676, 9042: 20.1167651215526, 9062: 20.1167824943759,
	9084: 0.914398530744441, 9085: 0.91439523, 9094: 0.304799710181509, 9097: 20.1168, 9098: 0.201168, 9301: 20.116756,
}

// lengthOf turns a length into the unit of the CRS.
func lengthOf(v *float64, uom *int, unit float64) (float64, error) {
	if v == nil || uom == nil {
		return 0, nil
	}
	m, ok := metres[*uom]
	if !ok {
		return 0, fmt.Errorf("unit EPSG:%d is no length known here", *uom)
	}
	unit = surveyFoot(unit)
	if math.Abs(m/unit-1) < 1e-14 {
		return *v, nil
	}
	return *v * m / unit, nil
}

// surveyFoot gives the US survey foot the digits that the database's rounding cut off.
func surveyFoot(unit float64) float64 {
	if math.Abs(unit-12/39.37) < 1e-14 {
		return 12 / 39.37
	}
	return unit
}

func rowArea(r crsRow) *box {
	if r.S == nil || r.W == nil || r.N == nil || r.E == nil {
		return nil
	}
	return &box{*r.W, *r.S, *r.E, *r.N}
}

// union is the smallest box that holds both; areas across the antimeridian are kept
// as west > east.
func union(a, b *box) *box {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	unroll := func(x box) (w, e float64) {
		if x.west > x.east {
			return x.west, x.east + 360
		}
		return x.west, x.east
	}
	aw, ae := unroll(*a)
	bw, be := unroll(*b)
	w, e := math.Min(aw, bw), math.Max(ae, be)
	if e-w >= 360 {
		w, e = -180, 180
	}
	if e > 180 {
		e -= 360
	}
	return &box{w, math.Min(a.south, b.south), e, math.Max(a.north, b.north)}
}

// grid returns n×n longitudes and latitudes over the area widened by margin
// degrees, its borders included.
func (b box) grid(n int, margin float64) [][2]float64 {
	w, e := b.west, b.east
	if e < w {
		e += 360
	}
	w, e = w-margin, e+margin
	if e-w > 360 {
		w, e = -180, 180
	}
	s, t := math.Max(-90, b.south-margin), math.Min(90, b.north+margin)
	var pts [][2]float64
	for i := 0; i < n; i++ {
		for j := 0; j < n; j++ {
			lon := w + (e-w)*float64(i)/float64(n-1)
			if lon > 180 {
				lon -= 360
			}
			if lon < -180 {
				lon += 360
			}
			pts = append(pts, [2]float64{lon, s + (t-s)*float64(j)/float64(n-1)})
		}
	}
	return pts
}
