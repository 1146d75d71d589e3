// Package transform is what a replay runs again: it turns one dead letter into
// the row its feature should have been in the target, or says in a named way why not.
//
// The stages are decode -> coerce -> reproject here, and validate/repair -> upsert in
// PostGIS, for a whole batch at once. The transform that comes with the product is
// driven by a [Contract], a JSON document that an engineer changes without a
// deployment; a program that wants its own implements [Transformer].
//
// A feature fails with a *deadletter.Fault whose Rule says what must be fixed:
//
//	decode:feature, decode:geometry      the text, or the geometry in it
//	resolve:crs                          the name of its CRS
//	require:parcel_id                    an attribute that is missing
//	coerce:built_year->integer           an attribute that cannot be read as its type
//	constrain:built_year                 an attribute that breaks a constraint
//	store:note                           a value that a jsonb column cannot hold
//	attributes:colour                    an attribute the contract does not know and rejects
//	conform:MultiPolygon                 a geometry type that the target does not take
//	reproject:EPSG:26910->EPSG:3857      a position
//	repair:geometry                      what PostGIS found or could not repair
//
// [Classify] decides in one place what an error means for the row that met it.
package transform

import (
	"context"
	"fmt"

	"github.com/paulmach/orb"

	"geodlq/shared/crs"
)

// Transformer makes target rows of dead letters. It must be safe for concurrent
// use and a pure function of its input: the same input under the same Version
// gives the same output or the same fault.
type Transformer interface {
	// Transform runs decode, coerce and reproject for one feature. A
	// *deadletter.Fault says why the feature cannot pass; an error that wraps
	// [ErrDownstream] says that it is not the feature's doing; any other error is unforeseen
	// and costs the feature one attempt. Output must not share memory that a
	// later call changes.
	Transform(ctx context.Context, in Input) (Output, error)
	// Target says what the rows must look like in the end.
	Target() Target
	// Version names the rules; it is stored with every attempt.
	Version() string
}

// Input is one dead letter as a replay claimed it.
type Input struct {
	FeatureID  string // stable key of the source feature; "" where the record has none
	BatchID    string // the run that produced it
	FailedRule string // label of its latest failure

	// TaskID stands for the feature where neither FeatureID nor the payload names it, as
	// in a row inserted with plain SQL. It is never empty in a claimed row.
	TaskID string

	// Payload is the feature's text as received. It is empty for a row that was inserted with
	// plain SQL; Geometry, EPSG and GeomHash then come from the row. The transform does not
	// change it, and its output may point into it.
	Payload []byte
	// SourceCRS is the CRS as the pipeline named it, verbatim; nil when it did not.
	SourceCRS *string

	Geometry orb.Geometry
	EPSG     int
	GeomHash string // as given with such a row, else ""

	// Overrides is what an operator changed on this one row, see [ParseOverrides]; nil for nothing.
	Overrides []byte
}

// Output is one feature ready for validation and upsert.
type Output struct {
	FeatureID  string
	Properties []byte // JSON object that jsonb takes as it is

	// Geometry is in the CRS EPSG: the target's when it was computed here, the
	// source's when PostGIS transforms it (Engine is then [crs.EnginePostGIS]).
	Geometry orb.Geometry
	EPSG     int
	Engine   crs.Engine

	// SourceGeometry is the geometry as read, in the CRS SourceEPSG. SourceCRS is the name that
	// resolved to that code, verbatim.
	SourceGeometry orb.Geometry
	SourceEPSG     int
	SourceCRS      string

	// GeomHash is the idempotency key: deadletter.GeomHash of the source, or the key
	// that came with a row inserted with plain SQL.
	GeomHash string
	// Rule labels the reprojection, for a failure that PostGIS finds.
	Rule string
}

// Repair is how PostGIS makes an invalid geometry valid: the methods of ST_MakeValid, or not at all.
type Repair string

// The ways to repair.
const (
	// RepairStructure keeps the area that rings enclose; overlapping parts are merged.
	RepairStructure Repair = "structure"
	// RepairLinework keeps every edge; where parts overlap, a hole may arise.
	RepairLinework Repair = "linework"
	// RepairOff refuses an invalid geometry.
	RepairOff Repair = "off"
)

// Target is what the contract asks of the rows it makes.
type Target struct {
	EPSG int // CRS of the target column
	// GeometryType is the type of the target column as OGC names it, e.g.
	// "MultiPolygon"; "" takes every type.
	GeometryType string
	// PromoteToMulti stores a Point, LineString or Polygon as its Multi type, before and after repair.
	PromoteToMulti bool
	Repair         Repair
	// MaxAreaChange is the largest change of area that repair may make, as a fraction of the
	// area before: 0.5 is 50 %.
	MaxAreaChange float64
}

// The labels of the stages that concern no single attribute.
const (
	RuleDecodeFeature  = "decode:feature"
	RuleDecodeGeometry = "decode:geometry"
	RuleResolveCRS     = "resolve:crs"
	RuleRepair         = "repair:geometry"
)

// RuleReproject labels the reprojection from one CRS to another, by EPSG code.
func RuleReproject(source, target int) string {
	return fmt.Sprintf("reproject:EPSG:%d->EPSG:%d", source, target)
}
