package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/paulmach/orb"
	"github.com/paulmach/orb/encoding/wkb"
)

// oracle asks PostGIS for positions.
type oracle struct{ conn *pgx.Conn }

func openOracle(ctx context.Context, url string) (*oracle, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to the PostGIS oracle: %w", err)
	}
	// A position PROJ cannot transform makes ST_Transform fail for the whole
	// geometry; this function falls back to single positions and leaves NaN there.
	_, err = conn.Exec(ctx, `
create or replace function pg_temp.transform_each(g geometry, source text, target text) returns geometry language plpgsql as $$
declare
  parts geometry[] := '{}';
  p geometry;
begin
  return st_transform(g, source, target);
exception when others then
  for p in select (st_dumppoints(g)).geom loop
    begin
      parts := parts || st_transform(p, source, target);
    exception when others then
      parts := parts || st_point('NaN', 'NaN');
    end;
  end loop;
  return st_collect(parts);
end $$`)
	if err != nil {
		return nil, fmt.Errorf("prepare the PostGIS oracle: %w", err)
	}
	return &oracle{conn}, nil
}

func (o *oracle) close(ctx context.Context) { o.conn.Close(ctx) }

// errNoAnswer is PROJ's failure to transform one of the positions.
var errNoAnswer = errors.New("PROJ has no answer for one of the positions")

// transform returns the positions in target.
func (o *oracle) transform(ctx context.Context, source, target string, pts [][2]float64) ([][2]float64, error) {
	answers, err := o.ask(ctx, "st_transform", source, target, pts)
	// PostGIS reports whatever PROJ reports as an internal error.
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "XX000" {
		return nil, fmt.Errorf("%s to %s: %w: %s", source, target, errNoAnswer, pg.Message)
	}
	return answers, err
}

// transformEach is transform with NaN where PROJ has no answer.
func (o *oracle) transformEach(ctx context.Context, source, target string, pts [][2]float64) ([][2]float64, error) {
	return o.ask(ctx, "pg_temp.transform_each", source, target, pts)
}

func (o *oracle) ask(ctx context.Context, function, source, target string, pts [][2]float64) ([][2]float64, error) {
	mp := make(orb.MultiPoint, len(pts))
	for i, p := range pts {
		mp[i] = p
	}
	in, err := wkb.Marshal(mp)
	if err != nil {
		return nil, fmt.Errorf("encode positions: %w", err)
	}
	var out []byte
	err = o.conn.QueryRow(ctx, `select st_asbinary(`+function+`(st_geomfromwkb($1), $2, $3))`, in, source, target).Scan(&out)
	if err != nil {
		return nil, fmt.Errorf("transform from %s to %s in PostGIS: %w", source, target, err)
	}
	g, err := wkb.Unmarshal(out)
	if err != nil {
		return nil, fmt.Errorf("decode positions: %w", err)
	}
	res, ok := g.(orb.MultiPoint)
	if !ok || len(res) != len(pts) {
		return nil, fmt.Errorf("transform from %s to %s in PostGIS: got %s of %d for %d positions", source, target, g.GeoJSONType(), len(res), len(pts))
	}
	answers := make([][2]float64, len(res))
	for i, p := range res {
		answers[i] = p
	}
	return answers, nil
}

func distance(a, b [2]float64) float64 { return math.Hypot(a[0]-b[0], a[1]-b[1]) }

func finite(p [2]float64) bool {
	return !math.IsNaN(p[0]+p[1]) && !math.IsInf(p[0], 0) && !math.IsInf(p[1], 0)
}

func quote(s string) string { return strings.NewReplacer("\t", " ", "\n", " ").Replace(s) }
