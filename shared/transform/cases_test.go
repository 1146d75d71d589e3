package transform_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/paulmach/orb"

	"geodlq/shared/crs"
	"geodlq/shared/deadletter"
	"geodlq/shared/transform"
)

// testCase is one line of testdata/cases.
type testCase struct {
	Case    string
	Feature json.RawMessage
	Text    *string         `json:"feature_text"`
	Base64  []byte          `json:"feature_b64"`
	CRS     json.RawMessage `json:"source_crs"`
	Expect  string
	Reason  deadletter.Reason `json:"expect_reason"`
	Note    string            `json:"expect_note"`
	XY      *orb.Point        `json:"expect_xy"`
	XYTol   float64           `json:"xy_tol_m"`
	Alt     struct {
		Expect string
		Reason deadletter.Reason `json:"expect_reason"`
	}
}

func (c testCase) input(t testing.TB) transform.Input {
	in := transform.Input{FeatureID: c.Case, Payload: c.Feature}
	switch {
	case c.Text != nil:
		in.Payload = []byte(*c.Text)
	case c.Base64 != nil:
		in.Payload = c.Base64
	}
	if !bytes.Equal(c.CRS, []byte("null")) {
		name := string(c.CRS) // a number stands for itself
		if c.CRS[0] == '"' {
			if err := json.Unmarshal(c.CRS, &name); err != nil {
				t.Fatal(err)
			}
		}
		in.SourceCRS = &name
	}
	return in
}

func readCases(t testing.TB) []testCase {
	t.Helper()
	files, err := filepath.Glob("../../testdata/cases/*.ndjson")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var cases []testCase
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var c testCase
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// decidedInPostGIS are cases that only repair can refuse: their source geometry is well formed.
var decidedInPostGIS = map[string]bool{
	"m124": true, // a hole equal to its shell
}

func TestCases(t *testing.T) {
	t.Parallel()
	c, err := transform.LoadContract(t.Context(), "", nil, transform.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range readCases(t) {
		t.Run(tt.Case, func(t *testing.T) {
			t.Parallel()
			out, err := transform.Run(t.Context(), c, tt.input(t))
			if err != nil {
				fault, ok := deadletter.AsFault(err)
				if !ok {
					t.Fatalf("%v is no fault", err)
				}
				if fault.Rule == "" || fault.Detail == "" || len(fault.Detail) > deadletter.MaxMessage {
					t.Errorf("fault %#v", fault)
				}
				if fault.Reason != tt.Reason && fault.Reason != tt.Alt.Reason {
					t.Errorf("%v; want %s %s (%s)", err, tt.Expect, tt.Reason, tt.Note)
				}
				return
			}
			if tt.Expect == "quarantined" && tt.Alt.Expect != "cleared" && out.Engine != crs.EnginePostGIS && !decidedInPostGIS[tt.Case] {
				t.Errorf("passes; want %s (%s)", tt.Reason, tt.Note)
			}
			if tt.XY != nil && out.Engine != crs.EnginePostGIS {
				// The expectation is about one corner of what is stored; repair may move where a ring starts.
				if d := nearestCorner(out.Geometry, *tt.XY); d > tt.XYTol {
					t.Errorf("%v is %.3f m from the nearest corner of %v (%s)", *tt.XY, d, out.Geometry, tt.Note)
				}
			}
		})
	}
}

// nearestCorner is the distance from p to the nearest position of g.
func nearestCorner(g orb.Geometry, p orb.Point) float64 {
	nearest := math.Inf(1)
	var visit func(g orb.Geometry)
	visit = func(g orb.Geometry) {
		switch g := g.(type) {
		case orb.Point:
			nearest = min(nearest, math.Hypot(g[0]-p[0], g[1]-p[1]))
		case orb.MultiPoint:
			for _, q := range g {
				visit(q)
			}
		case orb.LineString:
			visit(orb.MultiPoint(g))
		case orb.MultiLineString:
			for _, l := range g {
				visit(l)
			}
		case orb.Polygon:
			for _, r := range g {
				visit(orb.MultiPoint(r))
			}
		case orb.MultiPolygon:
			for _, q := range g {
				visit(q)
			}
		case orb.Collection:
			for _, m := range g {
				visit(m)
			}
		}
	}
	visit(g)
	return nearest
}
