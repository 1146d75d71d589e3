package hive_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"geodlq/shared/hive"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"parcels-2026-11-30":         "parcels-2026-11-30",
		"run_7.2":                    "run_7.2",
		"":                           "__HIVE_DEFAULT_PARTITION__",
		"__HIVE_DEFAULT_PARTITION__": "%5F_HIVE_DEFAULT_PARTITION__",
		".":                          "%2E",
		"..":                         "%2E.",
		"../../other":                "%2E.%2F..%2Fother",
		"/":                          "%2F",
		"a=b/c=d":                    "a%3Db%2Fc%3Dd",
		"100%":                       "100%25",
		"%2F":                        "%252F",
		"~home":                      "%7Ehome",
		"two words":                  "two%20words",
		"a+b":                        "a%2Bb",
		"line\nbreak\x00":            "line%0Abreak%00",
		"Straße 日":                   "Stra%C3%9Fe%20%E6%97%A5",
		"\xff":                       "%FF",
	} {
		got := hive.Escape(id)
		if got != want {
			t.Errorf("Escape(%q) = %q, want %q", id, got, want)
		}
		back, err := hive.Unescape(got)
		if err != nil || back != id {
			t.Errorf("Unescape(%q) = %q, %v; want %q", got, back, err, id)
		}
	}
	for _, value := range []string{"%", "%4", "%zz", "%61", "a b", "a/b", ".", "", "%e6"} {
		if id, err := hive.Unescape(value); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error: no id is escaped so", value, id)
		}
	}
}

func TestEscapeLongIDs(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, id := range []string{
		strings.Repeat("a", 600), strings.Repeat("a", 601), strings.Repeat("a", 5000), strings.Repeat("a", 5001),
		strings.Repeat("日", 66), strings.Repeat("日", 67), strings.Repeat("/", 4000), strings.Repeat("a", 534) + strings.Repeat("/", 400),
	} {
		value := hive.Escape(id)
		if other, ok := seen[value]; ok {
			t.Errorf("ids of %d and %d bytes have one value", len(other), len(id))
		}
		seen[value] = id
		if len(value) > 600 {
			t.Errorf("id of %d bytes is escaped to %d, want at most 600", len(id), len(value))
		}
		back, err := hive.Unescape(value)
		if long := strings.Contains(value, "~"); long != (err != nil) || !long && back != id {
			t.Errorf("Unescape(%q) = %q, %v", value, back, err)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, id := range []string{"", ".", "a/b", "%2F", "日", "\xff\x00", strings.Repeat("é", 300)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		value := hive.Escape(id)
		if value == "" || len(value) > 600 || strings.ContainsAny(value, "/=+ \n") || value[0] == '.' || !utf8.ValidString(value) {
			t.Errorf("%q is escaped to %q", id, value)
		}
		if back, err := hive.Unescape(value); err != nil && len(id) <= 200 || err == nil && back != id {
			t.Errorf("%q comes back from %q as %q, %v", id, value, back, err)
		}
	})
}
