package endtoend_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"geodlq/testdata/summary"
)

// TestCountyParcels takes the failure file of a county's week through capture,
// replay and metrics, as it would happen, and compares the outcome with the
// summary that the file's generator expects.
func TestCountyParcels(t *testing.T) {
	t.Parallel()
	p := deploy(t, map[string]string{"CONTRACT_URI": testdata("parcels.contract.json")})
	file := readTestdata(t, "county_parcels.ndjson")
	lines := bytes.Split(bytes.TrimSuffix(file, []byte("\n")), []byte("\n"))
	want := int64(len(lines))

	event := p.put("incoming/county_parcels.ndjson", file, nil)
	first := invoke[captured](t, p.capture, event)
	if first.Records != want || first.Captured != want || first.AlreadyThere != 0 {
		t.Errorf("capture answered %+v, want %d records, all captured", first, want)
	}
	archived := p.archived()
	if got := int64(len(archived)); got != want {
		t.Errorf("%d records in the archive, want %d", got, want)
	}
	again := invoke[captured](t, p.capture, event)
	if again.Records != want || again.Captured != 0 || again.AlreadyThere != want {
		t.Errorf("the same event again: capture answered %+v, want %d records, all there already", again, want)
	}

	answer := p.drain()
	letters := p.lettersByRecord()
	if got := int64(len(letters)); got != want {
		t.Fatalf("%d dead letters in the queue, want %d", got, want)
	}
	for n, l := range letters {
		if l.Status != "replayed" && l.Status != "quarantined" {
			t.Errorf("record %d is %s (%s) after the replay", n, l.Status, l.errorType())
		}
		if !bytes.Equal(l.payload(), archived[n].Payload) {
			t.Errorf("record %d: queue and archive hold different payloads", n)
		}
	}

	if diff := cmp.Diff(string(readTestdata(t, "county_parcels.expected.txt")), p.summary(letters).String()); diff != "" {
		t.Errorf("the outcome differs from testdata/county_parcels.expected.txt (-want +got):\n%s", diff)
		for n, l := range letters {
			if l.Status == "quarantined" {
				t.Logf("record %d: %s at %s: %s", n, l.errorType(), deref(l.FailedRule), deref(l.Error))
			}
		}
	}

	// A second replay finds nothing to do.
	if idle := p.drain(); idle.Claimed != 0 {
		t.Errorf("a second replay claimed %d rows, want none", idle.Claimed)
	}
	if answer.Claimed != answer.Replayed+answer.Quarantined {
		t.Errorf("replay answered %+v: every claimed row must be replayed or quarantined", answer)
	}

	p.checkPayloads(lines, letters)
	p.checkPositions()
	p.checkAttributes()
	p.checkBooks(want)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// summary is the outcome as a person sees it.
func (p *pipeline) summary(letters map[int64]letter) summary.Summary {
	var s summary.Summary
	for n, l := range letters {
		r := summary.Record{Ordinal: n, Batch: l.BatchID}
		if l.FeatureID != nil && l.BatchID != "unattributed" {
			r.FeatureID = *l.FeatureID
		}
		if l.Status != "replayed" {
			r.Reason = l.errorType()
		}
		s.Records = append(s.Records, r)
	}
	s.Targets = query[summary.Target](p.t, p.db, `
		SELECT properties->>'layer' AS layer, count(*) AS rows, count(repair) AS repaired
		FROM processed_features GROUP BY 1`)
	return s
}

// checkPayloads compares what the queue keeps with the text in the file, without
// decoding anything else than the record around it. Of a record that cannot be read
// the whole line is kept.
func (p *pipeline) checkPayloads(lines [][]byte, letters map[int64]letter) {
	p.t.Helper()
	// encoding/json would replace a Latin-1 ñ; a character of private use stands in for it.
	const latin, private = "\xf1", "\ue000"
	for n, line := range lines {
		var record struct {
			Text    *string         `json:"feature_geojson"`
			Feature json.RawMessage `json:"feature"`
		}
		want := line
		if err := json.Unmarshal(bytes.ReplaceAll(line, []byte(latin), []byte(private)), &record); err == nil {
			switch {
			case record.Text != nil:
				want = []byte(*record.Text)
			case record.Feature != nil:
				want = record.Feature
			}
			want = bytes.ReplaceAll(want, []byte(private), []byte(latin))
		}
		if got := letters[int64(n)].payload(); !bytes.Equal(got, want) {
			p.t.Errorf("record %d: the queue holds %.200q, the file %.200q", n, got, want)
		}
	}
}

// checkPositions has PostGIS read the geometry out of the payload's text and PROJ
// transform it from the CRS its layer is in, and compares vertex by vertex with
// what landed. Repaired shapes have other vertices; they are compared by extent.
func (p *pipeline) checkPositions() {
	p.t.Helper()
	type position struct {
		FeatureID  string
		SourceEPSG int
		EPSG       int
		Vertices   float64 // metres on the map between a vertex and its own, at most
		Extent     float64 // metres between the sides of the two boxes, at most
	}
	rows := query[position](p.t, p.db, `
		WITH read AS (
		    SELECT t.feature_id, t.source_epsg, l.epsg, t.repair, t.geom AS got,
		           ST_Transform(ST_SetSRID(ST_Force2D(ST_GeomFromGeoJSON((q.feature_geojson::json->'geometry')::text)), l.epsg), 3857) AS want
		    FROM processed_features t
		    JOIN failed_geotasks q USING (dlq_id)
		    JOIN (VALUES ('parcels', 26910), ('streets', 2227), ('addresses', 4326), ('hydrants', 32610), ('zoning', 3857), ('permits', 4326))
		         AS l (layer, epsg) ON l.layer = t.properties->>'layer'
		)
		SELECT feature_id, source_epsg, epsg,
		       CASE WHEN repair IS NULL THEN (
		           SELECT max(ST_Distance(g.geom, w.geom)) FROM ST_DumpPoints(got) g JOIN ST_DumpPoints(want) w USING (path)
		       ) ELSE 0 END AS vertices,
		       greatest(abs(ST_XMin(g) - ST_XMin(w)), abs(ST_XMax(g) - ST_XMax(w)), abs(ST_YMin(g) - ST_YMin(w)), abs(ST_YMax(g) - ST_YMax(w))) AS extent
		FROM read, ST_Points(got) g, ST_Points(want) w -- the box of a polygon leaves out a hole that lies outside`)
	if len(rows) < 2000 {
		p.t.Errorf("%d features to compare with PROJ, want 2,000 at least", len(rows))
	}
	for _, r := range rows {
		if r.SourceEPSG != r.EPSG {
			p.t.Errorf("feature %s was taken for EPSG:%d, want EPSG:%d", r.FeatureID, r.SourceEPSG, r.EPSG)
		}
		if !(r.Vertices <= 0.001) || !(r.Extent <= 0.001) {
			p.t.Errorf("feature %s has a vertex %.6f m from where PROJ puts it, and an extent %.6f m off; want 1 mm at most", r.FeatureID, r.Vertices, r.Extent)
		}
	}
}

// checkAttributes looks at attributes that arrived as text.
func (p *pipeline) checkAttributes() {
	p.t.Helper()
	type attribute struct {
		Name  string
		Types string
	}
	got := map[string]string{}
	for _, a := range query[attribute](p.t, p.db, `
		SELECT a.key AS name, string_agg(DISTINCT jsonb_typeof(a.value), ' ' ORDER BY jsonb_typeof(a.value)) AS types
		FROM processed_features, jsonb_each(properties) a GROUP BY 1`) {
		got[a.Name] = a.Types
	}
	for name, want := range map[string]string{
		"built_year": "null number", "assessed_value": "number", "owner_occupied": "boolean", "lot_sqft": "number",
		"flow_gpm": "number", "in_service": "boolean", "speed_mph": "number", "lanes": "number", "verified": "boolean",
		"max_height_ft": "null number", "sale_date": "null string", "owner": "string", "contacts": "array",
	} {
		if got[name] != want {
			p.t.Errorf("attribute %s landed as %q, want %q", name, got[name], want)
		}
	}
}

// checkBooks runs metrics and compares what it published and wrote with a count.
func (p *pipeline) checkBooks(arrived int64) {
	p.t.Helper()
	if _, err := p.metrics.Invoke(p.t.Context(), []byte(`{}`)); err != nil {
		p.t.Fatalf("metrics: %v", err)
	}
	type totals struct {
		BatchID     string
		Arrived     int64
		Cleared     int64
		Quarantined int64
		Discarded   int64
		Active      int64
		PoisonRate  float64
	}
	counted := query[totals](p.t, p.db, `
		SELECT batch_id, count(*) AS arrived, count(*) FILTER (WHERE status = 'replayed') AS cleared,
		       count(*) FILTER (WHERE status = 'quarantined') AS quarantined, count(*) FILTER (WHERE status = 'discarded') AS discarded,
		       count(*) FILTER (WHERE status = 'pending') AS active,
		       round(count(*) FILTER (WHERE status = 'quarantined') / count(*)::numeric, 4)::float8 AS poison_rate
		FROM failed_geotasks GROUP BY 1 ORDER BY 1`)
	kept := query[totals](p.t, p.db, `
		SELECT batch_id, arrived, cleared, quarantined, discarded, active, poison_rate::float8
		FROM dlq_batches ORDER BY 1`)
	if diff := cmp.Diff(counted, kept); diff != "" {
		p.t.Errorf("the books differ from a count of the queue (-count +books):\n%s", diff)
	}
	sum := int64(0)
	for _, b := range kept {
		sum += b.Arrived
	}
	if sum != arrived {
		p.t.Errorf("the books know of %d arrivals, want %d", sum, arrived)
	}

	published := map[string]float64{}
	for _, d := range p.recorder.Data(p.t) {
		if d.Value != nil && len(d.Dimensions) == 2 {
			published[d.Name] = *d.Value
		}
	}
	quarantined := int64(0)
	for _, b := range counted {
		quarantined += b.Quarantined
	}
	rate := math.Round(float64(quarantined)/float64(arrived)*1e4) / 1e4
	for name, want := range map[string]float64{"QuarantinedNow": float64(quarantined), "Active": 0, "PoisonRate": rate} {
		if got, ok := published[name]; !ok || got != want {
			p.t.Errorf("CloudWatch has %s = %v, want %v; all of it: %s", name, got, want, marshal(p.t, published))
		}
	}
}
