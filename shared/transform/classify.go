package transform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/deadletter"
)

// Class says who is to blame for a failed attempt, and so what it costs.
type Class string

// The fault classes.
const (
	// ClassData is the feature's own fault: charged, and quarantined at once by default, for
	// the same input under the same contract fails the same way.
	ClassData Class = "data"
	// ClassUnknown is anything unforeseen: charged, backed off, quarantined at the cap.
	ClassUnknown Class = "unknown"
	// ClassWorkerLost is a lease that ran out: charged, retried alone, quarantined at the cap.
	ClassWorkerLost Class = "worker_lost"
	// ClassDownstream is trouble of the database, the network, a throttle or the deadline: not
	// charged; the run stops claiming.
	ClassDownstream Class = "downstream"
)

// ErrDownstream marks an error as not the feature's doing. A [Transformer] that calls
// a service of its own wraps it: fmt.Errorf("ask the geocoder: %w: %w", transform.ErrDownstream, err).
var ErrDownstream = errors.New("downstream trouble")

// PanicError is a panic of a [Transformer], as [Run] returns it.
type PanicError struct {
	Value any
	Stack []byte // for the log; not part of the message
}

func (e *PanicError) Error() string {
	return deadletter.Message(fmt.Sprintf("the transform panicked: %v", e.Value))
}

// Unwrap returns the value of the panic where that was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ownError marks what a Transformer returned, so that its "unexpected EOF" is not taken for a
// lost connection: it may come from a parser, and then every replay would meet it again, uncharged.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// Run calls t.Transform and turns a panic into a [*PanicError].
func Run(ctx context.Context, t Transformer, in Input) (out Output, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = Output{}, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	out, err = t.Transform(ctx, in)
	if err != nil {
		if _, fault := deadletter.AsFault(err); !fault {
			err = &ownError{err}
		}
	}
	return out, err
}

// Classify decides what err means for the row that met it, and the reason that
// goes with it. In this order:
//
//   - a [*PanicError] is unknown;
//   - a *deadletter.Fault is data with the fault's reason (its reasons unknown and worker_lost
//     are classes of their own);
//   - [ErrDownstream], an end of context, a failed or lost connection, a timeout, and an
//     HTTP answer of 429 or 5xx (AWS SDK errors carry one) are downstream;
//   - an error of PostgreSQL goes by its SQLSTATE, see [ClassifySQLState];
//   - anything else is unknown.
//
// Downstream has no reason: it costs the row nothing and leaves its error as it was.
func Classify(err error) (Class, deadletter.Reason) {
	var panicked *PanicError
	if errors.As(err, &panicked) {
		return ClassUnknown, deadletter.ReasonUnknown
	}
	if fault, ok := deadletter.AsFault(err); ok {
		switch fault.Reason {
		case deadletter.ReasonUnknown:
			return ClassUnknown, deadletter.ReasonUnknown
		case deadletter.ReasonWorkerLost:
			return ClassWorkerLost, deadletter.ReasonWorkerLost
		}
		return ClassData, fault.Reason
	}
	if errors.Is(err, ErrDownstream) || lostConnection(err) {
		return ClassDownstream, ""
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return ClassifySQLState(pgErr)
	}
	return ClassUnknown, deadletter.ReasonUnknown
}

func lostConnection(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	var connect *pgconn.ConnectError
	var network net.Error
	if errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) || pgconn.Timeout(err) {
		return true
	}
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) {
		code := answer.HTTPStatusCode()
		return code == http.StatusTooManyRequests || code >= 500
	}
	var own *ownError
	if errors.As(err, &own) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)
}

// ClassifySQLState decides what an error that PostgreSQL raised in a statement means for the
// row that met it (SQLSTATE: PostgreSQL 15 manual, appendix A):
//
//   - 08 connection, 53 resources, 57P shutdown, 40 serialization and deadlock, 55 lock and object
//     state, 25 transaction state (a replica after a failover), 28, 3D, 3F, 42 and 58, 0A000: the
//     database is not as it must be, which is downstream;
//   - XX000 out of a PostGIS function, 22, 23, 44, 54, and P0001 (RAISE in a trigger of the
//     target): data. When every row of a batch meets the same 22 or 23, the target's schema is at
//     fault and the caller stops instead;
//   - 57014 (statement timeout) and all others: unknown, so that a feature
//     that always takes too long ends in quarantine.
func ClassifySQLState(e *pgconn.PgError) (Class, deadletter.Reason) {
	switch e.Code {
	case "57014":
		return ClassUnknown, deadletter.ReasonUnknown
	case "22P05", "22021":
		return ClassData, deadletter.ReasonUnstorableText
	case "XX000":
		if !fromPostGIS(e) {
			return ClassUnknown, deadletter.ReasonUnknown
		}
		return ClassData, PostGISReason(e.Message)
	case "XX001", "XX002", "0A000": // damaged data page, damaged index, stale plan
		return ClassDownstream, ""
	case "P0001":
		return ClassData, deadletter.ReasonTargetRejected
	}
	if len(e.Code) != 5 {
		return ClassUnknown, deadletter.ReasonUnknown
	}
	switch e.Code[:2] {
	case "08", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58":
		return ClassDownstream, ""
	case "22", "23", "44", "54":
		return ClassData, deadletter.ReasonTargetRejected
	}
	return ClassUnknown, deadletter.ReasonUnknown
}

// fromPostGIS reports whether an internal error came out of PostGIS: its C code reports every error
// through pg_error in lwgeom_pg.c or ereport in a file of its own, all named lwgeom_*, gserialized_* or geography_*.
func fromPostGIS(e *pgconn.PgError) bool {
	for _, prefix := range []string{"lwgeom", "gserialized", "geography"} {
		if strings.HasPrefix(e.File, prefix) {
			return true
		}
	}
	return false
}

// PostGISReason names the reason in the message of an internal error of PostGIS. The texts are
// those of PostGIS 3.3 and the PROJ 9 behind it.
func PostGISReason(message string) deadletter.Reason {
	for _, m := range []struct {
		text   string
		reason deadletter.Reason
	}{
		{"Cannot find SRID", deadletter.ReasonUnknownCRS},
		{"Invalid reserved SRID", deadletter.ReasonUnknownCRS},
		{"unknown (0) SRID", deadletter.ReasonMissingCRS},
		{"could not form projection", deadletter.ReasonUnsupportedCRS},
		{"could not parse proj string", deadletter.ReasonUnsupportedCRS},
		{"outside of projection domain", deadletter.ReasonCoordinateOutOfDomain},
		{"outside projection domain", deadletter.ReasonCoordinateOutOfDomain},
		{"Invalid coordinate", deadletter.ReasonCoordinateOutOfDomain},
		{"transform:", deadletter.ReasonCoordinateOutOfDomain},
		{"requires more points", deadletter.ReasonDegenerateGeometry},
		{"must have at least", deadletter.ReasonDegenerateGeometry},
	} {
		if strings.Contains(message, m.text) {
			return m.reason
		}
	}
	return deadletter.ReasonBadGeometry
}
