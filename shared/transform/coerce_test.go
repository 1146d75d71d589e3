package transform_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
	"geodlq/shared/transform"
)

var (
	here = "EPSG:3857"
	zero = `{"type":"Point","coordinates":[0,0]}`
)

// parse makes a contract of a document that must be sound.
func parse(t testing.TB, document string) *transform.Contract {
	t.Helper()
	c, err := transform.ParseContract([]byte(document), transform.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// properties runs a feature with the given properties through the contract.
func properties(t testing.TB, c *transform.Contract, properties string) (string, error) {
	t.Helper()
	out, err := c.Transform(t.Context(), transform.Input{
		FeatureID: "f-1", SourceCRS: &here,
		Payload: []byte(`{"type":"Feature","properties":` + properties + `,"geometry":` + zero + `}`),
	})
	return string(out.Properties), err
}

func TestCoerce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		field string // of the contract, without its name
		value string // in the feature
		want  string // in the target; "" when it cannot be read
	}{
		{"string stays", `"type":"string"`, `"\u00c5re <&>"`, `"\u00c5re <&>"`},
		{"number as string, digit for digit", `"type":"string"`, `1.50`, `"1.50"`},
		{"boolean as string", `"type":"string"`, `true`, `"true"`},
		{"object as string", `"type":"string"`, `{}`, ``},
		{"null stays", `"type":"string"`, `null`, `null`},
		{"empty string is null", `"type":"string"`, `""`, `null`},
		{"empty string is kept when nothing means null", `"type":"string","missingValues":[]`, `""`, `""`},
		{"missing value of the field", `"type":"integer","missingValues":["n/a","-9999"]`, `"n/a"`, `null`},
		{"missing value that is a number", `"type":"integer","missingValues":["n/a","-9999"]`, `-9999`, `null`},
		{"missing value with a label", `"type":"integer","missingValues":[{"value":"-","label":"refused"}]`, `"-"`, `null`},
		{"e-mail address", `"type":"string","format":"email"`, `"ada@example.org"`, `"ada@example.org"`},
		{"no e-mail address", `"type":"string","format":"email"`, `"Ada <ada@example.org>"`, ``},
		{"URI", `"type":"string","format":"uri"`, `"https://example.org/a b"`, `"https://example.org/a b"`},
		{"relative reference is no URI", `"type":"string","format":"uri"`, `"/a"`, ``},
		{"UUID", `"type":"string","format":"uuid"`, `"6b0d3f52-9a41-4c7e-8f16-2d95e07bc438"`, `"6b0d3f52-9a41-4c7e-8f16-2d95e07bc438"`},
		{"no UUID", `"type":"string","format":"uuid"`, `"6b0d3f52"`, ``},
		{"base64", `"type":"string","format":"binary"`, `"R0lG"`, `"R0lG"`},
		{"no base64", `"type":"string","format":"binary"`, `"R0l"`, ``},

		{"integer stays", `"type":"integer"`, `9007199254740993`, `9007199254740993`},
		{"text of an integer", `"type":"integer"`, `"1987"`, `1987`},
		{"white space and sign", `"type":"integer"`, `" +0042 "`, `42`},
		{"negative zero as text", `"type":"integer"`, `"-0"`, `0`},
		{"integer beyond 64 bits", `"type":"integer"`, `"-99999999999999999999999"`, `-99999999999999999999999`},
		{"number without a fraction", `"type":"integer"`, `1987.0`, `1987`},
		{"number with an exponent", `"type":"integer"`, `1.987e3`, `1987`},
		{"zero with an exponent", `"type":"integer"`, `0e5`, `0`},
		{"whole number too long to write out", `"type":"integer"`, `1e400`, `1e400`},
		{"number with a fraction", `"type":"integer"`, `1987.5`, ``},
		{"small number", `"type":"integer"`, `1e-5`, ``},
		{"text with a fraction", `"type":"integer"`, `"1987.0"`, ``},
		{"text with a letter", `"type":"integer"`, `"19x7"`, ``},
		{"hexadecimal", `"type":"integer"`, `"0x10"`, ``},
		{"blank", `"type":"integer"`, `" "`, ``},
		{"boolean is no integer", `"type":"integer"`, `true`, ``},
		{"array is no integer", `"type":"integer"`, `[1]`, ``},
		{"groups of digits", `"type":"integer","groupChar":","`, `"1,234,567"`, `1234567`},
		{"Indian groups", `"type":"integer","groupChar":","`, `"12,34,567"`, `1234567`},
		{"narrow space between groups", `"type":"integer","groupChar":" "`, `"1 234"`, `1234`},
		{"a decimal comma is no group", `"type":"integer","groupChar":","`, `"1,5"`, ``},
		{"group without digits", `"type":"integer","groupChar":","`, `"1,,234"`, ``},
		{"bare number asked for", `"type":"integer"`, `"95%"`, ``},
		{"percent sign", `"type":"integer","bareNumber":false`, `"95 %"`, `95`},
		{"currency before", `"type":"integer","bareNumber":false`, `"EUR 95"`, `95`},
		{"sign at its digits", `"type":"integer","bareNumber":false`, `"EUR -95"`, `-95`},
		{"sign before the currency", `"type":"integer","bareNumber":false`, `"-€95"`, ``},
		{"bookkeeper's brackets", `"type":"integer","bareNumber":false`, `"(95)"`, ``},
		{"no digit at all", `"type":"integer","bareNumber":false`, `"EUR"`, ``},

		{"number stays digit for digit", `"type":"number"`, `0.10e1`, `0.10e1`},
		{"text of a number", `"type":"number"`, `"1200.50"`, `1200.50`},
		{"no digit before the point", `"type":"number"`, `"-.5"`, `-0.5`},
		{"no digit after the point", `"type":"number"`, `"5."`, `5`},
		{"exponent", `"type":"number"`, `"1.5E+3"`, `1.5e3`},
		{"only a point", `"type":"number"`, `"."`, ``},
		{"two points", `"type":"number"`, `"1.2.3"`, ``},
		{"two signs", `"type":"number"`, `"--1"`, ``},
		{"exponent without digits", `"type":"number"`, `"1e"`, ``},
		{"exponent with two signs", `"type":"number"`, `"1e+-1"`, ``},
		{"not a number", `"type":"number"`, `"NaN"`, ``},
		{"infinity", `"type":"number"`, `"-inf"`, ``},
		{"decimal comma and groups", `"type":"number","decimalChar":",","groupChar":"."`, `"1.234,50"`, `1234.50`},
		{"the wrong way round", `"type":"number","decimalChar":",","groupChar":"."`, `"1,234.50"`, ``},
		{"decimal point under a currency", `"type":"number","bareNumber":false`, `"$.50"`, `0.50`},
		{"dollars with groups", `"type":"number","bareNumber":false,"groupChar":","`, `"$3,713,714.00"`, `3713714.00`},
		{"square metres", `"type":"number","bareNumber":false`, `"95 m2"`, ``},

		{"boolean stays", `"type":"boolean"`, `false`, `false`},
		{"text of a boolean", `"type":"boolean"`, `"TRUE"`, `true`},
		{"number of a boolean", `"type":"boolean"`, `0`, `false`},
		{"other text", `"type":"boolean"`, `"yes"`, ``},
		{"own values", `"type":"boolean","trueValues":["yes","Y"],"falseValues":["no","N"]`, `"Y"`, `true`},
		{"own values replace the default", `"type":"boolean","trueValues":["yes"],"falseValues":["no"]`, `"true"`, ``},

		{"date", `"type":"date"`, `"2024-02-29"`, `"2024-02-29"`},
		{"no such day", `"type":"date"`, `"2023-02-29"`, ``},
		{"month 0", `"type":"date"`, `"0000-00-00"`, ``},
		{"day of one digit", `"type":"date"`, `"2024-2-9"`, ``},
		{"date with a time", `"type":"date"`, `"2024-02-29T00:00:00"`, ``},
		{"number is no date", `"type":"date"`, `20240229`, ``},
		{"date by pattern", `"type":"date","format":"%d/%m/%Y"`, `"29/02/2024"`, `"2024-02-29"`},
		{"pattern of the first drafts", `"type":"date","format":"fmt:%d.%m.%y"`, `"1.2.69"`, `"1969-02-01"`},
		{"date with the name of a month", `"type":"date","format":"%d %B %Y"`, `"1 march 2024"`, `"2024-03-01"`},
		{"date with a short name", `"type":"date","format":"%a %d-%b-%y"`, `"Fri 01-MAR-24"`, `"2024-03-01"`},
		{"day of the year", `"type":"date","format":"%Y%j"`, `"2024060"`, `"2024-02-29"`},
		{"day 366 of a common year", `"type":"date","format":"%Y%j"`, `"2023366"`, ``},
		{"pattern with a rest", `"type":"date","format":"%d/%m/%Y"`, `"29/02/2024 "`, ``},
		{"any form", `"type":"date","format":"any"`, `"20240229"`, `"2024-02-29"`},
		{"any form, mail", `"type":"date","format":"any"`, `"Thu, 29 Feb 2024 10:00:00 GMT"`, `"2024-02-29"`},
		{"any form is not guessed", `"type":"date","format":"any"`, `"03/04/2020"`, ``},

		{"time", `"type":"time"`, `"15:04:05"`, `"15:04:05"`},
		{"no such time", `"type":"time"`, `"24:00:00"`, ``},
		{"time by pattern", `"type":"time","format":"%I:%M %p"`, `"12:05 am"`, `"00:05:00"`},
		{"time by pattern, afternoon", `"type":"time","format":"%I:%M %p"`, `"1:05 PM"`, `"13:05:00"`},
		{"time in any form", `"type":"time","format":"any"`, `"15:04"`, `"15:04:00"`},

		{"datetime", `"type":"datetime"`, `"2024-01-26T15:00:00"`, `"2024-01-26T15:00:00"`},
		{"datetime with fraction and offset", `"type":"datetime"`, `"2024-01-26T15:00:00.300-05:00"`, `"2024-01-26T15:00:00.300-05:00"`},
		{"datetime in UTC", `"type":"datetime"`, `"2024-01-26T15:00:00Z"`, `"2024-01-26T15:00:00Z"`},
		{"datetime with a comma", `"type":"datetime"`, `"2024-01-26T15:00:00,3Z"`, ``},
		{"offset without a colon", `"type":"datetime"`, `"2024-01-26T15:00:00+0100"`, ``},
		{"offset beyond 14 hours", `"type":"datetime"`, `"2024-01-26T15:00:00+15:00"`, ``},
		{"datetime with a space", `"type":"datetime"`, `"2024-01-26 15:00:00"`, ``},
		{"datetime in any form", `"type":"datetime","format":"any"`, `"2024-01-26 15:00:00"`, `"2024-01-26T15:00:00"`},
		{"datetime by pattern", `"type":"datetime","format":"%F %T.%f%z"`, `"2024-01-26 15:00:00.25+0100"`, `"2024-01-26T15:00:00.25+01:00"`},
		{"percent sign in a pattern", `"type":"datetime","format":"%H%%%M"`, `"15%30"`, `"1900-01-01T15:30:00"`},

		{"year", `"type":"year"`, `"1987"`, `1987`},
		{"year as a number", `"type":"year"`, `1987`, `1987`},
		{"year before the era", `"type":"year"`, `"-0044"`, `-44`},
		{"year of two digits", `"type":"year"`, `"87"`, ``},
		{"year with a month", `"type":"year"`, `"1987-05"`, ``},
		{"year and month", `"type":"yearmonth"`, `"1987-05"`, `"1987-05"`},
		{"year and month 13", `"type":"yearmonth"`, `"1987-13"`, ``},

		{"object", `"type":"object"`, `{"a":1}`, `{"a":1}`},
		{"object in a string", `"type":"object"`, `" {\"a\": 1} "`, `{"a": 1}`},
		{"array is no object", `"type":"object"`, `[1]`, ``},
		{"array", `"type":"array"`, `[1,"2"]`, `[1,"2"]`},
		{"array in a string", `"type":"array"`, `"[1,2]"`, `[1,2]`},
		{"broken array in a string", `"type":"array"`, `"[1,2"`, ``},
		{"any", `"type":"any"`, `{"a":[1.0]}`, `{"a":[1.0]}`},
		{"no type is any", `"title":"T"`, `1.0`, `1.0`},
		{"type that passes unchecked", `"type":"geopoint"`, `"90.5, 45.5"`, `"90.5, 45.5"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := parse(t, `{"fields":[{"name":"x",`+tt.field+`}]}`)
			got, err := properties(t, c, `{"x":`+tt.value+`}`)
			if tt.want == "" {
				fault, ok := deadletter.AsFault(err)
				if !ok || fault.Reason != deadletter.ReasonCoerceFailed || !strings.HasPrefix(fault.Rule, "coerce:x->") {
					t.Errorf("%s = %s, %v; want coerce_failed", tt.value, got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := `{"x":` + tt.want + `}`; got != want {
				t.Errorf("%s = %s, want %s", tt.value, got, want)
			}
			if !json.Valid([]byte(got)) {
				t.Errorf("%s is no JSON", got)
			}
		})
	}
}

func TestConstraints(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		field      string
		good, bads []string
	}{
		{"minimum", `"type":"integer","constraints":{"minimum":1700}`, []string{`1700`, `"1701"`, `1e3000`, `null`}, []string{`1699`, `"-1800"`, `0`}},
		{"minimum as text", `"type":"integer","constraints":{"minimum":"1700"}`, []string{`1700`}, []string{`1699`}},
		{"maximum of numbers beyond float64", `"type":"number","constraints":{"maximum":9007199254740992.0}`, []string{`9007199254740992`, `9007199254740992.00`}, []string{`9007199254740992.0000000001`, `9007199254740993`}},
		{"negative bounds", `"type":"number","constraints":{"minimum":-1.5,"maximum":-0.5}`, []string{`-1.5`, `-0.50`, `-1`}, []string{`-1.51`, `-0.49`, `0`, `1`}},
		{"exclusive bounds", `"type":"number","constraints":{"exclusiveMinimum":0,"exclusiveMaximum":1}`, []string{`0.5`}, []string{`0`, `-0`, `0.0e7`, `1`, `1.0`}},
		{"a bound beside an exclusive one", `"type":"integer","constraints":{"minimum":1,"exclusiveMinimum":0,"maximum":9,"exclusiveMaximum":8}`, []string{`1`, `7`}, []string{`0`, `8`, `9`}},
		{"bounds of dates", `"type":"date","format":"%d/%m/%Y","constraints":{"minimum":"01/01/2000","maximum":"31/12/2000"}`, []string{`"29/02/2000"`}, []string{`"31/12/1999"`, `"01/01/2001"`}},
		{"bounds of moments with offsets", `"type":"datetime","constraints":{"minimum":"2024-01-01T00:00:00Z"}`, []string{`"2024-01-01T00:00:00Z"`, `"2023-12-31T23:00:00-02:00"`}, []string{`"2024-01-01T00:30:00+01:00"`}},
		{"bounds of years", `"type":"year","constraints":{"minimum":"1900"}`, []string{`"1900"`, `1901`}, []string{`"1899"`}},
		{"bounds of months", `"type":"yearmonth","constraints":{"maximum":"2024-02"}`, []string{`"2024-02"`}, []string{`"2024-03"`}},
		{"length counts characters", `"type":"string","constraints":{"minLength":2,"maxLength":3}`, []string{`"Åå"`, `"\ud83d\ude00\ud83d\ude00"`, `"abc"`, `12`}, []string{`"Å"`, `"abcd"`}},
		{"length of an array", `"type":"array","constraints":{"minLength":1}`, []string{`[[]]`, `"[1]"`}, []string{`[]`}},
		{"length of an object", `"type":"object","constraints":{"maxLength":1}`, []string{`{}`, `{"a":1}`}, []string{`{"a":1,"b":2}`}},
		{"pattern matches from end to end", `"type":"string","constraints":{"pattern":"P-[0-9]+|X"}`, []string{`"P-42"`, `"X"`}, []string{`"P-42b"`, `"aX"`, `"P-"`, `"P-4\n"`}},
		{"pattern with anchors", `"type":"string","constraints":{"pattern":"^P-[0-9]+$"}`, []string{`"P-42"`}, []string{`"xP-42"`, `"P-42\n"`}},
		{"enum of strings", `"type":"string","constraints":{"enum":["a","b"]}`, []string{`"a"`, `"\u0061"`}, []string{`"A"`, `"c"`}},
		{"enum of numbers by value", `"type":"number","constraints":{"enum":[1,"2.50"]}`, []string{`1.0`, `"1"`, `2.5`, `25e-1`}, []string{`1.01`}},
		{"enum of booleans", `"type":"boolean","constraints":{"enum":[true]}`, []string{`"1"`}, []string{`false`}},
		{"enum of dates", `"type":"date","constraints":{"enum":["2024-01-01"]}`, []string{`"2024-01-01"`}, []string{`"2024-01-02"`}},
		{"enum of anything", `"constraints":{"enum":[{"a":[1,"x"]},1]}`, []string{`{ "a" : [ 1.0, "\u0078" ] }`, `1e0`}, []string{`{"a":[1]}`, `"1"`}},
		{"categories", `"type":"integer","categories":[{"value":0,"label":"apple"},{"value":1}]`, []string{`0`, `"1"`}, []string{`2`}},
		{"categories and an enum of some", `"type":"string","categories":["a","b"],"constraints":{"enum":["a"]}`, []string{`"a"`}, []string{`"b"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := parse(t, `{"fields":[{"name":"x",`+tt.field+`}]}`)
			for _, value := range tt.good {
				if _, err := properties(t, c, `{"x":`+value+`}`); err != nil {
					t.Errorf("%s: %v", value, err)
				}
			}
			for _, value := range tt.bads {
				got, err := properties(t, c, `{"x":`+value+`}`)
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != deadletter.ReasonConstraintFailed || fault.Rule != "constrain:x" {
					t.Errorf("%s = %s, %v; want constraint_failed", value, got, err)
				}
			}
		})
	}
}

func TestFaultsOfAttributesSayWhatMustBeFixed(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"fields":[
		{"name":"parcel_id","type":"string","constraints":{"required":true,"pattern":"P-[0-9]+"}},
		{"name":"built_year","type":"integer","constraints":{"minimum":1700}}],
		"primaryKey":"built_year","target":{"unknownAttributes":"reject"}}`)
	tests := []struct {
		name, properties string
		want             deadletter.Fault
	}{
		{"required and absent", `{"built_year":1900}`, deadletter.Fault{Reason: "missing_attribute", Rule: "require:parcel_id", Detail: "parcel_id is required, but it is absent or null"}},
		{"required and null", `{"built_year":1900,"parcel_id":null}`, deadletter.Fault{Reason: "missing_attribute", Rule: "require:parcel_id", Detail: "parcel_id is required, but it is absent or null"}},
		{"required and empty", `{"built_year":1900,"parcel_id":""}`, deadletter.Fault{Reason: "missing_attribute", Rule: "require:parcel_id", Detail: "parcel_id is required, but it is absent or null"}},
		{"a part of the primary key is required", `{"parcel_id":"P-1"}`, deadletter.Fault{Reason: "missing_attribute", Rule: "require:built_year", Detail: "built_year is required, but it is absent or null"}},
		{"of another type", `{"built_year":"c. 1920"}`, deadletter.Fault{Reason: "coerce_failed", Rule: "coerce:built_year->integer", Detail: `built_year is "c. 1920", which is not an integer`}},
		{"under the minimum", `{"built_year":"1066"}`, deadletter.Fault{Reason: "constraint_failed", Rule: "constrain:built_year", Detail: "built_year is 1066, which is under the minimum of 1700"}},
		{"not by the pattern", `{"parcel_id":"42"}`, deadletter.Fault{Reason: "constraint_failed", Rule: "constrain:parcel_id", Detail: `parcel_id is "42", which does not match the pattern P-[0-9]+`}},
		{"unknown", `{"colour":"red"}`, deadletter.Fault{Reason: "constraint_failed", Rule: "attributes:colour", Detail: "the contract has no attribute colour and rejects what it does not know"}},
		{"U+0000", `{"parcel_id":"gate\u0000code"}`, deadletter.Fault{Reason: "unstorable_text", Rule: "store:parcel_id", Detail: `parcel_id holds \u0000, which no text or jsonb column can`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := properties(t, c, tt.properties)
			if fault, ok := deadletter.AsFault(err); !ok || *fault != tt.want {
				t.Errorf("got %#v\nwant %#v", err, tt.want)
			}
		})
	}
}

func TestMessagesStayShortHoweverLongTheValue(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"fields":[{"name":"x","type":"integer"}],"target":{"unknownAttributes":"reject"}}`)
	long := strings.Repeat("Ångström ", 10_000)
	for _, properties := range []string{`{"x":"` + long + `"}`, `{"` + long + `":1}`} {
		_, err := c.Transform(t.Context(), transform.Input{FeatureID: "f", SourceCRS: &here,
			Payload: []byte(`{"type":"Feature","properties":` + properties + `,"geometry":` + zero + `}`)})
		fault, ok := deadletter.AsFault(err)
		if !ok || len(fault.Detail) > 400 || len(fault.Rule) > 200 {
			t.Errorf("got %v", err)
		}
	}
}

func TestUnknownAttributes(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]string{
		"keep": `{"x":1,"note":"a\/b","é\n":2.50}`,
		"drop": `{"x":1}`,
	} {
		c := parse(t, `{"fields":[{"name":"x","type":"integer"}],"target":{"unknownAttributes":"`+what+`"}}`)
		got, err := properties(t, c, `{"x":"1","note":"a\/b","\u00e9\n":2.50}`)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", what, got, err, want)
		}
	}
	// What is dropped need not be storable.
	c := parse(t, `{"fields":[{"name":"x"}],"target":{"unknownAttributes":"drop"}}`)
	if got, err := properties(t, c, `{"note":"gate\u0000code","x":1}`); err != nil || got != `{"x":1}` {
		t.Errorf("dropping U+0000: %s, %v", got, err)
	}
}

func TestPropertiesThatJSONBRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, value string
		reason      deadletter.Reason // "" when it is stored as it is
	}{
		{"U+0000", `"a\u0000"`, deadletter.ReasonUnstorableText},
		{"U+0000 deep inside", `[{"a":[{"b":"\u0000"}]}]`, deadletter.ReasonUnstorableText},
		{"U+0000 in a name inside", `{"a\u0000":1}`, deadletter.ReasonUnstorableText},
		{"lone surrogate", `"\udc00"`, deadletter.ReasonUnstorableText},
		{"lone surrogate in a name inside", `{"\ud800":1}`, deadletter.ReasonUnstorableText},
		{"escaped backslash before u0000", `"\\u0000"`, ""},
		{"surrogate pair", `"\ud83d\ude00"`, ""},
		{"integer beyond float64", `1e400`, ""},
		{"the largest exponent of numeric", `1e131071`, ""},
		{"one more", `1e131072`, deadletter.ReasonUnstorableText},
		{"one more, with another mantissa", `10e131071`, deadletter.ReasonUnstorableText},
		{"zeros before it do not count", `0.1e131072`, ""},
		{"the smallest exponent of numeric", `1e-16383`, ""},
		{"one less", `1e-16384`, deadletter.ReasonUnstorableText},
		{"zeros after the point count", `1.000e-16383`, deadletter.ReasonUnstorableText},
		{"zero with a large exponent", `0e200000`, ""},
		{"zero with a small exponent", `0e-200000`, deadletter.ReasonUnstorableText},
		{"exponent beyond an int", `0e99999999999999999999`, deadletter.ReasonUnstorableText},
		{"fraction of 16383 digits", `0.` + strings.Repeat("1", 16383), ""},
		{"fraction of 16384 digits", `0.` + strings.Repeat("1", 16384), deadletter.ReasonUnstorableText},
		{"integer of 131072 digits", strings.Repeat("9", 131072), ""},
		{"integer of 131073 digits", strings.Repeat("9", 131073), deadletter.ReasonUnstorableText},
		{"number deep inside", `{"a":[1e200000]}`, deadletter.ReasonUnstorableText},
		{"member twice inside", `[{"a":1,"\u0061":2}]`, deadletter.ReasonAmbiguousJSON},
		{"member twice inside, the same value", `{"a":[1],"a":[ 1 ]}`, ""},
		{"one of many members twice inside", `{` + members(100) + `,"m7":"x"}`, deadletter.ReasonAmbiguousJSON},
		{"many members inside", `{` + members(100) + `}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := transform.LoadContract(t.Context(), "", nil, transform.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := properties(t, c, `{"x":`+tt.value+`}`)
			if tt.reason == "" {
				if err != nil || got != `{"x":`+tt.value+`}` {
					t.Errorf("got %.200s, %v", got, err)
				}
				return
			}
			if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.reason || fault.Rule != "store:x" {
				t.Errorf("got %v, want %s", err, tt.reason)
			}
		})
	}
}

func members(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = `"m` + string(rune('0'+i/10)) + string(rune('0'+i%10)) + `":1,"m` + string(rune('0'+i%10)) + `":1`
	}
	return strings.Join(list, ",")
}

func TestConform(t *testing.T) {
	t.Parallel()
	const (
		point   = `{"type":"Point","coordinates":[1,2]}`
		line    = `{"type":"LineString","coordinates":[[1,2],[3,4]]}`
		polygon = `{"type":"Polygon","coordinates":[[[0,0],[9,0],[9,9],[0,0]]]}`
		multi   = `{"type":"MultiPolygon","coordinates":[[[[0,0],[9,0],[9,9],[0,0]]]]}`
	)
	collection := func(members ...string) string {
		return `{"type":"GeometryCollection","geometries":[` + strings.Join(members, ",") + `]}`
	}
	triangle := orb.Polygon{{{0, 0}, {9, 0}, {9, 9}, {0, 0}}}
	tests := []struct {
		name, target, geometry string
		want                   orb.Geometry
		reason                 deadletter.Reason
	}{
		{"any type", `{}`, point, orb.Point{1, 2}, ""},
		{"any type, promoted", `{"promoteToMulti":true}`, point, orb.MultiPoint{{1, 2}}, ""},
		{"Geometry is any type", `{"geometryType":"Geometry"}`, line, orb.LineString{{1, 2}, {3, 4}}, ""},
		{"the type asked for", `{"geometryType":"Polygon"}`, polygon, triangle, ""},
		{"promotion goes with a Multi type", `{"geometryType":"MultiPolygon"}`, polygon, orb.MultiPolygon{triangle}, ""},
		{"promotion of a line", `{"geometryType":"MultiLineString"}`, line, orb.MultiLineString{{{1, 2}, {3, 4}}}, ""},
		{"promotion switched off", `{"geometryType":"MultiPolygon","promoteToMulti":false}`, polygon, nil, deadletter.ReasonUnsupportedGeometryType},
		{"another type", `{"geometryType":"MultiPolygon"}`, point, nil, deadletter.ReasonUnsupportedGeometryType},
		{"Multi where a single one is wanted", `{"geometryType":"Polygon"}`, multi, nil, deadletter.ReasonUnsupportedGeometryType},
		{"collection of polygons", `{"geometryType":"MultiPolygon"}`, collection(polygon, collection(multi)), orb.MultiPolygon{triangle, triangle}, ""},
		{"collection of points for lines", `{"geometryType":"MultiLineString"}`, collection(point, point), nil, deadletter.ReasonUnsupportedGeometryType},
		{"mixed collection for polygons", `{"geometryType":"MultiPolygon"}`, collection(polygon, point), nil, deadletter.ReasonMixedCollection},
		{"mixed collection for any type", `{}`, collection(line, point), nil, deadletter.ReasonMixedCollection},
		{"collection of one dimension for any type", `{}`, collection(point, collection(point)), orb.Collection{orb.Point{1, 2}, orb.Collection{orb.Point{1, 2}}}, ""},
		{"mixed collection for collections", `{"geometryType":"GeometryCollection"}`, collection(line, point), orb.Collection{orb.LineString{{1, 2}, {3, 4}}, orb.Point{1, 2}}, ""},
		{"point for collections", `{"geometryType":"GeometryCollection"}`, point, nil, deadletter.ReasonUnsupportedGeometryType},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := parse(t, `{"target":`+tt.target+`}`)
			out, err := c.Transform(t.Context(), transform.Input{FeatureID: "f", SourceCRS: &here, Payload: []byte(`{"type":"Feature","geometry":` + tt.geometry + `}`)})
			if tt.reason != "" {
				if fault, ok := deadletter.AsFault(err); !ok || fault.Reason != tt.reason || !strings.HasPrefix(fault.Rule, "conform:") {
					t.Errorf("got %v, %v; want %s", out.Geometry, err, tt.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !orb.Equal(out.Geometry, tt.want) || out.Geometry.GeoJSONType() != tt.want.GeoJSONType() {
				t.Errorf("got %v, want %v", out.Geometry, tt.want)
			}
		})
	}
}
