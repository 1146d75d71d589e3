package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Window is a closed stretch of time: what happened in it and how things stood
// when it ended. It never changes.
type Window struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`

	// Rows that arrived, were replayed, failed a charged replay, came to
	// quarantine, were discarded, lost their worker; and runs of replay that
	// stopped because the database or something else downstream failed.
	Arrived         int64 `json:"arrived"`
	Cleared         int64 `json:"cleared"`
	ReplayFailed    int64 `json:"replay_failed"`
	Quarantined     int64 `json:"quarantined"`
	Discarded       int64 `json:"discarded"`
	LostLeases      int64 `json:"lost_leases"`
	DownstreamStops int64 `json:"downstream_stops"`

	// ReplayFailed and Quarantined by deadletter.Reason, and Cleared by class of
	// age (see [AgeOf]).
	ReplayFailedByReason map[string]int64 `json:"replay_failed_by_reason,omitempty"`
	QuarantinedByReason  map[string]int64 `json:"quarantined_by_reason,omitempty"`
	ClearedByAge         map[int]int64    `json:"-"`

	// How things stood. Nil is not defined (a rate while nothing arrived) or, for
	// the age in a window that was made up for later, not known.
	ArrivedTotal     int64    `json:"arrived_total"`
	Active           int64    `json:"active"`
	QuarantinedNow   int64    `json:"quarantined_now"`
	PoisonRate       *float64 `json:"poison_rate"` // of all batches together
	WorstBatch       *string  `json:"worst_batch,omitempty"`
	WorstPoisonRate  *float64 `json:"worst_batch_poison_rate,omitempty"`
	OldestPendingAge *float64 `json:"oldest_pending_age_seconds,omitempty"` // since its first_seen
}

// AgeOf returns the age in seconds that stands for a class of ages: classes are
// quarter octaves, floor(4 log2 seconds), and the middle of one is within 9 % of
// all in it. Class 0 is everything under 1.2 s.
func AgeOf(class int) float64 { return math.Exp2((float64(class) + 0.5) / 4) }

// Publishable is how long CloudWatch takes data for a window: two weeks, less the
// time a run needs.
const Publishable = 14*24*time.Hour - 15*time.Minute

// MaxClosed is how many windows one [Books.Close] closes at most, which is a day of
// five minutes each. A longer gap is made up for by several runs.
const MaxClosed = 288

// ErrFuture says that a schedule named a time that is more than one window ahead of
// the database clock.
var ErrFuture = errors.New("scheduled time is ahead of the database clock")

// Closed is what [Books.Close] did.
type Closed struct {
	Windows int
	// Behind is how many windows are still to be closed.
	Behind int
	// Since is set where time before the first of these windows can no longer be
	// published: that window counts what happened since then.
	Since *time.Time
}

// moment is the state of the books and the database clock.
type moment struct {
	closedUntil *time.Time // nil before the first window
	now         time.Time
}

// closeWindow stores a window: what dlq_activity holds since the last one ($3), and
// totals: those of the books at this moment ($4) or, for a window that is made up
// for, these less what happened after its end. The batch with the highest rate is
// likewise the highest of those that nothing happened to later and of those others
// as they were.
const closeWindow = `
	WITH happened AS MATERIALIZED (
	    SELECT * FROM dlq_activity
	    WHERE window_start >= coalesce($3::timestamptz, '-infinity') AND window_start < $2::timestamptz
	), flows AS (
	    SELECT ` + flows + `
	    FROM happened
	), later AS MATERIALIZED (
	    SELECT batch_id, ` + effects + `
	    FROM dlq_activity
	    WHERE window_start >= $2::timestamptz AND NOT $4::boolean
	    GROUP BY batch_id
	), stood AS (
	    SELECT b.arrived - coalesce(l.arrived, 0) AS arrived,
	           b.quarantined - coalesce(l.quarantined, 0) AS quarantined,
	           b.arrived - b.cleared - b.quarantined - b.discarded
	           - coalesce(l.arrived - l.cleared - l.quarantined - l.discarded, 0) AS active
	    FROM dlq_books b
	    CROSS JOIN (SELECT sum(arrived) AS arrived, sum(cleared) AS cleared, sum(quarantined) AS quarantined, sum(discarded) AS discarded FROM later) l
	), worst AS (
	    (SELECT b.batch_id, b.poison_rate
	     FROM dlq_batches b
	     WHERE b.quarantined > 0 AND b.poison_rate IS NOT NULL
	       AND NOT EXISTS (SELECT FROM later l WHERE l.batch_id = b.batch_id)
	     ORDER BY b.poison_rate DESC LIMIT 1)
	    UNION ALL
	    SELECT b.batch_id, round((b.quarantined - l.quarantined)::numeric / (b.arrived - l.arrived), 4)
	    FROM dlq_batches b JOIN later l USING (batch_id)
	    WHERE b.quarantined > l.quarantined AND b.arrived > l.arrived
	    ORDER BY poison_rate DESC, batch_id LIMIT 1
	)
	INSERT INTO dlq_windows (window_start, window_end, counts_from,
	    arrived, cleared, replay_failed, quarantined, discarded, lost_leases,
	    downstream_stops, replay_failed_by_reason, quarantined_by_reason, cleared_by_age,
	    arrived_total, active, quarantined_now, poison_rate, worst_batch, worst_batch_poison_rate,
	    oldest_pending_age_seconds)
	SELECT $1::timestamptz, $2::timestamptz, coalesce($3::timestamptz, '-infinity'),
	    f.arrived, f.cleared, f.replay_failed, f.quarantined, f.discarded, f.lost_leases,
	    (SELECT count(*) FROM replay_runs
	     WHERE window_start >= coalesce($3::timestamptz, '-infinity') AND window_start < $2::timestamptz
	       AND stopped_because = 'downstream'),
	    (SELECT coalesce(jsonb_object_agg(reason, n), '{}') FROM
	        (SELECT reason, sum(n) AS n FROM happened WHERE transition = 'failed' GROUP BY reason) r),
	    (SELECT coalesce(jsonb_object_agg(reason, n), '{}') FROM
	        (SELECT reason, sum(n) AS n FROM happened WHERE to_status = 'quarantined' AND transition <> 'moved' GROUP BY reason) r),
	    (SELECT coalesce(jsonb_object_agg(age_class, n), '{}') FROM
	        (SELECT age_class, sum(n) AS n FROM happened WHERE age_class >= 0 GROUP BY age_class) r),
	    s.arrived, s.active, s.quarantined,
	    CASE WHEN s.arrived > 0 THEN round(s.quarantined::numeric / s.arrived, 4) END, w.batch_id, w.poison_rate,
	    CASE WHEN $4::boolean THEN coalesce((` + oldestPendingAge + `), 0) END
	FROM flows f CROSS JOIN stood s LEFT JOIN worst w ON true`

// oldestPendingAge looks at one entry of the index of waiting rows and at the few
// rows that are under a lease or were lost. GREATEST, for a pipeline's clock may run
// ahead of this one.
const oldestPendingAge = `
	SELECT greatest(0, date_part('epoch', now() - least(
	    (SELECT first_seen FROM failed_geotasks
	     WHERE status = 'pending' AND lease_token IS NULL
	     ORDER BY first_seen LIMIT 1),
	    (SELECT min(first_seen) FROM failed_geotasks
	     WHERE status = 'pending' AND (lease_token IS NOT NULL OR lost_leases > 0)))))`

// Close closes the windows that are over, in their order, and stores their values.
//
// A schedule's time closes the windows that ended by then. It may lie up to one
// window ahead of the database clock, which closes the window under way; what
// happens in the rest of it counts in the next. The zero time stands for this
// moment: the window under way ends now, and the next one begins.
//
// Nobody closed windows before the first call; it begins with the earliest that
// has anything in it, or with the last one.
func (b *Books) Close(ctx context.Context, scheduled time.Time) (closed Closed, err error) {
	until, partial := scheduled, scheduled.IsZero()
	for {
		var done bool
		err := b.locked(ctx, func(tx pgx.Tx, at moment) error {
			switch {
			case until.IsZero():
				until = at.now // once: each transaction has a later one
			case until.After(at.now.Add(b.window)):
				return fmt.Errorf("%w: %s is more than one window of %s after %s; name a time that has come, or none",
					ErrFuture, until.Format(time.RFC3339), b.window, at.now.Format(time.RFC3339))
			}
			next, ok, err := b.next(ctx, tx, at, until, partial)
			if err != nil || !ok {
				done = true
				return err
			}
			if closed.Windows == MaxClosed {
				done, closed.Behind = true, next.behind
				return nil
			}
			if next.since != nil && closed.Windows == 0 {
				closed.Since = next.since
			}
			return b.store(ctx, tx, at, next)
		})
		if err != nil {
			return closed, fmt.Errorf("close window %d: %w", closed.Windows+1, err)
		}
		if done {
			return closed, nil
		}
		closed.Windows++
	}
}

func (b *Books) store(ctx context.Context, tx pgx.Tx, at moment, w opening) error {
	// A window that ended long ago is made up for; one that has just ended stands
	// for this moment.
	current := w.behind == 1 && at.now.Sub(w.end) < b.window
	if _, err := tx.Exec(ctx, closeWindow, w.start, w.end, at.closedUntil, current); err != nil {
		return fmt.Errorf("store the window from %s: %w", w.start.Format(time.RFC3339), err)
	}
	if _, err := tx.Exec(ctx, `UPDATE dlq_books SET closed_until = $1`, w.end); err != nil {
		return fmt.Errorf("store the window from %s: %w", w.start.Format(time.RFC3339), err)
	}
	return nil
}

// opening is the next window to close.
type opening struct {
	start, end time.Time
	since      *time.Time // set where start is later than the books were closed until
	behind     int        // windows to close, this one included
}

// next finds the window to close next, if there is one that ended until then or,
// where it may be partial, began before.
func (b *Books) next(ctx context.Context, tx pgx.Tx, at moment, until time.Time, partial bool) (w opening, ok bool, err error) {
	last := until.Truncate(b.window)
	if at.closedUntil != nil {
		w.start = *at.closedUntil
	} else {
		var first *time.Time
		if err := tx.QueryRow(ctx, `SELECT min(window_start) FROM dlq_activity`).Scan(&first); err != nil {
			return w, false, fmt.Errorf("find the first window: %w", err)
		}
		w.start = last
		if !partial {
			w.start = last.Add(-b.window)
		}
		if first != nil && first.Before(w.start) {
			w.start = *first
		}
	}
	if horizon := at.now.Add(-Publishable).Truncate(b.window).Add(b.window); w.start.Before(horizon) {
		since := w.start
		w.since, w.start = &since, horizon
	}
	w.end = w.start.Truncate(b.window).Add(b.window)
	switch {
	case !w.end.After(last):
		w.behind = int(last.Sub(w.end)/b.window) + 1
		if partial && until.After(last) {
			w.behind++
		}
	case partial && until.After(w.start):
		w.end, w.behind = until, 1
	default:
		return w, false, nil
	}
	return w, true, nil
}

const windowColumns = `window_start, window_end, arrived, cleared, replay_failed, quarantined, discarded, lost_leases, downstream_stops,
	replay_failed_by_reason, quarantined_by_reason, cleared_by_age, arrived_total, active, quarantined_now,
	poison_rate::float8, worst_batch, worst_batch_poison_rate::float8, oldest_pending_age_seconds`

func scanWindow(row pgx.CollectableRow) (w Window, err error) {
	err = row.Scan(&w.Start, &w.End, &w.Arrived, &w.Cleared, &w.ReplayFailed, &w.Quarantined, &w.Discarded, &w.LostLeases, &w.DownstreamStops,
		&w.ReplayFailedByReason, &w.QuarantinedByReason, &w.ClearedByAge, &w.ArrivedTotal, &w.Active, &w.QuarantinedNow,
		&w.PoisonRate, &w.WorstBatch, &w.WorstPoisonRate, &w.OldestPendingAge)
	w.Start, w.End = w.Start.UTC(), w.End.UTC()
	return w, err
}

// expireWindows gives up windows that CloudWatch would no longer take.
const expireWindows = `
	UPDATE dlq_windows SET expired_at = now()
	WHERE published_at IS NULL AND expired_at IS NULL AND window_start < now() - $1::interval`

// Unpublished returns the closed windows that are still to be published, oldest
// first, and how many it had to give up because they are too old by now.
func (b *Books) Unpublished(ctx context.Context) (windows []Window, expired int64, err error) {
	tag, err := b.db.Exec(ctx, expireWindows, Publishable)
	if err != nil {
		return nil, 0, fmt.Errorf("give up windows too old to publish: %w", err)
	}
	windows, err = b.windows(ctx, `WHERE published_at IS NULL AND expired_at IS NULL`)
	return windows, tag.RowsAffected(), err
}

// Unmanifested returns the closed windows whose lineage is still to be written,
// oldest first.
func (b *Books) Unmanifested(ctx context.Context) ([]Window, error) {
	return b.windows(ctx, `WHERE manifested_at IS NULL`)
}

func (b *Books) windows(ctx context.Context, where string) ([]Window, error) {
	rows, err := b.db.Query(ctx, `SELECT `+windowColumns+` FROM dlq_windows `+where+` ORDER BY window_start LIMIT $1`, 2*MaxClosed)
	if err != nil {
		return nil, fmt.Errorf("read closed windows: %w", err)
	}
	windows, err := pgx.CollectRows(rows, scanWindow)
	if err != nil {
		return nil, fmt.Errorf("read closed windows: %w", err)
	}
	return windows, nil
}

// MarkPublished notes that windows are published.
func (b *Books) MarkPublished(ctx context.Context, windows []Window) error {
	return b.mark(ctx, `UPDATE dlq_windows SET published_at = now() WHERE window_start = ANY ($1) AND published_at IS NULL`, windows)
}

// MarkManifested notes that the lineage of windows is written.
func (b *Books) MarkManifested(ctx context.Context, windows []Window) error {
	return b.mark(ctx, `UPDATE dlq_windows SET manifested_at = now() WHERE window_start = ANY ($1) AND manifested_at IS NULL`, windows)
}

func (b *Books) mark(ctx context.Context, sql string, windows []Window) error {
	starts := make([]time.Time, len(windows))
	for i := range windows {
		starts[i] = windows[i].Start
	}
	if _, err := b.db.Exec(ctx, sql, starts); err != nil {
		return fmt.Errorf("mark %d windows as done: %w", len(windows), err)
	}
	return nil
}

// pruneActivity forgets activity that nothing will ask for again.
const pruneActivity = `
	DELETE FROM dlq_activity
	WHERE window_start < least(now() - interval '15 days',
	                           (SELECT min(counts_from) FROM dlq_windows WHERE manifested_at IS NULL),
	                           (SELECT coalesce(closed_until, '-infinity') FROM dlq_books))`

// Prune deletes activity of windows that were closed, written as lineage, and are
// older than 15 days. Totals and windows stay.
func (b *Books) Prune(ctx context.Context) error {
	if _, err := b.db.Exec(ctx, pruneActivity); err != nil {
		return fmt.Errorf("prune dlq_activity: %w", err)
	}
	return nil
}
