package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// operation is one way PROJ knows from a geographic CRS to WGS 84.
type operation struct {
	name      string
	accuracy  float64 // metres; 0 where EPSG gives none
	ballpark  bool    // no datum shift although the datums differ
	needsGrid bool
	area      box
}

// operations are PROJ's candidates by geographic CRS, in PROJ's order.
type operations struct {
	usable map[string][]operation // what PROJ has to choose from without any grid file
	all    map[string][]operation // what it would have with every grid file
	dir    string                 // PROJ's data folder without grids
	env    []string
}

func (o *operations) close() error { return os.RemoveAll(o.dir) }

// A CRS is refused when, over at least this share of its area of use, PROJ without
// grids has only a ballpark answer or one that is rough although a grid would make
// it good.
const refusedShare = 0.5

// roughMetres is where "a few metres" ends.
const roughMetres = 5

func readOperations(ctx context.Context, projDB string, bases []*definition) (*operations, error) {
	// PROJ looks for grids beside its database; a folder with the database alone
	// makes every grid missing, whatever this machine has installed.
	dir, err := os.MkdirTemp("", "proj-without-grids")
	if err != nil {
		return nil, fmt.Errorf("make a PROJ folder without grids: %w", err)
	}
	abs, err := filepath.Abs(projDB)
	if err != nil {
		return nil, fmt.Errorf("make a PROJ folder without grids: %w", err)
	}
	if err := os.Symlink(abs, filepath.Join(dir, "proj.db")); err != nil {
		return nil, fmt.Errorf("make a PROJ folder without grids: %w", err)
	}
	o := &operations{usable: map[string][]operation{}, all: map[string][]operation{}, dir: dir, env: append(os.Environ(), "PROJ_DATA="+dir, "PROJ_LIB="+dir, "PROJ_NETWORK=OFF")}
	for _, c := range bases {
		// Without its grids PROJ also looks for detours that it otherwise leaves out,
		// so the first list is not the second minus the operations that need grids.
		if o.usable[c.id()], err = o.candidates(ctx, c.id(), "discard_missing"); err != nil {
			return nil, err
		}
		if o.all[c.id()], err = o.candidates(ctx, c.id(), "none"); err != nil {
			return nil, err
		}
	}
	return o, nil
}

var accuracyPattern = regexp.MustCompile(`, ([0-9.]+) m, `)

func (o *operations) candidates(ctx context.Context, id, gridCheck string) ([]operation, error) {
	if id == "EPSG:4326" {
		return []operation{{name: "identity", area: world}}, nil
	}
	cmd := exec.CommandContext(ctx, "projinfo", "-s", id, "-t", "EPSG:4326",
		"--spatial-test", "intersects", "--grid-check", gridCheck, "-o", "PROJJSON", "--single-line")
	cmd.Env = o.env
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask projinfo for the way from %s to WGS 84: %w", id, err)
	}
	var list []operation
	var description string
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "{") {
			if strings.Contains(line, ", ") && !strings.HasPrefix(line, "Grid ") {
				description = line
			}
			continue
		}
		var j struct {
			Name   string
			BBox   *jsonBox
			Usages []struct{ BBox *jsonBox }
		}
		if err := json.Unmarshal([]byte(line), &j); err != nil {
			return nil, fmt.Errorf("read projinfo's answer for %s: %w", id, err)
		}
		op := operation{name: j.Name, area: world}
		if j.BBox != nil {
			op.area = j.BBox.box()
		} else if len(j.Usages) > 0 {
			var u *box
			for _, x := range j.Usages {
				if x.BBox != nil {
					b := x.BBox.box()
					u = union(u, &b)
				}
			}
			if u != nil {
				op.area = *u
			}
		}
		if m := accuracyPattern.FindStringSubmatch(description); m != nil {
			op.accuracy, _ = strconv.ParseFloat(m[1], 64)
		}
		op.ballpark = strings.Contains(description, "has ballpark transformation")
		op.needsGrid = strings.Contains(description, "at least one grid missing")
		list = append(list, op)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read projinfo's answer for %s: %w", id, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("projinfo knows no way from %s to WGS 84", id)
	}
	return list, nil
}

var world = box{-180, -90, 180, 90}

type jsonBox struct {
	South float64 `json:"south_latitude"`
	West  float64 `json:"west_longitude"`
	North float64 `json:"north_latitude"`
	East  float64 `json:"east_longitude"`
}

func (j jsonBox) box() box { return box{j.West, j.South, j.East, j.North} }

func (b box) contains(lon, lat float64) bool {
	if lat < b.south || lat > b.north {
		return false
	}
	if b.west > b.east {
		return lon >= b.west || lon <= b.east
	}
	return lon >= b.west && lon <= b.east
}

// pick is PROJ's choice at a position (proj_get_suggested_operation): of the
// candidates whose area holds it, the one of best published accuracy, the first
// among equals, unless the very first has none published; where no area holds the
// position, the first that needs no grid.
func pick(list []operation, lon, lat float64) *operation {
	var best *operation
	for i := range list {
		op := &list[i]
		if !op.area.contains(lon, lat) {
			continue
		}
		if best == nil || op.accuracy > 0 && op.accuracy < best.accuracy {
			best = op
		}
	}
	for i := 0; best == nil && i < len(list); i++ {
		if !list[i].needsGrid {
			best = &list[i]
		}
	}
	return best
}

// verify runs PROJ itself over every geographic CRS and compares: where this
// program expects a ballpark answer PROJ must refuse or answer otherwise when told
// to do without (--no-ballpark), and elsewhere it must answer the same either way.
func (o *operations) verify(ctx context.Context, defs *definitions) error {
	var wrong []error
	for _, c := range defs.geographic() {
		if c.area == nil || c.unit != 1 || c.meridian != 0 || c.authority != "EPSG" || c.code == 4326 {
			continue
		}
		var pts [][2]float64
		for _, p := range c.area.grid(8, 0.1) {
			// On the edge of the world PROJ may see a position on either side.
			if math.Abs(p[0]) < 180 && math.Abs(p[1]) < 90 {
				pts = append(pts, p)
			}
		}
		plain, err := o.cs2cs(ctx, c.id(), pts)
		if err != nil {
			return err
		}
		strict, err := o.cs2cs(ctx, c.id(), pts, "--no-ballpark")
		if err != nil {
			return err
		}
		for i, p := range pts {
			op := pick(o.usable[c.id()], p[0], p[1])
			expected := op == nil || op.ballpark
			// A published null operation and a ballpark one look the same.
			null := strings.HasPrefix(plain[i], fmt.Sprintf("%.9f\t%.9f ", p[1], p[0]))
			if expected != (plain[i] != strict[i]) && !(expected && null) {
				wrong = append(wrong, fmt.Errorf("%s at %v: expected a ballpark answer: %t; PROJ gives %q, without ballpark %q",
					c.id(), p, expected, plain[i], strict[i]))
			}
		}
	}
	return errors.Join(wrong...)
}

func (o *operations) cs2cs(ctx context.Context, source string, pts [][2]float64, flags ...string) ([]string, error) {
	var in strings.Builder
	for _, p := range pts {
		fmt.Fprintf(&in, "%.10f %.10f\n", p[1], p[0])
	}
	cmd := exec.CommandContext(ctx, "cs2cs", append(flags, "-f", "%.9f", source, "EPSG:4326")...)
	cmd.Env = o.env
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		// cs2cs says "no operation" by failing when ballpark ones are all there are.
		if len(flags) > 0 {
			return strings.Split(strings.Repeat("*\n", len(pts)), "\n"), nil
		}
		return nil, fmt.Errorf("run cs2cs from %s: %w", source, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(pts) {
		return nil, fmt.Errorf("run cs2cs from %s: %d answers to %d positions", source, len(lines), len(pts))
	}
	return lines, nil
}

// classify decides how a CRS is served when it is not computed: by PostGIS, by
// PostGIS where PROJ has an operation, or not at all.
//
// On a datum that is equal to WGS 84 a ballpark answer is the published one, so it
// does no harm; PROJ gives it just outside the areas of the published operations.
func (o *operations) classify(ctx context.Context, c *definition, defs *definitions) error {
	base := c.id()
	var baseArea *box
	switch c.kind {
	case kindProjected:
		base = c.baseName
		if b := defs.byID[base]; b != nil {
			baseArea = b.area
		}
	case kindGeographic:
	default:
		return nil
	}
	c.class = classServed
	if o.usable[base] == nil {
		return nil
	}
	area := c.area
	if area == nil && baseArea != nil {
		area = baseArea
	} else if area == nil {
		area = &world
	}
	pts := area.grid(11, 0)
	var ballpark, refused int
	var accuracies []float64
	for _, p := range pts {
		op := pick(o.usable[base], p[0], p[1])
		if op == nil || op.ballpark {
			if !defs.null[base] {
				ballpark++
				refused++
			}
			continue
		}
		accuracies = append(accuracies, op.accuracy)
		if op.accuracy > roughMetres {
			if g := pick(o.all[base], p[0], p[1]); g.needsGrid && g.accuracy > 0 && g.accuracy <= roughMetres {
				refused++
			}
		}
	}
	if len(accuracies) > 0 {
		sort.Float64s(accuracies)
		c.accuracy = accuracies[len(accuracies)/2]
		if c.accuracy == 999 { // EPSG's mark for unknown
			c.accuracy = 0
		}
	}
	switch {
	case float64(refused) >= refusedShare*float64(len(pts)):
		c.class = classBallpark
	case ballpark > 0:
		c.class = classLimited
	}
	if c.class != classLimited || c.kind != kindProjected {
		return nil
	}
	// Where it ends matters now, so PROJ is asked about this very CRS: it leaves out
	// operations of the datum whose areas do not meet the CRS's.
	var err error
	if o.usable[c.id()], err = o.candidates(ctx, c.id(), "discard_missing"); err != nil {
		return err
	}
	if !slices.ContainsFunc(o.usable[c.id()], func(op operation) bool { return op.ballpark }) {
		c.class = classServed
	}
	return nil
}

// areas of the operations that are not ballpark and need no grid, each within the antimeridian; those inside another one are left out.
func (o *operations) areas(id string) []box {
	var all []box
	for _, op := range o.usable[id] {
		if op.ballpark {
			break // what follows never wins against it, see pick
		}
		if op.area.west > op.area.east {
			all = append(all, box{op.area.west, op.area.south, 180, op.area.north}, box{-180, op.area.south, op.area.east, op.area.north})
		} else {
			all = append(all, op.area)
		}
	}
	return outermost(all)
}

func outermost(all []box) []box {
	var kept []box
	for i, b := range all {
		inside := false
		for j, o := range all {
			if i != j && o.west <= b.west && o.east >= b.east && o.south <= b.south && o.north >= b.north && (o != b || j < i) {
				inside = true
				break
			}
		}
		if !inside {
			kept = append(kept, b)
		}
	}
	return kept
}

// perimeter is how PROJ samples an area to find its extent in a CRS.
func (b box) perimeter() [][2]float64 {
	const steps = 20
	var pts [][2]float64
	for i := 0; i <= steps; i++ {
		f := float64(i) / steps
		lon, lat := b.west+(b.east-b.west)*f, b.south+(b.north-b.south)*f
		pts = append(pts, [2]float64{lon, b.south}, [2]float64{lon, b.north}, [2]float64{b.west, lat}, [2]float64{b.east, lat})
	}
	return pts
}

func around(pts [][2]float64) *box {
	b := box{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	for _, p := range pts {
		if math.IsNaN(p[0]) || math.IsNaN(p[1]) || math.Abs(p[0]) > 1e9 || math.Abs(p[1]) > 1e9 {
			continue
		}
		b.west, b.east = math.Min(b.west, p[0]), math.Max(b.east, p[0])
		b.south, b.north = math.Min(b.south, p[1]), math.Max(b.north, p[1])
	}
	if b.west > b.east {
		return nil
	}
	return &b
}
