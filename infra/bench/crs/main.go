// Command crs measures how long a vertex takes on its way between a source CRS and
// Web Mercator: here, and in PROJ inside PostGIS on the same polygons in the same
// run.
//
//	DATABASE_URL=postgres://… go run ./infra/bench/crs
//
// Polygons have 30 vertices and lie at random in the area of use. Each engine gets
// one core: one goroutine here, one backend without parallel workers or JIT there.
// PostGIS's time is that of ST_Transform alone: the time of a query that transforms
// every polygon of a table in memory, less that of the same query without the
// transformation. Engines take turns; figures are medians of the rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/wkb"
	"github.com/wroge/wgs84"

	"geodlq/shared/crs"
)

const (
	web      = 3857
	vertices = 30
)

func main() {
	rounds := flag.Int("rounds", 61, "rounds of each measurement")
	polygons := flag.Int("polygons", 400, "polygons in each round")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv("DATABASE_URL"), *rounds, *polygons); err != nil {
		fmt.Fprintln(os.Stderr, "bench crs:", err)
		os.Exit(1)
	}
}

// cases has one CRS of each projection, and what people use most.
var cases = []struct {
	code       int
	projection string
}{
	{4326, "geographic"},
	{32632, "transverse Mercator"},
	{26910, "transverse Mercator"},
	{2193, "transverse Mercator"},
	{2154, "Lambert conformal conic 2SP"},
	{2263, "Lambert conformal conic 2SP, feet"},
	{5070, "Albers"},
	{3035, "Lambert azimuthal"},
	{3413, "polar stereographic"},
	{3395, "Mercator"},
}

// figures are nanoseconds a vertex.
type figures struct{ geodlq, postgis, library float64 }

func run(ctx context.Context, out io.Writer, url string, rounds, polygons int) error {
	if url == "" {
		return errors.New("DATABASE_URL is not set: the other half of the comparison is a PostGIS database")
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to PostGIS: %w", err)
	}
	defer conn.Close(ctx)
	var versions string
	err = conn.QueryRow(ctx, `
select set_config('max_parallel_workers_per_gather', '0', false), set_config('jit', 'off', false),
  'PostGIS ' || postgis_lib_version() || ', PROJ ' || postgis_proj_version()`).Scan(nil, nil, &versions)
	if err != nil {
		return fmt.Errorf("prepare the PostGIS session: %w", err)
	}
	fmt.Fprintf(out, "%s/%s, %s; %d polygons of %d vertices, medians of %d rounds; ns a vertex\n\n",
		runtime.GOOS, runtime.GOARCH, versions, polygons, vertices, rounds)

	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "source\ttarget\tprojection\tgeodlq\tST_Transform\tratio\twgs84, plugged in\t")
	for _, c := range cases {
		for _, way := range [][2]int{{c.code, web}, {web, c.code}} {
			f, err := measure(ctx, conn, way[0], way[1], rounds, polygons)
			if err != nil {
				return fmt.Errorf("%d to %d: %w", way[0], way[1], err)
			}
			fmt.Fprintf(t, "%d\t%d\t%s\t%.0f\t%.0f\t%.2f\t%.0f\t\n", way[0], way[1], c.projection, f.geodlq, f.postgis, f.geodlq/f.postgis, f.library)
		}
	}
	return t.Flush()
}

func measure(ctx context.Context, conn *pgx.Conn, source, target, rounds, polygons int) (figures, error) {
	set, err := random(source, target, polygons)
	if err != nil {
		return figures{}, err
	}
	if err := load(ctx, conn, source, set); err != nil {
		return figures{}, err
	}
	tr, err := crs.New(source, target)
	if err != nil {
		return figures{}, err
	}
	if tr.Engine() != crs.EngineComputed {
		return figures{}, fmt.Errorf("the engine is %q: there is nothing to compare", tr.Engine())
	}
	from, err := crs.Reference(source)
	if err != nil {
		return figures{}, err
	}
	to, err := crs.Reference(target)
	if err != nil {
		return figures{}, err
	}
	const plain = `select count(geom) from bench_crs where st_npoints(geom) > 0`
	transforming := fmt.Sprintf(`select count(geom) from bench_crs where st_npoints(st_transform(geom, %d)) > 0`, target)

	here := func() error {
		for _, g := range set {
			if _, err := tr.Transform(g); err != nil {
				return err
			}
		}
		return nil
	}
	var sink float64
	library := func() error {
		f := wgs84.Transform(from, to)
		for _, g := range set {
			for _, p := range g[0] {
				x, _, _ := f(p[0], p[1], 0)
				sink += x
			}
		}
		return nil
	}
	query := func(sql string) func() error {
		return func() error {
			var n int
			return conn.QueryRow(ctx, sql).Scan(&n)
		}
	}
	engines := []func() error{here, query(transforming), query(plain), library}
	times := make([][]float64, len(engines))
	for round := -1; round < rounds; round++ {
		for i, engine := range engines {
			start := time.Now()
			if err := engine(); err != nil {
				return figures{}, err
			}
			if round >= 0 { // the first round fills caches
				times[i] = append(times[i], float64(time.Since(start).Nanoseconds())/float64(len(set)*vertices))
			}
		}
	}
	if math.IsNaN(sink) {
		return figures{}, errors.New("the library gave NaN")
	}
	return figures{
		geodlq:  median(times[0]),
		postgis: median(times[1]) - median(times[2]),
		library: median(times[3]),
	}, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// random makes polygons of about a hectare within the area of use of whichever end
// of the way is not Web Mercator, in the source CRS.
func random(source, target, n int) ([]orb.Polygon, error) {
	code := source
	if code == web {
		code = target
	}
	info, err := crs.Describe(code)
	if err != nil {
		return nil, err
	}
	into, err := crs.New(4326, source)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(17, uint64(code)))
	const size = 0.001 // degrees
	west, east := info.Area.Min[0], info.Area.Max[0]
	if east < west {
		east += 360
	}
	south, north := math.Max(-84, info.Area.Min[1]), math.Min(84, info.Area.Max[1])
	set := make([]orb.Polygon, n)
	for i := range set {
		x := west + size + (east-west-2*size)*rng.Float64()
		y := south + size + (north-south-2*size)*rng.Float64()
		// Away from the antimeridian, which a polygon must not cross.
		if x > 179 && x < 181 {
			x = 179
		}
		x = math.Remainder(x, 360)
		ring := make(orb.Ring, vertices)
		for v := range vertices - 1 {
			sin, cos := math.Sincos(2 * math.Pi * float64(v) / (vertices - 1))
			ring[v] = orb.Point{x + size/2*cos, y + size/2*sin}
		}
		ring[vertices-1] = ring[0]
		g, err := into.Transform(orb.Polygon{ring})
		if err != nil {
			return nil, err
		}
		set[i] = g.(orb.Polygon)
	}
	return set, nil
}

// load puts the polygons into a temporary table.
func load(ctx context.Context, conn *pgx.Conn, srid int, set []orb.Polygon) error {
	if _, err := conn.Exec(ctx, `drop table if exists bench_crs; create temporary table bench_crs (geom geometry)`); err != nil {
		return fmt.Errorf("make the table of polygons: %w", err)
	}
	all := make([][]byte, len(set))
	for i, g := range set {
		b, err := wkb.Marshal(g)
		if err != nil {
			return fmt.Errorf("encode polygon %d: %w", i, err)
		}
		all[i] = b
	}
	if _, err := conn.Exec(ctx, `insert into bench_crs select st_geomfromwkb(b, $1) from unnest($2::bytea[]) b`, srid, all); err != nil {
		return fmt.Errorf("load the polygons: %w", err)
	}
	return nil
}
