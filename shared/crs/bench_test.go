package crs_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/paulmach/orb"
)

// BenchmarkPolygon transforms polygons of 30 vertices into Web Mercator and out of
// it. infra/bench/crs puts the same beside ST_Transform.
func BenchmarkPolygon(b *testing.B) {
	for _, c := range []struct {
		code     int
		lon, lat float64
	}{
		{4326, 10, 50}, {32632, 10, 50}, {26910, -122, 47}, {2154, 3, 46}, {2263, -74, 40.7},
		{5070, -96, 39}, {3035, 12, 50}, {3413, -40, 75}, {3395, 20, 30},
	} {
		ring := make(orb.Ring, 30)
		for i := range ring {
			sin, cos := math.Sincos(2 * math.Pi * float64(i) / 29)
			ring[i] = orb.Point{c.lon + cos/1000, c.lat + sin/1000}
		}
		ring[29] = ring[0]
		for _, way := range [][2]int{{c.code, 3857}, {3857, c.code}} {
			g, err := transformer(b, 4326, way[0]).Transform(orb.Polygon{ring})
			if err != nil {
				b.Fatal(err)
			}
			tr := transformer(b, way[0], way[1])
			b.Run(fmt.Sprintf("%d-%d", way[0], way[1]), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := tr.Transform(g); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ring)), "ns/vertex")
			})
		}
	}
}
