package deadletter

// Reason is the named cause for which a feature cannot be replayed. It is what
// failed_geotasks.error_type holds after a replay and what quarantine counts,
// alarms and redrive filters group by, so the list is closed: anything that was
// not foreseen is [ReasonUnknown].
type Reason string

// The closed list of reasons. All but [ReasonWorkerLost] and [ReasonUnknown] are
// data faults: the same input under the same contract fails the same way.
const (
	ReasonInvalidJSON             Reason = "invalid_json"              // the text is not JSON (RFC 8259)
	ReasonInvalidUTF8             Reason = "invalid_utf8"              // the bytes are not UTF-8
	ReasonAmbiguousJSON           Reason = "ambiguous_json"            // a member occurs twice with different values
	ReasonNotAFeature             Reason = "not_a_feature"             // JSON, but not a GeoJSON Feature
	ReasonFeatureTooLarge         Reason = "feature_too_large"         // over MAX_FEATURE_BYTES
	ReasonUnstorableText          Reason = "unstorable_text"           // U+0000 in text that must reach a text or jsonb column
	ReasonNullGeometry            Reason = "null_geometry"             // the geometry is null or absent
	ReasonEmptyGeometry           Reason = "empty_geometry"            // the geometry has no positions
	ReasonBadGeometry             Reason = "bad_geometry"              // the geometry object is malformed, or invalid and repair is off
	ReasonBadCoordinates          Reason = "bad_coordinates"           // a position is not two finite numbers
	ReasonDegenerateGeometry      Reason = "degenerate_geometry"       // too few positions, or nothing of its dimension is left after repair
	ReasonUnsupportedGeometryType Reason = "unsupported_geometry_type" // a type that GeoJSON or the target does not have
	ReasonMixedCollection         Reason = "mixed_collection"          // a collection of several dimensions where the target wants one
	ReasonMissingCRS              Reason = "missing_crs"               // neither the record nor the feature names a CRS
	ReasonUnknownCRS              Reason = "unknown_crs"               // the CRS name resolves to nothing
	ReasonUnsupportedCRS          Reason = "unsupported_crs"           // known, but it cannot be transformed rightly here
	ReasonCRSConflict             Reason = "crs_conflict"              // record and feature name different CRSs
	ReasonCoordinateOutOfRange    Reason = "coordinate_out_of_range"   // beyond ±180/±90 in a geographic CRS
	ReasonCoordinateOutOfDomain   Reason = "coordinate_out_of_domain"  // far outside the area of use of a projected CRS
	ReasonOutOfTargetDomain       Reason = "out_of_target_domain"      // a right position that the target CRS cannot hold
	ReasonAntimeridian            Reason = "antimeridian"              // neighbouring positions more than 180 degrees apart
	ReasonMissingAttribute        Reason = "missing_attribute"         // a required attribute is absent or null
	ReasonCoerceFailed            Reason = "coerce_failed"             // an attribute cannot be read as its type
	ReasonConstraintFailed        Reason = "constraint_failed"         // an attribute breaks a constraint of the contract
	ReasonTargetRejected          Reason = "target_rejected"           // the target table refused the row
	ReasonWorkerLost              Reason = "worker_lost"               // the worker vanished while it held the row
	ReasonUnknown                 Reason = "unknown"                   // unforeseen
)

var reasons = []Reason{
	ReasonInvalidJSON, ReasonInvalidUTF8, ReasonAmbiguousJSON, ReasonNotAFeature, ReasonFeatureTooLarge,
	ReasonUnstorableText, ReasonNullGeometry, ReasonEmptyGeometry, ReasonBadGeometry, ReasonBadCoordinates,
	ReasonDegenerateGeometry, ReasonUnsupportedGeometryType, ReasonMixedCollection, ReasonMissingCRS,
	ReasonUnknownCRS, ReasonUnsupportedCRS, ReasonCRSConflict, ReasonCoordinateOutOfRange,
	ReasonCoordinateOutOfDomain, ReasonOutOfTargetDomain, ReasonAntimeridian, ReasonMissingAttribute,
	ReasonCoerceFailed, ReasonConstraintFailed, ReasonTargetRejected, ReasonWorkerLost, ReasonUnknown,
}

// Reasons returns the closed list in its documented order. The caller owns the slice.
func Reasons() []Reason { return append([]Reason(nil), reasons...) }

// Known reports whether r is one of [Reasons]. What a pipeline writes into
// error_type is its own text and usually is not.
func (r Reason) Known() bool {
	for _, k := range reasons {
		if r == k {
			return true
		}
	}
	return false
}
