package deadletter_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
)

func TestGeomHashSameFeature(t *testing.T) {
	t.Parallel()
	ring := orb.Ring{{0, 0}, {4, 0}, {4, 3}, {0, 3}, {0, 0}}
	rotated := orb.Ring{{4, 3}, {0, 3}, {0, 0}, {4, 0}, {4, 3}}
	reversed := orb.Ring{{0, 0}, {0, 3}, {4, 3}, {4, 0}, {0, 0}}
	open := ring[:4]
	negZero := math.Copysign(0, -1)
	// Two rings that meet their least position twice, so that the start is no matter of one position.
	eight := orb.Ring{{0, 0}, {1, 2}, {0, 0}, {1, 1}, {0, 0}}
	eightLater := orb.Ring{{0, 0}, {1, 1}, {0, 0}, {1, 2}, {0, 0}}
	for _, c := range []struct {
		name string
		a, b orb.Geometry
	}{
		{"ring starts elsewhere", orb.Polygon{ring}, orb.Polygon{rotated}},
		{"ring winds the other way", orb.Polygon{ring}, orb.Polygon{reversed}},
		{"ring left open", orb.Polygon{ring}, orb.Polygon{open}},
		{"bare ring", orb.Polygon{ring}, ring},
		{"negative zero", orb.Point{0, 1}, orb.Point{negZero, 1}},
		{"negative zero in a ring", orb.Polygon{ring}, orb.Polygon{{{negZero, 0}, {4, 0}, {4, 3}, {0, 3}, {0, negZero}}}},
		{"least position repeated", orb.Polygon{eight}, orb.Polygon{eightLater}},
		{"hole starts elsewhere", orb.Polygon{{{-9, -9}, {9, -9}, {9, 9}, {-9, -9}}, ring}, orb.Polygon{{{-9, -9}, {9, -9}, {9, 9}, {-9, -9}}, rotated}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if a, b := deadletter.GeomHash("p-1", 26910, c.a), deadletter.GeomHash("p-1", 26910, c.b); a != b {
				t.Errorf("two keys for one feature:\n%s %v\n%s %v", a, c.a, b, c.b)
			}
		})
	}
}

func TestGeomHashDifferentFeatures(t *testing.T) {
	t.Parallel()
	line := orb.LineString{{0, 0}, {1, 1}}
	square := orb.Ring{{0, 0}, {4, 0}, {4, 3}, {0, 3}, {0, 0}}
	keys := map[string]string{}
	for _, c := range []struct {
		name string
		id   string
		epsg int
		g    orb.Geometry
	}{
		{"line", "a", 4326, line},
		{"line reversed", "a", 4326, orb.LineString{{1, 1}, {0, 0}}},
		{"line of another feature", "b", 4326, line},
		{"line in another CRS", "a", 4258, line},
		{"line as multipoint", "a", 4326, orb.MultiPoint{{0, 0}, {1, 1}}},
		{"line in a multi", "a", 4326, orb.MultiLineString{line}},
		{"line in a collection", "a", 4326, orb.Collection{line}},
		{"one ulp away", "a", 4326, orb.LineString{{0, 0}, {1, math.Nextafter(1, 2)}}},
		{"square", "a", 4326, orb.Polygon{square}},
		{"square as multi", "a", 4326, orb.MultiPolygon{{square}}},
		{"two rings in one polygon", "a", 4326, orb.Polygon{square, square}},
		{"two polygons", "a", 4326, orb.MultiPolygon{{square}, {square}}},
		{"id runs into code", "a\x00\x00", 4326, line},
		{"point", "a", 4326, orb.Point{1, 2}},
		{"point swapped", "a", 4326, orb.Point{2, 1}},
		{"empty line", "a", 4326, orb.LineString{}},
		{"empty polygon", "a", 4326, orb.Polygon{}},
	} {
		key := deadletter.GeomHash(c.id, c.epsg, c.g)
		if len(key) != 64 || strings.Trim(key, "0123456789abcdef") != "" {
			t.Errorf("%s: key %q is not 64 hexadecimal digits", c.name, key)
		}
		if other, ok := keys[key]; ok {
			t.Errorf("%s and %s share a key", c.name, other)
		}
		keys[key] = c.name
	}
}

// The key is stored for ever: a change of its definition must not happen by accident.
func TestGeomHashIsStable(t *testing.T) {
	t.Parallel()
	const want = "44e25d090ce364ecb32814bf16ac96fd0d17fb55a55ed2ecb423749ace8eed37"
	got := deadletter.GeomHash("parcel-42", 26910, orb.Polygon{{{551234.5, 5190000.25}, {551274.5, 5190000.25}, {551274.5, 5190030.25}, {551234.5, 5190030.25}, {551234.5, 5190000.25}}})
	if got != want {
		t.Errorf("the key of a stored feature changed: got %s, want %s", got, want)
	}
	if got := deadletter.GeomHash("parcel-42", 26910, nil); got != "" {
		t.Errorf("a feature without geometry has the key %q, want none", got)
	}
}

// A naive canonical form must agree with the fast one: the least of all rotations
// in both directions.
func FuzzGeomHashRing(f *testing.F) {
	f.Add([]byte{1, 2, 1, 2, 1, 2}, uint8(2))
	f.Add([]byte{0, 0, 1, 0, 0, 0, 1}, uint8(5))
	f.Fuzz(func(t *testing.T, steps []byte, turn uint8) {
		if len(steps) == 0 || len(steps) > 64 {
			return
		}
		ring := make(orb.Ring, 0, len(steps)+1)
		for _, s := range steps {
			ring = append(ring, orb.Point{float64(s % 3), float64(s / 3 % 3)})
		}
		n := len(ring)
		if n > 1 && ring[0] == ring[n-1] {
			return // already closed: its open form is another ring
		}
		other := make(orb.Ring, n)
		for i := range ring {
			j := (i + int(turn)) % n
			if turn%2 == 1 {
				j = n - 1 - j
			}
			other[j] = ring[i]
		}
		a := deadletter.GeomHash("f", 3857, orb.Polygon{append(ring, ring[0])})
		b := deadletter.GeomHash("f", 3857, orb.Polygon{append(other, other[0])})
		if a != b {
			t.Errorf("one ring, two keys: %v and %v", ring, other)
		}
	})
}

func TestRecordID(t *testing.T) {
	t.Parallel()
	a := deadletter.RecordID("inbox", "incoming/a.ndjson", "v1", 7)
	if b := deadletter.RecordID("inbox", "incoming/a.ndjson", "v1", 7); a != b {
		t.Errorf("the same record got the ids %s and %s", a, b)
	}
	if s := a.String(); s[14] != '5' || !strings.ContainsRune("89ab", rune(s[19])) {
		t.Errorf("%s is no UUIDv5", s)
	}
	for name, b := range map[string]deadletter.UUID{
		"another ordinal":         deadletter.RecordID("inbox", "incoming/a.ndjson", "v1", 8),
		"another version":         deadletter.RecordID("inbox", "incoming/a.ndjson", "v2", 7),
		"parts run together":      deadletter.RecordID("inboxincoming/", "a.ndjson", "v1", 7),
		"version runs to ordinal": deadletter.RecordID("inbox", "incoming/a.ndjson", "v", 17),
	} {
		if a == b {
			t.Errorf("%s has the same id", name)
		}
	}
}

func TestUUIDText(t *testing.T) {
	t.Parallel()
	const s = "6b0d3f52-9a41-4c7e-8f16-2d95e07bc438"
	u, err := deadletter.ParseUUID(strings.ToUpper(s))
	if err != nil || u.String() != s {
		t.Errorf("ParseUUID(%q) = %s, %v", s, u, err)
	}
	for _, bad := range []string{"", "6b0d3f52", s + "0", strings.ReplaceAll(s, "-", "0"), strings.Replace(s, "6", "g", 1)} {
		if _, err := deadletter.ParseUUID(bad); err == nil {
			t.Errorf("ParseUUID(%q) gave no error", bad)
		}
	}
	if a, b := deadletter.NewUUID(), deadletter.NewUUID(); a == b || a.String()[14] != '4' {
		t.Errorf("NewUUID gave %s and %s", a, b)
	}
}

func TestMessageIsCutOnARune(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		runes    int
	}{
		{"short", "not closed", 10},
		{"exactly the limit", strings.Repeat("é", 500), 500},
		{"long, two-byte", strings.Repeat("é", 501), 500},
		{"long, four-byte", strings.Repeat("🗺", 700), 500},
		{"invalid bytes", "Caf\xe9 Row", 8},
		{"U+0000", "gate\x00code", 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := deadletter.Message(c.in)
			if n := utf8.RuneCountInString(got); n != c.runes || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
				t.Errorf("Message gave %d runes of %q", n, got)
			}
		})
	}
}

func TestReasonsAreClosed(t *testing.T) {
	t.Parallel()
	seen := map[deadletter.Reason]bool{}
	for _, r := range deadletter.Reasons() {
		if seen[r] || !r.Known() {
			t.Errorf("%s is listed twice or not known", r)
		}
		seen[r] = true
	}
	if len(seen) != 27 {
		t.Errorf("%d reasons, the agreed list has 27", len(seen))
	}
	if deadletter.Reason("ValueError").Known() {
		t.Error("a pipeline's own error type counts as a reason")
	}
}

func TestAsFault(t *testing.T) {
	t.Parallel()
	cause := errors.New("proj: no grid")
	err := fmt.Errorf("row 7: %w", &deadletter.Fault{Reason: deadletter.ReasonUnsupportedCRS, Detail: "grid us_noaa_conus.tif is missing", Err: cause})
	f, ok := deadletter.AsFault(err)
	if !ok || f.Reason != deadletter.ReasonUnsupportedCRS || !errors.Is(err, cause) {
		t.Errorf("AsFault(%v) = %v, %v", err, f, ok)
	}
	if _, ok := deadletter.AsFault(cause); ok {
		t.Error("an error that is no fault is one")
	}
}
