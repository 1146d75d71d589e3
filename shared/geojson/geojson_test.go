package geojson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
)

// feature wraps a geometry and properties in a feature.
func feature(geometry string) string {
	return `{"type":"Feature","id":"f-1","properties":{"name":"x"},"geometry":` + geometry + `}`
}

func TestDecodeGeometry(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, geometry string
		want           orb.Geometry
	}{
		{"point", `{"type":"Point","coordinates":[1.5,-2e1]}`, orb.Point{1.5, -20}},
		{"third and fourth ordinate are left out", `{"type":"Point","coordinates":[1,2,3,4]}`, orb.Point{1, 2}},
		{"null height", `{"type":"Point","coordinates":[1,2,null]}`, orb.Point{1, 2}},
		{"height beyond float64 is left out too", `{"type":"Point","coordinates":[1,2,1e999]}`, orb.Point{1, 2}},
		{"coordinates before type", `{"coordinates":[1,2],"type":"Point"}`, orb.Point{1, 2}},
		{"white space everywhere", " { \"type\" : \"LineString\" ,\n\"coordinates\" : [ [ 1 , 2 ] ,\t[ 3 , 4 ] ] } ", orb.LineString{{1, 2}, {3, 4}}},
		{"escaped member name and type", `{"typ\u0065":"P\u006fint","coordinates":[1,2]}`, orb.Point{1, 2}},
		{"other members are ignored", `{"type":"Point","Coordinates":[9,9],"bbox":[1,2,1,2],"geometries":7,"coordinates":[1,2]}`, orb.Point{1, 2}},
		{"multipoint", `{"type":"MultiPoint","coordinates":[[1,2],[3,4]]}`, orb.MultiPoint{{1, 2}, {3, 4}}},
		{"multilinestring", `{"type":"MultiLineString","coordinates":[[[1,2],[3,4]],[[5,6],[7,8]]]}`,
			orb.MultiLineString{{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}},
		{"polygon with a hole", `{"type":"Polygon","coordinates":[[[0,0],[9,0],[9,9],[0,0]],[[4,2],[5,2],[5,3],[4,2]]]}`,
			orb.Polygon{{{0, 0}, {9, 0}, {9, 9}, {0, 0}}, {{4, 2}, {5, 2}, {5, 3}, {4, 2}}}},
		{"open rings are closed", `{"type":"MultiPolygon","coordinates":[[[[0,0],[9,0],[9,9]]],[[[10,0],[19,0],[19,9],[10,9]],[[12,2],[13,2],[13,3]]]]}`,
			orb.MultiPolygon{{{{0, 0}, {9, 0}, {9, 9}, {0, 0}}},
				{{{10, 0}, {19, 0}, {19, 9}, {10, 9}, {10, 0}}, {{12, 2}, {13, 2}, {13, 3}, {12, 2}}}}},
		{"a clockwise ring stays as it is", `{"type":"Polygon","coordinates":[[[0,0],[0,9],[9,9],[0,0]]]}`, orb.Polygon{{{0, 0}, {0, 9}, {9, 9}, {0, 0}}}},
		{"a crossing ring stays as it is", `{"type":"Polygon","coordinates":[[[0,0],[9,9],[9,0],[0,9],[0,0]]]}`,
			orb.Polygon{{{0, 0}, {9, 9}, {9, 0}, {0, 9}, {0, 0}}}},
		{"a sliver of 0.1 um in UTM is an area", `{"type":"Polygon","coordinates":[[[550000,5190000],[550010,5190000],[550005,5190000.0000001],[550000,5190000]]]}`,
			orb.Polygon{{{550000, 5190000}, {550010, 5190000}, {550005, 5190000.0000001}, {550000, 5190000}}}},
		{"a hole without positions is left out", `{"type":"Polygon","coordinates":[[[0,0],[9,0],[9,9],[0,0]],[]]}`, orb.Polygon{{{0, 0}, {9, 0}, {9, 9}, {0, 0}}}},
		{"parts without positions are left out", `{"type":"MultiPolygon","coordinates":[[],[[[0,0],[9,0],[9,9],[0,0]]],[[]]]}`,
			orb.MultiPolygon{{{{0, 0}, {9, 0}, {9, 9}, {0, 0}}}}},
		{"a part on a line beside one with an area is for repair", `{"type":"MultiPolygon","coordinates":[[[[0,0],[9,0],[5,0],[0,0]]],[[[0,0],[9,0],[9,9],[0,0]]]]}`,
			orb.MultiPolygon{{{{0, 0}, {9, 0}, {5, 0}, {0, 0}}}, {{{0, 0}, {9, 0}, {9, 9}, {0, 0}}}}},
		{"collection", `{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[1,2]},{"type":"GeometryCollection","geometries":[{"type":"LineString","coordinates":[[1,2],[3,4]]}]}]}`,
			orb.Collection{orb.Point{1, 2}, orb.Collection{orb.LineString{{1, 2}, {3, 4}}}}},
		{"empty members of a collection are left out", `{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[]},{"type":"GeometryCollection","geometries":[]},{"type":"Point","coordinates":[1,2]}]}`,
			orb.Collection{orb.Point{1, 2}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, err := geojson.Decode([]byte(feature(tt.geometry)), geojson.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, f.Geometry); diff != "" {
				t.Errorf("geometry (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		reason     deadletter.Reason
		detail     string // what the message must hold
	}{
		{"empty text", "", deadletter.ReasonInvalidJSON, "byte 0"},
		{"NaN", feature(`{"type":"Point","coordinates":[NaN,NaN]}`), deadletter.ReasonInvalidJSON, "'N'"},
		{"two features on a line", feature(`{"type":"Point","coordinates":[1,2]}`) + feature("null"), deadletter.ReasonInvalidJSON, "the end of the text"},
		{"broken JSON after a broken geometry", `{"type":"Feature","geometry":{"type":"Point","coordinates":[null]},"properties":{"a":}}`, deadletter.ReasonInvalidJSON, "byte 85"},
		{"offsets count the byte order mark", "\ufeff{]", deadletter.ReasonInvalidJSON, "byte 4"},
		{"Latin-1", "{\"type\":\"Feature\",\"id\":1,\"properties\":{\"a\":\"Caf\xe9\"}}", deadletter.ReasonInvalidUTF8, "0xE9"},
		{"UTF-16", "\xff\xfe{\x00}\x00", deadletter.ReasonInvalidUTF8, "byte 0"},
		{"array", `[]`, deadletter.ReasonNotAFeature, "an array"},
		{"string", `"Feature"`, deadletter.ReasonNotAFeature, "a string"},
		{"no type", `{"geometry":null}`, deadletter.ReasonNotAFeature, "type"},
		{"type in the wrong case", `{"Type":"Feature"}`, deadletter.ReasonNotAFeature, "no member"},
		{"type null", `{"type":null}`, deadletter.ReasonNotAFeature, "null"},
		{"collection", `{"type":"FeatureCollection","features":[]}`, deadletter.ReasonNotAFeature, "FeatureCollection"},
		{"bare geometry", `{"type":"Point","coordinates":[1,2]}`, deadletter.ReasonNotAFeature, "bare Point"},
		{"properties is a list", `{"type":"Feature","properties":[],"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonNotAFeature, "an array"},
		{"properties is a string", `{"type":"Feature","properties":"x","geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonNotAFeature, "a string"},
		{"id is an object", `{"type":"Feature","id":{},"properties":null,"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonNotAFeature, "id is an object"},
		{"id is true", `{"type":"Feature","id":true,"properties":null,"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonNotAFeature, "a boolean"},
		{"id with U+0000", `{"type":"Feature","id":"a\u0000b","geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonUnstorableText, `\u0000`},
		{"id with a lone surrogate", `{"type":"Feature","id":"\ud800","geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonUnstorableText, `\ud800`},

		{"id twice", `{"type":"Feature","id":1,"id":"1","geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonAmbiguousJSON, `"id"`},
		{"type twice", `{"type":"Feature","type":"Point","geometry":null}`, deadletter.ReasonAmbiguousJSON, `"type"`},
		{"geometry twice", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"geometry":{"type":"Point","coordinates":[1,3]}}`, deadletter.ReasonAmbiguousJSON, `"geometry"`},
		{"geometry null, then not", `{"type":"Feature","geometry":null,"geometry":{"type":"Point","coordinates":[1,3]}}`, deadletter.ReasonAmbiguousJSON, `"geometry"`},
		{"properties twice", `{"type":"Feature","properties":{"a":1},"properties":{"a":2},"geometry":null}`, deadletter.ReasonAmbiguousJSON, `"properties"`},
		{"a property twice", `{"type":"Feature","properties":{"a":1,"\u0061":2},"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonAmbiguousJSON, `"a"`},
		{"crs twice", `{"type":"Feature","crs":{"a":1},"crs":{"a":2},"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonAmbiguousJSON, `"crs"`},
		{"coordinates twice", feature(`{"type":"Point","coordinates":[1,2],"coordinates":[2,1]}`), deadletter.ReasonAmbiguousJSON, `"coordinates"`},
		{"geometry type twice", feature(`{"type":"Point","type":"MultiPoint","coordinates":[1,2]}`), deadletter.ReasonAmbiguousJSON, `"type"`},
		{"one of many properties twice", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{` + manyProperties(100) + `,"p50":"other"}}`, deadletter.ReasonAmbiguousJSON, `"p50"`},

		{"no geometry member", `{"type":"Feature","properties":{}}`, deadletter.ReasonNullGeometry, "no geometry"},
		{"geometry null", feature(`null`), deadletter.ReasonNullGeometry, "null"},
		{"geometry is text", feature(`"POINT(1 2)"`), deadletter.ReasonBadGeometry, "a string"},
		{"geometry without a type", feature(`{"coordinates":[1,2]}`), deadletter.ReasonBadGeometry, "no type"},
		{"geometry type is a number", feature(`{"type":1,"coordinates":[1,2]}`), deadletter.ReasonBadGeometry, "a number"},
		{"geometry without coordinates", feature(`{"type":"Point"}`), deadletter.ReasonBadGeometry, "coordinates"},
		{"coordinates null in a polygon", feature(`{"type":"Polygon","coordinates":null}`), deadletter.ReasonBadGeometry, "null"},
		{"ring null", feature(`{"type":"Polygon","coordinates":[null]}`), deadletter.ReasonBadGeometry, "coordinates[0]: found null"},
		{"polygon in a collection is a string", feature(`{"type":"GeometryCollection","geometries":[{"type":"Polygon","coordinates":"x"}]}`), deadletter.ReasonBadGeometry, `geometries[0].coordinates: found "x"`},
		{"collection with null", feature(`{"type":"GeometryCollection","geometries":[null]}`), deadletter.ReasonBadGeometry, "geometries[0]: null"},
		{"collection without members", feature(`{"type":"GeometryCollection"}`), deadletter.ReasonBadGeometry, "geometries"},
		{"geometries is an object", feature(`{"type":"GeometryCollection","geometries":{}}`), deadletter.ReasonBadGeometry, "an object"},
		{"outer ring without positions", feature(`{"type":"Polygon","coordinates":[[],[[4,2],[5,2],[5,3],[4,2]]]}`), deadletter.ReasonBadGeometry, "coordinates[1]"},

		{"curve", feature(`{"type":"CircularString","coordinates":[[0,0],[1,1],[2,0]]}`), deadletter.ReasonUnsupportedGeometryType, "curves"},
		{"type in lower case", feature(`{"type":"polygon","coordinates":[]}`), deadletter.ReasonUnsupportedGeometryType, `"Polygon"`},
		{"made-up type", feature(`{"type":"Circle","coordinates":[0,0]}`), deadletter.ReasonUnsupportedGeometryType, "Circle"},

		{"point null", feature(`{"type":"Point","coordinates":null}`), deadletter.ReasonBadCoordinates, "null"},
		{"position of nulls", feature(`{"type":"Point","coordinates":[null,null]}`), deadletter.ReasonBadCoordinates, "x is null"},
		{"one ordinate", feature(`{"type":"Point","coordinates":[5]}`), deadletter.ReasonBadCoordinates, "found 1"},
		{"text ordinate", feature(`{"type":"Point","coordinates":["1",2]}`), deadletter.ReasonBadCoordinates, `x is "1"`},
		{"text height", feature(`{"type":"Point","coordinates":[1,2,"3"]}`), deadletter.ReasonBadCoordinates, `"3"`},
		{"nested ordinate", feature(`{"type":"Point","coordinates":[[1,2]]}`), deadletter.ReasonBadCoordinates, "x is an array"},
		{"y is an object", feature(`{"type":"Point","coordinates":[1,{}]}`), deadletter.ReasonBadCoordinates, "y is an object"},
		{"beyond float64", feature(`{"type":"Point","coordinates":[1e400,2]}`), deadletter.ReasonBadCoordinates, "1e400"},
		{"null vertex", feature(`{"type":"LineString","coordinates":[[0,0],null]}`), deadletter.ReasonBadCoordinates, "coordinates[1]: found null"},
		{"flat line", feature(`{"type":"LineString","coordinates":[0,0,1,1]}`), deadletter.ReasonBadCoordinates, "coordinates[0]: found 0"},
		{"bad vertex deep down", feature(`{"type":"MultiPolygon","coordinates":[[[[0,0],[9,0],[9,9],[0,0]]],[[[0,0],[9,0],[9],[0,0]]]]}`), deadletter.ReasonBadCoordinates, "coordinates[1][0][2]: "},

		{"empty point", feature(`{"type":"Point","coordinates":[]}`), deadletter.ReasonEmptyGeometry, ""},
		{"empty line", feature(`{"type":"LineString","coordinates":[]}`), deadletter.ReasonEmptyGeometry, ""},
		{"empty polygon", feature(`{"type":"Polygon","coordinates":[]}`), deadletter.ReasonEmptyGeometry, ""},
		{"polygon with an empty ring", feature(`{"type":"Polygon","coordinates":[[]]}`), deadletter.ReasonEmptyGeometry, ""},
		{"empty multipolygon", feature(`{"type":"MultiPolygon","coordinates":[[],[[],[]]]}`), deadletter.ReasonEmptyGeometry, ""},
		{"empty multipoint", feature(`{"type":"MultiPoint","coordinates":[]}`), deadletter.ReasonEmptyGeometry, ""},
		{"empty multilinestring", feature(`{"type":"MultiLineString","coordinates":[[]]}`), deadletter.ReasonEmptyGeometry, ""},
		{"empty collection", feature(`{"type":"GeometryCollection","geometries":[{"type":"GeometryCollection","geometries":[]}]}`), deadletter.ReasonEmptyGeometry, ""},

		{"line of one position", feature(`{"type":"LineString","coordinates":[[1,2]]}`), deadletter.ReasonDegenerateGeometry, "one position"},
		{"line without length", feature(`{"type":"MultiLineString","coordinates":[[[1,2],[3,4]],[[1,2],[1,2]]]}`), deadletter.ReasonDegenerateGeometry, "coordinates[1]: "},
		{"ring out and back", feature(`{"type":"Polygon","coordinates":[[[-157.81,21.31],[-157.8,21.32],[-157.81,21.31]]]}`), deadletter.ReasonDegenerateGeometry, "3 positions"},
		{"ring of one position", feature(`{"type":"Polygon","coordinates":[[[1,2]]]}`), deadletter.ReasonDegenerateGeometry, "1 positions"},
		{"ring of four equal positions", feature(`{"type":"Polygon","coordinates":[[[1,2],[1,2],[1,2],[1,2]]]}`), deadletter.ReasonDegenerateGeometry, "one line"},
		{"ring on a horizontal line", feature(`{"type":"Polygon","coordinates":[[[550000,5190000],[550010,5190000],[550005,5190000],[550000,5190000]]]}`), deadletter.ReasonDegenerateGeometry, "one line"},
		{"ring on a slanted line, up to rounding", feature(`{"type":"Polygon","coordinates":[[[0.1,0.3],[0.2,0.6],[0.3,0.9],[0.1,0.3]]]}`), deadletter.ReasonDegenerateGeometry, "one line"},
		{"every part on a line", feature(`{"type":"MultiPolygon","coordinates":[[[[0,0],[9,0],[5,0],[0,0]]],[[[0,0],[0,9],[0,5],[0,0]]]]}`), deadletter.ReasonDegenerateGeometry, "coordinates[0][0]: "},
		{"hole of two positions", feature(`{"type":"Polygon","coordinates":[[[0,0],[9,0],[9,9],[0,0]],[[4,2],[5,2]]]}`), deadletter.ReasonDegenerateGeometry, "coordinates[1]: "},

		{"deep properties", `{"type":"Feature","properties":{"a":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `},"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonInvalidJSON, "more than 32"},
		{"deep foreign member", `{"type":"Feature","x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `,"geometry":{"type":"Point","coordinates":[1,2]}}`, deadletter.ReasonInvalidJSON, "more than 32"},
		{"deep collection", feature(nestedCollections(16)), deadletter.ReasonBadGeometry, "more than 32"},
		{"conflicting crs in a collection", feature(`{"type":"GeometryCollection","crs":{"a":1},"geometries":[{"type":"Point","coordinates":[1,2],"crs":{"a":2}}]}`), deadletter.ReasonCRSConflict, "crs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, err := geojson.Decode([]byte(tt.text), geojson.Limits{})
			fault, ok := deadletter.AsFault(err)
			if !ok {
				t.Fatalf("Decode(%.200s) = %+v, %v; want a fault", tt.text, f, err)
			}
			if f == nil {
				t.Error("no feature beside the fault")
			}
			if fault.Reason != tt.reason || !strings.Contains(fault.Detail, tt.detail) {
				t.Errorf("Decode(%.200s) = %v; want %s with %q", tt.text, fault, tt.reason, tt.detail)
			}
			if len(fault.Detail) > deadletter.MaxMessage {
				t.Errorf("a detail of %d bytes: %s", len(fault.Detail), fault.Detail)
			}
		})
	}
}

func manyProperties(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"p%d":%d`, i, i)
	}
	return b.String()
}

// nestedCollections is a point inside n collections.
func nestedCollections(n int) string {
	return strings.Repeat(`{"type":"GeometryCollection","geometries":[`, n) + `{"type":"Point","coordinates":[1,2]}` + strings.Repeat(`]}`, n)
}

func TestDecodeKeepsWhatTheTextSays(t *testing.T) {
	t.Parallel()
	text := "\x1e\ufeff" + ` {"crs":{"type":"name","properties":{"name":"EPSG:26910"}},"id":9007199254740993,"type":"Feature","type" : "Feature",
		"properties":{"z":1.10,"a":"<&> \u00e5\/","a":"<&> å/","n":null,"":-0.0,"o":{"b": [1,  2]}},"bbox":[0,0,1,1],
		"geometry":{"type":"Point","crs":{"type":"name"},"coordinates":[1,2]}}` + "\r\n"
	f, err := geojson.Decode([]byte(text), geojson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range f.Properties {
		got = append(got, p.Name+" = "+string(p.Raw))
	}
	want := []string{`z = 1.10`, `a = "<&> \u00e5\/"`, `n = null`, ` = -0.0`, `o = {"b": [1,  2]}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
	if f.ID != "9007199254740993" || !f.HasID {
		t.Errorf("id = %q, %v", f.ID, f.HasID)
	}
	if got, want := string(f.CRS), `{"type":"name","properties":{"name":"EPSG:26910"}}`; got != want {
		t.Errorf("crs = %s, want %s", got, want)
	}
	if got, want := string(f.GeometryCRS), `{"type":"name"}`; got != want {
		t.Errorf("crs of the geometry = %s, want %s", got, want)
	}
}

func TestDecodeReadsNumbersAsStrconvDoes(t *testing.T) {
	t.Parallel()
	numbers := []string{"0", "-0", "-0.0", "1", "0.1", "0.30000000000000004", "9007199254740992", "9007199254740993", "9007199254740992.0",
		"90071992547409.925", "123456789012345678", "1234567890123456789", "12345678901234567890", "18446744073709551617.5", "0.0000000000000000000001",
		"0.00000000000000000000001", "1e5", "1E+5", "-1.5e-7", "5e-324", "1e-400", "1.7976931348623157e308", "-122.41941550000001", "2.2250738585072011e-308"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		numbers = append(numbers,
			strconv.FormatFloat((random.Float64()-0.5)*math.Pow10(random.IntN(18)), 'f', random.IntN(16), 64),
			strconv.FormatFloat(math.Float64frombits(random.Uint64()&^(1<<62)), 'g', -1, 64))
	}
	for _, number := range numbers {
		want, err := strconv.ParseFloat(number, 64)
		if err != nil {
			t.Fatal(err)
		}
		f, err := geojson.Decode([]byte(feature(`{"type":"Point","coordinates":[`+number+`,1]}`)), geojson.Limits{})
		if err != nil {
			t.Fatalf("%s: %v", number, err)
		}
		if got := f.Geometry.(orb.Point)[0]; math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s reads as %v, want %v", number, got, want)
		}
	}
}

func TestDecodeIDs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, id, want string
		has            bool
	}{
		{"text", `"0042"`, "0042", true},
		{"escaped text", `"\u00c5-1"`, "Å-1", true},
		{"number digit for digit", `1.50e3`, "1.50e3", true},
		{"null", `null`, "", false},
		{"empty text", `""`, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, err := geojson.Decode([]byte(`{"type":"Feature","id":`+tt.id+`,"geometry":{"type":"Point","coordinates":[1,2]}}`), geojson.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if f.ID != tt.want || f.HasID != tt.has {
				t.Errorf("id %s = %q, %v; want %q, %v", tt.id, f.ID, f.HasID, tt.want, tt.has)
			}
		})
	}
}

func TestDecodeGivesWhatItCouldReadBesideAFault(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		properties int
		geometry   bool
	}{
		{"null geometry", `{"type":"Feature","id":"k-7","properties":{"a":1},"geometry":null}`, 1, false},
		{"bad coordinates", `{"type":"Feature","id":"k-7","properties":{"a":1},"geometry":{"type":"Point","coordinates":[null,null]}}`, 1, false},
		{"properties no object", `{"type":"Feature","id":"k-7","properties":[],"geometry":{"type":"Point","coordinates":[1,2]}}`, 0, true},
		{"no feature", `{"type":"feature","id":"k-7","properties":{"a":1},"geometry":{"type":"Point","coordinates":[1,2]}}`, 1, true},
		{"JSON that breaks after the id", `{"type":"Feature","id":"k-7","geometry":{"type":"Point","coordinates":[NaN,NaN]}}`, 0, false},
		{"bytes that are no UTF-8", "{\"type\":\"Feature\",\"id\":\"k-7\",\"geometry\":\"\xe9\"}", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, err := geojson.Decode([]byte(tt.text), geojson.Limits{})
			if err == nil {
				t.Fatal("no fault")
			}
			if f.ID != "k-7" || !f.HasID || len(f.Properties) != tt.properties || (f.Geometry != nil) != tt.geometry {
				t.Errorf("feature beside %v: %+v", err, f)
			}
		})
	}
}

func TestDecodeRuleTellsGeometryFromTheRest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		feature(`null`): geojson.RuleGeometry,
		feature(`{"type":"Point","coordinates":[1]}`):                                     geojson.RuleGeometry,
		`{"type":"Feature","properties":[],"geometry":null}`:                              geojson.RuleFeature,
		`{"type":"Feature","properties":{"a":1,"a":2},"geometry":null}`:                   geojson.RuleFeature,
		`{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"geometry":3}`: geojson.RuleFeature,
	} {
		_, err := geojson.Decode([]byte(text), geojson.Limits{})
		if fault, ok := deadletter.AsFault(err); !ok || fault.Rule != want {
			t.Errorf("Decode(%s) = %#v, want rule %s", text, err, want)
		}
	}
}

func TestDecodeLimits(t *testing.T) {
	t.Parallel()
	text := []byte(feature(`{"type":"Point","coordinates":[1,2]}`))
	if _, err := geojson.Decode(text, geojson.Limits{MaxBytes: len(text)}); err != nil {
		t.Errorf("a feature of exactly the size allowed: %v", err)
	}
	_, err := geojson.Decode(text, geojson.Limits{MaxBytes: len(text) - 1})
	if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != deadletter.ReasonFeatureTooLarge {
		t.Errorf("a feature of one byte too many: %v", err)
	}
	// The feature, the geometry and one array.
	if _, err := geojson.Decode(text, geojson.Limits{MaxDepth: 3}); err != nil {
		t.Errorf("a feature of exactly the depth allowed: %v", err)
	}
	_, err = geojson.Decode(text, geojson.Limits{MaxDepth: 2})
	if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != deadletter.ReasonBadGeometry {
		t.Errorf("a feature one level too deep: %v", err)
	}
	if _, err := geojson.Decode([]byte(feature(nestedCollections(14))), geojson.Limits{}); err != nil {
		t.Errorf("14 collections inside each other: %v", err)
	}
}

// Each text is 4 MiB of what makes a lax decoder take quadratic time or a stack per level.
// None of them would end within the test's deadline if work grew with the square of the size.
func TestDecodeTakesHostileTextInLinearTime(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	fill := func(part string) string { return strings.Repeat(part, size/len(part)) }
	names := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	tests := []struct {
		name, text string
		reason     deadletter.Reason // "" for none
	}{
		{"open brackets", fill("["), deadletter.ReasonInvalidJSON},
		{"open braces", fill(`{"a":`), deadletter.ReasonInvalidJSON},
		{"nested collections", feature(nestedCollections(size / 46)), deadletter.ReasonBadGeometry},
		{"nested collections, type last", feature(strings.Repeat(`{"geometries":[`, size/46) + strings.Repeat(`],"type":"GeometryCollection"}`, size/46)), deadletter.ReasonBadGeometry},
		{"nested properties", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{"a":` + strings.Repeat("[", size/2) + strings.Repeat("]", size/2) + `}}`, deadletter.ReasonInvalidJSON},
		{"many properties", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{` + names(`"property-%d":0,`, size/20) + `"":0}}`, ""},
		{"one property many times", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{` + fill(`"a":"b",`) + `"":0}}`, ""},
		{"one member many times", `{"type":"Feature",` + fill(`"id":1,`) + `"geometry":{"type":"Point","coordinates":[1,2]}}`, ""},
		{"escapes", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"properties":{"` + fill(`\u0061`) + `":"` + fill(`\\`) + `"}}`, ""},
		{"escapes in the id", `{"type":"Feature","geometry":{"type":"Point","coordinates":[1,2]},"id":"` + fill(`\ud83d\ude00`) + `"}`, ""},
		{"empty positions", feature(`{"type":"LineString","coordinates":[` + fill(`[],`) + `[]]}`), deadletter.ReasonBadCoordinates},
		{"empty rings", feature(`{"type":"Polygon","coordinates":[` + fill(`[],`) + `[]]}`), deadletter.ReasonEmptyGeometry},
		{"open triangles", feature(`{"type":"MultiPolygon","coordinates":[` + fill(`[[[0,0],[1,0],[1,1]]],`) + `[]]}`), ""},
		{"one ring on a line", feature(`{"type":"Polygon","coordinates":[[` + fill(`[1,1],[0,0],`) + `[0,0]]]}`), deadletter.ReasonDegenerateGeometry},
		{"a number of many digits", feature(`{"type":"Point","coordinates":[1.` + fill(`0`) + `1,2]}`), ""},
		{"an exponent of many digits", feature(`{"type":"Point","coordinates":[1e-` + fill(`9`) + `,2]}`), ""},
		{"white space", feature(`{"type":"Point","coordinates":[1,` + fill(" ") + `2]}`), ""},
		{"many members of a collection", feature(`{"type":"GeometryCollection","geometries":[` + fill(`{"type":"Point","coordinates":[1,2]},`) + `{"type":"Point","coordinates":[]}]}`), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := geojson.Decode([]byte(tt.text), geojson.Limits{})
			if tt.reason == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.reason {
				t.Errorf("got %v, want %s", err, tt.reason)
			}
		})
	}
}

func TestCleanTakesGeometriesThatNoTextHolds(t *testing.T) {
	t.Parallel()
	nan, inf, minusZero := math.NaN(), math.Inf(1), math.Copysign(0, -1)
	tests := []struct {
		name string
		g    orb.Geometry
		want orb.Geometry
		fail deadletter.Reason
	}{
		{"nil", nil, nil, deadletter.ReasonEmptyGeometry},
		{"empty point of WKB", orb.Point{nan, nan}, nil, deadletter.ReasonEmptyGeometry},
		{"half a point", orb.Point{1, nan}, nil, deadletter.ReasonBadCoordinates},
		{"infinite point", orb.Point{inf, 0}, nil, deadletter.ReasonBadCoordinates},
		{"empty point in a multipoint", orb.MultiPoint{{1, 2}, {nan, nan}, {3, 4}}, orb.MultiPoint{{1, 2}, {3, 4}}, ""},
		{"NaN in a ring", orb.Polygon{{{0, 0}, {1, 0}, {1, nan}, {0, 0}}}, nil, deadletter.ReasonBadCoordinates},
		{"infinity in a line", orb.LineString{{0, 0}, {inf, 0}}, nil, deadletter.ReasonBadCoordinates},
		{"ring", orb.Ring{{0, 0}, {1, 0}, {1, 1}, {0, 0}}, orb.Polygon{{{0, 0}, {1, 0}, {1, 1}, {0, 0}}}, ""},
		{"bound", orb.Bound{Min: orb.Point{0, 0}, Max: orb.Point{1, 1}}, orb.Polygon{{{0, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 0}}}, ""},
		{"huge ring", orb.Polygon{{{0, 0}, {1e300, 0}, {1e300, 1e300}, {0, 0}}}, orb.Polygon{{{0, 0}, {1e300, 0}, {1e300, 1e300}, {0, 0}}}, ""},
		{"nil in a collection", orb.Collection{nil, orb.Point{1, 2}}, orb.Collection{orb.Point{1, 2}}, ""},
		{"closing position of the other sign", orb.Polygon{{{0, 0}, {1, 0}, {1, 1}, {minusZero, 0}}}, orb.Polygon{{{0, 0}, {1, 0}, {1, 1}, {0, 0}}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := geojson.Clean(tt.g)
			if tt.fail != "" {
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.fail || got != nil {
					t.Errorf("Clean = %v, %v; want %s", got, err, tt.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Clean (-want +got):\n%s", diff)
			}
			if polygon, ok := got.(orb.Polygon); ok {
				ring := polygon[0]
				last := len(ring) - 1
				if math.Signbit(ring[0][0]) != math.Signbit(ring[last][0]) {
					t.Error("the ring is not closed to the bit")
				}
			}
		})
	}
}

// caseTexts are the features of the cases, as text.
func caseTexts(t testing.TB) [][]byte {
	t.Helper()
	files, err := filepath.Glob("../../testdata/cases/*.ndjson")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var texts [][]byte
	for _, file := range files {
		lines, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(lines) {
			var c struct {
				Feature json.RawMessage
				Text    *string `json:"feature_text"`
				Base64  []byte  `json:"feature_b64"`
			}
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch {
			case c.Text != nil:
				texts = append(texts, []byte(*c.Text))
			case c.Base64 != nil:
				texts = append(texts, c.Base64)
			default:
				texts = append(texts, c.Feature)
			}
		}
	}
	return texts
}

func FuzzDecode(f *testing.F) {
	for _, text := range caseTexts(f) {
		f.Add(text)
	}
	for _, text := range []string{
		feature(nestedCollections(3)),
		feature(`{"type":"Polygon","coordinates":[[[0.1,0.3],[0.2,0.6],[0.3,0.9],[0.1,0.3]],[[]]]}`),
		feature(`{"type":"MultiPolygon","coordinates":[[[[0,0],[9,0,1],[9,9,null]]],[]],"crs":null}`),
		`{"type":"Feature","id":"\ud800","properties":{"a":1,"\u0061":1},"geometry":{"coordinates":[1e400,-0],"type":"Point","type":"Point"}}`,
		strings.Repeat("[", 100),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		feature, err := geojson.Decode(text, geojson.Limits{MaxBytes: 1 << 20})
		if feature == nil {
			t.Fatal("no feature")
		}
		if err != nil {
			fault, ok := deadletter.AsFault(err)
			if !ok || !fault.Reason.Known() || fault.Detail == "" || fault.Rule == "" {
				t.Fatalf("%#v is no proper fault", err)
			}
			return
		}
		var lax map[string]json.RawMessage
		if err := json.Unmarshal([]byte(strings.TrimLeft(string(text), "\x1e\ufeff")), &lax); err != nil {
			t.Fatalf("encoding/json refuses what Decode takes: %v", err)
		}
		for _, p := range feature.Properties {
			if !json.Valid(p.Raw) {
				t.Fatalf("property %q is %q", p.Name, p.Raw)
			}
		}
		again, err := geojson.Clean(orb.Clone(feature.Geometry))
		if err != nil {
			t.Fatalf("what Decode cleaned is not clean: %v", err)
		}
		if !orb.Equal(feature.Geometry, again) {
			t.Fatalf("cleaning again turns %v into %v", feature.Geometry, again)
		}
		if hash := deadletter.GeomHash(feature.ID, 4326, feature.Geometry); len(hash) != 64 {
			t.Fatalf("hash %q", hash)
		}
	})
}
