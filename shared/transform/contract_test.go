package transform_test

import (
	"context"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/paulmach/orb"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/transform"
)

var update = flag.Bool("update", false, "write golden files anew")

// golden compares text with a file of testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

func list(problems []transform.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString(p.String())
		b.WriteByte('\n')
	}
	return b.String()
}

func TestBrokenContractNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := transform.LoadContract(t.Context(), "testdata/broken.contract.json", nil, transform.Options{})
	var broken *transform.DocumentError
	if !errors.As(err, &broken) {
		t.Fatalf("got %v", err)
	}
	golden(t, "broken.problems.txt", list(broken.Problems))
	if class, _ := transform.Classify(err); class != transform.ClassUnknown {
		t.Errorf("a broken contract has class %s", class)
	}
}

func TestBrokenDocuments(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, document, want string }{
		{"empty", ``, `the contract has 1 problem: line 1, column 1: invalid JSON: the text ends where a value should be`},
		{"cut off", "{\n  \"fields\": [,]\n}", `the contract has 1 problem: line 2, column 14: invalid JSON: found ',' where a value should be`},
		{"not UTF-8", "{\"version\": \"Caf\xe9\"}", `the contract has 1 problem: line 1, column 17: invalid UTF-8: byte 0xE9 begins no character`},
		{"array", `[]`, `the contract has 1 problem: want an object, found an array`},
		{"nothing of a contract", `{"title": "x"}`, `the contract has 1 problem: want a Table Schema with fields, or at least a target or overrides`},
		{"data package", `{"resources": [{"schema": {"fields": []}}]}`, `the contract has 1 problem: /resources: this is a data package or data resource; give the Table Schema inside it, with its fields at the top`},
		{"slip of a name", `{"feilds": [], "target": {}}`, `the contract has 1 problem: /feilds: there is no such member; did you mean fields? (a custom member must not be one letter off a known one)`},
		{"promotion that the column cannot hold", `{"target": {"geometryType": "Polygon", "promoteToMulti": true}}`, `the contract has 1 problem: /target/promoteToMulti: a column of type Polygon cannot hold what promotion makes`},
		{"empty range", `{"fields": [{"name": "a/b", "type": "date", "constraints": {"minimum": "2024-01-02", "maximum": "2024-01-01"}}]}`, `the contract has 1 problem: /fields/0/constraints: no value is over "2024-01-02" and under "2024-01-01"`},
		{"bound that means null", `{"fields": [{"name": "a", "type": "integer", "constraints": {"minimum": ""}}]}`, `the contract has 1 problem: /fields/0/constraints/minimum: the value is not of the field's type: it means null`},
		{"enum beside its categories", `{"fields": [{"name": "a", "type": "string", "categories": ["x"], "constraints": {"enum": ["y"]}}]}`, `the contract has 1 problem: /fields/0/constraints/enum: the enum has a value that is none of the categories`},
		{"pattern that is no whole", `{"fields": [{"name": "a", "type": "string", "constraints": {"pattern": "a)(b"}}]}`, "the contract has 1 problem: /fields/0/constraints/pattern: the pattern is not supported: unexpected ): `a)(b` (RE2 syntax: no look-around, no back references)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := transform.ParseContract([]byte(tt.document), transform.Options{})
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	big := `{"target": {}, "x": "` + strings.Repeat("x", transform.MaxContractBytes) + `"}`
	if _, err := transform.ParseContract([]byte(big), transform.Options{}); err == nil {
		t.Error("a contract beyond the largest size is taken")
	}
}

// A Table Schema as people publish it, with all that the contract does not need.
const published = `{
  "$schema": "https://datapackage.org/profiles/2.0/tableschema.json",
  "title": "Parcels", "description": "of the county", "custom:steward": "GIS office",
  "fieldsMatch": "subset",
  "fields": [
    {"name": "parcel_id", "title": "Parcel", "description": "key", "example": "P-1", "type": "string", "rdfType": "http://schema.org/identifier", "constraints": {"required": true, "unique": true}},
    {"name": "centre", "type": "geopoint", "format": "array"},
    {"name": "stays", "type": "duration"},
    {"name": "untyped"},
    {"name": "level", "type": "integer", "categories": [{"value": 1, "label": "low"}, {"value": 2, "label": "high"}], "categoriesOrdered": true}
  ],
  "missingValues": ["", "NA"],
  "primaryKey": ["parcel_id"],
  "uniqueKeys": [["parcel_id"]],
  "foreignKeys": [{"fields": "level", "reference": {"resource": "levels", "fields": "id"}}]
}`

func TestPublishedTableSchemaIsAContract(t *testing.T) {
	t.Parallel()
	c := parse(t, published)
	got, err := properties(t, c, `{"parcel_id":"P-1","centre":[1,2],"stays":"P1D","untyped":1.0,"level":"2","other":"NA"}`)
	if want := `{"parcel_id":"P-1","centre":[1,2],"stays":"P1D","untyped":1.0,"level":2,"other":"NA"}`; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if diff := cmp.Diff(transform.Target{EPSG: 3857, Repair: transform.RepairStructure, MaxAreaChange: 0.5}, c.Target()); diff != "" {
		t.Errorf("target (-want +got):\n%s", diff)
	}
	golden(t, "published.warnings.txt", list(c.Warnings()))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if got := parse(t, `{"version":"parcels-7","target":{}}`).Version(); got != "parcels-7" {
		t.Errorf("version = %q", got)
	}
	a, b, c := parse(t, `{"target":{}}`), parse(t, `{"target":{}}`), parse(t, `{"target": {}}`)
	if a.Version() != b.Version() || a.Version() == c.Version() || !strings.HasPrefix(a.Version(), "sha256:") {
		t.Errorf("digests %q, %q, %q", a.Version(), b.Version(), c.Version())
	}
}

// objects is S3 in a map.
type objects map[string]string

func (o objects) Fetch(_ context.Context, bucket, key string) ([]byte, error) {
	text, ok := o[bucket+"/"+key]
	if !ok {
		return nil, errors.New("NoSuchKey")
	}
	return []byte(text), nil
}

func TestLoadContract(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "parcels contract.json")
	if err := os.WriteFile(file, []byte("\ufeff"+`{"version":"from a file","target":{}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	bucket := objects{"contracts/a/b.json": `{"version":"from S3","target":{}}`, "contracts/broken.json": `{`}
	tests := []struct{ name, uri, version, fails string }{
		{"built in", "", transform.BuiltInVersion, ""},
		{"file", file, "from a file", ""},
		{"file URI", "file://" + strings.ReplaceAll(file, " ", "%20"), "from a file", ""},
		{"S3", "s3://contracts/a/b.json", "from S3", ""},
		{"no such object", "s3://contracts/none.json", "", "read contract s3://contracts/none.json: NoSuchKey"},
		{"broken object", "s3://contracts/broken.json", "", "contract s3://contracts/broken.json has 1 problem: line 1, column 2"},
		{"no such file", file + "x", "", "no such file"},
		{"no key", "s3://contracts", "", "want the form s3://bucket/key"},
		{"host in a file URI", "file://host/x", "", "want the form file:///path"},
		{"other scheme", "https://example.org/x", "", `scheme "https" is neither s3 nor file`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := transform.LoadContract(t.Context(), tt.uri, bucket, transform.Options{})
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("got %v, want %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.Version() != tt.version {
				t.Errorf("version %q, want %q", c.Version(), tt.version)
			}
		})
	}
	if _, err := transform.LoadContract(t.Context(), "s3://contracts/a/b.json", nil, transform.Options{}); err == nil {
		t.Error("S3 is read without a client")
	}
}

func TestTransformOfAPayload(t *testing.T) {
	t.Parallel()
	payload := `{"type":"Feature","id":"other","properties":{"n":1.0},"geometry":{"type":"Polygon","coordinates":[[[0,0],[9,0,5],[9,9]]]}}`
	name := " epsg:3857"
	c := parse(t, `{"target":{"geometryType":"MultiPolygon"}}`)
	in := transform.Input{FeatureID: "f-1", Payload: []byte(payload), SourceCRS: &name}
	out, err := c.Transform(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	polygon := orb.Polygon{{{0, 0}, {9, 0}, {9, 9}, {0, 0}}}
	want := transform.Output{
		FeatureID: "f-1", Properties: []byte(`{"n":1.0}`),
		Geometry: orb.MultiPolygon{polygon}, EPSG: 3857, Engine: crs.EngineIdentity,
		SourceGeometry: polygon, SourceEPSG: 3857, SourceCRS: name,
		GeomHash: deadletter.GeomHash("f-1", 3857, polygon), Rule: "reproject:EPSG:3857->EPSG:3857",
	}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if string(in.Payload) != payload {
		t.Error("the payload was changed")
	}
}

func TestTransformLeavesToPostGISWhatIsNotComputedHere(t *testing.T) {
	t.Parallel()
	// No list has this code, but spatial_ref_sys may.
	name := "EPSG:99999"
	c := parse(t, `{"target":{"geometryType":"MultiPoint"}}`)
	out, err := c.Transform(t.Context(), transform.Input{FeatureID: "f-1", SourceCRS: &name, Payload: []byte(`{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]}}`)})
	if err != nil {
		t.Fatal(err)
	}
	want := transform.Output{
		FeatureID: "f-1", Properties: []byte(`{}`),
		Geometry: orb.MultiPoint{{1, 2}}, EPSG: 99999, Engine: crs.EnginePostGIS,
		SourceGeometry: orb.Point{1, 2}, SourceEPSG: 99999, SourceCRS: name,
		GeomHash: deadletter.GeomHash("f-1", 99999, orb.Point{1, 2}), Rule: "reproject:EPSG:99999->EPSG:3857",
	}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestTransformLimitsThePayload(t *testing.T) {
	t.Parallel()
	c, err := transform.LoadContract(t.Context(), "", nil, transform.Options{MaxFeatureBytes: 40})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Transform(t.Context(), transform.Input{FeatureID: "f", SourceCRS: &here, Payload: []byte(`{"type":"Feature","geometry":` + zero + `}`)})
	if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != deadletter.ReasonFeatureTooLarge || fault.Rule != transform.RuleDecodeFeature {
		t.Errorf("got %v", err)
	}
}

func TestTransformOfARowWithoutPayload(t *testing.T) {
	t.Parallel()
	other, same, none := "EPSG:4326", "urn:ogc:def:crs:EPSG::3857", ""
	open := orb.Polygon{{{0, 0}, {9, 0}, {9, 9}}}
	tests := []struct {
		name   string
		in     transform.Input
		hash   string
		crs    string
		reason deadletter.Reason
	}{
		{"its own key is kept", transform.Input{FeatureID: "t-1", Geometry: orb.Point{1, 2}, EPSG: 3857, GeomHash: "own key"}, "own key", "EPSG:3857", ""},
		{"else the key is made", transform.Input{FeatureID: "t-1", Geometry: orb.Point{1, 2}, EPSG: 3857}, deadletter.GeomHash("t-1", 3857, orb.Point{1, 2}), "EPSG:3857", ""},
		{"an open ring is closed", transform.Input{FeatureID: "t-1", Geometry: open, EPSG: 3857}, deadletter.GeomHash("t-1", 3857, open), "EPSG:3857", ""},
		{"a name that agrees", transform.Input{Geometry: orb.Point{1, 2}, EPSG: 3857, SourceCRS: &same}, deadletter.GeomHash("", 3857, orb.Point{1, 2}), "EPSG:3857", ""},
		{"an empty name", transform.Input{Geometry: orb.Point{1, 2}, EPSG: 3857, SourceCRS: &none}, deadletter.GeomHash("", 3857, orb.Point{1, 2}), "EPSG:3857", ""},
		{"a name and no code", transform.Input{Geometry: orb.Point{1, 2}, SourceCRS: &same}, deadletter.GeomHash("", 3857, orb.Point{1, 2}), same, ""},
		{"a payload that is empty", transform.Input{Payload: []byte{}, Geometry: orb.Point{1, 2}, EPSG: 3857, GeomHash: "own key"}, "own key", "EPSG:3857", ""},
		{"a name that disagrees", transform.Input{Geometry: orb.Point{1, 2}, EPSG: 3857, SourceCRS: &other}, "", "", deadletter.ReasonCRSConflict},
		{"no CRS", transform.Input{Geometry: orb.Point{1, 2}}, "", "", deadletter.ReasonMissingCRS},
		{"no geometry", transform.Input{EPSG: 3857}, "", "", deadletter.ReasonNullGeometry},
		{"empty geometry", transform.Input{Geometry: orb.Point{math.NaN(), math.NaN()}, EPSG: 3857}, "", "", deadletter.ReasonEmptyGeometry},
		{"infinite geometry", transform.Input{Geometry: orb.Point{math.Inf(1), 0}, EPSG: 3857}, "", "", deadletter.ReasonBadCoordinates},
		{"an empty payload that was received so", transform.Input{Payload: []byte{}, EPSG: 3857}, "", "", deadletter.ReasonInvalidJSON},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := transform.LoadContract(t.Context(), "", nil, transform.Options{})
			if err != nil {
				t.Fatal(err)
			}
			before := orb.Clone(tt.in.Geometry)
			out, err := c.Transform(t.Context(), tt.in)
			if tt.reason != "" {
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.reason || fault.Rule == "" {
					t.Errorf("got %v, want %s", err, tt.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if out.GeomHash != tt.hash || out.SourceCRS != tt.crs || string(out.Properties) != "{}" {
				t.Errorf("hash %q, crs %q, properties %s", out.GeomHash, out.SourceCRS, out.Properties)
			}
			if !orb.Equal(before, tt.in.Geometry) {
				t.Error("the geometry of the row was changed")
			}
		})
	}
}

func TestPrecedenceOfCRSNames(t *testing.T) {
	t.Parallel()
	const (
		feature  = `"crs":{"type":"name","properties":{"name":"urn:ogc:def:crs:EPSG::3857"}},`
		other    = `"crs":{"type":"name","properties":{"name":"EPSG:4326"}},`
		unknown  = `"crs":{"type":"name","properties":{"name":"local grid"}},`
		null     = `"crs":null,`
		geometry = `"type":"Point","coordinates":[0,0]`
	)
	record, empty, nowhere := "EPSG:3857", " ", "local grid"
	tests := []struct {
		name              string
		record            *string
		feature, geometry string
		want              string
		reason            deadletter.Reason
	}{
		{"the record's", &record, "", "", record, ""},
		{"the feature's", nil, feature, "", "urn:ogc:def:crs:EPSG::3857", ""},
		{"the geometry's, where PostGIS writes it", nil, "", feature, "urn:ogc:def:crs:EPSG::3857", ""},
		{"all say the same in other words", &record, feature, feature, record, ""},
		{"an empty name says nothing", &empty, feature, "", "urn:ogc:def:crs:EPSG::3857", ""},
		{"null says nothing", &record, null, "", record, ""},
		{"none", nil, "", "", "", deadletter.ReasonMissingCRS},
		{"only null", nil, null, "", "", deadletter.ReasonMissingCRS},
		{"only an empty name", &empty, "", "", "", deadletter.ReasonMissingCRS},
		{"record and feature disagree", &record, other, "", "", deadletter.ReasonCRSConflict},
		{"feature and geometry disagree", nil, feature, other, "", deadletter.ReasonCRSConflict},
		{"the feature's cannot be compared", &record, unknown, "", "", deadletter.ReasonCRSConflict},
		{"the record's is unknown", &nowhere, feature, "", "", deadletter.ReasonUnknownCRS},
		{"the feature's is unknown", nil, unknown, "", "", deadletter.ReasonUnknownCRS},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := transform.LoadContract(t.Context(), "", nil, transform.Options{})
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.Transform(t.Context(), transform.Input{FeatureID: "f", SourceCRS: tt.record,
				Payload: []byte(`{"type":"Feature",` + tt.feature + `"geometry":{` + tt.geometry + geometry + `}}`)})
			if tt.reason != "" {
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.reason || fault.Rule != transform.RuleResolveCRS {
					t.Errorf("got %#v, want %s", err, tt.reason)
				}
				return
			}
			if err != nil || out.SourceCRS != tt.want || out.SourceEPSG != 3857 {
				t.Errorf("got %q, %d, %v", out.SourceCRS, out.SourceEPSG, err)
			}
		})
	}
}

func TestOverridesOfTheContract(t *testing.T) {
	t.Parallel()
	c := parse(t, `{
		"fields": [{"name":"parcel_id","type":"string","constraints":{"required":true}},{"name":"zoned","type":"boolean"}],
		"overrides": [
			{"description":"the county's old export","match":{"batchId":"county-*-parcels"},"sourceCrs":"EPSG:3857","rename":{"PARCELID":"parcel_id"}},
			{"match":{"failedRule":"coerce:zoned->*"},"values":{"zoned":{"yes":true,"no":false,"?":null,"7":false}}},
			{"match":{"sourceCrs":"NAD 83*"},"sourceCrs":"EPSG:3857"},
			{"match":{"batchId":"county-*","featureId":"f-9"},"values":{"parcel_id":{"P-1":"P-9"}}}
		]}`)
	local, wrong := "NAD 83 local", "EPSG:4326"
	payload := func(properties string) []byte {
		return []byte(`{"type":"Feature","crs":{"type":"name","properties":{"name":"EPSG:4326"}},"properties":` + properties + `,"geometry":` + zero + `}`)
	}
	tests := []struct {
		name string
		in   transform.Input
		want string // properties
		crs  string
		fail deadletter.Reason
	}{
		{"a batch gets its CRS and names", transform.Input{BatchID: "county-2026-parcels", SourceCRS: &wrong, Payload: payload(`{"PARCELID":"P-1"}`)}, `{"parcel_id":"P-1"}`, "EPSG:3857", ""},
		{"another batch does not", transform.Input{BatchID: "county-2026-roads", SourceCRS: &wrong, Payload: payload(`{"PARCELID":"P-1"}`)}, "", "", deadletter.ReasonMissingAttribute},
		{"a null makes way for the new name", transform.Input{BatchID: "county-1-parcels", Payload: payload(`{"parcel_id":null,"PARCELID":"P-1"}`)}, `{"parcel_id":"P-1"}`, "EPSG:3857", ""},
		{"two names with one value", transform.Input{BatchID: "county-1-parcels", Payload: payload(`{"parcel_id":"P-1","PARCELID":"P-1"}`)}, `{"parcel_id":"P-1"}`, "EPSG:3857", ""},
		{"two names with two values", transform.Input{BatchID: "county-1-parcels", Payload: payload(`{"parcel_id":"P-1","PARCELID":"P-2"}`)}, "", "", deadletter.ReasonAmbiguousJSON},
		{"values of a rule", transform.Input{FailedRule: "coerce:zoned->boolean", SourceCRS: &wrong, Payload: payload(`{"parcel_id":"P-1","zoned":"yes"}`)}, `{"parcel_id":"P-1","zoned":true}`, wrong, ""},
		{"a value may become null", transform.Input{FailedRule: "coerce:zoned->boolean", SourceCRS: &wrong, Payload: payload(`{"parcel_id":"P-1","zoned":"\u003f"}`)}, `{"parcel_id":"P-1","zoned":null}`, wrong, ""},
		{"a number goes by its digits", transform.Input{FailedRule: "coerce:zoned->boolean", SourceCRS: &wrong, Payload: payload(`{"parcel_id":"P-1","zoned":7}`)}, `{"parcel_id":"P-1","zoned":false}`, wrong, ""},
		{"a value that is not listed", transform.Input{FailedRule: "coerce:zoned->boolean", SourceCRS: &wrong, Payload: payload(`{"parcel_id":"P-1","zoned":"maybe"}`)}, "", "", deadletter.ReasonCoerceFailed},
		{"another rule", transform.Input{FailedRule: "constrain:zoned", SourceCRS: &wrong, Payload: payload(`{"parcel_id":"P-1","zoned":"yes"}`)}, "", "", deadletter.ReasonCoerceFailed},
		{"a CRS by its local name", transform.Input{SourceCRS: &local, Payload: payload(`{"parcel_id":"P-1"}`)}, `{"parcel_id":"P-1"}`, "EPSG:3857", ""},
		{"two that match, in order", transform.Input{BatchID: "county-1-parcels", FeatureID: "f-9", Payload: payload(`{"PARCELID":"P-1"}`)}, `{"parcel_id":"P-9"}`, "EPSG:3857", ""},
		{"both conditions must hold", transform.Input{BatchID: "county-1-parcels", FeatureID: "f-8", Payload: payload(`{"PARCELID":"P-1"}`)}, `{"parcel_id":"P-1"}`, "EPSG:3857", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, err := c.Transform(t.Context(), tt.in)
			if tt.fail != "" {
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.fail {
					t.Errorf("got %v, want %s", err, tt.fail)
				}
				return
			}
			if err != nil || string(out.Properties) != tt.want || out.SourceCRS != tt.crs {
				t.Errorf("got %s, %q, %v", out.Properties, out.SourceCRS, err)
			}
		})
	}
}

func TestOverridesOfOneRow(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"fields":[{"name":"built_year","type":"integer"}],
		"overrides":[{"match":{"batchId":"*"},"sourceCrs":"EPSG:4326","values":{"built_year":{"n/k":"1900"}}}]}`)
	const sound = `{"type":"Feature","properties":{"YEAR":"n/k","built_year":"n/k"},"geometry":{"type":"Point","coordinates":[1,2]}}`
	wrong := "EPSG:99999"
	tests := []struct {
		name, payload, overrides string
		want                     string
		geometry                 orb.Geometry
		crs                      string
		fail                     deadletter.Reason
	}{
		{"nothing", sound, `{}`, `{"YEAR":"n/k","built_year":1900}`, orb.Point{1, 2}, "EPSG:4326", ""},
		{"the operator's CRS is the last word", sound, `{"source_crs":"EPSG:3857"}`, `{"YEAR":"n/k","built_year":1900}`, orb.Point{1, 2}, "EPSG:3857", ""},
		{"a value, coerced like any", sound, `{"set":{"built_year":"1987","note":{"a":[1.0]}}}`, `{"YEAR":"n/k","built_year":1987,"note":{"a":[1.0]}}`, orb.Point{1, 2}, "EPSG:4326", ""},
		{"a value of the wrong type", sound, `{"set":{"built_year":"soon"}}`, "", nil, "", deadletter.ReasonCoerceFailed},
		{"a name, then a value", sound, `{"rename":{"YEAR":"year"},"set":{"year":2000}}`, `{"year":2000,"built_year":1900}`, orb.Point{1, 2}, "EPSG:4326", ""},
		{"a geometry in place of a broken one", strings.Replace(sound, "[1,2]", "[null,null]", 1), `{"geometry":{"type":"Point","coordinates":[3,4]}}`, `{"YEAR":"n/k","built_year":1900}`, orb.Point{3, 4}, "EPSG:4326", ""},
		{"a geometry in place of none", strings.Replace(sound, `{"type":"Point","coordinates":[1,2]}`, "null", 1), `{"geometry":{"type":"Point","coordinates":[3,4]}}`, `{"YEAR":"n/k","built_year":1900}`, orb.Point{3, 4}, "EPSG:4326", ""},
		{"a geometry does not mend the rest", strings.Replace(sound, "Feature", "feature", 1), `{"geometry":{"type":"Point","coordinates":[3,4]}}`, "", nil, "", deadletter.ReasonNotAFeature},
		{"a geometry does not mend broken JSON", sound[:40], `{"geometry":{"type":"Point","coordinates":[3,4]}}`, "", nil, "", deadletter.ReasonInvalidJSON},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, err := c.Transform(t.Context(), transform.Input{FeatureID: "f", SourceCRS: &wrong, Payload: []byte(tt.payload), Overrides: []byte(tt.overrides)})
			if tt.fail != "" {
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.fail {
					t.Errorf("got %v, want %s", err, tt.fail)
				}
				return
			}
			if err != nil || string(out.Properties) != tt.want || out.SourceCRS != tt.crs || !orb.Equal(out.SourceGeometry, tt.geometry) {
				t.Errorf("got %s, %v, %q, %v", out.Properties, out.SourceGeometry, out.SourceCRS, err)
			}
		})
	}

	// A row that has neither payload nor geometry can be given one.
	out, err := c.Transform(t.Context(), transform.Input{FeatureID: "t", Overrides: []byte(`{"geometry":{"type":"Point","coordinates":[3,4]},"set":{"built_year":1}}`)})
	if err != nil || !orb.Equal(out.SourceGeometry, orb.Point{3, 4}) || string(out.Properties) != `{"built_year":1}` {
		t.Errorf("got %+v, %v", out, err)
	}

	// What is no override is nobody's data.
	_, err = c.Transform(t.Context(), transform.Input{FeatureID: "t", Payload: []byte(sound), Overrides: []byte(`{"sourceCrs":"EPSG:3857"}`)})
	if class, reason := transform.Classify(err); err == nil || class != transform.ClassUnknown || reason != deadletter.ReasonUnknown {
		t.Errorf("got %v: %s, %s", err, class, reason)
	}
}

func TestParseOverridesNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := transform.ParseOverrides([]byte(`{"sourceCrs":"EPSG:3857","source_crs":"local grid","set":{"a\u0000":1,"b":"\ud800","c":1e200000,"d":` +
		strings.Repeat("[", 31) + strings.Repeat("]", 31) + `},"rename":[],"geometry":{"type":"Point","coordinates":[1]}}`))
	var broken *transform.DocumentError
	if !errors.As(err, &broken) {
		t.Fatalf("got %v", err)
	}
	golden(t, "overrides.problems.txt", list(broken.Problems))
	if _, err := transform.ParseOverrides([]byte(`{"geometry":{"type":"Point","coordinates":[1,2],"crs":null}}`)); err == nil {
		t.Error("a CRS inside the geometry is taken without a word")
	}
}
