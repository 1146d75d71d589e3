// Package queue holds every transition of a dead letter's row, each as one SQL
// statement: enqueue, claim, settle, release, rescue. A row is claimed in a
// committed statement that charges the attempt and sets a lease; the work happens
// outside any transaction; the settling commits the target row and the queue row
// together, fenced by the lease. All times are the database's.
//
// The package keeps no session state (no LISTEN, no session locks, no temporary
// tables, no SET), so it runs behind RDS Proxy and PgBouncer; there the pool must
// use pgx's exec mode.
package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what the queue needs of a connection pool; *pgxpool.Pool is one.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Queue is the active queue in PostGIS. It is safe for concurrent use.
type Queue struct{ db DB }

// New returns the queue in the schema that db's search_path names.
func New(db DB) *Queue { return &Queue{db: db} }

// Policy bounds what a row may cost before a person must look at it.
type Policy struct {
	// MaxAttempts quarantines a row at that many charged replays.
	MaxAttempts int
	// DataFaultAttempts does the same for data faults, which fail the same way
	// until contract or data change.
	DataFaultAttempts int
	// BackoffBase is multiplied by the attempts to give the wait before the next
	// one; up to 20 % jitter is added and [MaxBackoff] caps it.
	BackoffBase time.Duration
}

// MaxBackoff is the longest wait between two attempts.
const MaxBackoff = 15 * time.Minute

// ErrStale is returned where a lease no longer holds: it ran out and the row went
// to another worker, or a person changed the row.
var ErrStale = errors.New("the lease is no longer held")

// SchemaFault says that the target table does not fit what replay writes, which no
// row is to blame for. The run must stop before it charges more of them.
type SchemaFault struct{ Err error }

func (e *SchemaFault) Error() string {
	return fmt.Sprintf("the target table processed_features does not take what the contract makes; align its columns with the contract's target, or run migrate: %v", e.Err)
}

func (e *SchemaFault) Unwrap() error { return e.Err }

// fence is the condition under which a worker may end its claim ($1 is the token).
// It is written so that the planner does not see that it implies the predicate of the
// index failed_geotasks_held: going by statistics from when nothing was leased, it
// would read that index for each row of a batch instead of the row's primary key.
const fence = `f.lease_token IS NOT DISTINCT FROM $1::uuid AND f.status = 'pending'`
