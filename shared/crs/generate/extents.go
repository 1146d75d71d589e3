package main

import (
	"context"
	"math"
)

// measureExtents works out, for every CRS that PostGIS is to transform, where its
// coordinates may lie: the area of use widened by a generous margin, in the unit of
// the CRS; and, where PROJ without grids has an operation for a part of the area
// only, the extents of those operations as PROJ itself compares them.
func measureExtents(ctx context.Context, db *oracle, defs *definitions, ops *operations) error {
	for _, c := range defs.list {
		if c.kind == kindGeographic && c.class == classLimited {
			for _, a := range ops.areas(c.id()) {
				pts := inUnit(c, [][2]float64{{a.west, a.south}, {a.east, a.north}})
				c.served = append(c.served, box{pts[0][0], pts[0][1], pts[1][0], pts[1][1]})
			}
		}
		if c.kind != kindProjected || c.class == classComputed || c.area == nil {
			continue
		}
		base := defs.byID[c.baseName]
		if base == nil || base.unit == 0 {
			continue
		}
		pts, err := db.transformEach(ctx, base.id(), c.id(), inUnit(base, c.area.grid(13, margin)))
		if err != nil {
			return err
		}
		c.extent = around(pts)
		if c.class != classLimited || c.extent == nil {
			continue
		}
		var served []box
		for _, a := range ops.areas(c.id()) {
			pts, err := db.transformEach(ctx, base.id(), c.id(), inUnit(base, a.perimeter()))
			if err != nil {
				return err
			}
			b := around(pts)
			if a == world {
				b = c.extent
			}
			if b == nil {
				continue
			}
			clipped := box{
				math.Max(b.west, c.extent.west), math.Max(b.south, c.extent.south),
				math.Min(b.east, c.extent.east), math.Min(b.north, c.extent.north),
			}
			if clipped.west < clipped.east && clipped.south < clipped.north {
				served = append(served, clipped)
			}
		}
		c.served = outermost(served)
	}
	return nil
}

// inUnit turns degrees from Greenwich into the unit and prime meridian of a
// geographic CRS.
func inUnit(c *definition, pts [][2]float64) [][2]float64 {
	out := make([][2]float64, len(pts))
	for i, p := range pts {
		out[i] = [2]float64{(p[0] - c.meridian) / c.unit, p[1] / c.unit}
	}
	return out
}
