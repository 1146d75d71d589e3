package main

import (
	"fmt"
	"strings"
)

// fault spoils a draft, or makes it odd in a way that must be survived, and says
// in it what must come of it.
type fault func(r random, d *draft)

// share is how many features of a batch have a fault.
type share struct {
	fault fault
	count int
}

// quarantine is a fault that nothing but a person can mend.
func quarantine(reason string, spoil fault) fault {
	return func(r random, d *draft) {
		spoil(r, d)
		d.reason = reason
	}
}

// repaired is a shape that must be stored, made valid.
func repaired(name string, spoil fault) fault {
	return func(r random, d *draft) {
		spoil(r, d)
		d.repaired = true
		d.edited = name
	}
}

// attribute replaces an attribute's value by one of several.
func attribute(name string, values ...any) fault {
	return func(r random, d *draft) { d.set(name, pick(r, values...)) }
}

// redrawn replaces the geometry; the upstream error is what a geometry library said of it.
func redrawn(message string, kind string, shape func(d *draft) any) fault {
	return func(_ random, d *draft) {
		d.shape = shape(d)
		d.kind = kind
		d.upstream = upstream{"validate:geometry", "shapely.errors.GEOSException", message, 1}
	}
}

// ring makes a polygon's coordinates of the lot's corners, by index.
func (d *draft) ring(indexes ...int) array {
	ring := make(array, len(indexes))
	for i, k := range indexes {
		ring[i] = d.corners[k]
	}
	return array{ring}
}

// reshaped changes the outer ring of the first polygon.
func reshaped(up upstream, change func(ring array) array) fault {
	return func(_ random, d *draft) {
		polygon := d.shape.(array)
		if d.kind == "MultiPolygon" {
			polygon = polygon[0].(array)
		}
		polygon[0] = change(polygon[0].(array))
		d.upstream = up
	}
}

// middle is half-way between two positions that have the given number of decimal places.
func middle(places int, a, b any) array {
	p, q := a.(array), b.(array)
	m := make(array, 2)
	for i := range m {
		m[i] = decimal((parse(p[i].(raw), places)+parse(q[i].(raw), places))/2, places)
	}
	return m
}

// parse reads what decimal wrote.
func parse(s raw, places int) int64 {
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(string(s), "-"), ".")
	var v int64
	for _, c := range whole + fraction + strings.Repeat("0", places-len(fraction)) {
		v = v*10 + int64(c-'0')
	}
	if strings.HasPrefix(string(s), "-") {
		return -v
	}
	return v
}

// Shapes that are odd and must land.
var (
	openRing = reshaped(upstream{"validate:geometry", "ValueError", "A linearring requires closed coordinates", 1},
		func(ring array) array { return ring[:len(ring)-1] })
	clockwise = reshaped(upstream{"validate:geometry", "ValidationError", "polygons and MultiPolygons should follow the right-hand rule", 1},
		func(ring array) array {
			reversed := make(array, len(ring))
			for i, p := range ring {
				reversed[len(ring)-1-i] = p
			}
			return reversed
		})
	repeatedVertex = func(r random, d *draft) {
		reshaped(upstream{"validate:geometry", "shapely.errors.GEOSException", "IllegalArgumentException: repeated points", 1},
			func(ring array) array { return append(array{ring[0], ring[0], ring[1], ring[1]}, ring[2:]...) })(r, d)
		d.edited = "repeated vertex"
	}
	// The lot's corners in the order a digitiser clicked them: two triangles.
	bowTie = repaired("bow-tie", redrawn("TopologyException: side location conflict", "Polygon",
		func(d *draft) any { return d.ring(0, 2, 1, 3, 0) }))
	// Out to the middle of the lot and back.
	spike = repaired("spike", redrawn("TopologyException: Ring Self-intersection", "Polygon", func(d *draft) any {
		c := d.corners
		return array{array{c[0], middle(2, c[0], c[2]), c[0], c[1], c[2], c[3], c[0]}}
	}))
	// The lot, and the half of it beside its diagonal once more.
	overlap = repaired("overlap", redrawn("TopologyException: Self-intersection", "MultiPolygon",
		func(d *draft) any { return array{d.ring(0, 1, 2, 3, 0), d.ring(0, 1, 2, 0)} }))
	// The park lies across the street from the district.
	strayHole = repaired("stray hole", func(_ random, d *draft) {
		polygon := d.shape.(array)
		if d.kind == "MultiPolygon" {
			polygon = polygon[0].(array)
		}
		hole := make(array, len(polygon[1].(array)))
		for i, p := range polygon[1].(array) {
			q := p.(array)
			hole[i] = array{decimal(parse(q[0].(raw), 2)-6*blockPitchX, 2), q[1]}
		}
		d.kind, d.shape = "Polygon", array{polygon[0], hole}
		d.upstream = upstream{"validate:geometry", "shapely.errors.GEOSException", "TopologyException: Hole lies outside shell", 1}
	})
)

// What the assessor's attributes get wrong.
var (
	badYear     = quarantine("coerce_failed", attribute("built_year", "19B7", "c. 1920", "1987.5", "1950-55"))
	badMoney    = quarantine("coerce_failed", attribute("assessed_value", "1.250.000 €", "see rider", "$1,2500.00.0"))
	badDate     = quarantine("coerce_failed", attribute("sale_date", "2024-02-30", "0000-00-00", "17 mai 2011"))
	badFlag     = quarantine("coerce_failed", attribute("owner_occupied", "maybe", "?"))
	oddYear     = quarantine("constraint_failed", attribute("built_year", "1066", "20230", "0"))
	oddNumber   = quarantine("constraint_failed", attribute("apn", "26412045", "264-12", "PENDING"))
	noLayer     = quarantine("missing_attribute", func(_ random, d *draft) { d.drop("layer") })
	nullLayer   = quarantine("missing_attribute", attribute("layer", nil, ""))
	otherLayer  = quarantine("constraint_failed", attribute("layer", "Parcels ", "easements"))
	badSpeed    = quarantine("coerce_failed", attribute("speed_mph", "35 mph", "XXV"))
	badZIP      = quarantine("constraint_failed", attribute("zip", "9512", "95125-", "CA 95125"))
	badFlow     = quarantine("coerce_failed", attribute("flow_gpm", "1,500 gpm", "high"))
	badHeight   = quarantine("coerce_failed", attribute("max_height_ft", "35'", "two storeys"))
	missingText = attribute("built_year", "n/a", "", "NULL")
)

// Geometries that no repair can make sense of.
var (
	noGeometry = quarantine("null_geometry", func(_ random, d *draft) {
		d.kind, d.shape, d.geometry = "", nil, nil
		d.upstream = upstream{"require:geometry", "AttributeError", "'NoneType' object has no attribute 'is_valid'", 3}
	})
	sliver     = quarantine("degenerate_geometry", redrawn("TopologyException: polygon has no area", "Polygon", func(d *draft) any { return d.ring(0, 1, 1, 0) }))
	outAndBack = quarantine("degenerate_geometry", redrawn("A linearring requires at least 4 coordinates.", "Polygon", func(d *draft) any { return d.ring(0, 1, 0) }))
	oneVertex  = quarantine("degenerate_geometry", redrawn("point array must contain 0 or >1 elements", "LineString", func(d *draft) any {
		line := d.shape.(array)
		if d.kind == "MultiLineString" {
			line = line[0].(array)
		}
		return line[:1]
	}))
	emptyRings   = quarantine("empty_geometry", redrawn("Cannot buffer an empty geometry", "Polygon", func(*draft) any { return array{} }))
	emptyPoint   = quarantine("empty_geometry", redrawn("POINT EMPTY has no x", "Point", func(*draft) any { return array{} }))
	nullPosition = quarantine("bad_coordinates", redrawn("float() argument must be a string or a real number, not 'NoneType'", "Point", func(*draft) any { return array{nil, nil} }))
	textPosition = quarantine("bad_coordinates", func(_ random, d *draft) {
		p := d.shape.(array)
		d.shape = array{string(p[0].(raw)), string(p[1].(raw))}
		d.upstream = upstream{"validate:geometry", "TypeError", "must be real number, not str", 1}
	})
	nullVertex = quarantine("bad_coordinates", redrawn("float() argument must be a string or a real number, not 'NoneType'", "Polygon", func(d *draft) any {
		c := d.corners
		return array{array{c[0], nil, c[2], c[3], c[0]}}
	}))
	noCoordinates = quarantine("bad_geometry", func(_ random, d *draft) {
		d.geometry, d.kind, d.shape = object{{"type", "Polygon"}}, "", nil
		d.upstream = upstream{"validate:geometry", "KeyError", "'coordinates'", 1}
	})
	arc = quarantine("unsupported_geometry_type", func(_ random, d *draft) {
		d.kind = "CircularString"
		d.upstream = upstream{"validate:geometry", "shapely.errors.GEOSException", "ParseException: Unknown WKB type 8", 1}
	})
	curvedShell = quarantine("unsupported_geometry_type", func(_ random, d *draft) {
		d.kind = "CurvePolygon"
		d.upstream = upstream{"validate:geometry", "shapely.errors.GEOSException", "ParseException: Unknown WKB type 10", 1}
	})
)

// Positions and the CRSs they are said to be in.
var (
	noCRS = quarantine("missing_crs", func(r random, d *draft) {
		d.crs = pick[any](r, nil, "", "EPSG:0")
		d.upstream = upstream{"reproject", "pyproj.exceptions.CRSError", "Invalid projection: None: (Internal Proj Error: proj_create: unrecognized format / unknown name)", 2}
	})
	inventedCRS = quarantine("unknown_crs", func(r random, d *draft) {
		d.crs = pick[any](r, "EPSG:99999", "EPSG:9999999", "County Datum 1968 (ft)")
		d.upstream = upstream{"reproject", "pyproj.exceptions.CRSError", fmt.Sprintf("Invalid projection: %s: (Internal Proj Error: proj_create: crs not found)", d.crs), 2}
	})
	// NAD27 needs a grid; without it PROJ is some 90 m off here and says nothing.
	oldDatum = quarantine("unsupported_crs", func(r random, d *draft) {
		d.crs = pick[any](r, "EPSG:26743", "EPSG:4267")
		if d.crs == "EPSG:4267" {
			d.kind, d.shape = "LineString", array{array{raw("-121.8989"), raw("37.3061")}, array{raw("-121.8971"), raw("37.3074")}}
		} else {
			d.kind, d.shape = "LineString", array{array{raw("1565240.5"), raw("301455.25")}, array{raw("1565871.0"), raw("301980.75")}}
		}
		d.upstream = upstream{"reproject", "pyproj.exceptions.ProjError", "grid us_noaa_conus.tif not found", 2}
	})
	otherCRSInside = quarantine("crs_conflict", func(_ random, d *draft) {
		d.extra = append(d.extra, member{"crs", namedCRS("urn:ogc:def:crs:EPSG::2227")})
	})
	feetAsMetres = quarantine("coordinate_out_of_domain", func(_ random, d *draft) {
		t := tracts[0]
		d.kind, d.shape = "Polygon", t.rings(plane, [][]point{square(point{2000, 2000}, lotWidth, false)})
		d.upstream = upstream{"reproject:EPSG:26910->EPSG:3857", "ProjError", "transform error: Point outside of projection domain", 2}
	})
	northingFirst = quarantine("coordinate_out_of_domain", func(_ random, d *draft) {
		swapped := make(array, 0, 5)
		for _, p := range append(d.corners, d.corners[0]) {
			swapped = append(swapped, array{p.(array)[1], p.(array)[0]})
		}
		d.kind, d.shape = "Polygon", array{swapped}
		d.upstream = upstream{"reproject:EPSG:26910->EPSG:3857", "ProjError", "transform error: Point outside of projection domain", 2}
	})
	latitudeFirst = quarantine("coordinate_out_of_range", func(_ random, d *draft) {
		p := d.shape.(array)
		d.shape = array{p[1], p[0]}
		d.upstream = upstream{"validate:extent", "ValueError", "latitude must be in [-90, 90]", 1}
	})
	beyondLimits = quarantine("coordinate_out_of_range", func(r random, d *draft) {
		d.shape = array{pick(r, raw("238.1063"), raw("-121987654.0"), raw("-180.0000001")), raw("37.3129")}
		d.upstream = upstream{"validate:extent", "ValueError", "longitude must be in [-180, 180]", 1}
	})
	// What the geocoder answers when it finds nothing.
	northPole = quarantine("out_of_target_domain", func(_ random, d *draft) {
		d.shape = array{raw("0.0"), raw("90.0")}
		d.upstream = upstream{"load:tiles", "ValueError", "cannot convert float infinity to integer", 3}
	})
	noData = quarantine("coordinate_out_of_domain", func(_ random, d *draft) {
		d.shape = array{raw("-1.7976931348623157e+308"), raw("-1.7976931348623157e+308"), raw("0.0")}
		d.upstream = upstream{"validate:extent", "OverflowError", "(34, 'Numerical result out of range')", 1}
	})
	// One vertex has lost the sign of its longitude and lies off Japan.
	lostSign = quarantine("antimeridian", func(_ random, d *draft) {
		ring := append(array(nil), d.shape.(array)[0].(array)...)
		p := ring[1].(array)
		ring[1] = array{raw(strings.TrimPrefix(string(p[0].(raw)), "-")), p[1]}
		d.shape = array{ring}
		d.upstream = upstream{"publish:permits", "ValidationError", "footprint area 1.1e+13 exceeds 1e+06", 1}
	})
)

// Text that is not what it should be.
var (
	// A column of 4,000 characters.
	cutOff = quarantine("invalid_json", func(_ random, d *draft) {
		d.payload = func(s string) string { return s[:len(s)*3/4] }
		d.upstream = upstream{"decode:feature", "json.decoder.JSONDecodeError", "Unterminated string starting at: line 1 column 391 (char 390)", 1}
	})
	notANumber = quarantine("invalid_json", func(_ random, d *draft) {
		d.shape = array{raw("NaN"), raw("NaN")}
		d.upstream = upstream{"geocode:address", "ValueError", "Out of range float values are not JSON compliant", 1}
	})
	twoIDs = quarantine("ambiguous_json", func(_ random, d *draft) {
		d.payload = func(s string) string {
			return strings.Replace(s, `"Feature"`, `"Feature"`+d.dialect.comma+`"id"`+d.dialect.colon+`"`+d.id+`-OLD"`, 1)
		}
		d.upstream = upstream{"require:unique-id", "KeyError", "ambiguous id", 1}
	})
	nul = quarantine("unstorable_text", func(_ random, d *draft) {
		d.set("owner", "ESTATE OF\x00\x00\x00")
		d.upstream = upstream{"load:postgis", "psycopg.DataError", "PostgreSQL text fields cannot contain NUL (0x00) bytes", 5}
	})
	bareGeometry = quarantine("not_a_feature", func(_ random, d *draft) {
		d.payload = func(s string) string {
			_, geometry, _ := strings.Cut(s, `"geometry"`+d.dialect.colon)
			return strings.TrimSuffix(geometry, d.dialect.close+"}")
		}
		d.upstream = upstream{"decode:feature", "KeyError", "'properties'", 1}
	})
)

// Records that cannot be read. What stands before the damage still tells whose they are.
var (
	// The exporter's old code page: ñ is one byte.
	latin1 = quarantine("invalid_utf8", func(_ random, d *draft) {
		d.set("street", "Cañada Rd")
		d.line = func(s string) string { return strings.ReplaceAll(s, "ñ", "\xf1") }
	})
	// The pipeline was killed while it wrote.
	halfLine = quarantine("invalid_json", func(_ random, d *draft) {
		d.line = func(s string) string { return s[:len(s)/2] }
	})
	// Standard error went into the same file.
	logLine = quarantine("invalid_json", func(_ random, d *draft) {
		d.line = func(string) string { return "Traceback (most recent call last):" }
		d.stray = true
	})
	noFeature = quarantine("not_a_feature", func(_ random, d *draft) {
		d.line = func(s string) string {
			return s[:strings.LastIndex(s, d.dialect.comma+`"feature`)] + d.dialect.close + "}"
		}
	})
)
