package archive

import (
	"fmt"

	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/schema"

	"geodlq/shared/arrowfile"
)

// column is one column of the archive. Its place in [columns] is its place in the file.
type column struct {
	name     string
	physical parquet.Type
	logical  schema.LogicalType
	optional bool // null stands for "" or 0, or for a nil SourceCRS
	dict     bool // few different values in one file
	stats    bool // minimum and maximum help a reader to skip row groups
}

var (
	text      = schema.StringLogicalType{}
	timestamp = schema.NewTimestampLogicalType(true /* UTC */, schema.TimeUnitMicros)
	untyped   = schema.NoLogicalType{}
)

// The columns, in the order of the file. dlq_id is text and not the UUID type,
// which Athena does not read.
const (
	colSchemaVersion = iota
	colDLQID
	colBatchID
	colFeatureID
	colFailedRule
	colErrorType
	colErrorMessage
	colAttempts
	colReplayCount
	colQuarantined
	colFeatureGeoJSON
	colPayloadRaw
	colSourceCRS
	colEPSG
	colGeomHash
	colFirstSeen
	colArrivedAt
	colSourceObject
	colSourceRecord
	colSourceOffset
	colSourceLength
	colSourceSHA256
	numColumns
)

var columns = [numColumns]column{
	colSchemaVersion:  {name: "schema_version", physical: parquet.Types.ByteArray, logical: text, dict: true, stats: true},
	colDLQID:          {name: "dlq_id", physical: parquet.Types.ByteArray, logical: text},
	colBatchID:        {name: "batch_id", physical: parquet.Types.ByteArray, logical: text, dict: true, stats: true},
	colFeatureID:      {name: "feature_id", physical: parquet.Types.ByteArray, logical: text, stats: true},
	colFailedRule:     {name: "failed_rule", physical: parquet.Types.ByteArray, logical: text, optional: true, dict: true, stats: true},
	colErrorType:      {name: "error_type", physical: parquet.Types.ByteArray, logical: text, optional: true, dict: true, stats: true},
	colErrorMessage:   {name: "error_message", physical: parquet.Types.ByteArray, logical: text, optional: true},
	colAttempts:       {name: "attempts", physical: parquet.Types.Int32, logical: untyped, dict: true, stats: true},
	colReplayCount:    {name: "replay_count", physical: parquet.Types.Int32, logical: untyped, dict: true, stats: true},
	colQuarantined:    {name: "quarantined", physical: parquet.Types.Boolean, logical: untyped, stats: true},
	colFeatureGeoJSON: {name: "feature_geojson", physical: parquet.Types.ByteArray, logical: text, optional: true},
	colPayloadRaw:     {name: "payload_raw", physical: parquet.Types.ByteArray, logical: untyped, optional: true},
	colSourceCRS:      {name: "source_crs", physical: parquet.Types.ByteArray, logical: text, optional: true, dict: true, stats: true},
	colEPSG:           {name: "epsg", physical: parquet.Types.Int32, logical: untyped, optional: true, dict: true, stats: true},
	colGeomHash:       {name: "geom_hash", physical: parquet.Types.ByteArray, logical: text, optional: true},
	colFirstSeen:      {name: "first_seen", physical: parquet.Types.Int64, logical: timestamp, stats: true},
	colArrivedAt:      {name: "arrived_at", physical: parquet.Types.Int64, logical: timestamp, dict: true, stats: true},
	colSourceObject:   {name: "source_object", physical: parquet.Types.ByteArray, logical: text, dict: true, stats: true},
	colSourceRecord:   {name: "source_record", physical: parquet.Types.Int64, logical: untyped, stats: true},
	colSourceOffset:   {name: "source_offset", physical: parquet.Types.Int64, logical: untyped, stats: true},
	colSourceLength:   {name: "source_length", physical: parquet.Types.Int64, logical: untyped, stats: true},
	colSourceSHA256:   {name: "source_sha256", physical: parquet.Types.ByteArray, logical: text, optional: true},
}

var (
	fileSchema = newSchema()
	properties = newProperties()
)

func newSchema() *schema.GroupNode {
	fields := make(schema.FieldList, numColumns)
	for i, c := range columns {
		repetition := parquet.Repetitions.Required
		if c.optional {
			repetition = parquet.Repetitions.Optional
		}
		node, err := schema.NewPrimitiveNodeLogical(c.name, repetition, c.logical, c.physical, -1, -1)
		if err != nil {
			panic(fmt.Sprintf("archive: column %s: %v", c.name, err)) // the table above is wrong
		}
		fields[i] = node
	}
	root, err := schema.NewGroupNode("dead_letter", parquet.Repetitions.Required, fields, -1)
	if err != nil {
		panic(fmt.Sprintf("archive: schema: %v", err))
	}
	return root
}

func newProperties() *parquet.WriterProperties {
	opts := arrowfile.Properties()
	for _, c := range columns {
		if c.dict {
			opts = append(opts, parquet.WithDictionaryFor(c.name, true))
		}
		if c.stats {
			opts = append(opts, parquet.WithStatsFor(c.name, true))
		}
	}
	return parquet.NewWriterProperties(opts...)
}
