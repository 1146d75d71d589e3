package transform_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/deadletter"
	"geodlq/shared/transform"
)

// answer is an error with an HTTP status, as those of the AWS SDK are.
type answer int

func (a answer) Error() string       { return fmt.Sprintf("HTTP %d", int(a)) }
func (a answer) HTTPStatusCode() int { return int(a) }

func TestClassify(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return fmt.Errorf("upsert: %w", &pgconn.PgError{Code: code}) }
	postgis := func(message, file string) error {
		return &pgconn.PgError{Code: "XX000", Message: message, File: file}
	}
	_, refused := (&net.Dialer{}).DialContext(t.Context(), "unix", t.TempDir()+"/none")
	tests := []struct {
		name   string
		err    error
		class  transform.Class
		reason deadletter.Reason
	}{
		{"fault", fmt.Errorf("row 7: %w", deadletter.Faultf(deadletter.ReasonCoerceFailed, "", "x")), transform.ClassData, deadletter.ReasonCoerceFailed},
		{"fault that wraps a lost connection", &deadletter.Fault{Reason: deadletter.ReasonInvalidJSON, Err: io.ErrUnexpectedEOF}, transform.ClassData, deadletter.ReasonInvalidJSON},
		{"fault of an unforeseen kind", deadletter.Faultf(deadletter.ReasonUnknown, "", "x"), transform.ClassUnknown, deadletter.ReasonUnknown},
		{"lost worker", deadletter.Faultf(deadletter.ReasonWorkerLost, "", "x"), transform.ClassWorkerLost, deadletter.ReasonWorkerLost},
		{"panic", &transform.PanicError{Value: "index out of range"}, transform.ClassUnknown, deadletter.ReasonUnknown},
		{"panic with an error of the network", &transform.PanicError{Value: io.ErrUnexpectedEOF}, transform.ClassUnknown, deadletter.ReasonUnknown},
		{"any error", errors.New("x"), transform.ClassUnknown, deadletter.ReasonUnknown},
		{"error of the file system", os.ErrNotExist, transform.ClassUnknown, deadletter.ReasonUnknown},

		{"deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), transform.ClassDownstream, ""},
		{"cancelled", context.Canceled, transform.ClassDownstream, ""},
		{"deadline of a socket", os.ErrDeadlineExceeded, transform.ClassDownstream, ""},
		{"refused connection", refused, transform.ClassDownstream, ""},
		{"reset connection", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, transform.ClassDownstream, ""},
		{"unknown host", &net.DNSError{Err: "no such host"}, transform.ClassDownstream, ""},
		{"connection that ended", fmt.Errorf("x: %w", io.ErrUnexpectedEOF), transform.ClassDownstream, ""},
		{"wrong password while connecting", &pgconn.ConnectError{}, transform.ClassDownstream, ""},
		{"marked by the transform", fmt.Errorf("geocode: %w: %w", transform.ErrDownstream, errors.New("x")), transform.ClassDownstream, ""},
		{"throttled", fmt.Errorf("x: %w", answer(429)), transform.ClassDownstream, ""},
		{"bad gateway", answer(502), transform.ClassDownstream, ""},
		{"bad request", answer(400), transform.ClassUnknown, deadletter.ReasonUnknown},

		{"08006 connection failure", state("08006"), transform.ClassDownstream, ""},
		{"53300 too many connections", state("53300"), transform.ClassDownstream, ""},
		{"53100 disk full", state("53100"), transform.ClassDownstream, ""},
		{"57P01 admin shutdown", state("57P01"), transform.ClassDownstream, ""},
		{"40001 serialization failure", state("40001"), transform.ClassDownstream, ""},
		{"40P01 deadlock", state("40P01"), transform.ClassDownstream, ""},
		{"55P03 lock not available", state("55P03"), transform.ClassDownstream, ""},
		{"25006 read only after a failover", state("25006"), transform.ClassDownstream, ""},
		{"42P01 undefined table", state("42P01"), transform.ClassDownstream, ""},
		{"42501 insufficient privilege", state("42501"), transform.ClassDownstream, ""},
		{"0A000 cached plan must not change", state("0A000"), transform.ClassDownstream, ""},
		{"XX001 damaged page", state("XX001"), transform.ClassDownstream, ""},
		{"57014 statement timeout", state("57014"), transform.ClassUnknown, deadletter.ReasonUnknown},
		{"23505 unique violation", state("23505"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"23514 check violation", state("23514"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"22003 number out of range", state("22003"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"22023 geometry type of the column", state("22023"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"22P05 U+0000 in jsonb", state("22P05"), transform.ClassData, deadletter.ReasonUnstorableText},
		{"22021 U+0000 in text", state("22021"), transform.ClassData, deadletter.ReasonUnstorableText},
		{"44000 check option of a view", state("44000"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"54001 nested too deeply", state("54001"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"P0001 raised by a trigger", state("P0001"), transform.ClassData, deadletter.ReasonTargetRejected},
		{"21000 cardinality violation", state("21000"), transform.ClassUnknown, deadletter.ReasonUnknown},
		{"no SQLSTATE", state(""), transform.ClassUnknown, deadletter.ReasonUnknown},

		{"unknown SRID", postgis("Cannot find SRID (998000) in spatial_ref_sys", "lwgeom_transform.c"), transform.ClassData, deadletter.ReasonUnknownCRS},
		{"reserved SRID", postgis("Invalid reserved SRID (999998)", "lwgeom_transform.c"), transform.ClassData, deadletter.ReasonUnknownCRS},
		{"no SRID", postgis("ST_Transform: Input geometry has unknown (0) SRID", "lwgeom_transform.c"), transform.ClassData, deadletter.ReasonMissingCRS},
		{"outside of the domain", postgis("transform: Point outside of projection domain (2050)", "lwgeom_pg.c"), transform.ClassData, deadletter.ReasonCoordinateOutOfDomain},
		{"invalid coordinate", postgis("transform: Invalid coordinate (2049)", "lwgeom_pg.c"), transform.ClassData, deadletter.ReasonCoordinateOutOfDomain},
		{"open ring", postgis("geometry contains non-closed rings", "lwgeom_pg.c"), transform.ClassData, deadletter.ReasonBadGeometry},
		{"too few points", postgis("geometry requires more points", "lwgeom_pg.c"), transform.ClassData, deadletter.ReasonDegenerateGeometry},
		{"GEOS", postgis("lwgeom_intersection_prec: GEOS Error: TopologyException", "lwgeom_pg.c"), transform.ClassData, deadletter.ReasonBadGeometry},
		{"internal error that is not of PostGIS", postgis("cache lookup failed for type 0", "typcache.c"), transform.ClassUnknown, deadletter.ReasonUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			class, reason := transform.Classify(tt.err)
			if class != tt.class || reason != tt.reason {
				t.Errorf("Classify(%v) = %s, %q; want %s, %q", tt.err, class, reason, tt.class, tt.reason)
			}
		})
	}
}

// scripted is a Transformer that does what it is told.
type scripted struct {
	transform.Transformer
	do func() (transform.Output, error)
}

func (s scripted) Transform(context.Context, transform.Input) (transform.Output, error) {
	return s.do()
}

func TestRunTellsTheTransformsOwnErrors(t *testing.T) {
	t.Parallel()
	truncated := func() (transform.Output, error) {
		var v any
		return transform.Output{}, json.NewDecoder(strings.NewReader(`{"a":`)).Decode(&v)
	}
	tests := []struct {
		name  string
		do    func() (transform.Output, error)
		class transform.Class
		text  string
	}{
		{"a parser's unexpected EOF is no lost connection", truncated, transform.ClassUnknown, "unexpected EOF"},
		{"a lost connection is one", func() (transform.Output, error) {
			return transform.Output{}, &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}
		}, transform.ClassDownstream, "read: unexpected EOF"},
		{"a fault stays a fault", func() (transform.Output, error) {
			return transform.Output{}, deadletter.Faultf(deadletter.ReasonCoerceFailed, "r", "x")
		}, transform.ClassData, "coerce_failed: x"},
		{"a panic", func() (transform.Output, error) { panic("no such\x00thing") }, transform.ClassUnknown, "the transform panicked: no such\uFFFDthing"},
		{"a panic of the runtime", func() (transform.Output, error) {
			var list []int
			return transform.Output{}, fmt.Errorf("%d", list[len(list)])
		}, transform.ClassUnknown, "the transform panicked: runtime error: index out of range [0] with length 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := transform.Run(t.Context(), scripted{do: tt.do}, transform.Input{})
			if class, _ := transform.Classify(err); class != tt.class || err.Error() != tt.text {
				t.Errorf("%q is %s; want %q, %s", err, class, tt.text, tt.class)
			}
		})
	}
	_, err := transform.Run(t.Context(), scripted{do: func() (transform.Output, error) { panic(strings.Repeat("x", 10_000)) }}, transform.Input{})
	var panicked *transform.PanicError
	if !errors.As(err, &panicked) || len(err.Error()) > deadletter.MaxMessage || !strings.Contains(string(panicked.Stack), "TestRunTellsTheTransformsOwnErrors") {
		t.Errorf("a long panic: %.100v", err)
	}
}
