package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/infra/local/localtest"
	"geodlq/shared/ledger"
)

// steps are what capture, replay, redrive and people do to the queue. $1 is a
// random number below 2^31.
var steps = []string{
	// capture: a file of some rows of one batch, one in ten malformed
	`INSERT INTO failed_geotasks (batch_id, status, error_type, failed_rule, first_seen)
	 SELECT 'batch-' || $1::int % 5, CASE WHEN i % 10 = 0 THEN 'quarantined' ELSE 'pending' END, 'invalid_json', 'decode', now() - make_interval(secs => $1::int % 9999)
	 FROM generate_series(1, 1 + $1::int % 40) i`,
	// a pipeline: one row
	`INSERT INTO failed_geotasks (task_id) VALUES ('t' || $1::int)`,
	// replay: a claim
	`WITH picked AS MATERIALIZED (
	    SELECT id FROM failed_geotasks WHERE status = 'pending' AND lease_token IS NULL ORDER BY next_attempt_at LIMIT 1 + $1::int % 60 FOR UPDATE SKIP LOCKED)
	 UPDATE failed_geotasks f SET attempts = attempts + 1, lease_token = gen_random_uuid() FROM picked p WHERE f.id = p.id`,
	// replay: outcomes of all kinds in one statement
	`WITH picked AS MATERIALIZED (
	    SELECT id FROM failed_geotasks WHERE status = 'pending' AND lease_token IS NOT NULL LIMIT 1 + $1::int % 60 FOR UPDATE SKIP LOCKED)
	 , settled AS (UPDATE failed_geotasks f
	    SET lease_token = NULL, status = (ARRAY['replayed', 'replayed', 'quarantined', 'pending'])[1 + f.id % 4],
	        error_type = (ARRAY['missing_crs', 'coerce_failed', NULL])[1 + ($1::int + f.id) % 3], failed_rule = 'rule-' || f.id % 3
	    FROM picked p WHERE f.id = p.id RETURNING f.*)
	 INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, error_type, failed_rule)
	 SELECT id, batch_id, CASE status WHEN 'pending' THEN 'retried' ELSE status END, attempts, error_type, failed_rule FROM settled WHERE status <> 'replayed'`,
	// replay: leases that ran out
	`UPDATE failed_geotasks SET lease_token = NULL, lost_leases = lost_leases + 1
	 WHERE id IN (SELECT id FROM failed_geotasks WHERE lease_token IS NOT NULL LIMIT 20 FOR UPDATE SKIP LOCKED)`,
	// redrive: requeue with the cause erased, or kept
	`UPDATE failed_geotasks SET status = 'pending', redrives = redrives + 1, error_type = CASE WHEN $1::int % 2 = 0 THEN error_type END
	 WHERE status = 'quarantined' AND batch_id = 'batch-' || $1::int % 5`,
	// redrive: discard
	`UPDATE failed_geotasks SET status = 'discarded' WHERE status = 'quarantined' AND error_type = 'missing_crs' AND id % 7 = $1::int % 7`,
	// a person: other causes, another batch, any status at all, new ids
	`UPDATE failed_geotasks SET failed_rule = 'corrected', error_type = 'unknown' WHERE status = 'quarantined' AND id % 11 = $1::int % 11`,
	`UPDATE failed_geotasks SET batch_id = 'batch-' || ($1::int / 13) % 5 WHERE id % 13 = $1::int % 13`,
	`UPDATE failed_geotasks SET batch_id = 'moved', status = (ARRAY['pending', 'replayed', 'quarantined', 'discarded'])[1 + ($1::int / 29) % 4] WHERE id % 29 = $1::int % 29`,
	`UPDATE failed_geotasks SET id = id + 1000000 WHERE id < 1000000 AND id % 31 = $1::int % 31`,
	// a person: deletes
	`DELETE FROM failed_geotasks WHERE id % 17 = $1::int % 17`,
}

// walker is one connection that takes random steps, some of them in transactions
// that are rolled back.
type walker struct {
	url  string
	conn *pgx.Conn
	pid  atomic.Uint32
	rng  *rand.Rand
}

func (w *walker) step(ctx context.Context) error {
	if w.conn == nil || w.conn.IsClosed() {
		conn, err := pgx.Connect(ctx, w.url)
		if err != nil {
			return err
		}
		// A deadlock is broken after a second; a superuser may say sooner.
		const sooner = `SELECT set_config('deadlock_timeout', '20ms', false) FROM pg_roles WHERE rolname = current_user AND rolsuper`
		if _, err := conn.Exec(ctx, sooner); err != nil {
			return err
		}
		w.conn = conn
		w.pid.Store(conn.PgConn().PID())
	}
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	for range 1 + w.rng.IntN(3) {
		if _, err := tx.Exec(ctx, steps[w.rng.IntN(len(steps))], w.rng.Int32N(1<<30)); err != nil {
			return err
		}
	}
	if w.rng.IntN(10) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// excused reports whether an error is one that a walk brings with it: a connection
// that was killed, a deadlock, an id that is taken.
func excused(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "57P01" || pg.Code == "40P01" || pg.Code == "23505"
	}
	return true // the connection is gone
}

func TestRandomWalk(t *testing.T) {
	t.Parallel()
	const walkers, stepsEach, keepers = 5, 60, 2
	url := localtest.Database(t)
	b := bench{ledger.New(localtest.Pool(t, url), window, ledger.FoldAtOnce(50)), t, localtest.Pool(t, url)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	team := make([]*walker, walkers)
	for i := range team {
		team[i] = &walker{url: url, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
	}
	keeperPIDs := make([]atomic.Uint32, keepers)
	var walking, keeping sync.WaitGroup
	stepped := make(chan struct{}) // a keeper has its turn
	errs := make([]error, walkers+keepers)
	var kills, keeps atomic.Int64
	for i, w := range team {
		walking.Go(func() {
			for range stepsEach {
				if err := w.step(t.Context()); err != nil && !excused(err) {
					errs[i] = fmt.Errorf("walker %d: %w", i, err)
					return
				}
				if w.rng.IntN(3) == 0 {
					stepped <- struct{}{}
				}
				if w.rng.IntN(12) > 0 {
					continue
				}
				// Somebody's connection dies, in the middle of whatever it does.
				victim := team[w.rng.IntN(walkers)].pid.Load()
				if k := w.rng.IntN(walkers + keepers); k >= walkers {
					victim = keeperPIDs[k-walkers].Load()
				}
				if _, err := b.db.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, int32(victim)); err != nil {
					errs[i] = err
					return
				}
				kills.Add(1)
			}
			if w.conn != nil {
				w.conn.Close(context.Background())
			}
		})
	}
	for i := range keepers {
		keeping.Go(func() {
			var conn *pgx.Conn
			for range stepped {
				if conn == nil || conn.IsClosed() {
					var err error
					if conn, err = pgx.Connect(t.Context(), url); err != nil {
						errs[walkers+i] = err
						continue
					}
					keeperPIDs[i].Store(conn.PgConn().PID())
				}
				books := ledger.New(conn, window, ledger.FoldAtOnce(20))
				_, folded := books.Fold(t.Context())
				_, closed := books.Close(t.Context(), time.Time{})
				if err := errors.Join(folded, closed); err != nil && !excused(err) {
					errs[walkers+i] = fmt.Errorf("keeper %d: %w", i, err)
				}
				keeps.Add(1)
			}
			if conn != nil {
				conn.Close(context.Background())
			}
		})
	}
	walking.Wait()
	close(stepped)
	keeping.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	b.reconciled()
	b.close(time.Time{})
	t.Logf("%d kills, %d rounds of the keepers, %d rows, %d windows", kills.Load(), keeps.Load(),
		scan[int](b, `SELECT count(*) FROM failed_geotasks`), scan[int](b, `SELECT count(*) FROM dlq_windows`))
	const arrived = `SELECT (SELECT coalesce(sum(arrived), 0)::bigint FROM dlq_windows) - (SELECT arrived FROM dlq_books)`
	if d := scan[int64](b, arrived); d != 0 {
		t.Errorf("all windows together have %d rows more than the books", d)
	}
	const last = `SELECT active = b.arrived - b.cleared - b.quarantined - b.discarded AND quarantined_now = b.quarantined
		FROM dlq_windows, dlq_books b ORDER BY window_start DESC LIMIT 1`
	if !scan[bool](b, last) {
		t.Error("the last window does not stand as the books do")
	}
}
