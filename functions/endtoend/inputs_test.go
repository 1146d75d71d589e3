package endtoend_test

import (
	"testing"
)

// TestBareFeatures captures files that hold features and no dead-letter records:
// what they lack comes from the object's metadata, and from the collection itself.
func TestBareFeatures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		file     string
		metadata map[string]string
		features int
		batch    string
		epsg     int
	}{
		{
			name: "a FeatureCollection that names its CRS", file: "roads.geojson",
			metadata: map[string]string{"batch-id": "streets-rerun"},
			features: 36, batch: "streets-rerun", epsg: 2227,
		},
		{
			name: "a text sequence whose CRS the metadata names", file: "hydrants.geojsons",
			metadata: map[string]string{"batch-id": "hydrants-rerun", "source-crs": "OGC:CRS84", "failed-rule": "load:postgis"},
			features: 24, batch: "hydrants-rerun", epsg: 4326,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := deploy(t, nil)
			answer := invoke[captured](t, p.capture, p.put("incoming/"+tt.file, readTestdata(t, tt.file), tt.metadata))
			if want := int64(tt.features); answer.Records != want || answer.Captured != want {
				t.Errorf("capture answered %+v, want %d records, all captured", answer, want)
			}
			p.drain()
			for _, l := range p.letters() {
				if l.BatchID != tt.batch || l.Status != "replayed" {
					t.Errorf("feature %s of batch %s is %s (%s: %s), want it replayed and in batch %s",
						deref(l.FeatureID), l.BatchID, l.Status, l.errorType(), deref(l.Error), tt.batch)
				}
			}
			type distance struct {
				FeatureID string
				Metres    float64
			}
			landed := query[distance](t, p.db, `
				SELECT t.feature_id, ST_HausdorffDistance(t.geom,
				           ST_Transform(ST_SetSRID(ST_GeomFromGeoJSON((q.feature_geojson::json->'geometry')::text), $1::int), 3857)) AS metres
				FROM processed_features t JOIN failed_geotasks q USING (dlq_id)`, tt.epsg)
			if len(landed) != tt.features {
				t.Errorf("%d features in the target, want %d", len(landed), tt.features)
			}
			for _, d := range landed {
				if !(d.Metres <= 0.001) {
					t.Errorf("feature %s is %.6f m from where PROJ puts it, want 1 mm at most", d.FeatureID, d.Metres)
				}
			}
		})
	}
}

// TestRowsInsertedWithSQL replays what a pipeline put into the queue by itself, with
// nothing but a geometry, its code and a key, as the README shows it, and what
// PostGIS lets through into such a row.
func TestRowsInsertedWithSQL(t *testing.T) {
	t.Parallel()
	p := deploy(t, nil)
	tests := []struct {
		task     string
		geometry string // SQL
		epsg     string // SQL
		want     string // replayed, or the reason of the quarantine
	}{
		{"a point", `'SRID=26910;POINT(597570.3 4129387.03)'`, `26910`, "replayed"},
		{"a polygon in feet", `'SRID=2227;POLYGON((6154788 1936930, 6154888 1936930, 6154888 1937030, 6154788 1937030, 6154788 1936930))'`, `2227`, "replayed"},
		{"a bow-tie", `'SRID=32610;POLYGON((550000 5190000, 550010 5190010, 550010 5190000, 550000 5190010, 550000 5190000))'`, `32610`, "replayed"},
		{"a height", `'SRID=4326;POINT Z (-121.899 37.306 12.5)'`, `4326`, "replayed"},
		{"a height and a measure", `'SRID=4326;LINESTRING ZM (-121.899 37.306 12.5 1, -121.898 37.307 12.5 2)'`, `4326`, "replayed"},
		{"a CRS that only PostGIS transforms", `'SRID=27700;POINT(530000 180000)'`, `27700`, "replayed"},
		{"already in the target's CRS", `'SRID=3857;POINT(-13569734.61 4481845.5)'`, `3857`, "replayed"},
		{"a geometry without SRID beside its code", `'POINT(597571.3 4129388.03)'`, `26910`, "replayed"},
		{"a geometry whose SRID stands for the code", `'SRID=26910;POINT(597572.3 4129389.03)'`, `NULL`, "replayed"},
		{"an SRID that contradicts the code", `'SRID=26911;POINT(597573.3 4129390.03)'`, `26910`, "crs_conflict"},
		{"no code", `'POINT(1 2)'`, `0`, "missing_crs"},
		{"an unknown code", `'POINT(1 2)'`, `99999`, "unknown_crs"},
		{"a datum whose grid is not there", `'SRID=26710;POINT(597600 4129190)'`, `26710`, "unsupported_crs"},
		{"an empty polygon", `'SRID=4326;POLYGON EMPTY'`, `4326`, "empty_geometry"},
		{"an empty point", `'SRID=4326;POINT EMPTY'`, `4326`, "empty_geometry"},
		{"no geometry", `NULL`, `4326`, "null_geometry"},
		{"nothing at all", `NULL`, `NULL`, "null_geometry"},
		{"latitude first", `'SRID=4326;POINT(44.51 -98.02)'`, `4326`, "coordinate_out_of_range"},
		{"infinity", `ST_SetSRID(ST_MakePoint('infinity', 1), 4326)`, `4326`, "bad_coordinates"},
		{"not a number", `ST_SetSRID(ST_MakePoint(1, 'NaN'), 4326)`, `4326`, "bad_coordinates"},
		{"a curve", `'SRID=26910;CIRCULARSTRING(597570 4129387, 597571 4129388, 597572 4129387)'`, `26910`, "unsupported_geometry_type"},
		{"a curved polygon", `'SRID=26910;CURVEPOLYGON(CIRCULARSTRING(597570 4129387, 597571 4129388, 597572 4129387, 597571 4129386, 597570 4129387))'`, `26910`, "unsupported_geometry_type"},
		{"a triangle", `'SRID=26910;TRIANGLE((597570 4129387, 597580 4129387, 597580 4129397, 597570 4129387))'`, `26910`, "unsupported_geometry_type"},
		{"a triangle in degrees", `'SRID=4326;TRIANGLE((10 10, 11 10, 11 11, 10 10))'`, `4326`, "unsupported_geometry_type"},
		{"a triangulated surface", `'SRID=4326;TIN(((10 10, 11 10, 11 11, 10 10)))'`, `4326`, "unsupported_geometry_type"},
		{"a polyhedral surface", `'SRID=4326;POLYHEDRALSURFACE(((10 10, 11 10, 11 11, 10 10)))'`, `4326`, "unsupported_geometry_type"},
		{"a surface of curves", `'SRID=4326;MULTISURFACE(CURVEPOLYGON(CIRCULARSTRING(10 10, 11 11, 12 10, 11 9, 10 10)))'`, `4326`, "unsupported_geometry_type"},
		{"a curve in a collection", `'SRID=4326;GEOMETRYCOLLECTION(CIRCULARSTRING(10 10, 11 11, 12 10))'`, `4326`, "unsupported_geometry_type"},
		{"a triangle in a collection", `'SRID=4326;GEOMETRYCOLLECTION(TRIANGLE((10 10, 11 10, 11 11, 10 10)))'`, `4326`, "unsupported_geometry_type"},
		{"several dimensions in one collection", `'SRID=4326;GEOMETRYCOLLECTION(POINT(1 2), LINESTRING(1 2, 3 4))'`, `4326`, "mixed_collection"},
		{"a collection of points", `'SRID=4326;GEOMETRYCOLLECTION(POINT(1 2), POINT(3 4))'`, `4326`, "replayed"},
		{"an open ring", `ST_SetSRID(ST_GeomFromGeoJSON('{"type":"Polygon","coordinates":[[[10,10],[11,10],[11,11],[10,11]]]}'), 4326)`, `4326`, "replayed"},
		{"a polygon that is a line", `'SRID=32610;POLYGON((550000 5190000, 550010 5190000, 550005 5190000, 550000 5190000))'`, `32610`, "degenerate_geometry"},
	}
	for _, tt := range tests {
		_, err := p.db.Exec(t.Context(), `
			INSERT INTO failed_geotasks (task_id, geom, epsg, geom_hash)
			VALUES ($1, `+tt.geometry+`, `+tt.epsg+`, md5($1))`, tt.task)
		if err != nil {
			t.Fatalf("insert %s: %v", tt.task, err)
		}
	}
	p.drain()

	type outcome struct {
		TaskID  string
		Outcome string
		Error   string
		Landed  bool
		Metres  float64
	}
	got := map[string]outcome{}
	for _, o := range query[outcome](t, p.db, `
		SELECT q.task_id, CASE q.status WHEN 'quarantined' THEN q.error_type ELSE q.status END AS outcome, coalesce(q.error, '') AS error,
		       p.id IS NOT NULL AS landed,
		       CASE WHEN p.id IS NULL THEN 0 ELSE ST_HausdorffDistance(ST_Points(p.geom),
		           ST_Points(ST_Transform(ST_SetSRID(q.geom, p.source_epsg), 3857))) END AS metres
		FROM failed_geotasks q LEFT JOIN processed_features p ON p.geom_hash = md5(q.task_id)`) {
		got[o.TaskID] = o
	}
	for _, tt := range tests {
		o := got[tt.task]
		if o.Outcome != tt.want || o.Landed != (tt.want == "replayed") {
			t.Errorf("%s: %s (%s), in the target: %t; want %s", tt.task, o.Outcome, o.Error, o.Landed, tt.want)
		}
		// A repaired bow-tie has a vertex more, where its edges cross.
		if off := 0.001; !(o.Metres <= off) && tt.task != "a bow-tie" {
			t.Errorf("%s: landed %.6f m from where PROJ puts it, want %g m at most", tt.task, o.Metres, off)
		}
	}
}
