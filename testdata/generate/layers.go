package main

import (
	"fmt"
	"strings"
)

// upstream is why the pipeline gave a feature up.
type upstream struct {
	rule, errorType, message string
	attempts                 int
}

// draft is one dead letter before it is written.
type draft struct {
	id         string
	properties object
	kind       string // the geometry's type
	shape      any    // its coordinates
	corners    array  // of the lot, where it has one: positions, counter-clockwise
	geometry   any    // stands in place of kind and shape when set
	extra      object // further members of the feature
	crs        any    // source_crs: a string, or nil
	epsg       int    // what crs means, where the feature is to clear
	upstream   upstream

	dialect dialect
	text    bool                // as feature_geojson, not as feature
	payload func(string) string // changes the feature's text
	line    func(string) string // changes the record's text

	reason   string // for which it must end in quarantine; empty when it must clear
	stray    bool   // no record at all, so that nothing tells its batch and feature
	repaired bool   // stored only after a repair
	edited   string // tells a shape changed on purpose from the one its id stands for
}

func (d *draft) set(name string, value any) {
	for i := range d.properties {
		if d.properties[i].name == name {
			d.properties[i].value = value
			return
		}
	}
	d.properties = append(d.properties, member{name, value})
}

func (d *draft) drop(name string) {
	var kept object
	for _, m := range d.properties {
		if m.name != name {
			kept = append(kept, m)
		}
	}
	d.properties = kept
}

// layer makes the i-th failed feature of a data set.
type layer func(r random, i int) draft

var (
	streets = []string{"Cañada", "Alameda", "Señter", "Monterey", "Peñitencia", "Guadalupe", "Bascom", "El Camino",
		"Hacienda", "Arroyo Seco", "Piñon", "Junípero Serra", "Hicks", "Montaña", "Blossom Hill", "Niño"}
	suffixes = []string{"Av", "Dr", "Ct", "Wy", "Ln", "Rd", "St"}
	given    = []string{"José", "Nguyễn Thị", "Françoise", "Søren", "Zoë", "Wei", "Adélia", "Jürgen", "Priya", "Ana Sofía", "Łukasz", "O'Dell"}
	family   = []string{"Núñez", "Hòa", "Lemaître", "Ångström", "Brontë", "陳", "Conceição", "Müller", "Rao", "Ibáñez", "Wójcik", "Smith-Peña"}
	trusts   = []string{"", "", "", " Family Trust", " et al.", " Revocable Living Trust dated 5/17/1998"}
)

func streetName(r random) string { return pick(r, streets...) + " " + pick(r, suffixes...) }

// place spreads the i-th feature over the county: sixty lots of one tract, then
// the next tract, and other lots when a tract's turn comes again.
func place(i int) (t tract, block, number int) {
	round := len(tracts) * 60
	n := (i/round*60 + i%60) * 7 % (blocksInPlan * lotsInBlock)
	return tracts[i/60%len(tracts)], n / lotsInBlock, n % lotsInBlock
}

func parcelNumber(t tract, block, number int) string {
	return fmt.Sprintf("%03d-%02d-%03d", t.book, block+1, number+1)
}

func date(r random, first, last int) string {
	return fmt.Sprintf("%04d-%02d-%02d", r.between(first, last), r.between(1, 12), r.between(1, 28))
}

// parcels: the assessor's polygons in UTM. A new version of the assessor's export
// writes every attribute as text, and the load's own coercion gave up on it.
func parcels(r random, i int) draft {
	t, block, number := place(i)
	apn := parcelNumber(t, block, number)
	outline := lot(block, number)
	year, value := r.between(1891, 2024), r.between(84, 4100)*1000+r.below(1000)
	d := draft{
		id: apn,
		properties: object{
			{"layer", "parcels"},
			{"apn", apn},
			{"situs", fmt.Sprintf("%d %s", 100+block*20+number, streetName(r))},
			{"city", t.city},
			{"owner", pick(r, given...) + " " + pick(r, family...) + pick(r, trusts...)},
			{"use_code", pick(r, "R1", "R1", "R1", "R2", "RM", "C1", "AG")},
			{"built_year", fmt.Sprint(year)},
			{"assessed_value", pick(r, "$"+thousands(value)+".00", thousands(value), fmt.Sprint(value))},
			{"sale_date", pick[any](r, date(r, 1978, 2025), date(r, 1978, 2025), "", nil)},
			{"owner_occupied", pick(r, "Y", "Y", "N")},
			{"lot_sqft", thousands(6200 + r.below(40)*10)},
		},
		kind:  "Polygon",
		shape: t.rings(utm, [][]point{outline}),
		crs: pick(r, "EPSG:26910", "EPSG:26910", "EPSG:26910", "epsg:26910", "26910",
			"urn:ogc:def:crs:EPSG::26910", "http://www.opengis.net/def/crs/EPSG/0/26910", "EPSG:26910+5703"),
		epsg:    26910,
		dialect: python,
		text:    true,
		upstream: pick(r,
			upstream{"coerce:built_year->integer", "TypeError", fmt.Sprintf("column built_year: '%d' is a string, integer expected", year), 3},
			upstream{"coerce:built_year->integer", "TypeError", fmt.Sprintf("column built_year: '%d' is a string, integer expected", year), 3},
			upstream{"coerce:assessed_value->number", "ValueError", fmt.Sprintf("could not convert string to float: '$%s.00'", thousands(value)), 3},
			upstream{"load:postgis", "psycopg.errors.DeadlockDetected", fmt.Sprintf("deadlock detected\nDETAIL:  Process %d waits for ShareLock on transaction %d; blocked by process %d.", 21000+r.below(90), 884000+r.below(900), 21090+r.below(9)), 5},
			upstream{"load:postgis", "psycopg.errors.QueryCanceled", "canceling statement due to statement timeout", 5},
		),
	}
	corners := lotCorners(block, number)
	d.corners = t.positions(utm, corners)
	switch southWest := corners[0]; {
	case i%29 == 7: // what a road cut off belongs to the parcel still
		d.kind = "MultiPolygon"
		d.shape = array{t.rings(utm, [][]point{outline}), t.rings(utm, [][]point{square(southWest.plus(400, -1300), 700, false)})}
	case i%37 == 11: // a well site of the water district
		d.shape = t.rings(utm, [][]point{outline, square(southWest.plus(600, 1300), 400, true)})
	}
	return d
}

// condominiums: every unit of a building has the building's outline. The load has
// a unique index on the geometry.
func condominiums(r random, i int) draft {
	const units = 8
	t, block, number := place(2000 + i/units)
	apn := parcelNumber(t, block, number)
	unit := fmt.Sprintf("%d%c", 1+i%units/2, 'A'+rune(i%2))
	return draft{
		id: apn + "-" + unit,
		properties: object{
			{"layer", "parcels"},
			{"apn", apn},
			{"unit", unit},
			{"situs", fmt.Sprintf("%d %s Unit %s", 100+block*20+number, "Señter Rd", unit)},
			{"city", t.city},
			{"owner", pick(r, given...) + " " + pick(r, family...)},
			{"use_code", "RM"},
			{"built_year", r.between(1968, 2022)},
			{"assessed_value", "$" + thousands(r.between(380, 990)*1000)},
			{"owner_occupied", pick(r, "Y", "N")},
		},
		kind:    "Polygon",
		shape:   t.rings(utm, [][]point{lot(block, number)}),
		crs:     "EPSG:26910",
		epsg:    26910,
		dialect: python,
		text:    true,
		upstream: upstream{"load:postgis", "psycopg.errors.UniqueViolation",
			"duplicate key value violates unique constraint \"parcels_geom_key\"\nDETAIL:  Key (md5(st_asbinary(geom))) already exists.", 1},
	}
}

// centrelines: the public works department's streets in state plane feet, drawn
// in the direction of travel.
func centrelines(r random, i int) draft {
	t := tracts[i/24%len(tracts)]
	n := i % 24
	row, column := n/4, n%4
	if column == 1 { // the other carriageway of the segment before it
		column = 0
	}
	from := point{int64(column) * blockPitchX, int64(row)*blockPitchY - streetWidth/2}
	line := []point{from, from.plus(blockWidth/3, int64(40*row-80)), from.plus(2*blockWidth/3, int64(60*column-90)), from.plus(blockPitchX, 0)}
	d := draft{
		id: fmt.Sprintf("seg-%d-%03d", t.book, i%240),
		properties: object{
			{"layer", "streets"},
			{"name", streets[(t.book+row)%len(streets)] + " " + suffixes[row]},
			{"city", t.city},
			{"class", pick(r, "residential", "residential", "collector", "arterial")},
			{"oneway", "F"},
			{"speed_mph", pick(r, "25", "25", "35", "40")},
			{"lanes", fmt.Sprint(pick(r, 1, 2, 2, 4))},
			{"updated", date(r, 2019, 2025)},
		},
		kind:    "LineString",
		shape:   t.positions(plane, line),
		crs:     pick(r, "EPSG:2227", "EPSG:2227", "urn:x-ogc:def:crs:EPSG:2227", "EPSG::2227", "https://epsg.io/2227"),
		epsg:    2227,
		dialect: gdal,
		upstream: pick(r,
			upstream{"reproject:EPSG:2227->EPSG:3857", "pyproj.exceptions.ProjError", "Error creating Transformer from CRS.: (Internal Proj Error: proj_create: no database context specified)", 2},
			upstream{"load:postgis", "psycopg.OperationalError", "connection to server at \"gis-db.internal\" (10.20.4.17), port 5432 failed: FATAL:  remaining connection slots are reserved for non-replication superuser connections", 5}),
	}
	switch {
	case n%4 == 1: // the same line, travelled the other way
		d.id += "-T"
		d.properties[4].value = "T"
		reversed := make([]point, len(line))
		for k, p := range line {
			reversed[len(line)-1-k] = p
		}
		d.shape = t.positions(plane, reversed)
	case n%8 == 7: // interrupted by a park
		d.kind = "MultiLineString"
		d.shape = array{t.positions(plane, line[:2]), t.positions(plane, line[2:])}
	}
	return d
}

// addresses: what the emergency dispatch geocoded, in degrees, each source with
// its own word for them.
func addresses(r random, i int) draft {
	t, block, number := place(i)
	front := lot(block, number)[0].plus(lotWidth/2, int64(300+100*r.below(8)))
	house := 100 + block*20 + number
	return draft{
		id: fmt.Sprintf("addr-%06d", 410200+i*3),
		properties: object{
			{"layer", "addresses"},
			{"number", house},
			{"street", streetName(r)},
			{"unit", pick[any](r, nil, nil, nil, "Apt 2", "½")},
			{"city", t.city},
			{"zip", t.zip + pick(r, "", "-"+fmt.Sprint(1000+r.below(9000)))},
			{"verified", pick(r, "yes", "no", "Y")},
			{"updated", date(r, 2021, 2025)},
		},
		kind:    "Point",
		shape:   t.position(lonlat, front),
		crs:     pick(r, "EPSG:4326", "EPSG:4326", "EPSG:4326", "OGC:CRS84", "urn:ogc:def:crs:OGC:1.3:CRS84", "WGS84", "CRS84"),
		epsg:    4326,
		dialect: browser,
		text:    i%3 != 0,
		upstream: pick(r,
			upstream{"geocode:address", "HTTPError", fmt.Sprintf("503 Server Error: Service Unavailable for url: https://geocoder.internal/v2/reverse?n=%d", house), 4},
			upstream{"geocode:address", "ReadTimeout", "HTTPSConnectionPool(host='geocoder.internal', port=443): Read timed out. (read timeout=5)", 4},
			upstream{"coerce:verified->boolean", "ValueError", "invalid truth value 'yes'", 1}),
	}
}

// hydrants: the fire district's survey, GNSS positions with heights.
func hydrants(r random, i int) draft {
	t := tracts[i/16%len(tracts)]
	p := corner(i*5%blocksInPlan).plus(int64(r.between(-200, -80)), int64(r.between(-200, -80)))
	at := append(t.position(gps, p), decimal(int64(r.between(2000, 14000)), 2))
	return draft{
		id: fmt.Sprintf("HYD-%d-%04d", t.book, 7+i*11),
		properties: object{
			{"layer", "hydrants"},
			{"maker", pick(r, "Clow", "Müller", "Long Beach", "Jones")},
			{"installed", date(r, 1961, 2023)},
			{"flow_gpm", thousands(r.between(50, 190) * 10)},
			{"in_service", pick(r, "Y", "Y", "Y", "N")},
			{"note", pick[any](r, nil, nil, "cap missing", "repainted “safety yellow”", "blocked by hedge \\ call owner")},
		},
		kind:    "Point",
		shape:   at,
		crs:     pick(r, "EPSG:32610", "EPSG:32610", "urn:ogc:def:crs:EPSG:9.9.1:32610"),
		epsg:    32610,
		dialect: legacy,
		text:    true,
		upstream: upstream{"load:postgis", "psycopg.errors.InvalidParameterValue",
			"Geometry has Z dimension but column does not", 1},
	}
}

// zoning: districts drawn in the planning department's web map, in its own Web
// Mercator. Blocks are cut together; parks are holes.
func zoning(r random, i int) draft {
	t := tracts[i%len(tracts)]
	n := i / len(tracts)
	o := point{int64(n%3) * 2 * blockPitchX, int64(n/3%4) * blockPitchY}
	outline := []point{o, o.plus(blockWidth, 0), o.plus(2*blockPitchX-streetWidth, 0), o.plus(2*blockPitchX-streetWidth, blockDepth), o.plus(0, blockDepth)}
	park := square(o.plus(int64(2000+r.below(9)*1000), 1500), int64(1000+r.below(5)*500), true)
	d := draft{
		id: fmt.Sprintf("zone-%d-%02d", t.book, n+1),
		properties: object{
			{"layer", "zoning"},
			{"zone", pick(r, "R-1-8", "R-M", "CN", "PQP", "TEC")},
			{"name", t.name + " " + pick(r, "núcleo", "overlay", "planned district")},
			{"ordinance", fmt.Sprintf("Ord. %d § %d", r.between(24000, 31000), r.between(1, 40))},
			{"adopted", date(r, 1990, 2025)},
			{"max_height_ft", pick(r, "35", "45.5", "120", "")},
		},
		kind:    "Polygon",
		shape:   t.rings(mercator, [][]point{outline, park}),
		crs:     pick(r, "EPSG:3857", "EPSG:3857", "EPSG:102100", "ESRI:102100", "EPSG:900913"),
		epsg:    3857,
		dialect: browser,
		text:    true,
		upstream: upstream{"load:postgis", "psycopg.errors.InvalidParameterValue",
			"Geometry type (Polygon) does not match column type (MultiPolygon)", 1},
	}
	if i%4 == 3 {
		d.kind = "MultiPolygon"
		island := square(o.plus(500, blockDepth+200), 900, false)
		d.shape = array{t.rings(mercator, [][]point{outline, park}), t.rings(mercator, [][]point{island})}
		d.upstream.message = "Geometry type (MultiPolygon) does not match column type (Polygon)"
	}
	return d
}

// permits: building footprints from the permit system's message queue, in degrees
// with the CRS named inside the feature, as GeoJSON had it until 2016.
func permits(r random, i int) draft {
	t, block, number := place(3 * i)
	o := corner(block).plus(int64(number%lotsInRow)*lotWidth+300, int64(number/lotsInRow)*lotDepth+1000)
	w, h := int64(r.between(700, 1200)), int64(r.between(800, 1600))
	permit := fmt.Sprintf("2026-%06d", 3301+i*7)
	return draft{
		id: permit,
		properties: object{
			{"layer", "permits"},
			{"permit", permit},
			{"apn", parcelNumber(t, block, number)},
			{"work", pick(r, "ADU, detached", "re-roof", "solar – 7.2 kW", "seismic retrofit", "añadido de garaje")},
			{"valuation", thousands(r.between(8, 420) * 1000)},
			{"issued", fmt.Sprintf("2026-%02d-%02d", r.between(1, 2), r.between(1, 28))},
			{"contacts", array{object{{"role", "applicant"}, {"name", pick(r, given...) + " " + pick(r, family...)}}}},
		},
		kind:    "Polygon",
		shape:   t.rings(lonlat, [][]point{{o, o.plus(w, 0), o.plus(w, h), o.plus(w/2, h), o.plus(w/2, h+250), o.plus(0, h+250)}}),
		extra:   object{{"crs", namedCRS(pick(r, "urn:ogc:def:crs:OGC:1.3:CRS84", "EPSG:4326"))}},
		epsg:    4326,
		dialect: python,
		text:    i%2 == 0,
		upstream: upstream{"publish:permits", "botocore.exceptions.ClientError",
			"An error occurred (ThrottlingException) when calling the PutRecords operation (reached max retries: 4): Rate exceeded", 4},
	}
}

// namedCRS is the "crs" member of GeoJSON 2008.
func namedCRS(name string) object {
	return object{{"type", "name"}, {"properties", object{{"name", name}}}}
}

// encodeFeature is the feature's text.
func (d draft) encodeFeature() string {
	feature := object{{"type", "Feature"}}
	if d.id != "" {
		feature = append(feature, member{"id", d.id})
	}
	feature = append(feature, d.extra...)
	feature = append(feature, member{"properties", d.properties})
	geometry := d.geometry
	if d.kind != "" {
		geometry = object{{"type", d.kind}, {"coordinates", d.shape}}
	}
	feature = append(feature, member{"geometry", geometry})
	s := string(d.dialect.encode(nil, feature))
	if d.payload != nil {
		s = d.payload(s)
	}
	return s
}

// encodeRecord is the dead letter's line, without its end.
func (d draft) encodeRecord(batch, dlqID, firstSeen string) string {
	record := object{}
	if dlqID != "" {
		record = append(record, member{"dlq_id", dlqID})
	}
	record = append(record, member{"batch_id", batch})
	if d.id != "" {
		record = append(record, member{"feature_id", d.id})
	}
	record = append(record,
		member{"failed_rule", d.upstream.rule},
		member{"error_type", d.upstream.errorType},
		member{"error_message", d.upstream.message},
		member{"attempts", d.upstream.attempts},
		member{"source_crs", d.crs},
		member{"first_seen", firstSeen})
	if feature := d.encodeFeature(); d.text {
		record = append(record, member{"feature_geojson", feature})
	} else {
		record = append(record, member{"feature", raw(feature)})
	}
	s := string(d.dialect.encode(nil, record))
	if d.line != nil {
		s = d.line(s)
	}
	if strings.ContainsRune(s, '\n') {
		panic("a record must stay on one line: " + s)
	}
	return s
}
