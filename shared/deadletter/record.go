// Package deadletter holds the words of the dead-letter queue: the record of one
// failed feature, the closed list of reasons, and the identities that make every
// write idempotent. It is the leaf of the module and depends on orb alone.
package deadletter

import (
	"time"

	"github.com/paulmach/orb"
)

// SchemaVersion names the layout of [Record] in the archive.
const SchemaVersion = "1.0"

// UnattributedBatch is the batch of a record that names none and whose object
// does not either.
const UnattributedBatch = "unattributed"

// DirectBatch is the batch of a row that was inserted with plain SQL and names none.
const DirectBatch = "direct"

// Record is one dead letter: one failed feature with its error context, as
// capture archives and queues it.
type Record struct {
	DLQID     UUID   // repeated when the same event is delivered again
	FeatureID string // stable key of the source feature; never empty after capture
	BatchID   string // the run that produced it; never empty after capture

	FailedRule   string // e.g. "coerce:built_year->integer"; as the pipeline saw it
	ErrorType    string // as the pipeline saw it, or the [Reason] of a quarantine on arrival
	ErrorMessage string // at most MaxMessage characters
	Attempts     int    // retries the pipeline had spent

	// Payload is the feature's bytes as received, never re-marshalled. It may be
	// no UTF-8 and no JSON. Empty when the feature was too large to keep: then
	// SourceObject, SourceRecord and SourceOffset point to it.
	Payload []byte
	// SourceCRS is the CRS as the pipeline names it, verbatim; nil when unknown.
	SourceCRS *string
	FirstSeen time.Time

	// Geometry is the source geometry and EPSG its resolved CRS code, where they
	// could be read; nil and 0 otherwise. GeomHash (see [GeomHash]) is set when both are.
	Geometry orb.Geometry
	EPSG     int
	GeomHash string

	// Quarantined marks a record that no replay can save (malformed on arrival);
	// ErrorType is its Reason then.
	Quarantined bool

	SourceObject string    // s3://bucket/key, with ?versionId= where the bucket has versions
	SourceRecord int64     // ordinal of the record in the object, from 0
	SourceOffset int64     // byte offset of the record in the decompressed object
	ArrivedAt    time.Time // last-modified time of the object; its UTC day is the archive's date
}
