// Command transform measures the part of a replay that runs in Go, on one core and
// without a database, with polygons of 33 vertices and five attributes:
//
//	transform   decode + coerce + reproject + idempotency key, UTM zone 10N to Web
//	            Mercator: all that a worker does for a feature before it talks to PostGIS
//	mercator    the same features in Web Mercator already, so that none is reprojected
//	decode      the strict GeoJSON decoder alone
//	reproject   the projection alone
//	scan        the text checked against the JSON grammar, by shared/jsonscan
//	stdlib      the same by encoding/json
//
// Runs are interleaved and the median counts. A rate is for each second of processor
// time that the whole process took, garbage collection included: what one core does,
// whatever else the machine is busy with.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"geodlq/shared/crs"
	"geodlq/shared/geojson"
	"geodlq/shared/jsonscan"
	"geodlq/shared/transform"
)

// contract asks for every usual kind of work: three attributes that must be coerced,
// one with a pattern, one that passes as it is, bounds, and promotion.
const contract = `{
	"version": "bench",
	"fields": [
		{"name": "parcel_id", "type": "string", "constraints": {"required": true, "pattern": "P-[0-9]+"}},
		{"name": "built_year", "type": "integer", "constraints": {"minimum": 1700, "maximum": 2100}},
		{"name": "area", "type": "number", "groupChar": ","},
		{"name": "zoned", "type": "boolean"},
		{"name": "sold", "type": "date"}
	],
	"target": {"epsg": 3857, "geometryType": "MultiPolygon"}
}`

func main() {
	log.SetFlags(0)
	features := flag.Int("features", 100_000, "features that each run takes")
	rounds := flag.Int("rounds", 5, "interleaved runs of each; the median counts")
	flag.Parse()
	runtime.GOMAXPROCS(1)
	if err := measure(context.Background(), *features, *rounds); err != nil {
		log.Fatal("bench transform: ", err)
	}
}

// contender is one thing that is measured.
type contender struct {
	name string
	do   func(feature []byte) error
	runs []run
}

// run is what one run took for each feature.
type run struct {
	wall, cpu   time.Duration
	allocations float64
}

func measure(ctx context.Context, features, rounds int) error {
	contenders, err := contend(ctx)
	if err != nil {
		return err
	}
	list := parcels(1000)
	size := 0
	for _, f := range list {
		size += len(f)
	}
	fmt.Printf("%d features a run, %d bytes each, %d rounds, one core\n\n", features, size/len(list), rounds)
	for range rounds {
		for i := range contenders {
			r, err := contenders[i].run(list, features)
			if err != nil {
				return fmt.Errorf("%s: %w", contenders[i].name, err)
			}
			contenders[i].runs = append(contenders[i].runs, r)
		}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\tfeatures/cpu-s\tµs cpu\tµs wall\tallocations\t")
	for _, c := range contenders {
		slices.SortFunc(c.runs, func(a, b run) int { return int(a.cpu - b.cpu) })
		r := c.runs[len(c.runs)/2]
		fmt.Fprintf(out, "%s\t%.0f\t%.2f\t%.2f\t%.0f\t\n", c.name, float64(time.Second)/float64(r.cpu),
			float64(r.cpu)/1e3, float64(r.wall)/1e3, r.allocations)
	}
	return out.Flush()
}

func contend(ctx context.Context) ([]contender, error) {
	c, err := transform.ParseContract([]byte(contract), transform.Options{})
	if err != nil {
		return nil, err
	}
	project, err := crs.New(26910, 3857)
	if err != nil {
		return nil, err
	}
	if project.Engine() != crs.EngineComputed {
		return nil, fmt.Errorf("EPSG:26910 is transformed by %s, want %s", project.Engine(), crs.EngineComputed)
	}
	polygon, err := geojson.Decode(parcels(1)[0], geojson.Limits{})
	if err != nil {
		return nil, err
	}
	whole := func(source string) func([]byte) error {
		return func(feature []byte) error {
			_, err := transform.Run(ctx, c, transform.Input{FeatureID: "f", BatchID: "b", SourceCRS: &source, Payload: feature})
			return err
		}
	}
	return []contender{
		{name: "transform", do: whole("EPSG:26910")},
		{name: "mercator", do: whole("EPSG:3857")},
		{name: "decode", do: func(feature []byte) error {
			_, err := geojson.Decode(feature, geojson.Limits{})
			return err
		}},
		{name: "reproject", do: func([]byte) error {
			_, err := project.Transform(polygon.Geometry)
			return err
		}},
		{name: "scan", do: func(feature []byte) error { return jsonscan.Valid(feature, 32) }},
		{name: "stdlib", do: func(feature []byte) error {
			if !json.Valid(feature) {
				return errors.New("not valid")
			}
			return nil
		}},
	}, nil
}

func (c *contender) run(list [][]byte, features int) (run, error) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, err := processorTime()
	if err != nil {
		return run{}, err
	}
	start := time.Now()
	for i := range features {
		if err := c.do(list[i%len(list)]); err != nil {
			return run{}, err
		}
	}
	wall := time.Since(start)
	cpuAfter, err := processorTime()
	if err != nil {
		return run{}, err
	}
	runtime.ReadMemStats(&after)
	n := time.Duration(features)
	return run{wall / n, max(1, (cpuAfter-cpu)/n), float64(after.Mallocs-before.Mallocs) / float64(features)}, nil
}

// processorTime is the user and system time of this process so far.
func processorTime() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// parcels are polygons of 33 positions, the last the first again, in UTM zone 10N to
// the millimetre; no two are alike.
func parcels(n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		x, y := 551234.5+float64(i%50)*97.25, 5190000.25+float64(i/50)*103.75
		var ring strings.Builder
		for k := range 33 {
			a := 2 * math.Pi * float64(k%32) / 32
			if k > 0 {
				ring.WriteByte(',')
			}
			fmt.Fprintf(&ring, "[%.3f,%.3f]", x+40*math.Cos(a), y+30*math.Sin(a))
		}
		list[i] = fmt.Appendf(nil, `{"type":"Feature","id":"parcel-%d","properties":{"parcel_id":"P-%d","built_year":"%d","area":"1,%03d.50","zoned":"true","sold":"2024-02-%02d"},"geometry":{"type":"Polygon","coordinates":[[%s]]}}`,
			i, i, 1900+i%100, i%1000, 1+i%28, ring.String())
	}
	return list
}
