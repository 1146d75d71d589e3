package replay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/infra/migrations"
	"geodlq/shared/replay"
)

// workerVariable makes this test binary a worker process on the database it names.
const workerVariable = "GEODLQ_TEST_WORKER"

// worker drains the queue once and exits; a feature named kill-… kills it.
func worker() {
	b := openBundle(workerTB{}, os.Getenv(workerVariable), pgx.QueryExecModeCacheStatement)
	b.Settings.Lease = time.Second
	b.Settings.ClaimSize = 200
	b.Settings.BackoffBase = time.Millisecond
	a, err := b.Run(context.Background(), replay.Event{}, script{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if a.StoppedBecause != replay.StopDrained {
		os.Exit(2)
	}
}

// workerTB is as much of a test as openBundle needs.
type workerTB struct{ testing.TB }

func (workerTB) Helper()                  {}
func (workerTB) Context() context.Context { return context.Background() }
func (workerTB) Cleanup(func())           {}
func (workerTB) Fatal(args ...any)        { fmt.Fprintln(os.Stderr, args...); os.Exit(1) }

// kill ends this process as the out-of-memory killer would.
func kill() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func startWorker(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"="+url)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// drained reports whether a worker ended by itself with nothing left to do.
func drained(cmd *exec.Cmd) bool { return cmd.Wait() == nil }

func migrated(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, _, err := migrations.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return url
}

// A row that always kills its process ends in quarantine at its cap, and the rows
// that were claimed with it clear with one attempt.
func TestARowThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	url := localtest.Database(t)
	b := openBundle(t, url, pgx.QueryExecModeCacheStatement)
	b.insert("clean", 40, "a")
	b.insert("kill", 1, "a")
	b.insert("tidy", 40, "a")
	for deaths := 0; ; deaths++ {
		if drained(startWorker(t, url)) {
			if left := b.count(`status = 'pending'`); left == 0 {
				break
			}
		}
		if deaths > 20 {
			t.Fatal("the queue does not drain")
		}
		b.exec(`UPDATE failed_geotasks SET next_attempt_at = now() WHERE lease_token IS NOT NULL`) // rather than wait for the lease
	}
	b.want("quarantined worker_lost 5", `SELECT concat_ws(' ', status, error_type, attempts) FROM failed_geotasks WHERE task_id = 'kill-1'`)
	b.want("80 1", `SELECT concat_ws(' ', count(*), max(attempts)) FROM failed_geotasks WHERE status = 'replayed'`)
	b.want("80", `SELECT count(*) FROM processed_features`)
}

func (b *bundle) count(where string) (n int) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), `SELECT count(*) FROM failed_geotasks WHERE `+where).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// Eight workers drain one queue while some of them are killed at any moment and the
// database is restarted under them.
func TestWorkersAndDatabaseDie(t *testing.T) {
	t.Parallel()
	const workers, clean, data, killers = 8, 50_000, 200, 2
	pg := localtest.Postgres(t)
	url := migrated(t, pg.URL())
	b := openBundle(t, url, pgx.QueryExecModeCacheStatement)
	b.insert("clean", clean, "county")
	b.insert("data", data, "county")
	b.insert("unknown", 20, "town")
	b.insert("kill", killers, "town")

	stop := make(chan struct{})
	var mu sync.Mutex
	running := map[*exec.Cmd]bool{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				cmd := startWorker(t, url)
				mu.Lock()
				running[cmd] = true
				mu.Unlock()
				cmd.Wait()
				mu.Lock()
				delete(running, cmd)
				mu.Unlock()
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	killed, restarts := 0, 0
	left := func() (n int, err error) {
		err = b.pool.QueryRow(context.Background(), `SELECT count(*) FROM failed_geotasks WHERE status = 'pending'`).Scan(&n)
		return n, err
	}
	last := clean
	for {
		n, err := left()
		if err == nil && n == 0 {
			break
		}
		// A worker dies for every thousand rows or so, the database for every 15,000.
		if err == nil && n < last-1000 && killed < 25 {
			last = n
			mu.Lock()
			for cmd := range running {
				if random.IntN(2) == 0 {
					cmd.Process.Kill()
					killed++
					break
				}
			}
			mu.Unlock()
			if (clean-n)/15_000 > restarts {
				restarts++
				if err := pg.Restart(context.Background(), local.StopImmediate); err != nil {
					t.Error(err)
				}
			}
		}
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		<-time.After(20 * time.Millisecond) // the next look
	}
	close(stop)
	wg.Wait()
	t.Logf("%d workers were killed, the database was restarted %d times", killed, restarts)
	if killed < 10 || restarts < 2 {
		t.Errorf("%d kills and %d restarts prove little", killed, restarts)
	}
	b.want(fmt.Sprint(clean), `SELECT count(*) FROM failed_geotasks f JOIN processed_features p USING (dlq_id) WHERE f.status = 'replayed' AND f.task_id LIKE 'clean-%'`)
	b.want(fmt.Sprint(clean), `SELECT count(*) FROM processed_features`)
	b.want("data coerce_failed 200, kill worker_lost 2, unknown unknown 20", `SELECT string_agg(concat_ws(' ', kind, error_type, n), ', ' ORDER BY kind)
		FROM (SELECT split_part(task_id, '-', 1) AS kind, error_type, count(*) AS n FROM failed_geotasks WHERE status = 'quarantined' GROUP BY 1, 2) q`)
	b.want("0", `SELECT count(*) FROM failed_geotasks WHERE status = 'quarantined' AND error_type IN ('worker_lost', 'unknown') AND attempts <> 5`)
	b.want("", `SELECT string_agg(concat_ws(' ', batch_id, status, n), ', ') FROM (
		SELECT batch_id, status, sum(n) AS n FROM (
			SELECT batch_id, to_status AS status, n FROM dlq_ledger WHERE to_status IS NOT NULL
			UNION ALL SELECT batch_id, from_status, -n FROM dlq_ledger WHERE from_status IS NOT NULL
			UNION ALL SELECT batch_id, status, -1 FROM failed_geotasks) l
		GROUP BY batch_id, status HAVING sum(n) <> 0) x`)
}
