package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/wroge/wgs84"

	"geodlq/shared/crs/internal/projection"
)

// tolerance of a candidate against ST_Transform in metres, a tenth of what package
// crs promises.
const tolerance = 1e-4

// margin is how far beyond the area of use a candidate must agree, in degrees. It
// is the same margin within which package crs accepts positions.
const margin = 3

// ellipsoid is a [wgs84.Spheroid] of given numbers.
type ellipsoid struct{ a, rf float64 }

func (e ellipsoid) A() float64  { return e.a }
func (e ellipsoid) Fi() float64 { return e.rf }

var _ wgs84.Spheroid = ellipsoid{}

// selectComputed moves every CRS that this module can compute rightly into class
// computed, and says of the other candidates why not.
func selectComputed(ctx context.Context, db *oracle, defs *definitions) error {
	for _, c := range defs.list {
		var err error
		switch {
		case c.authority != "EPSG" || c.area == nil:
			continue
		case c.kind == kindGeographic && defs.null[c.id()] && c.unit == 1 && c.meridian == 0:
			c.refusal, err = checkGeographic(ctx, db, c)
		case c.kind == kindProjected && defs.null[c.baseName] && c.conversion != nil && c.meridian == 0:
			c.refusal, err = checkProjected(ctx, db, c)
		default:
			continue
		}
		if errors.Is(err, errNoAnswer) {
			c.refusal, err = err.Error(), nil
		}
		if err != nil {
			return err
		}
		if c.refusal == "" {
			c.class = classComputed
		}
	}
	return nil
}

// checkGeographic wants longitude and latitude to pass unchanged all over the
// world, because no area of use limits a geographic CRS at run time.
func checkGeographic(ctx context.Context, db *oracle, c *definition) (string, error) {
	if c.code == 4326 {
		return "", nil
	}
	pts := append(world.grid(25, 0), c.area.grid(15, margin)...)
	for _, way := range [][2]string{{c.id(), "EPSG:4326"}, {"EPSG:4326", c.id()}} {
		got, err := db.transform(ctx, way[0], way[1], pts)
		if err != nil {
			return "", err
		}
		for i, p := range pts {
			if !finite(got[i]) {
				return fmt.Sprintf("PROJ has no answer at %.4f %.4f", p[0], p[1]), nil
			}
			d := distance(p, got[i])
			if math.Abs(p[1]) == 90 || math.Abs(p[0]) == 180 {
				d = math.Abs(p[1] - got[i][1]) // longitude may turn round
			}
			if d*metresPerDegree > tolerance {
				return fmt.Sprintf("PROJ shifts %s to %s by %.3f m at %.4f %.4f", way[0], way[1], d*metresPerDegree, p[0], p[1]), nil
			}
		}
	}
	return "", nil
}

const metresPerDegree = 6378137 * math.Pi / 180

func checkProjected(ctx context.Context, db *oracle, c *definition) (string, error) {
	p, err := projection.New(ellipsoid{c.a, c.rf}, *c.conversion)
	if err != nil {
		return err.Error(), nil
	}
	pts := usable(c, c.area.grid(15, margin))
	pts = append(pts, usable(c, c.area.grid(8, 0))...)
	want, err := db.transform(ctx, "EPSG:4326", c.id(), pts)
	if err != nil {
		return "", err
	}
	scale := c.conversion.Unit
	var projected, lonLat [][2]float64
	for i, q := range pts {
		if !finite(want[i]) {
			return fmt.Sprintf("PROJ has no answer at %.4f %.4f", q[0], q[1]), nil
		}
		sin, cos := math.Sincos(projection.Radians(q[1]))
		x, y := p.Forward(projection.Radians(q[0]), sin, cos)
		d := distance([2]float64{x, y}, want[i]) * scale
		if !(d <= tolerance) {
			return fmt.Sprintf("forward differs from PROJ by %.4g m at %.4f %.4f", d, q[0], q[1]), nil
		}
		projected, lonLat = append(projected, want[i]), append(lonLat, q)
	}
	back, err := db.transform(ctx, c.id(), "EPSG:4326", projected)
	if err != nil {
		return "", err
	}
	for i, q := range projected {
		lon, sin, cos := p.Inverse(q[0], q[1])
		got := [2]float64{projection.Degrees(lon), projection.Degrees(math.Atan2(sin, cos))}
		if !finite(back[i]) {
			return fmt.Sprintf("PROJ has no answer back at %.4f %.4f", lonLat[i][0], lonLat[i][1]), nil
		}
		dlon := math.Remainder(got[0]-back[i][0], 360) * cos
		d := math.Hypot(dlon, got[1]-back[i][1]) * metresPerDegree
		if !(d <= tolerance) {
			return fmt.Sprintf("inverse differs from PROJ by %.4g m at %.4f %.4f", d, lonLat[i][0], lonLat[i][1]), nil
		}
	}
	return "", nil
}

// usable drops positions that the projection itself cannot hold: the poles of a
// Mercator, and what web maps cut off.
func usable(c *definition, pts [][2]float64) [][2]float64 {
	limit := 90.0
	switch c.conversion.Method {
	case projection.MercatorA, projection.MercatorB:
		limit = 89
	case projection.WebMercator:
		limit = 85.06
	}
	var kept [][2]float64
	for _, p := range pts {
		if math.Abs(p[1]) <= limit {
			kept = append(kept, p)
		}
	}
	return kept
}
