package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// TestExplain shows what a user sees for one CRS of each service.
func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		file, name, to string
		fails          bool
	}{
		{"computed", "urn:ogc:def:crs:EPSG::26910", "EPSG:3857", false},
		{"identity", "EPSG:900913", "EPSG:3857", false},
		{"postgis", "31467", "EPSG:3857", false},
		{"limited", "EPSG:7405", "EPSG:3857", false},
		{"ballpark", "EPSG:26710", "EPSG:3857", true},
		{"unlisted", "EPSG:99999", "EPSG:3857", false},
		{"vertical", "EPSG:5703", "EPSG:3857", true},
	} {
		t.Run(tt.file, func(t *testing.T) {
			var out strings.Builder
			err := explain(&out, tt.name, tt.to)
			if (err != nil) != tt.fails {
				t.Fatalf("error %v, want one: %t", err, tt.fails)
			}
			if err != nil {
				out.WriteString(err.Error() + "\n")
			}
			golden := filepath.Join("testdata", tt.file+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), out.String()); d != "" {
				t.Errorf("(-want +got), -update accepts it:\n%s", d)
			}
		})
	}
}

func TestList(t *testing.T) {
	var out strings.Builder
	show(&out)
	for _, line := range []string{"EPSG:26910 projected NAD83 / UTM zone 10N\n", "EPSG:4326 geographic WGS 84\n"} {
		if !strings.Contains(spaces.ReplaceAllString(out.String(), " "), line) {
			t.Errorf("the list lacks %q", line)
		}
	}
}

var spaces = regexp.MustCompile(` +`)
