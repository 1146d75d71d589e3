// Package archive writes and reads the append-only history of dead letters:
// Parquet files in S3, one per inbox object, batch, day and part, under keys that
// follow from what they hold alone. A retry meets its own file again and leaves it.
//
// Files are hive-partitioned (batch_id, date) and plain Parquet 2 with zstd, so
// DuckDB, Athena and Spark read them as they are. They carry no GeoParquet
// metadata: dead letters of one file are in any CRS, or in none that is known.
//
// It stands on arrow's parquet/file alone. parquet/pqarrow would bring gRPC and
// the compute kernels into every function that reads or writes the archive.
package archive

import "geodlq/shared/deadletter"

// Row is one archived dead letter: the record, and what only the archive keeps of it.
//
// The geometry is not archived, since the payload holds it; a row that was read
// back has a nil Record.Geometry. Times are kept to the microsecond, as in PostgreSQL.
type Row struct {
	deadletter.Record
	// ReplayCount is how often the dead letter had been replayed when it was
	// archived; 0 on arrival.
	ReplayCount int
	// SourceLength is how many bytes of the decompressed object, from
	// Record.SourceOffset on, the record is.
	SourceLength int64
	// SourceSHA256 is the hexadecimal SHA-256 of these bytes where Payload holds
	// less than the feature, which was too large to keep; empty otherwise.
	SourceSHA256 string
}

// ContentType is the media type of an archive file, as registered with IANA.
const ContentType = "application/vnd.apache.parquet"
