package deadletter

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
)

// UUID is an RFC 9562 UUID; pgx reads and writes it as PostgreSQL's uuid.
type UUID [16]byte

func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
	return string(b[:])
}

// ParseUUID reads the canonical 8-4-4-4-12 form, in either case.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, fmt.Errorf("parse UUID %q: want the form xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", s)
	}
	if _, err := hex.Decode(u[:], []byte(s[0:8]+s[9:13]+s[14:18]+s[19:23]+s[24:36])); err != nil {
		return UUID{}, fmt.Errorf("parse UUID %q: %w", s, err)
	}
	return u, nil
}

// recordNamespace is the namespace of derived record ids: a random UUID, fixed for ever.
var recordNamespace = UUID{0x6b, 0x0d, 0x3f, 0x52, 0x9a, 0x41, 0x4c, 0x7e, 0x8f, 0x16, 0x2d, 0x95, 0xe0, 0x7b, 0xc4, 0x38}

// RecordID derives the id of the record at the given ordinal (from 0) of an inbox
// object, as UUIDv5 (RFC 9562 section 5.5) of bucket, key, version and ordinal, so
// that an event that is delivered twice names the same records twice. version is
// the object's version id, or its ETag in a bucket without versions.
func RecordID(bucket, key, version string, ordinal int64) UUID {
	h := sha1.New()
	h.Write(recordNamespace[:])
	for _, part := range []string{bucket, key, version} {
		// Length first: no two different triples may run together into one name.
		h.Write(strconv.AppendInt(nil, int64(len(part)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(part))
	}
	h.Write(strconv.AppendInt(nil, ordinal, 10))
	var u UUID
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return u
}

// NewUUID returns a random UUID (version 4).
func NewUUID() UUID {
	var u UUID
	rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}
