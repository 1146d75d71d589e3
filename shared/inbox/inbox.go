// Package inbox reads the dead letters of one inbox object, whatever a failing
// pipeline wrote: NDJSON records, a GeoJSON FeatureCollection, a GeoJSON text
// sequence (RFC 8142), bare features one to a line, records that Lambda writes
// to a failure destination, an array of any of these; plain or in gzip or
// zstd; with or without byte order mark. The form is told by content, never by name.
//
// Nothing is dropped. What is no dead letter (broken JSON, bytes that are not
// UTF-8, JSON without a feature, a feature too large to keep) becomes one that is
// quarantined on arrival, with the reason, its raw bytes and where it lies. What
// is broken costs itself alone: lines, sequence elements and members of
// a collection are taken apart before they are understood.
//
// Which records an object has, and their ordinals, depend on its bytes alone. Two
// readings of one object, on whatever machine, agree. An object of any size is
// read in bounded memory.
package inbox

import (
	"context"
	"fmt"
	"io"
	"time"

	"geodlq/shared/archive"
)

// Object is an inbox object: where it is, and how to read it.
type Object struct {
	Bucket, Key  string
	VersionID    string // empty in a bucket without versions
	ETag         string // without quotes
	LastModified time.Time
	// Metadata is the object's user metadata, names in lower case. The defaults it
	// may give stand with [Defaults].
	Metadata map[string]string
	// Open returns the object's bytes as they are stored, from the first on. It is
	// called again where a collection must be read twice. Errors of the reader are
	// those of storage or network; they end the reading and are returned.
	Open func(context.Context) (io.ReadCloser, error)
}

// Version identifies the object's content: its version id, else its ETag.
func (o *Object) Version() string {
	if o.VersionID != "" {
		return o.VersionID
	}
	return o.ETag
}

// URI names the object, and its version where it has one.
func (o *Object) URI() string {
	uri := "s3://" + o.Bucket + "/" + o.Key
	if o.VersionID != "" {
		uri += "?versionId=" + o.VersionID
	}
	return uri
}

// Limits bounds what is read.
type Limits struct {
	MaxFeatureBytes int64 // largest feature that is kept whole; default 32 MiB
	MaxObjectBytes  int64 // largest object after decompression; default 8 GiB
	Workers         int   // decoders at work at once; default GOMAXPROCS
}

// The defaults of [Limits].
const (
	DefaultMaxFeatureBytes = 32 << 20
	DefaultMaxObjectBytes  = 8 << 30
)

// Prefix is how much is kept of a record that is too large to keep whole.
const Prefix = 64 << 10

func (l Limits) withDefaults() Limits {
	if l.MaxFeatureBytes <= 0 {
		l.MaxFeatureBytes = DefaultMaxFeatureBytes
	}
	if l.MaxObjectBytes <= 0 {
		l.MaxObjectBytes = DefaultMaxObjectBytes
	}
	return l
}

// maxRecord is the largest record that is held at once: the largest feature, the
// escapes it needs when it is written as a string, and the fields around it.
func (l Limits) maxRecord() int64 { return l.MaxFeatureBytes + l.MaxFeatureBytes/4 + Prefix }

// Stats says what was read.
type Stats struct {
	Records   int64 // dead letters, malformed ones included
	Malformed int64 // those that are quarantined on arrival
	Bytes     int64 // of the object, after decompression
}

// Read reads the object and hands its dead letters to yield in their order, a
// block at a time. The rows of a block, payloads and geometries included, must not
// be used after yield returns: their memory is used again. An error of yield ends
// the reading and is returned as it is.
//
// The error is one of yield, of Object.Open and its reader, or the context's
// cause. What is wrong with the object's content is told by rows, never by an error.
func Read(ctx context.Context, o Object, limits Limits, yield func([]archive.Row) error) (Stats, error) {
	stats, err := read(ctx, &o, limits.withDefaults(), yield)
	if err != nil {
		return stats, fmt.Errorf("read %s: %w", o.URI(), err)
	}
	return stats, nil
}
