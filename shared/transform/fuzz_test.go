package transform_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
	"geodlq/shared/jsonscan"
	"geodlq/shared/transform"
)

// everyType is a contract with a field of each type, so that a fuzzed feature meets every way to read a value.
const everyType = `{
	"fields": [
		{"name":"string","type":"string","constraints":{"maxLength":20,"pattern":"[^x]*"}},
		{"name":"integer","type":"integer","groupChar":",","bareNumber":false,"constraints":{"minimum":-1000,"maximum":1000000}},
		{"name":"number","type":"number","groupChar":".","decimalChar":",","bareNumber":false,"constraints":{"enum":[1,"2,50",1e3]}},
		{"name":"boolean","type":"boolean"},
		{"name":"date","type":"date","format":"any","constraints":{"minimum":"1900-01-01"}},
		{"name":"day","type":"date","format":"%a %d. %B %y, %j"},
		{"name":"time","type":"time","format":"%I:%M:%S.%f %p"},
		{"name":"datetime","type":"datetime","constraints":{"maximum":"2100-01-01T00:00:00Z"}},
		{"name":"moment","type":"datetime","format":"any"},
		{"name":"year","type":"year"},
		{"name":"month","type":"yearmonth"},
		{"name":"object","type":"object","constraints":{"enum":[{"a":[1]}]}},
		{"name":"array","type":"array","constraints":{"minLength":1}},
		{"name":"any","constraints":{"enum":[1,"a",{"b":null}]}}
	],
	"missingValues": ["", "-", "-9999"],
	"target": {"geometryType":"MultiPolygon"},
	"overrides": [{"match":{"batchId":"a*b*c"},"rename":{"old":"integer"},"values":{"boolean":{"yes":true}}}]
}`

func FuzzTransform(f *testing.F) {
	for _, c := range readCases(f) {
		in := c.input(f)
		f.Add([]byte(in.Payload), "a-b-c", []byte(nil))
	}
	polygon := `{"type":"Polygon","coordinates":[[[0,0],[9,0],[9,9],[0,0]]]}`
	for _, properties := range []string{
		`{"string":"abc","integer":"EUR 1,000","number":"€ 2,5","boolean":"yes","date":"20240229","day":"Thu 29. February 24, 60"}`,
		`{"time":"12:05:00.5 am","datetime":"2024-01-26T15:00:00.300-05:00","moment":"Thu, 29 Feb 2024 10:00:00 GMT","year":"-0044","month":"1987-05"}`,
		`{"object":"{\"a\":[1.0]}","array":[{}],"any":{"b":null},"old":1e3,"integer":null,"x":{"a":1,"a":1}}`,
		`{"integer":1e999999999999,"string":"\ud800","number":0e-99999,"a\u0000":1}`,
	} {
		f.Add([]byte(`{"type":"Feature","properties":`+properties+`,"geometry":`+polygon+`}`), "abc", []byte(`{"set":{"year":1987}}`))
	}
	f.Add([]byte(`{"type":"Feature","geometry":null}`), "b", []byte(`{"geometry":{"type":"GeometryCollection","geometries":[`+polygon+`]},"rename":{"a":"b"},"source_crs":"EPSG:3857"}`))
	c := parse(f, everyType)
	f.Fuzz(func(t *testing.T, payload []byte, batch string, overrides []byte) {
		in := transform.Input{FeatureID: "f", BatchID: batch, Payload: payload, SourceCRS: &here, Overrides: overrides}
		out, err := c.Transform(t.Context(), in)
		if err != nil {
			var document *transform.DocumentError
			fault, ok := deadletter.AsFault(err)
			switch {
			case ok && fault.Reason.Known() && fault.Rule != "" && fault.Detail != "":
				if deadletter.Text(fault.Rule) != fault.Rule || len(fault.Rule) > 400 {
					t.Fatalf("rule %q", fault.Rule)
				}
			case errors.As(err, &document) && len(overrides) > 0:
			default:
				t.Fatalf("%#v is no proper fault", err)
			}
			return
		}
		var properties map[string]json.RawMessage
		if err := json.Unmarshal(out.Properties, &properties); err != nil {
			t.Fatalf("properties %s: %v", out.Properties, err)
		}
		if escape, _, bad := jsonscan.HasUnstorable(out.Properties); bad {
			t.Fatalf("properties with %s: %s", escape, out.Properties)
		}
		if _, ok := out.Geometry.(orb.MultiPolygon); !ok {
			t.Fatalf("geometry %v", out.Geometry)
		}
		again, err := c.Transform(t.Context(), in)
		if err != nil || string(again.Properties) != string(out.Properties) || again.GeomHash != out.GeomHash {
			t.Fatalf("the same input gives %s, %v; was %s", again.Properties, err, out.Properties)
		}
	})
}

func FuzzParseContract(f *testing.F) {
	broken, err := os.ReadFile("testdata/broken.contract.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{string(broken), published, everyType, `{"target":{"epsg":3857}}`, `[`, `{"fields":[{"name":"a","type":"string","constraints":{"pattern":"[a-z-[b]]"}}]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := transform.ParseContract(text, transform.Options{})
		if err != nil {
			var document *transform.DocumentError
			if !errors.As(err, &document) || len(document.Problems) == 0 {
				t.Fatalf("%#v", err)
			}
		} else if c.Version() == "" || c.Target().EPSG <= 0 {
			t.Fatalf("contract %q, target %+v", c.Version(), c.Target())
		}
		if _, err := transform.ParseOverrides(text); err != nil {
			var document *transform.DocumentError
			if !errors.As(err, &document) || len(document.Problems) == 0 {
				t.Fatalf("%#v", err)
			}
		}
	})
}
