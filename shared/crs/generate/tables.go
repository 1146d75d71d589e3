package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"geodlq/shared/crs/internal/projection"
)

func num(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (b box) degrees() string {
	return strings.Join([]string{num(b.west), num(b.south), num(b.east), num(b.north)}, " ")
}

// outward rounds an extent to whole units, away from its middle.
func (b box) outward() string {
	return strings.Join([]string{num(math.Floor(b.west)), num(math.Floor(b.south)), num(math.Ceil(b.east)), num(math.Ceil(b.north))}, " ")
}

func registryTable(defs *definitions) string {
	var s strings.Builder
	s.WriteString("# code, authority, kind, base, class, accuracy, unit, area of use, extent, served extents, name\n")
	for _, c := range defs.list {
		var base, accuracy, unit, area, extent, served string
		if c.base != 0 {
			base = strconv.Itoa(c.base)
		}
		if c.accuracy != 0 {
			accuracy = num(c.accuracy)
		}
		if c.unit != 0 && c.unit != 1 && (c.kind == kindProjected || c.kind == kindGeographic) {
			unit = num(surveyFoot(c.unit))
		}
		if c.area != nil && (c.kind == kindProjected || c.kind == kindGeographic) {
			area = c.area.degrees()
		}
		if c.extent != nil {
			extent = c.extent.outward()
		}
		var boxes []string
		for _, b := range c.served {
			if c.kind == kindGeographic {
				boxes = append(boxes, b.degrees())
			} else {
				boxes = append(boxes, b.outward())
			}
		}
		served = strings.Join(boxes, ";")
		fmt.Fprintln(&s, strings.Join([]string{
			strconv.Itoa(c.code), c.authority, c.kind, base, c.class, accuracy, unit, area, extent, served, quote(c.name),
		}, "\t"))
	}
	return s.String()
}

func computedTable(defs *definitions) string {
	var s strings.Builder
	s.WriteString("# code, semi-major axis, 1/flattening, method, latitude, longitude, parallel 1, parallel 2, scale, east, north, unit\n")
	for _, c := range defs.list {
		if c.class != classComputed {
			continue
		}
		fields := []string{strconv.Itoa(c.code), num(c.a), num(c.rf)}
		if p := c.conversion; p != nil {
			fields = append(fields, strconv.Itoa(int(p.Method)))
			for _, v := range []float64{p.Latitude, p.Longitude, p.Parallel1, p.Parallel2, p.Scale, p.East, p.North, p.Unit} {
				fields = append(fields, num(v))
			}
		}
		fmt.Fprintln(&s, strings.Join(fields, "\t"))
	}
	return s.String()
}

// sampleAnswers takes PROJ's answers for a selection that has every method, datum,
// unit and hemisphere in it, so that the package's tests have an oracle without a
// database.
func sampleAnswers(ctx context.Context, db *oracle, defs *definitions) (string, error) {
	var s strings.Builder
	s.WriteString("# code, x, y (ST_Transform from EPSG:4326), ST_Transform of that to EPSG:3857, and ST_Transform of the latter back to the code\n")
	seen := map[string]bool{}
	for _, c := range defs.list {
		if c.class != classComputed || c.kind != kindProjected {
			continue
		}
		key := fmt.Sprintf("%s %d %v %t", c.baseName, c.conversion.Method, c.conversion.Unit, c.area.south < 0)
		always := c.code >= 32601 && c.code <= 32760 && c.code%7 == 0 || c.code >= 26906 && c.code <= 26923
		if seen[key] && !always {
			continue
		}
		seen[key] = true
		pts := usable(c, c.area.grid(3, 0))
		if c.conversion.Method == projection.WebMercator {
			continue
		}
		kept := pts[:0]
		for _, p := range pts {
			// 3857 ends at 85.06 degrees, and at the antimeridian PROJ may answer either edge.
			if math.Abs(p[1]) <= 85 && math.Abs(p[0]) < 180 {
				kept = append(kept, p)
			}
		}
		if len(kept) == 0 {
			continue
		}
		xy, err := db.transform(ctx, "EPSG:4326", c.id(), kept)
		if err != nil {
			return "", err
		}
		web, err := db.transform(ctx, c.id(), "EPSG:3857", xy)
		if err != nil {
			return "", err
		}
		// PROJ's inverse of some projections is a millimetre or two from undoing its forward.
		back, err := db.transform(ctx, "EPSG:3857", c.id(), web)
		if err != nil {
			return "", err
		}
		for i := range kept {
			fmt.Fprintf(&s, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", c.code,
				num(xy[i][0]), num(xy[i][1]), num(web[i][0]), num(web[i][1]), num(back[i][0]), num(back[i][1]))
		}
	}
	return s.String(), nil
}
