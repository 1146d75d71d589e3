package endtoend_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"geodlq/shared/deadletter"
)

// geoCase is one line of a file in testdata/cases: a feature, the CRS its pipeline
// names, and what must become of it. Positions are PROJ's:
//
//	SELECT ST_Transform(ST_SetSRID(ST_MakePoint(x, y), 26910), 3857)
type geoCase struct {
	Case       string          `json:"case"`
	Feature    json.RawMessage `json:"feature"`
	Text       *string         `json:"feature_text"`
	Base64     *string         `json:"feature_b64"`
	SourceCRS  json.RawMessage `json:"source_crs"`
	TargetEPSG int             `json:"target_epsg"`

	Expect       string      `json:"expect"`
	Reason       string      `json:"expect_reason"`
	XY           *[2]float64 `json:"expect_xy"` // of the input's first vertex, in the target
	Tolerance    float64     `json:"xy_tol_m"`
	GeometryType string      `json:"expect_geom_type"`
	SourceArea   float64     `json:"expect_source_area"` // in the units of the source CRS
	FeatureID    string      `json:"expect_feature_id"`
	Properties   string      `json:"expect_properties"` // JSON
	Note         string      `json:"expect_note"`
	Alternative  *struct {
		Expect string `json:"expect"`
		Reason string `json:"expect_reason"`
		When   string `json:"when"`
	} `json:"alt"`
}

// payload is the feature's bytes.
func (c *geoCase) payload(t *testing.T) []byte {
	switch {
	case c.Text != nil:
		return []byte(*c.Text)
	case c.Base64 != nil:
		b, err := base64.StdEncoding.DecodeString(*c.Base64)
		if err != nil {
			t.Fatalf("case %s: %v", c.Case, err)
		}
		return b
	default:
		return c.Feature
	}
}

func readCases(t *testing.T, names ...string) []geoCase {
	t.Helper()
	var cases []geoCase
	for _, name := range names {
		lines := bufio.NewScanner(bytes.NewReader(readTestdata(t, name)))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var c geoCase
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				t.Fatalf("%s, case %d: %v", name, len(cases)+1, err)
			}
			cases = append(cases, c)
		}
		if err := lines.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return cases
}

// carrier is a way in which a feature gets into the queue.
type carrier struct {
	name string
	// record is the line of a failure file for a case; nil where the carrier cannot carry it.
	record func(t *testing.T, c *geoCase) []byte
}

// asString puts the text of the feature into feature_geojson. Bytes that are no
// UTF-8 cannot stand in a JSON string; they go where a pipeline that writes no
// better would put them, into the middle of the record.
func asString(t *testing.T, c *geoCase) []byte {
	payload := c.payload(t)
	if !utf8.Valid(payload) {
		return raw(c, payload)
	}
	return marshal(t, map[string]any{"source_crs": c.SourceCRS, "feature_geojson": string(payload)})
}

// asObject writes the feature into the record as it is, where it is a JSON object on
// one line.
func asObject(t *testing.T, c *geoCase) []byte {
	payload := c.payload(t)
	if !json.Valid(payload) || payload[0] != '{' || bytes.ContainsAny(payload, "\r\n") {
		return nil
	}
	return raw(c, payload)
}

func raw(c *geoCase, payload []byte) []byte {
	line := append([]byte(`{"source_crs":`), c.SourceCRS...)
	line = append(line, `,"feature":`...)
	return append(append(line, payload...), '}')
}

// TestCases takes every case through capture and replay under the built-in contract.
func TestCases(t *testing.T) {
	t.Parallel()
	all := readCases(t, "cases/features.ndjson", "cases/more.ndjson")
	for _, way := range []carrier{
		{"in feature_geojson", asString},
		{"in feature", asObject},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			var cases []*geoCase
			var object []byte
			for i := range all {
				if line := way.record(t, &all[i]); line != nil {
					cases = append(cases, &all[i])
					object = append(append(object, line...), '\n')
				}
			}
			p := deploy(t, nil)
			answer := invoke[captured](t, p.capture, p.put("incoming/cases.ndjson", object, map[string]string{"batch-id": "cases"}))
			if want := int64(len(cases)); answer.Records != want || answer.Captured != want {
				t.Errorf("capture answered %+v, want %d records, all captured", answer, want)
			}
			p.drain()

			letters := p.lettersByRecord()
			archived := p.archived()
			for i, c := range cases {
				letter, ok := letters[int64(i)]
				if !ok {
					t.Errorf("case %s (record %d) is not in the queue", c.Case, i)
					continue
				}
				t.Run(c.Case, func(t *testing.T) {
					payload := c.payload(t)
					checkVerbatim(t, "queue", letter, letter.payload(), payload)
					checkVerbatim(t, "archive", letter, archived[int64(i)].Payload, payload)
					p.checkOutcome(t, c, letter)
				})
			}
		})
	}
}

// TestCasesInsertedWithSQL takes the cases past capture: a pipeline that has PostGIS
// inserts the text itself.
func TestCasesInsertedWithSQL(t *testing.T) {
	t.Parallel()
	p := deploy(t, nil)
	cases := readCases(t, "cases/features.ndjson", "cases/more.ndjson")
	for i, c := range cases {
		payload := c.payload(t)
		var text *string
		if s := string(payload); utf8.Valid(payload) && !strings.Contains(s, "\x00") {
			text, payload = &s, nil
		}
		name := new(string)
		if err := json.Unmarshal(c.SourceCRS, &name); err != nil { // a number
			*name = string(c.SourceCRS)
		}
		_, err := p.db.Exec(t.Context(), `
			INSERT INTO failed_geotasks (source_record, feature_geojson, payload_raw, source_crs)
			VALUES ($1, $2, $3, $4)`, i, text, payload, name)
		if err != nil {
			t.Fatalf("insert case %s: %v", c.Case, err)
		}
	}
	p.drain()
	letters := p.lettersByRecord()
	for i := range cases {
		c := &cases[i]
		t.Run(c.Case, func(t *testing.T) {
			checkVerbatim(t, "queue", letters[int64(i)], letters[int64(i)].payload(), c.payload(t))
			p.checkOutcome(t, c, letters[int64(i)])
		})
	}
}

// letter is a row of the queue.
type letter struct {
	DLQID          deadletter.UUID `db:"dlq_id"`
	SourceRecord   int64           `db:"source_record"`
	BatchID        string          `db:"batch_id"`
	FeatureID      *string         `db:"feature_id"`
	Status         string          `db:"status"`
	ErrorType      *string         `db:"error_type"`
	Error          *string         `db:"error"`
	FailedRule     *string         `db:"failed_rule"`
	Attempts       int             `db:"attempts"`
	FeatureGeoJSON *string         `db:"feature_geojson"`
	PayloadRaw     []byte          `db:"payload_raw"`
	SourceCRS      *string         `db:"source_crs"`
}

func (l letter) payload() []byte {
	if l.FeatureGeoJSON != nil {
		return []byte(*l.FeatureGeoJSON)
	}
	return l.PayloadRaw
}

func (l letter) errorType() string {
	if l.ErrorType == nil {
		return ""
	}
	return *l.ErrorType
}

func (p *pipeline) letters() []letter {
	p.t.Helper()
	return query[letter](p.t, p.db, `
		SELECT dlq_id, source_record, batch_id, feature_id, status, error_type, error, failed_rule, attempts,
		       feature_geojson, payload_raw, source_crs
		FROM failed_geotasks ORDER BY source_record`)
}

func (p *pipeline) lettersByRecord() map[int64]letter {
	p.t.Helper()
	byRecord := map[int64]letter{}
	for _, l := range p.letters() {
		if there, twice := byRecord[l.SourceRecord]; twice {
			p.t.Errorf("record %d is in the queue twice, as %v and as %v", l.SourceRecord, there.DLQID, l.DLQID)
		}
		byRecord[l.SourceRecord] = l
	}
	return byRecord
}

// checkVerbatim wants the payload byte for byte. A record that could not be taken
// apart, and so was quarantined on arrival, is kept whole, with the payload in it.
func checkVerbatim(t *testing.T, where string, l letter, got, want []byte) {
	t.Helper()
	onArrival := l.Status == "quarantined" && l.Attempts == 0
	if !bytes.Equal(got, want) && !(onArrival && len(want) > 0 && bytes.Contains(got, want)) {
		t.Errorf("the %s holds the payload %.300q, want %.300q", where, got, want)
	}
}

// landed is a row of the target.
type landed struct {
	FeatureID      *string
	Properties     string
	SameProperties bool // as the case expects
	GeometryType   string
	SRID           int
	Valid          bool
	Empty          bool
	X, Y           float64 // of the vertex nearest to where the first one belongs
	SourceArea     float64
}

// checkOutcome compares what became of a case with what it expects.
func (p *pipeline) checkOutcome(t *testing.T, c *geoCase, l letter) {
	t.Helper()
	outcome := map[string]string{"replayed": "cleared"}[l.Status]
	if outcome == "" {
		outcome = l.Status
	}
	detail := func() string {
		if l.Error == nil {
			return ""
		}
		return *l.Error
	}
	expected := outcome == c.Expect && (outcome == "cleared" || l.errorType() == c.Reason)
	if !expected && !c.allows(outcome, l.errorType()) {
		want := c.Expect
		if c.Reason != "" {
			want += " as " + c.Reason
		}
		got := outcome
		if outcome != "cleared" {
			got += " as " + l.errorType()
		}
		t.Fatalf("%s: %s (%s), want %s\n%s", c.Case, got, detail(), want, c.Note)
	}
	if !expected {
		t.Logf("%s: the case's alternative: %s %s (%s)", c.Case, outcome, l.errorType(), c.Alternative.When)
	}
	if outcome == "quarantined" {
		if !deadletter.Reason(l.errorType()).Known() {
			t.Errorf("%s: error_type %q is not in the closed list of reasons", c.Case, l.errorType())
		}
		if l.Error == nil || *l.Error == "" || utf8.RuneCountInString(*l.Error) > deadletter.MaxMessage {
			t.Errorf("%s: error is %q, want 1 to %d characters", c.Case, detail(), deadletter.MaxMessage)
		}
	}

	rows := p.target(t, l.DLQID, c)
	if outcome == "quarantined" {
		if len(rows) > 0 {
			t.Errorf("%s: quarantined, and yet there is a row in the target: %+v", c.Case, rows[0])
		}
		return
	}
	if len(rows) != 1 {
		t.Fatalf("%s: %d rows in the target, want 1", c.Case, len(rows))
	}
	if expected {
		rows[0].check(t, c)
	}
}

// allows reports whether the case's alternative is what happened. An alternative
// without expect_reason names its reason in its words.
func (c *geoCase) allows(outcome, reason string) bool {
	alt := c.Alternative
	if alt == nil || outcome != alt.Expect {
		return false
	}
	return outcome == "cleared" || reason == alt.Reason || alt.Reason == "" && reason != "" && strings.Contains(alt.When, reason)
}

var trailingCode = regexp.MustCompile(`(\d+)"?$`)

// target reads what landed of one dead letter. Distances are measured to where the
// first vertex belongs, since a repaired ring may start elsewhere; the area is
// PROJ's, back in the source CRS.
func (p *pipeline) target(t *testing.T, id deadletter.UUID, c *geoCase) []landed {
	t.Helper()
	where := [2]float64{}
	if c.XY != nil {
		where = *c.XY
	}
	source := c.TargetEPSG
	if m := trailingCode.FindSubmatch(c.SourceCRS); c.SourceArea > 0 && m != nil {
		source, _ = strconv.Atoi(string(m[1]))
	}
	rows, err := p.db.Query(context.Background(), `
		SELECT feature_id, properties::text, $5 = '' OR properties = nullif($5, '')::jsonb, substr(ST_GeometryType(p.geom), 4), ST_SRID(p.geom), ST_IsValid(p.geom), ST_IsEmpty(p.geom),
		       ST_X(near.geom), ST_Y(near.geom), ST_Area(ST_Transform(p.geom, $4::int))
		FROM processed_features p
		CROSS JOIN LATERAL (
		    SELECT d.geom FROM ST_DumpPoints(p.geom) d
		    ORDER BY (ST_X(d.geom) - $2)^2 + (ST_Y(d.geom) - $3)^2 LIMIT 1
		) near
		WHERE dlq_id = $1`, id, where[0], where[1], source, c.Properties)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []landed
	for rows.Next() {
		var r landed
		if err := rows.Scan(&r.FeatureID, &r.Properties, &r.SameProperties, &r.GeometryType, &r.SRID, &r.Valid, &r.Empty, &r.X, &r.Y, &r.SourceArea); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func (r landed) check(t *testing.T, c *geoCase) {
	t.Helper()
	if r.SRID != c.TargetEPSG || !r.Valid || r.Empty {
		t.Errorf("%s: the target has a geometry with SRID %d, valid %t, empty %t; want %d, valid, not empty", c.Case, r.SRID, r.Valid, r.Empty, c.TargetEPSG)
	}
	if c.XY != nil {
		if off := math.Hypot(r.X-c.XY[0], r.Y-c.XY[1]); !(off <= c.Tolerance) {
			t.Errorf("%s: the first vertex is at (%.4f, %.4f), %.4f m from (%.4f, %.4f); tolerance %g m\n%s",
				c.Case, r.X, r.Y, off, c.XY[0], c.XY[1], c.Tolerance, c.Note)
		}
	}
	if c.GeometryType != "" && r.GeometryType != c.GeometryType {
		t.Errorf("%s: landed as %s, want %s\n%s", c.Case, r.GeometryType, c.GeometryType, c.Note)
	}
	if c.SourceArea > 0 && !(math.Abs(r.SourceArea-c.SourceArea) <= c.SourceArea/100) {
		t.Errorf("%s: landed with an area of %.3f in the source CRS, want %.3f to 1 %%\n%s", c.Case, r.SourceArea, c.SourceArea, c.Note)
	}
	if c.FeatureID != "" && (r.FeatureID == nil || *r.FeatureID != c.FeatureID) {
		t.Errorf("%s: landed as feature %q, want %q", c.Case, deref(r.FeatureID), c.FeatureID)
	}
	if !r.SameProperties {
		t.Errorf("%s: landed with the properties %.300s, want %.300s", c.Case, r.Properties, c.Properties)
	}
}
