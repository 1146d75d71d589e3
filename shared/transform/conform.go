package transform

import (
	"strings"

	"github.com/paulmach/orb"

	"geodlq/shared/deadletter"
)

// conform makes g of the target's geometry type where that takes no more than another wrapping: a single
// geometry becomes its Multi type, and so does a collection whose members are all of one type.
//
// A collection of several dimensions is refused unless the target is made of collections: no one
// layer shows it, and repair could not tell what must survive.
func (t Target) conform(g orb.Geometry) (orb.Geometry, error) {
	if t.PromoteToMulti {
		g = t.promote(g)
	}
	have := g.GeoJSONType()
	collection, isCollection := g.(orb.Collection)
	if have == t.GeometryType || t.GeometryType == "" && !isCollection {
		return g, nil
	}
	wanted, rule := t.GeometryType, "conform:"+t.GeometryType
	if wanted == "" {
		wanted, rule = "geometries of one dimension", "conform:Geometry"
	}
	parts := flatten(nil, collection)
	for _, part := range parts {
		if part.Dimensions() != parts[0].Dimensions() {
			return nil, deadletter.Faultf(deadletter.ReasonMixedCollection, rule, "the geometry is a collection with a %s and a %s, but the target takes %s",
				parts[0].GeoJSONType(), part.GeoJSONType(), wanted)
		}
	}
	if t.GeometryType == "" {
		return g, nil
	}
	hint := ""
	if "Multi"+have == t.GeometryType {
		hint = "; set promoteToMulti to wrap it"
	}
	return nil, deadletter.Faultf(deadletter.ReasonUnsupportedGeometryType, rule, "the geometry is a %s, but the target takes %s%s", have, wanted, hint)
}

func (t Target) promote(g orb.Geometry) orb.Geometry {
	switch g := g.(type) {
	case orb.Point:
		return orb.MultiPoint{g}
	case orb.LineString:
		return orb.MultiLineString{g}
	case orb.Polygon:
		return orb.MultiPolygon{g}
	case orb.Collection:
		single, ok := strings.CutPrefix(t.GeometryType, "Multi")
		if !ok {
			return g
		}
		parts := flatten(nil, g)
		for _, part := range parts {
			if part.GeoJSONType() != single {
				return g
			}
		}
		switch single {
		case "Point":
			return gather[orb.MultiPoint, orb.Point](parts)
		case "LineString":
			return gather[orb.MultiLineString, orb.LineString](parts)
		default:
			return gather[orb.MultiPolygon, orb.Polygon](parts)
		}
	}
	return g
}

// flatten appends the single geometries that g is made of.
func flatten(parts []orb.Geometry, g orb.Geometry) []orb.Geometry {
	switch g := g.(type) {
	case orb.Collection:
		for _, member := range g {
			parts = flatten(parts, member)
		}
	case orb.MultiPoint:
		for _, p := range g {
			parts = append(parts, p)
		}
	case orb.MultiLineString:
		for _, l := range g {
			parts = append(parts, l)
		}
	case orb.MultiPolygon:
		for _, p := range g {
			parts = append(parts, p)
		}
	default:
		parts = append(parts, g)
	}
	return parts
}

// gather makes a Multi geometry of parts that are all of its type.
func gather[M ~[]G, G orb.Geometry](parts []orb.Geometry) M {
	multi := make(M, len(parts))
	for i, part := range parts {
		multi[i] = part.(G)
	}
	return multi
}
