// Package ledger keeps the books of the dead-letter queue. Triggers append to
// dlq_ledger what happens to how many rows, whoever does it; this package folds
// that into totals per batch and into windows of time, closes windows, and holds
// what metrics and lineage say of them. Its cost depends on what happened since
// the last time, not on how many rows the queue holds.
package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/deadletter"
)

// DB is what the books need of a database; *pgxpool.Pool has it.
type DB interface {
	Begin(context.Context) (pgx.Tx, error)
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

// Books are the books of one queue. Any number of processes may keep the same
// books at once: what changes them does so under the lock of the row in dlq_books.
type Books struct {
	db     DB
	window time.Duration
	chunk  int
}

// New returns the books in db with windows of the given length, which must divide
// an hour so that windows begin at the full hour and lie alike in every process.
func New(db DB, window time.Duration, options ...Option) *Books {
	b := &Books{db: db, window: window, chunk: defaultChunk}
	for _, set := range options {
		set(b)
	}
	return b
}

// Option changes how books are kept.
type Option func(*Books)

// FoldAtOnce bounds how many ledger entries one transaction folds; 200,000 unless
// it is set.
func FoldAtOnce(entries int) Option { return func(b *Books) { b.chunk = entries } }

// defaultChunk keeps a fold's transaction to about a second, so that a backlog is
// worked off in steps that stay done when the process is killed.
const defaultChunk = 200_000

// effects sums up what ledger entries do to the totals of a batch. from_status and
// to_status are ” for none. What is deleted stays arrived: what was still to be
// decided is discarded by it, what was replayed or discarded stays so.
const effects = `
	sum(n * CASE transition WHEN 'arrived' THEN 1 WHEN 'moved' THEN CASE to_status WHEN '' THEN -1 ELSE 1 END ELSE 0 END)::bigint AS arrived,
	sum(n * ((to_status = 'replayed')::int - (from_status = 'replayed' AND transition <> 'deleted')::int))::bigint AS cleared,
	sum(n * ((to_status = 'quarantined')::int - (from_status = 'quarantined')::int))::bigint AS quarantined,
	sum(n * ((to_status = 'discarded')::int - (from_status = 'discarded' AND transition <> 'deleted')::int
	         + (transition = 'deleted' AND from_status IN ('pending', 'quarantined'))::int))::bigint AS discarded,
	sum(n * (transition = 'deleted' AND from_status = 'replayed')::int)::bigint AS cleared_deleted,
	sum(n * (transition = 'deleted' AND from_status <> 'replayed')::int)::bigint AS discarded_deleted`

// flows sums up what happened, in rows. What only moved between batches or causes
// did not happen.
const flows = `
	coalesce(sum(n) FILTER (WHERE transition = 'arrived'), 0)::bigint AS arrived,
	coalesce(sum(n) FILTER (WHERE to_status = 'replayed' AND transition <> 'moved'), 0)::bigint AS cleared,
	coalesce(sum(n) FILTER (WHERE transition = 'failed'), 0)::bigint AS replay_failed,
	coalesce(sum(n) FILTER (WHERE to_status = 'quarantined' AND transition <> 'moved'), 0)::bigint AS quarantined,
	coalesce(sum(n) FILTER (WHERE to_status = 'discarded' AND transition <> 'moved'
	                           OR from_status IN ('pending', 'quarantined') AND transition = 'deleted'), 0)::bigint AS discarded,
	coalesce(sum(n) FILTER (WHERE transition = 'lease_lost'), 0)::bigint AS lost_leases`

// reasonNames are the closed list as the database takes it.
func reasonNames() []string {
	var names []string
	for _, r := range deadletter.Reasons() {
		names = append(names, string(r))
	}
	return names
}
