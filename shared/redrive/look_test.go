package redrive_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"geodlq/shared/redrive"
)

func TestFilter(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	// One row for each way to differ; a lone word names it.
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, status, error_type, failed_rule, error, source_crs, epsg, geom, first_seen, attempts, attempts_forgiven, redrives, contract_version) VALUES
		('utm',       'county-2026', 'quarantined', 'coerce_failed', 'coerce:year->integer', 'value 7 of "x"', 'EPSG:26910', 26910, ST_SetSRID(ST_Point(551234, 5190000), 26910), '2026-11-01', 1, 0, 0, 'c-1'),
		('lonlat',    'county-2026', 'quarantined', 'coerce_failed', 'coerce:area->number', 'value 9 of "y"', 'urn:ogc:def:crs:OGC:1.3:CRS84', 4326, ST_SetSRID(ST_Point(-122.3, 46.9), 4326), '2026-11-02', 5, 4, 1, 'c-2'),
		('fiji',      'county_2026', 'pending',     NULL, NULL, NULL, 'EPSG:4326', 4326, ST_SetSRID(ST_Point(179.5, -17), 4326), '2026-11-03', 0, 0, 0, NULL),
		('nowhere',   '100% odd\',   'discarded',   'missing_crs', 'resolve:crs', 'no CRS', NULL, NULL, NULL, '2026-11-04', 3, 0, 2, 'c-1'),
		('broken',    'county-2026', 'quarantined', 'out_of_target_domain', 'reproject:EPSG:26910->EPSG:3857', 'far off', 'epsg:26910', 26910, ST_SetSRID(ST_Point(9e30, 9e30), 26910), '2026-11-05', 1, 0, 0, 'c-1')`)
	b.use(`{"version": "c-2", "fields": [{"name": "built_year", "type": "integer"}]}`)
	print := b.one(`SELECT fingerprint FROM failed_geotasks WHERE task_id = 'utm'`)
	id := b.one(`SELECT id FROM failed_geotasks WHERE task_id = 'fiji'`)
	dlq := b.one(`SELECT dlq_id FROM failed_geotasks WHERE task_id = 'lonlat'`)
	for _, c := range []struct {
		name, filter string
		want         []string
	}{
		{"nothing asked", `{}`, []string{"utm", "lonlat", "fiji", "nowhere", "broken"}},
		{"a batch", `{"batch_id": "county-2026"}`, []string{"utm", "lonlat", "broken"}},
		{"underscore is no wildcard", `{"batch_id": "county_2026"}`, []string{"fiji"}},
		{"underscore beside a wildcard neither", `{"batch_id": "county_20*"}`, []string{"fiji"}},
		{"a question mark is one character", `{"batch_id": "county?2026"}`, []string{"utm", "lonlat", "fiji", "broken"}},
		{"per cent and backslash are themselves", `{"batch_id": "100% odd\\"}`, []string{"nowhere"}},
		{"an escaped star is itself", `{"batch_id": "county\\*"}`, nil},
		{"several batches", `{"batch_id": ["100*", "county_2026"]}`, []string{"fiji", "nowhere"}},
		{"status", `{"status": "quarantined"}`, []string{"utm", "lonlat", "broken"}},
		{"reason", `{"reason": "coerce_failed"}`, []string{"utm", "lonlat"}},
		{"rule", `{"failed_rule": "coerce:*"}`, []string{"utm", "lonlat"}},
		{"fingerprint", `{"fingerprint": "` + print + `"}`, []string{"utm"}},
		{"feature", `{"feature_id": "fiji"}`, []string{"fiji"}},
		{"id", `{"id": ` + id + `}`, []string{"fiji"}},
		{"dlq_id", `{"dlq_id": "` + dlq + `"}`, []string{"lonlat"}},
		{"a CRS in any spelling", `{"source_crs": "http://www.opengis.net/def/crs/EPSG/0/26910"}`, []string{"utm", "broken"}},
		{"another spelling of lon/lat", `{"source_crs": "EPSG:4326"}`, []string{"lonlat", "fiji"}},
		{"no CRS", `{"source_crs": "none"}`, []string{"nowhere"}},
		{"box in Washington", `{"bbox": [-123, 46, -122, 47]}`, []string{"utm", "lonlat"}},
		{"box across the antimeridian", `{"bbox": [179, -20, -179, -10]}`, []string{"fiji"}},
		{"box with status", `{"bbox": [-180, -90, 180, 90], "status": "quarantined"}`, []string{"utm", "lonlat"}},
		{"first seen from", `{"first_seen": {"from": "2026-11-03"}}`, []string{"fiji", "nowhere", "broken"}},
		{"first seen until", `{"first_seen": {"to": "2026-11-02T00:00:00Z"}}`, []string{"utm"}},
		{"attempts count from the latest redrive", `{"attempts": {"max": 1}}`, []string{"utm", "lonlat", "fiji", "broken"}},
		{"redrives", `{"redrives": {"min": 1, "max": 1}}`, []string{"lonlat"}},
		{"contract", `{"contract_version": "c-1"}`, []string{"utm", "nowhere", "broken"}},
		{"the contract in effect", `{"contract_version": "current"}`, []string{"lonlat"}},
		{"not the contract in effect", `{"not_contract_version": "current"}`, []string{"utm", "fiji", "nowhere", "broken"}},
		{"all must be true", `{"batch_id": "county*", "status": ["quarantined", "pending"], "reason": "coerce*", "bbox": [-122.31, 46, -122, 47]}`, []string{"lonlat"}},
		{"text is no SQL", `{"batch_id": "x' OR true --"}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := do[redrive.List](b, "list", object{"filter": json.RawMessage(c.filter)})
			var got []string
			for _, r := range page.Rows {
				got = append(got, r.FeatureID)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
	b.balanced()
}

func TestFilterThatMakesNoSense(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	for _, c := range []struct{ name, filter, want string }{
		{"a name that is misspelt", `{"batchid": "a"}`, `unknown field "batchid"`},
		{"an empty text", `{"batch_id": ""}`, "empty text"},
		{"an empty list", `{"status": []}`, "empty list"},
		{"an empty text in a list", `{"reason": ["a", ""]}`, "empty text"},
		{"a number for a text", `{"batch_id": 7}`, "want a text"},
		{"null for a text", `{"batch_id": null, "feature_id": [null]}`, "empty text"},
		{"a status there is not", `{"status": "dead"}`, "want one of pending"},
		{"three numbers for a box", `{"bbox": [1, 2, 3]}`, "west, south, east, north"},
		{"latitude first", `{"bbox": [46, -123, 47, -122]}`, "west, south, east, north"},
		{"south of south", `{"bbox": [1, 5, 2, 4]}`, "south is north of north"},
		{"a box in metres", `{"bbox": [500000, 5000000, 600000, 5200000]}`, "degrees"},
		{"a day that is none", `{"first_seen": {"from": "yesterday"}}`, "is no time"},
		{"an empty period", `{"first_seen": {}}`, "from, to or both"},
		{"a period backwards", `{"first_seen": {"from": "2026-11-02", "to": "2026-11-01"}}`, "not before"},
		{"a range backwards", `{"attempts": {"min": 2, "max": 1}}`, "greater than max"},
		{"a fingerprint that is none", `{"fingerprint": "abc"}`, "16 hexadecimal"},
		{"all and a condition", `{"all": true, "batch_id": "a"}`, "one of the two"},
		{"U+0000", `{"batch_id": "a\u0000b"}`, "no text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.refuse(c.want, "list", object{"filter": json.RawMessage(c.filter)})
		})
	}
}

func TestRequestThatMakesNoSense(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.refuse(`action "requeu"`, "requeu", nil)
	b.refuse(`unknown field "dryrun"`, "requeue", object{"filter": object{"all": true}, "dryrun": false})
	for _, action := range []string{"requeue", "discard", "fix"} {
		extra := object{"actor": "ada", "reason": "r", "overrides": object{"source_crs": "EPSG:4326"}}
		if action != "discard" {
			delete(extra, "reason")
		}
		if action != "fix" {
			delete(extra, "overrides")
		}
		b.refuse("empty filter", action, extra)
		delete(extra, "actor")
		extra["filter"] = object{"batch_id": "a"}
		b.refuse("who asks?", action, extra)
	}
	b.refuse("why are they given up?", "discard", object{"filter": object{"batch_id": "a"}, "actor": "ada"})
	b.refuse("does not take rows that are replayed", "discard", object{"filter": object{"status": "replayed"}, "actor": "ada", "reason": "r"})
	b.refuse("overrides", "fix", object{"filter": object{"batch_id": "a"}, "actor": "ada"})
	b.refuse("source_crs", "fix", object{"filter": object{"batch_id": "a"}, "actor": "ada", "overrides": object{"source_crs": "EPSG:0"}})
	b.refuse("batch_id", "restore", object{"actor": "ada"})
	b.refuse("there is no such row", "show", object{"id": 1})
	b.want("0", `SELECT count(*) FROM redrive_runs`)
	b.want("0", `SELECT count(*) FROM redrive_audit`)
}

func TestGroups(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.capture(30, "county", "n/a")
	b.capture(5, "county", "circa 1905")
	b.capture(3, "village", "unknown")
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, geom, epsg) VALUES ('q', 'village', ST_Point(1, 1, 4326), 4326)`)

	want := redrive.Groups{Rows: 39, Count: 3, FromIndex: true, Groups: []redrive.Group{
		{BatchID: "county", Status: "pending", Reason: "ValueError", FailedRule: "coerce:built_year->integer", Rows: 35, Pattern: "invalid literal for int() with base # : # parcel #"},
		{BatchID: "village", Status: "pending", Reason: "ValueError", FailedRule: "coerce:built_year->integer", Rows: 3, Pattern: "invalid literal for int() with base # : # parcel #"},
		{BatchID: "village", Status: "pending", Rows: 1},
	}}
	ignore := cmpopts.IgnoreFields(redrive.Group{}, "Example", "Fingerprint", "Pattern")
	got := do[redrive.Groups](b, "groups", nil)
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("groups after the arrival (-want +got):\n%s", diff)
	}
	b.balanced()

	b.replay()
	got = do[redrive.Groups](b, "groups", nil)
	want = redrive.Groups{Rows: 38, Count: 2, FromIndex: true, Groups: []redrive.Group{
		{BatchID: "county", Status: "quarantined", Reason: "coerce_failed", FailedRule: "coerce:built_year->integer", Rows: 35},
		{BatchID: "village", Status: "quarantined", Reason: "coerce_failed", FailedRule: "coerce:built_year->integer", Rows: 3},
	}}
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("groups after the replay (-want +got):\n%s", diff)
	}
	for _, g := range got.Groups {
		if g.Example == nil || b.one(`SELECT fingerprint FROM failed_geotasks WHERE id = $1`, g.Example.ID) != g.Fingerprint || len(g.Fingerprint) != 16 {
			t.Errorf("the example of %+v is %+v", g, g.Example)
		}
	}
	if got.Groups[0].Fingerprint != got.Groups[1].Fingerprint {
		t.Error("one cause in two batches has two fingerprints")
	}
	// The examples are looked for anew where the one that is known has left its group.
	b.exec(`UPDATE failed_geotasks SET status = 'discarded' WHERE id = $1`, got.Groups[1].Example.ID)
	again := do[redrive.Groups](b, "groups", object{"filter": object{"batch_id": "vill*"}})
	if e := again.Groups[0].Example; again.Rows != 2 || e == nil || e.ID == got.Groups[1].Example.ID {
		t.Errorf("the example of a group whose latest row has left it is %+v", e)
	}

	// What the groups do not know is counted over the rows, with the same result.
	for _, filter := range []object{{}, {"batch_id": "county"}, {"status": "quarantined", "reason": "coerce*"}} {
		index := do[redrive.Groups](b, "groups", object{"filter": filter})
		rows := object{"attempts": object{"min": 0}}
		for k, v := range filter {
			rows[k] = v
		}
		counted := do[redrive.Groups](b, "groups", object{"filter": rows})
		if counted.FromIndex {
			t.Error("a filter by attempts was answered from the groups")
		}
		if diff := cmp.Diff(index, counted, cmpopts.IgnoreFields(redrive.Groups{}, "FromIndex"), cmpopts.IgnoreFields(redrive.Group{}, "Example")); diff != "" {
			t.Errorf("groups of %v (-kept +counted):\n%s", filter, diff)
		}
	}

	byReason := do[redrive.Groups](b, "groups", object{"by": []string{"reason"}})
	if len(byReason.Groups) != 1 || byReason.Groups[0].Rows != 37 || byReason.Groups[0].BatchID != "" || byReason.Groups[0].Example == nil {
		t.Errorf("groups by reason alone: %+v", byReason)
	}
	first := do[redrive.Groups](b, "groups", object{"limit": 1})
	if len(first.Groups) != 1 || first.Count != 2 || first.Rows != 37 {
		t.Errorf("the first group: %+v, want one of two with the totals of both", first)
	}
	b.refuse("by", "groups", object{"by": []string{"moon"}})

	// Folded, unfolded, deleted and truncated, the groups stay right.
	b.exec(`DELETE FROM failed_geotasks WHERE batch_id = 'village'`)
	b.balanced()
	do[redrive.Runs](b, "continue", nil)
	b.want("0", `SELECT count(*) FROM failure_group_changes`)
	b.want("0", `SELECT count(*) FROM failure_groups WHERE n <= 0`)
	b.balanced()
	b.exec(`TRUNCATE failed_geotasks`)
	b.balanced()
}

func TestFingerprintTakesOutWhatDiffers(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	for _, c := range []struct {
		name, want string
		messages   []string
	}{
		{"quoted values", "attribute # : # is not an integer", []string{`attribute "built_year": "circa 1905" is not an integer`, `attribute "area": "a \"big\" one" is not an integer`}},
		{"single quotes", "could not convert: #", []string{`could not convert: 'N/A'`, `could not convert: 'a b c'`}},
		{"an apostrophe is no quote", "can't be read, doesn't fit", []string{`can't be read, doesn't fit`}},
		{"coordinates", "vertex # is outside the domain", []string{`vertex 3 (-122.41941, 37.7749) is outside the domain`, `vertex 10 (1e-7, 4) is outside the domain`}},
		{"a place", "Self-intersection #", []string{`Self-intersection[551234.5 5190000.25]`, `Self-intersection[1 2]`}},
		{"ids, times and addresses", "parcel # of # failed at # on #", []string{
			`parcel 0042-7781-AB of 550e8400-e29b-41d4-a716-446655440000 failed at 10.0.0.12:5432 on 2026-11-30T12:00:01Z`,
			`parcel 7 of 6b0d3f52-9a41-4c7e-8f16-2d95e07bc438 failed at 10.1.2.3:5433 on 2026-12-01T00:00:00Z`}},
		{"nothing but a number", "#", []string{"42"}},
		{"nothing", "", []string{""}},
		{"other scripts stay", "l'année # n'est pas un entier", []string{`l'année "dix-neuf" n'est pas un entier`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, m := range c.messages {
				b.want(c.want, `SELECT geodlq_pattern($1)`, m)
			}
		})
	}
	b.want("false", `SELECT geodlq_fingerprint('a', 'b', 'c') = geodlq_fingerprint('a', 'bc', '')`)
	b.want("", `SELECT geodlq_fingerprint(NULL, NULL, NULL)`)
}

func TestListPages(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.capture(25, "county", "n/a")
	seen := map[int64]bool{}
	after, pages := int64(0), 0
	for {
		page := do[redrive.List](b, "list", object{"filter": object{"batch_id": "county"}, "limit": 10, "after": after})
		pages++
		for _, r := range page.Rows {
			if seen[r.ID] || r.ID <= after {
				t.Errorf("row %d came twice or out of order", r.ID)
			}
			seen[r.ID] = true
		}
		if after = page.Next; after == 0 {
			break
		}
	}
	if len(seen) != 25 || pages != 3 {
		t.Errorf("%d rows on %d pages, want 25 on 3", len(seen), pages)
	}
	b.refuse("limit", "list", object{"limit": 5000})
}

func TestShow(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.capture(1, "county", "n/a")
	b.replay()
	shown := do[redrive.Shown](b, "show", object{"id": 1})
	if shown.Payload == nil || *shown.Payload != b.one(`SELECT feature_geojson FROM failed_geotasks`) || shown.PayloadBytes != int64(len(*shown.Payload)) {
		t.Errorf("payload %v, %d bytes", shown.Payload, shown.PayloadBytes)
	}
	if w := shown.Where; w == nil || w.Type != "Polygon" || w.Vertices != 5 || w.Lon < -122.4 || w.Lon > -122.2 || w.Lat < 46.8 || w.Lat > 46.9 || w.Geometry == nil {
		t.Errorf("where: %+v", shown.Where)
	}
	if len(shown.History) != 1 || shown.History[0].Event != "quarantined" || shown.History[0].Reason != "coerce_failed" || shown.Landed != nil {
		t.Errorf("history %+v, landed %+v", shown.History, shown.Landed)
	}
	if shown.Status != "quarantined" || shown.Attempts != 1 || shown.Upstream != 3 || shown.ContractVersion != "parcels-1" {
		t.Errorf("row %+v", shown.Row)
	}
	b.use(lenientContract)
	do[redrive.Run](b, "requeue", object{"filter": object{"id": 1}, "dry_run": false, "actor": "ada"})
	b.replay()
	shown = do[redrive.Shown](b, "show", object{"dlq_id": shown.DLQID})
	if shown.Landed == nil || shown.Landed.ContractVersion != "parcels-2" || shown.Status != "replayed" || shown.Redrives != 1 {
		t.Errorf("after the redrive: landed %+v, row %+v", shown.Landed, shown.Row)
	}

	// Bytes that are no text, and more of them than an answer holds.
	raw := make([]byte, 3<<20)
	for i := range raw {
		raw[i] = 0xE9
	}
	b.exec(`INSERT INTO failed_geotasks (id, payload_raw) VALUES (1001, $1)`, raw)
	b.exec(`INSERT INTO failed_geotasks (id, feature_geojson) VALUES (1002, repeat('é', 2000000))`)
	shown = do[redrive.Shown](b, "show", object{"id": 1001})
	if shown.Payload != nil || len(shown.PayloadBase64) != 1<<20 || shown.PayloadBytes != 3<<20 || shown.Where != nil {
		t.Errorf("%d bytes of %d", len(shown.PayloadBase64), shown.PayloadBytes)
	}
	shown = do[redrive.Shown](b, "show", object{"id": 1002})
	if n := len(*shown.Payload); n > 1<<20 || n < 1<<20-4 || shown.PayloadBytes != 4000000 {
		t.Errorf("%d bytes of %d", n, shown.PayloadBytes)
	}
	if answer, err := json.Marshal(shown); err != nil || len(answer) > 5<<20 {
		t.Errorf("the answer is %d bytes, %v", len(answer), err)
	}
}

func TestViewsHoldEveryRowOnce(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	b.exec(`INSERT INTO failed_geotasks (task_id, geom, epsg) VALUES
		('point', ST_SetSRID(ST_Point(551234.5, 5190000.25), 26910), 26910),
		('three dimensions', ST_GeomFromText('POLYGON Z ((0 0 9, 1 0 9, 1 1 9, 0 0 9))', 4326), 4326),
		('curve', ST_GeomFromText('CIRCULARSTRING (0 0, 1 1, 2 0)', 4326), 4326),
		('self-intersecting', ST_GeomFromText('POLYGON ((0 0, 1 1, 1 0, 0 1, 0 0))', 4326), 4326),
		('epsg says it', ST_Point(1, 1), 4326),
		('no geometry', NULL, NULL),
		('no CRS', ST_Point(1, 1), NULL),
		('epsg 0', ST_Point(1, 1), 0),
		('two CRSs', ST_SetSRID(ST_Point(1, 1), 4326), 26910),
		('unknown CRS', ST_Point(1, 1), 99999),
		('swapped', ST_SetSRID(ST_Point(47.6, -122.3), 4326), 4326),
		('far off', ST_SetSRID(ST_Point(1e30, 1e30), 26910), 26910),
		('not a number', ST_SetSRID(ST_Point('NaN', 1), 4326), 4326),
		('empty', ST_GeomFromText('POLYGON EMPTY', 4326), 4326)`)
	b.balanced()
	b.want("curve epsg says it point self-intersecting three dimensions", `SELECT string_agg(feature_id, ' ' ORDER BY feature_id COLLATE "C") FROM failed_geotasks_map`)
	b.want("0", `SELECT count(*) FROM failed_geotasks_map WHERE ST_SRID(geom) <> 4326 OR ST_NDims(geom) <> 2`)
	b.want("true", `SELECT ST_Distance(geom::geography, ST_Transform(ST_SetSRID(ST_Point(551234.5, 5190000.25), 26910), 4326)::geography) < 0.001 FROM failed_geotasks_map WHERE feature_id = 'point'`)
	for task, why := range map[string]string{
		"no geometry": "no geometry could be read", "empty": "the geometry is empty", "no CRS": "the CRS is not known", "epsg 0": "the CRS is not known",
		"two CRSs": "epsg and the SRID of geom disagree", "swapped": "the position has no place in longitude and latitude", "unknown CRS": "the position has no place in longitude and latitude",
	} {
		b.want(why, `SELECT why FROM failed_geotasks_unmappable WHERE feature_id = $1`, task)
	}
	// What a map server looks at: type and SRID are declared.
	b.want("GEOMETRY 4326", `SELECT concat_ws(' ', type, srid) FROM geometry_columns WHERE f_table_name = 'failed_geotasks_map' AND f_table_schema = current_schema()`)

	// In quarantine, a box is looked up in an index.
	b.exec(`UPDATE failed_geotasks SET status = 'quarantined'`)
	b.want("5", `SELECT count(*) FROM failed_geotasks_quarantined_map`)
	conn, err := b.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET enable_seqscan = off`); err != nil {
		t.Fatal(err)
	}
	var plan string
	rows, err := conn.Query(t.Context(), `EXPLAIN SELECT * FROM failed_geotasks_quarantined_map WHERE geom && ST_MakeEnvelope(0, 0, 1, 1, 4326)`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan += line + "\n"
	}
	if !strings.Contains(plan, "failed_geotasks_quarantined_geom") {
		t.Errorf("a box on the map is not looked up in its index:\n%s", plan)
	}
}
