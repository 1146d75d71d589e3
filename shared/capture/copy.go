package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/paulmach/orb/encoding/ewkb"

	"geodlq/shared/deadletter"
)

// copyRows takes what copyRecord writes, field by field.
const copyRows = `COPY failed_geotasks (dlq_id, task_id, feature_id, batch_id, status, upstream_attempts,
	failed_rule, error_type, error, source_crs, epsg, geom, geom_hash,
	feature_geojson, payload_raw, source_object, source_record, first_seen) FROM STDIN BINARY`

const copyFields = 18

// copyInto loads records that are most probably new, by COPY, which has no ON
// CONFLICT: under a savepoint, so that ok is false, and nothing has happened, where
// one of them is there already or the database refuses a geometry.
func copyInto(ctx context.Context, tx pgx.Tx, records []deadletter.Record) (ok bool, err error) {
	// In the order of the unique key, so that two deliveries of one event wait for,
	// not deadlock, each other.
	order := make([]*deadletter.Record, len(records))
	for i := range records {
		order[i] = &records[i]
	}
	slices.SortFunc(order, func(a, b *deadletter.Record) int { return bytes.Compare(a.DLQID[:], b.DLQID[:]) })
	err = pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
		_, err := sp.Conn().PgConn().CopyFrom(ctx, &copyStream{records: order}, copyRows)
		return err
	})
	var refused *pgconn.PgError
	// unique_violation; data exception; what PostGIS raises over a geometry
	if errors.As(err, &refused) && (refused.Code == "23505" || refused.Code[:2] == "22" || refused.Code == "XX000") {
		return false, nil
	}
	return err == nil, err
}

// copyStream writes records in PostgreSQL's binary copy format (PostgreSQL manual,
// COPY, "Binary Format").
type copyStream struct {
	records []*deadletter.Record
	buf     []byte
	at      int
	begun   bool
}

var copyHeader = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

func (s *copyStream) Read(p []byte) (int, error) {
	if s.at == len(s.buf) {
		s.buf, s.at = s.buf[:0], 0
		if !s.begun {
			s.begun = true
			s.buf = append(s.buf, copyHeader...)
		}
		for len(s.records) > 0 && len(s.buf) < len(p) {
			var err error
			if s.buf, err = copyRecord(s.buf, s.records[0]); err != nil {
				return 0, err
			}
			if s.records = s.records[1:]; len(s.records) == 0 {
				s.buf = append(s.buf, 0xff, 0xff) // the trailer
			}
		}
		if len(s.buf) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(p, s.buf[s.at:])
	s.at += n
	return n, nil
}

func copyRecord(b []byte, r *deadletter.Record) ([]byte, error) {
	b = binary.BigEndian.AppendUint16(b, copyFields)
	b = copyField(b, r.DLQID[:])
	feature := deadletter.Text(r.FeatureID)
	b = copyField(b, feature)
	b = copyField(b, feature)
	b = copyField(b, deadletter.Text(r.BatchID))
	if r.Quarantined {
		b = copyField(b, "quarantined")
	} else {
		b = copyField(b, "pending")
	}
	b = binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 4), uint32(r.Attempts))
	b = copyText(b, deadletter.Label(r.FailedRule))
	b = copyText(b, deadletter.Label(r.ErrorType))
	b = copyText(b, deadletter.Message(r.ErrorMessage))
	if r.SourceCRS == nil {
		b = append(b, null...)
	} else {
		b = copyField(b, deadletter.Text(*r.SourceCRS))
	}
	if r.EPSG == 0 {
		b = append(b, null...)
	} else {
		b = binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 4), uint32(r.EPSG))
	}
	if r.Geometry == nil || r.EPSG == 0 {
		b = append(b, null...)
	} else {
		g, err := ewkb.Marshal(r.Geometry, r.EPSG, binary.LittleEndian)
		if err != nil {
			return nil, fmt.Errorf("encode the geometry of feature %s: %w", r.FeatureID, err)
		}
		b = copyField(b, g)
	}
	b = copyText(b, r.GeomHash)
	switch {
	case len(r.Payload) == 0:
		b = append(append(b, null...), null...)
	case utf8.Valid(r.Payload) && bytes.IndexByte(r.Payload, 0) < 0:
		b = append(copyField(b, r.Payload), null...)
	default:
		b = copyField(append(b, null...), r.Payload)
	}
	b = copyField(b, deadletter.Text(r.SourceObject))
	b = binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), uint64(r.SourceRecord))
	return binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), uint64(r.FirstSeen.UnixMicro()-epoch)), nil
}

// null is the length that stands for NULL.
var null = []byte{0xff, 0xff, 0xff, 0xff}

// epoch is where PostgreSQL begins to count, in microseconds since 1970.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

func copyField[T string | []byte](b []byte, v T) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
}

func copyText(b []byte, s string) []byte {
	if s == "" {
		return append(b, null...)
	}
	return copyField(b, s)
}
