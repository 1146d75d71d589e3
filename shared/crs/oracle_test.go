package crs_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/wkb"

	"geodlq/infra/local/localtest"
	"geodlq/shared/crs"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// question is some positions that PostGIS is to transform.
type question struct {
	source, target int
	points         orb.MultiPoint
}

// transformSQL answers many questions in one statement. A code that this database's
// spatial_ref_sys does not have yet goes to PROJ by its name.
const transformSQL = `
select st_asbinary(case
    when (select count(*) from spatial_ref_sys where srid in (q.source, q.target)) = 2
    then st_transform(st_geomfromwkb(q.points, q.source), q.target)
    else st_transform(st_geomfromwkb(q.points), 'EPSG:' || q.source, 'EPSG:' || q.target)
  end)
from unnest($1::int[], $2::int[], $3::bytea[]) with ordinality as q(source, target, points, n)
order by n`

func ask(ctx context.Context, pool *pgxpool.Pool, questions []question) ([]orb.MultiPoint, error) {
	var sources, targets []int
	var points [][]byte
	for _, q := range questions {
		b, err := wkb.Marshal(q.points)
		if err != nil {
			return nil, err
		}
		sources, targets, points = append(sources, q.source), append(targets, q.target), append(points, b)
	}
	rows, err := pool.Query(ctx, transformSQL, sources, targets, points)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var answers []orb.MultiPoint
	for rows.Next() {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			return nil, err
		}
		g, err := wkb.Unmarshal(b)
		if err != nil {
			return nil, err
		}
		mp, ok := g.(orb.MultiPoint)
		if i := len(answers); !ok || len(mp) != len(questions[i].points) {
			return nil, fmt.Errorf("%d -> %d: PostGIS answered %T of %d for %d positions", questions[i].source, questions[i].target, g, len(mp), len(questions[i].points))
		}
		answers = append(answers, mp)
	}
	return answers, rows.Err()
}

// oraclePositions are a grid over the area of use with the margin in which
// positions are accepted, and random ones, as far as both the CRS and Web Mercator
// hold them.
func oraclePositions(info crs.Info) orb.MultiPoint {
	const steps, margin = 7, 3
	w, e := info.Area.Min[0], info.Area.Max[0]
	if e < w {
		e += 360
	}
	w, e = w-margin, e+margin
	if e-w > 359 {
		w, e = -179.5, 179.5
	}
	s, n := math.Max(-85.05, info.Area.Min[1]-margin), math.Min(85.05, info.Area.Max[1]+margin)
	var mp orb.MultiPoint
	for i := range steps {
		for j := range steps {
			lon := w + (e-w)*float64(i)/(steps-1)
			mp = append(mp, orb.Point{math.Remainder(lon, 360), s + (n-s)*float64(j)/(steps-1)})
		}
	}
	rng := rand.New(rand.NewPCG(4, uint64(info.Code)))
	for len(mp) < steps*steps+30 {
		if p := randomPosition(rng, info, margin-0.01); math.Abs(p[1]) < 85.05 {
			mp = append(mp, p)
		}
	}
	return mp
}

// TestAgainstPROJ is the promise of the package: for every code that it computes,
// ST_Transform gives the same position within a millimetre, into Web Mercator and
// from longitude and latitude, over the area of use and three degrees beyond. (Most
// of its time PROJ spends on finding the operation for a pair of CRSs.)
func TestAgainstPROJ(t *testing.T) {
	t.Parallel()
	pool := localtest.Pool(t, localtest.EmptyDatabase(t))
	const batch = 60
	var questions []question
	for info := range crs.Computed() {
		ground := oraclePositions(info)
		there, err := transformer(t, 4326, info.Code).Transform(ground)
		if err != nil {
			t.Fatalf("4326 -> %d: %v", info.Code, err)
		}
		questions = append(questions,
			question{info.Code, 3857, there.(orb.MultiPoint)},
			question{4326, info.Code, ground})
	}
	if len(questions) < 3000 {
		t.Fatalf("only %d questions to ask", len(questions))
	}
	for start := 0; start < len(questions); start += batch {
		part := questions[start:min(start+batch, len(questions))]
		t.Run(fmt.Sprintf("%d to %d", part[0].source, part[len(part)-1].target), func(t *testing.T) {
			t.Parallel()
			answers, err := ask(t.Context(), pool, part)
			if err != nil {
				t.Fatal(err)
			}
			for i, q := range part {
				compare(t, q, answers[i])
			}
		})
	}
}

func compare(t *testing.T, q question, want orb.MultiPoint) {
	t.Helper()
	out, err := transformer(t, q.source, q.target).Transform(q.points)
	if err != nil {
		t.Errorf("%d -> %d: %v", q.source, q.target, err)
		return
	}
	info, err := crs.Describe(q.target)
	if err != nil {
		t.Error(err)
		return
	}
	const world = 2 * math.Pi * 6378137
	for i, p := range out.(orb.MultiPoint) {
		dx, dy := p[0]-want[i][0], p[1]-want[i][1]
		unit := info.Unit
		switch {
		case info.Kind == crs.KindGeographic:
			unit, dx = 111320, math.Remainder(dx, 360)
		case q.target == 3857:
			dx = math.Remainder(dx, world) // either edge of the map is the antimeridian
		}
		if !(math.Hypot(dx, dy)*unit <= 1e-3) {
			t.Errorf("%d -> %d: %v is at %v, PROJ has %v", q.source, q.target, q.points[i], p, want[i])
			return // one position of a code says it
		}
	}
}

// TestExtentsAgainstPROJ takes the middle of the area of use of every fortieth CRS
// that is left to PostGIS there (and that PROJ can do at all): its position must be where this package accepts
// positions, so that right data is never refused for its place.
func TestExtentsAgainstPROJ(t *testing.T) {
	t.Parallel()
	pool := localtest.Pool(t, localtest.EmptyDatabase(t))
	rows, err := pool.Query(t.Context(), `select srid from spatial_ref_sys where srid % 40 = 0 order by srid`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var questions []question
	for rows.Next() {
		var srid int
		if err := rows.Scan(&srid); err != nil {
			t.Fatal(err)
		}
		info, err := crs.Describe(srid)
		if err != nil {
			t.Fatal(err)
		}
		if info.Code != srid || !info.HasExtent || info.Kind != crs.KindProjected || info.Service == crs.ServiceComputed {
			continue
		}
		w, e := info.Area.Min[0], info.Area.Max[0]
		if e < w {
			e += 360
		}
		middle := orb.Point{math.Remainder((w+e)/2, 360), (info.Area.Min[1] + info.Area.Max[1]) / 2}
		questions = append(questions, question{4326, srid, orb.MultiPoint{middle}})
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(questions) < 50 {
		t.Fatalf("only %d CRSs to ask about", len(questions))
	}
	answers, err := ask(t.Context(), pool, questions)
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range questions {
		if err := crs.CheckTarget(q.target, answers[i], crs.AllowBallpark()); err != nil {
			t.Errorf("%v in %d: %v", q.points, q.target, err)
		}
	}
}

// TestServedAgainstPROJ takes CRSs for which PROJ without grids has a datum shift in
// a part of the area of use only: wherever this package lets PostGIS have a
// position, PROJ must shift it. What it leaves unshifted would be stored tens or
// hundreds of metres away without a word.
func TestServedAgainstPROJ(t *testing.T) {
	t.Parallel()
	pool := localtest.Pool(t, localtest.EmptyDatabase(t))
	var shifted, unshifted []question
	for _, code := range []int{27700, 3003, 20254, 23030, 23036, 24819, 5337} {
		info, err := crs.Describe(code)
		if err != nil {
			t.Fatal(err)
		}
		if info.Service != crs.ServiceLimited {
			t.Fatalf("%d is served as %q", code, info.Service)
		}
		rng := rand.New(rand.NewPCG(5, uint64(code)))
		var mp orb.MultiPoint
		for len(mp) < 200 {
			p := orb.Point{
				info.Extent.Min[0] + rng.Float64()*(info.Extent.Max[0]-info.Extent.Min[0]),
				info.Extent.Min[1] + rng.Float64()*(info.Extent.Max[1]-info.Extent.Min[1]),
			}
			if _, err := transformer(t, code, 3857).Transform(p); err == nil {
				mp = append(mp, p)
			}
		}
		shifted = append(shifted, question{code, 4326, mp})
		unshifted = append(unshifted, question{code, info.Base, mp})
	}
	wgs, err := ask(t.Context(), pool, shifted)
	if err != nil {
		t.Fatal(err)
	}
	base, err := ask(t.Context(), pool, unshifted)
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range shifted {
		for j := range q.points {
			if d := math.Hypot(wgs[i][j][0]-base[i][j][0], wgs[i][j][1]-base[i][j][1]) * 111320; !(d > 1) {
				t.Errorf("%d: PROJ moves %v by %.3f m from its datum to WGS 84", q.source, q.points[j], d)
				break
			}
		}
	}
}
