package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
)

// vertices is how many positions the polygon of a record has, the closing one included.
const vertices = 33

// writeFailures writes n records as a pipeline would that failed on parcels: each a
// polygon of 33 vertices in UTM metres, about 1,200 bytes; of several batches, in
// turns. It always writes the same bytes.
func writeFailures(w io.Writer, n, batches int) error {
	rng := rand.New(rand.NewPCG(7, 11))
	b := bufio.NewWriterSize(w, 1<<20)
	errors := []struct{ rule, typ, message string }{
		{"coerce:built_year->integer", "ValueError", "invalid literal for int(): 'ca. 1890'"},
		{"reproject:26910->3857", "CRSError", "transform failed at vertex 12"},
		{"validate:geometry", "TopologyException", "side location conflict"},
	}
	var line []byte
	for i := range n {
		e := errors[i%len(errors)]
		line = append(line[:0], `{"feature_id":"parcel-`...)
		line = strconv.AppendInt(line, int64(i), 10)
		line = append(line, `","batch_id":"`...)
		line = fmt.Appendf(line, "parcels-2026-11-30-%03d", i%batches)
		line = append(line, `","failed_rule":"`...)
		line = append(line, e.rule...)
		line = append(line, `","error_type":"`...)
		line = append(line, e.typ...)
		line = append(line, `","error_message":"`...)
		line = append(line, e.message...)
		line = append(line, `","attempts":3,"source_crs":"EPSG:26910","first_seen":"2026-11-30T04:12:44.101203Z","feature":{"type":"Feature","id":"parcel-`...)
		line = strconv.AppendInt(line, int64(i), 10)
		line = append(line, `","geometry":{"type":"Polygon","coordinates":[[`...)
		x, y := 400000+rng.Float64()*200000, 5000000+rng.Float64()*400000
		radius := 20 + rng.Float64()*80
		ring := len(line)
		first := 0 // bytes of the first position
		for v := range vertices - 1 {
			angle := 2 * math.Pi * (float64(v) + 0.4*rng.Float64()) / (vertices - 1)
			line = append(line, '[')
			line = strconv.AppendFloat(line, x+radius*math.Cos(angle), 'f', 2, 64)
			line = append(line, ',')
			line = strconv.AppendFloat(line, y+radius*math.Sin(angle), 'f', 2, 64)
			line = append(line, ']')
			if v == 0 {
				first = len(line) - ring
			}
			line = append(line, ',')
		}
		line = append(line, line[ring:ring+first]...)
		line = append(line, `]]},"properties":{"apn":"`...)
		line = fmt.Appendf(line, "%03d-%04d", rng.IntN(1000), rng.IntN(10000))
		line = append(line, `","zoning":"R-1","area_m2":`...)
		line = strconv.AppendFloat(line, math.Pi*radius*radius, 'f', 2, 64)
		line = append(line, `,"built_year":"ca. 1890","owner":null}}}`...)
		line = append(line, '\n')
		if _, err := b.Write(line); err != nil {
			return fmt.Errorf("write record %d: %w", i, err)
		}
	}
	return b.Flush()
}
