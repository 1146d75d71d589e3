package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/jsonscan"
)

func TestValid(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		text   string
		class  error
		offset int
	}{
		{"object", `{"a":[1,-2.5e+3,true,false,null,"x"],"b":{}}`, nil, 0},
		{"bare scalar with white space around", " \t\r\n0 \n", nil, 0},
		{"empty text", ``, jsonscan.ErrSyntax, 0},
		{"white space only", `  `, jsonscan.ErrSyntax, 2},
		{"NaN", `{"a":NaN}`, jsonscan.ErrSyntax, 5},
		{"nothing but nul", `nul`, jsonscan.ErrSyntax, 3},
		{"Infinity", `[-Infinity]`, jsonscan.ErrSyntax, 2},
		{"leading zero", `[012]`, jsonscan.ErrSyntax, 1},
		{"negative leading zero", `[-012]`, jsonscan.ErrSyntax, 2},
		{"no digit after the point", `[1.]`, jsonscan.ErrSyntax, 3},
		{"no digit before the point", `[.5]`, jsonscan.ErrSyntax, 1},
		{"no digit in the exponent", `[1e+]`, jsonscan.ErrSyntax, 4},
		{"plus sign", `[+1]`, jsonscan.ErrSyntax, 1},
		{"trailing comma in an array", `[1,]`, jsonscan.ErrSyntax, 3},
		{"trailing comma in an object", `{"a":1,}`, jsonscan.ErrSyntax, 7},
		{"comma first", `[,1]`, jsonscan.ErrSyntax, 1},
		{"single quotes", `{'a':1}`, jsonscan.ErrSyntax, 1},
		{"number as a name", `{1:1}`, jsonscan.ErrSyntax, 1},
		{"no colon", `{"a" 1}`, jsonscan.ErrSyntax, 5},
		{"no comma", `[1 2]`, jsonscan.ErrSyntax, 3},
		{"wrong bracket", `{"a":[1}`, jsonscan.ErrSyntax, 7},
		{"cut off in a string", `{"a":"xy`, jsonscan.ErrSyntax, 8},
		{"cut off in an escape", `"\`, jsonscan.ErrSyntax, 2},
		{"cut off after a comma", `[1,`, jsonscan.ErrSyntax, 3},
		{"unknown escape", `"\x41"`, jsonscan.ErrSyntax, 2},
		{"short unicode escape", `"\u12"`, jsonscan.ErrSyntax, 5},
		{"raw control character in a string", "\"a\x01\"", jsonscan.ErrSyntax, 2},
		{"numbers in arrays", `[[-1.5, 2],[0],[-0.0,1e5],[1 ,2], [3,"x"]]`, nil, 0},
		{"leading zero after a number", `[1,02]`, jsonscan.ErrSyntax, 3},
		{"comma before the end of numbers", `[1,2,]`, jsonscan.ErrSyntax, 5},
		{"numbers cut off", `[1.5,2.`, jsonscan.ErrSyntax, 7},
		{"numbers cut off in the middle", `[1.5,23`, jsonscan.ErrSyntax, 7},
		{"numbers one too deep", `[[[[[1,2]]]]]`, jsonscan.ErrDepth, 4},
		{"two values", `{} {}`, jsonscan.ErrSyntax, 3},
		{"byte order mark", "\ufeff{}", jsonscan.ErrSyntax, 0},
		{"Latin-1 in a string", "{\"a\":\"Caf\xe9\"}", jsonscan.ErrUTF8, 9},
		{"deepest allowed", `[[[[1]]]]`, nil, 0},
		{"one too deep", `[[[[[1]]]]]`, jsonscan.ErrDepth, 4},
		{"one too deep, object", `{"a":{"a":{"a":{"a":{}}}}}`, jsonscan.ErrDepth, 20},
		{"siblings do not add up", `[[],[],[],[],[[]],{},{}]`, nil, 0},
		{"lone surrogate escape is grammar", `"\ud800"`, nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := jsonscan.Valid([]byte(tt.text), 4)
			if !errors.Is(err, tt.class) {
				t.Fatalf("Valid(%q) = %v, want class %v", tt.text, err, tt.class)
			}
			var e *jsonscan.Error
			if errors.As(err, &e) && e.Offset != tt.offset {
				t.Errorf("Valid(%q) fails at byte %d, want %d: %v", tt.text, e.Offset, tt.offset, err)
			}
		})
	}
}

func TestScannerGivesValuesVerbatim(t *testing.T) {
	t.Parallel()
	text := []byte(` { "feature" : {"id": 9007199254740993 , "x":"<&>"} , "n":1.10, "\u0069d":"a", "Id":null,"list":[ 1 ,[2], {"k":[]} ] , "feature":true } `)
	var got []string
	s := jsonscan.New(text, 8)
	for name := range s.Members() {
		switch string(name) {
		case "n":
			// Left unread: the loop skips it.
		case "list":
			for i := range s.Elements() {
				if i == 1 {
					continue
				}
				got = append(got, "element "+s.Kind().String()+" "+string(s.Value()))
			}
		default:
			got = append(got, string(name)+" = "+string(s.Value()))
		}
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`feature = {"id": 9007199254740993 , "x":"<&>"}`,
		`id = "a"`,
		`Id = null`,
		`element a number 1`,
		`element an object {"k":[]}`,
		`feature = true`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members read (-want +got):\n%s", diff)
	}
}

func TestScannerStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		text   string
		want   string // names met
		class  error
		offset int
	}{
		{"in an unread value", `{"a":1,"b":[1,],"c":2}`, "a b ", jsonscan.ErrSyntax, 14},
		{"after the object", `{"a":1} x`, "a ", jsonscan.ErrSyntax, 8},
		{"no object", `[1]`, "", jsonscan.ErrKind, 0},
		{"nothing", ``, "", jsonscan.ErrSyntax, 0},
		{"too deep", `{"a":1,"b":[[1]]}`, "a b ", jsonscan.ErrDepth, 12},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := jsonscan.New([]byte(tt.text), 2)
			names := ""
			for name := range s.Members() {
				names += string(name) + " "
			}
			err := s.End()
			if names != tt.want {
				t.Errorf("met members %q, want %q", names, tt.want)
			}
			var e *jsonscan.Error
			if !errors.As(err, &e) || !errors.Is(err, tt.class) || e.Offset != tt.offset {
				t.Errorf("End() = %v, want class %v at byte %d", err, tt.class, tt.offset)
			}
			if s.Value() != nil || s.Kind() != jsonscan.KindInvalid {
				t.Error("the scanner goes on after an error")
			}
		})
	}
}

func TestDeepestIsOfTheTextSinceTheLastCall(t *testing.T) {
	t.Parallel()
	var got []int
	s := jsonscan.New([]byte(`{"a":[[[]]],"b":1,"c":{"d":[]}}`), 8)
	for range s.Members() {
		s.Value()
		got = append(got, s.Deepest())
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{4, 1, 3}, got); diff != "" {
		t.Errorf("deepest by member (-want +got):\n%s", diff)
	}
}

func TestNamesWithLoneSurrogatesStayDifferent(t *testing.T) {
	t.Parallel()
	var names []string
	s := jsonscan.New([]byte(`{"\ud800":1,"\ud801":2,"\ud83d\ude00":3}`), 1)
	for name := range s.Members() {
		names = append(names, string(name))
	}
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if names[0] == names[1] || utf8.ValidString(names[0]) || names[2] != "😀" {
		t.Errorf("names = %q", names)
	}
}

func TestUnquote(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, raw, want string
		class           error
	}{
		{"plain", `"Åre"`, "Åre", nil},
		{"empty", `""`, "", nil},
		{"every escape", `"\"\\\/\b\f\n\r\t\u00e5"`, "\"\\/\b\f\n\r\tå", nil},
		{"a feature in a string", `"{\"a\":\"b\\u0000\"}"`, `{"a":"b\u0000"}`, nil},
		{"U+0000", `"a\u0000b"`, "a\x00b", nil},
		{"surrogate pair", `"\ud83d\ude00"`, "😀", nil},
		{"high surrogate alone", `"\ud83d"`, "", jsonscan.ErrSurrogate},
		{"low surrogate alone", `"x\ude00y"`, "", jsonscan.ErrSurrogate},
		{"two high surrogates", `"\ud83d\ud83d\ude00"`, "", jsonscan.ErrSurrogate},
		{"no string", `12`, "", jsonscan.ErrKind},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := jsonscan.Unquote([]byte(tt.raw))
			if !errors.Is(err, tt.class) || string(got) != tt.want {
				t.Errorf("Unquote(%s) = %q, %v; want %q, %v", tt.raw, got, err, tt.want, tt.class)
			}
		})
	}
}

func TestHasUnstorable(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, raw, found string
		offset           int
	}{
		{"U+0000", `{"note":"gate\u0000code"}`, `\u0000`, 13},
		{"U+0000 in a name", `{"a\u0000":1}`, `\u0000`, 3},
		{"an escaped backslash before u0000", `"\\u0000"`, ``, 0},
		{"lone surrogate", `["x","\uD83d"]`, `\uD83d`, 6},
		{"surrogate pair", `"\ud83d\ude00"`, ``, 0},
		{"low before high", `"\ude00\ud83d"`, `\ude00`, 1},
		{"other escapes", `"\n\u00e5"`, ``, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			found, offset, ok := jsonscan.HasUnstorable([]byte(tt.raw))
			if found != tt.found || offset != tt.offset || ok != (tt.found != "") {
				t.Errorf("HasUnstorable(%s) = %q, %d, %v; want %q, %d", tt.raw, found, offset, ok, tt.found, tt.offset)
			}
		})
	}
}

func TestAppendQuoted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"plain", "plain"},
		{"quote \" backslash \\ slash /", "quote \" backslash \\ slash /"},
		{"\x00\x01\b\f\n\r\t\x1f\x7f", "\x00\x01\b\f\n\r\t\x1f\x7f"},
		{"<&>\u2028 Åre 😀", "<&>\u2028 Åre 😀"},
		{"bad \xff\xc3", "bad \uFFFD\uFFFD"},
	} {
		got := jsonscan.AppendQuoted(nil, tt.text)
		if err := jsonscan.Valid(got, 0); err != nil {
			t.Errorf("AppendQuoted(%q) = %s: %v", tt.text, got, err)
		}
		if back, err := jsonscan.Unquote(got); err != nil || string(back) != tt.want {
			t.Errorf("AppendQuoted(%q) reads back as %q, %v", tt.text, back, err)
		}
	}
	if got := string(jsonscan.AppendQuoted(nil, []byte("<&>/é"))); got != `"<&>/é"` {
		t.Errorf("AppendQuoted escapes more than it must: %s", got)
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, a, b string
		want       bool
	}{
		{"same", `{"a":[1,2]}`, `{"a":[1,2]}`, true},
		{"white space", `{"a":[1,2]}`, "{ \"a\" : [ 1,\n2 ] }", true},
		{"escapes", `"\u0061\/"`, `"a/"`, true},
		{"numbers are compared digit for digit", `1.0`, `1`, false},
		{"number and string", `1`, `"1"`, false},
		{"shorter", `[1]`, `[1,2]`, false},
		{"longer", `[1,2]`, `[1]`, false},
		{"digits run together", `[12]`, `[1,2]`, false},
		{"lone surrogates", `"\ud800"`, `"\ud801"`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := jsonscan.Equal([]byte(tt.a), []byte(tt.b)); got != tt.want {
				t.Errorf("Equal(%s, %s) = %v", tt.a, tt.b, got)
			}
		})
	}
}

func TestExtentFindsTheEndHoweverTheTextIsCut(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"object", `{"a":"}\"]","b":[{}]},{"c":1}`, `{"a":"}\"]","b":[{}]}`},
		{"array", ` [[],"[\\"] ]`, ` [[],"[\\"]`},
		{"string", `"a\"b",`, `"a\"b"`},
		{"number", `-12.5e3]`, `-12.5e3`},
		{"literal", "\n null }", "\n null"},
		{"junk", `],1`, `]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for size := 1; size <= len(tt.text); size++ {
				var e jsonscan.Extent
				got, done := "", false
				for at := 0; !done; {
					piece := tt.text[at:min(at+size, len(tt.text))]
					var n int
					n, done = e.Scan([]byte(piece))
					got += piece[:n]
					if at += n; !done && at >= len(tt.text) {
						break
					}
				}
				if !done || got != tt.want {
					t.Fatalf("in pieces of %d: %q, done %v; want %q", size, got, done, tt.want)
				}
			}
		})
	}
}

func FuzzValid(f *testing.F) {
	for _, text := range []string{`{"a":[1,-2.5e+3,true,null,"\u00e5\ud83d\ude00"],"b":{}}`, `[[[[]]]]`, `"\ud800"`, "\"\xff\"", `{"a":1,"a":2}`, ` 0 `, `[1,]`, `{"a`, `"\\u0000"`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		// encoding/json reads the same grammar but lets invalid UTF-8 pass.
		err := jsonscan.Valid(text, 10_000)
		if want := json.Valid(text) && utf8.Valid(text); (err == nil) != want {
			t.Fatalf("Valid = %v, encoding/json says valid: %v", err, want)
		}
		if err != nil {
			return
		}
		s := jsonscan.New(text, 10_000)
		raw := s.Value()
		if !bytes.Equal(raw, bytes.Trim(text, " \t\r\n")) {
			t.Fatalf("Value = %q", raw)
		}
		var e jsonscan.Extent
		n, done := e.Scan(append(bytes.Clone(text), '\n'))
		if !done || !bytes.HasSuffix(text[:n], raw) {
			t.Fatalf("Extent ends at %d, done %v", n, done)
		}
		if !jsonscan.Equal(raw, raw) {
			t.Fatal("a value is not equal to itself")
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil || !jsonscan.Equal(compact.Bytes(), text) {
			t.Fatalf("a value is not equal to itself without white space (%v)", err)
		}
		// walk reads a value again at every level, so keep deep nesting out.
		if jsonscan.Valid(raw, 64) == nil {
			walk(t, raw)
		}
	})
}

// walk reads a valid value to the bottom through every method and compares strings with encoding/json.
func walk(t *testing.T, raw []byte) {
	s := jsonscan.New(raw, 10_000)
	switch s.Kind() {
	case jsonscan.KindObject:
		for name := range s.Members() {
			_ = name
			walk(t, s.Value())
		}
	case jsonscan.KindArray:
		for range s.Elements() {
			walk(t, s.Value())
		}
	case jsonscan.KindString:
		var want string
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		got, err := jsonscan.Unquote(raw)
		_, _, bad := jsonscan.HasUnstorable(raw)
		if err == nil && string(got) != want || err != nil && !errors.Is(err, jsonscan.ErrSurrogate) {
			t.Fatalf("Unquote(%s) = %q, %v; want %q", raw, got, err, want)
		}
		if wantBad := err != nil || strings.Contains(want, "\x00"); bad != wantBad {
			t.Fatalf("HasUnstorable(%s) = %v", raw, bad)
		}
		if err == nil {
			again, err := jsonscan.Unquote(jsonscan.AppendQuoted(nil, got))
			if err != nil || !bytes.Equal(again, got) {
				t.Fatalf("AppendQuoted(%q) reads back as %q, %v", got, again, err)
			}
		}
		s.Value()
	default:
		s.Value()
	}
	if err := s.End(); err != nil {
		t.Fatalf("walking %q: %v", raw, err)
	}
}
