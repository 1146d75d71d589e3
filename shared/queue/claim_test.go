package queue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/transform"
)

func batches(lease queue.Lease) map[string]int {
	m := map[string]int{}
	for _, t := range lease.Tasks {
		m[t.BatchID]++
	}
	return m
}

func TestClaimChargesBeforeTheWork(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		b.insert(3, "a")
		lease := b.claim(claim(2))
		if len(lease.Tasks) != 2 || lease.Tasks[0].Attempts != 1 {
			t.Fatalf("claimed %+v, want two rows at their first attempt", lease.Tasks)
		}
		b.want("2", `SELECT count(*) FROM failed_geotasks WHERE attempts = 1 AND lease_token = $1::uuid AND next_attempt_at > now() + interval '50 s'`, lease.Token.String())
		task := lease.Tasks[0]
		if task.EPSG != 26910 || task.GeomSRID != 26910 || task.Payload != nil || len(task.WKB) != 21 || !strings.HasPrefix(task.GeomHash, "a-") || task.FeatureID != "" || !strings.HasPrefix(task.TaskID, "f") {
			t.Errorf("a row inserted by SQL is claimed as %+v", task)
		}
		if rest := b.claim(claim(10)); len(rest.Tasks) != 1 {
			t.Errorf("the second claim got %d rows, want the one left", len(rest.Tasks))
		}
		if none := b.claim(claim(10)); len(none.Tasks) != 0 {
			t.Errorf("the third claim got %d rows, want none", len(none.Tasks))
		}
		b.balanced()
	})
}

func TestClaimTakesWhatIsDue(t *testing.T) {
	for _, c := range []struct {
		name, sql string
		want      int
	}{
		{"pending and due", ``, 1},
		{"in backoff", `UPDATE failed_geotasks SET next_attempt_at = now() + interval '1 s'`, 0},
		{"quarantined", `UPDATE failed_geotasks SET status = 'quarantined'`, 0},
		{"discarded", `UPDATE failed_geotasks SET status = 'discarded'`, 0},
		{"replayed", `UPDATE failed_geotasks SET status = 'replayed'`, 0},
		{"lease not yet over", `UPDATE failed_geotasks SET lease_token = gen_random_uuid(), next_attempt_at = now() + interval '1 s'`, 0},
		{"lease over, not yet rescued", `UPDATE failed_geotasks SET lease_token = gen_random_uuid()`, 0},
		{"a suspect", `UPDATE failed_geotasks SET lost_leases = 1`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			b.insert(1, "a")
			if c.sql != "" {
				b.exec(c.sql)
			}
			if lease := b.claim(claim(10)); len(lease.Tasks) != c.want {
				t.Errorf("claimed %d rows, want %d", len(lease.Tasks), c.want)
			}
		})
	}
}

func TestClaimsNeverShareARow(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		const rows, workers = 2000, 8
		b.insert(rows, "a")
		// Statistics from when the table was empty: the plan may be a bad one, the
		// limit must hold all the same.
		b.exec(`ANALYZE failed_geotasks`)
		b.insert(rows, "b")
		var mu sync.Mutex
		seen := map[int64]bool{}
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for {
					lease, err := b.Claim(context.Background(), claim(37))
					if err != nil {
						t.Error(err)
						return
					}
					if len(lease.Tasks) == 0 {
						return
					}
					if len(lease.Tasks) > 37 {
						t.Errorf("claimed %d rows, the limit was 37", len(lease.Tasks))
					}
					mu.Lock()
					for _, task := range lease.Tasks {
						if seen[task.ID] {
							t.Errorf("row %d was claimed twice", task.ID)
						}
						seen[task.ID] = true
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != 2*rows {
			t.Errorf("%d rows were claimed, want %d", len(seen), 2*rows)
		}
		b.want("1", `SELECT max(attempts) FROM failed_geotasks`)
	})
}

func TestClaimSharesOutOverBatches(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert(5000, "county")
	b.insert(3, "alley")
	b.insert(3, "zoo")
	b.insert(10, "waiting")
	b.exec(`UPDATE failed_geotasks SET next_attempt_at = now() + interval '1 h' WHERE batch_id = 'waiting'`)
	got := batches(b.claim(claim(90)))
	if got["alley"] != 3 || got["zoo"] != 3 || got["county"] != 30 || got["waiting"] != 0 {
		t.Errorf("claimed %v, want the small batches whole and the large one's share", got)
	}
	if got := batches(b.claim(claim(90))); got["county"] != 90 {
		t.Errorf("claimed %v, want a full claim of what is left", got)
	}
}

func TestClaimGoesRoundTheBatches(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, geom, epsg)
		SELECT i, 'batch ' || lpad((i % 200)::text, 3, '0'), ST_Point(1, 1, 4326), 4326 FROM generate_series(1, 4000) i`)
	c := claim(64)
	seen := map[string]bool{}
	for range 4 { // 200 batches, 64 a claim
		lease := b.claim(c)
		for batch := range batches(lease) {
			seen[batch] = true
		}
		c.After = lease.Tasks[len(lease.Tasks)-1].BatchID
	}
	if len(seen) != 200 {
		t.Errorf("four claims reached %d of 200 batches", len(seen))
	}
	if lease := b.claim(c); len(lease.Tasks) == 0 {
		t.Error("past the last batch the claim did not begin again")
	}
}

func TestClaimOfOneBatch(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		b.insert(5, "a")
		b.insert(5, "b")
		c := claim(100)
		c.Batch = "b"
		if got := batches(b.claim(c)); got["b"] != 5 || got["a"] != 0 {
			t.Errorf("claimed %v, want batch b alone", got)
		}
	})
}

func TestClaimIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.exec(`INSERT INTO failed_geotasks (task_id, feature_geojson) SELECT i, repeat('x', 1000) FROM generate_series(1, 10) i`)
	c := claim(10)
	c.Bytes = 2500
	if lease := b.claim(c); len(lease.Tasks) != 3 {
		t.Errorf("claimed %d rows of 1,000 bytes under a bound of 2,500, want 3", len(lease.Tasks))
	}
	c.Bytes = 10
	if lease := b.claim(c); len(lease.Tasks) != 1 {
		t.Errorf("claimed %d rows larger than the bound, want 1", len(lease.Tasks))
	}
	b.want("4", `SELECT count(*) FROM failed_geotasks WHERE lease_token IS NOT NULL`)
}

func TestReleaseIsUncharged(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		b.insert(2, "a")
		lease := b.claim(claim(2))
		if n, err := b.Release(t.Context(), lease.Token, []int64{lease.Tasks[0].ID}); n != 1 || err != nil {
			t.Fatalf("Release = %d, %v", n, err)
		}
		b.want("0", `SELECT attempts FROM failed_geotasks WHERE id = $1 AND lease_token IS NULL AND lost_leases = 0 AND next_attempt_at <= now()`, lease.Tasks[0].ID)
		b.want("1", `SELECT attempts FROM failed_geotasks WHERE id = $1`, lease.Tasks[1].ID)
	})
}

// The ladder of a row that kills its worker, and of a neighbour that does not.
func TestRescueLadder(t *testing.T) {
	for _, maxAttempts := range []int{1, 2, 5} {
		t.Run(fmt.Sprintf("at most %d attempts", maxAttempts), func(t *testing.T) {
			t.Parallel()
			b := newBundle(t, pgx.QueryExecModeCacheStatement)
			p := policy
			p.MaxAttempts = maxAttempts
			b.insert(2, "a")
			b.exec(`UPDATE failed_geotasks SET task_id = CASE task_id WHEN 'f1' THEN 'killer' ELSE 'neighbour' END`)
			lost := func(want int64) (quarantined int64) {
				t.Helper()
				b.exec(`UPDATE failed_geotasks SET next_attempt_at = now() - interval '1 s' WHERE lease_token IS NOT NULL`)
				n, quarantined, err := b.Rescue(t.Context(), p)
				if err != nil || n != want {
					t.Fatalf("Rescue found %d lost leases, %v; want %d", n, err, want)
				}
				return quarantined
			}
			b.claim(claim(10)) // and the worker dies
			if q := lost(2); q != 0 {
				t.Fatalf("%d rows were quarantined for dying in company", q)
			}
			if lease := b.claim(claim(10)); len(lease.Tasks) != 0 {
				t.Fatalf("suspects were claimed with others: %+v", lease.Tasks)
			}
			deaths := 1
			for {
				lease, err := b.ClaimSuspect(t.Context(), claim(10))
				if err != nil {
					t.Fatal(err)
				}
				if len(lease.Tasks) == 0 {
					break
				}
				if len(lease.Tasks) != 1 {
					t.Fatalf("%d suspects were claimed at once", len(lease.Tasks))
				}
				if lease.Tasks[0].TaskID == "neighbour" {
					b.settle(lease, clearAll(lease))
					continue
				}
				deaths++
				lost(1)
				if deaths > maxAttempts+2 {
					t.Fatalf("the killer killed %d workers, the cap is %d", deaths, maxAttempts)
				}
			}
			b.want(fmt.Sprintf("quarantined worker_lost %d %d", maxAttempts, deaths), `SELECT concat_ws(' ', status, error_type, attempts, lost_leases) FROM failed_geotasks WHERE task_id = 'killer'`)
			b.want("replayed 1", `SELECT concat_ws(' ', status, attempts) FROM failed_geotasks WHERE task_id = 'neighbour'`)
			b.want(fmt.Sprint(deaths+1), `SELECT count(*) FROM failed_geotasks_history WHERE event = 'lease_lost'`)
			b.want("1", `SELECT count(*) FROM failed_geotasks_history WHERE event = 'quarantined'`)
			b.balanced()
		})
	}
}

// Plans must not depend on how many rows lie in the table. The generic plan is asked
// for: it is what a long-lived connection ends with.
func TestClaimReadsIndexes(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.exec(`INSERT INTO failed_geotasks (task_id, batch_id, status, next_attempt_at)
		SELECT i, 'batch ' || i % 3, CASE WHEN i % 20 = 0 THEN 'pending' ELSE 'replayed' END, now() + interval '1 h' * (i % 2)
		FROM generate_series(1, 60000) i`)
	b.exec(`ANALYZE failed_geotasks`)
	for name, sql := range queue.Statements {
		t.Run(name, func(t *testing.T) {
			conn, err := b.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			plan := explain(t, conn.Conn(), sql)
			if strings.Contains(plan, "Seq Scan on failed_geotasks") {
				t.Errorf("reads the whole table:\n%s", plan)
			}
		})
	}
}

func explain(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	ctx := t.Context()
	for _, s := range []string{`SET plan_cache_mode = force_generic_plan`, `PREPARE q AS ` + sql} {
		if _, err := conn.Exec(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	defer conn.Exec(context.Background(), `DEALLOCATE q; RESET plan_cache_mode`)
	var n int
	if err := conn.QueryRow(ctx, `SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'q'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(ctx, `EXPLAIN EXECUTE q(`+strings.TrimSuffix(strings.Repeat("NULL,", n), ",")+`)`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestEnqueueIsIdempotent(t *testing.T) {
	inEachMode(t, func(t *testing.T, b *bundle) {
		epsg := "EPSG:26910"
		var records []deadletter.Record
		for i := range 4500 { // more than one statement
			records = append(records, deadletter.Record{
				DLQID: deadletter.RecordID("inbox", "k", "v", int64(i)), FeatureID: fmt.Sprint("f", i), BatchID: "2026-q4",
				Payload: fmt.Appendf(nil, `{"type":"Feature","id":"f%d"}`, i), SourceCRS: &epsg, Attempts: 3,
				FailedRule: "coerce:x->integer", ErrorType: "ValueError", ErrorMessage: "…", FirstSeen: time.Unix(1e9, 0), SourceObject: "s3://inbox/k", SourceRecord: int64(i),
			})
		}
		records[0].Payload = []byte("{\"site\":\"Caf\xe9\"}")
		records[1].Payload = []byte("{\"site\":\"\x00\"}")
		records[2].Quarantined, records[2].ErrorType = true, string(deadletter.ReasonInvalidJSON)
		records[3].FeatureID, records[3].FailedRule = "gate\x00", strings.Repeat("r", 5000)
		for _, want := range []int64{4500, 0} {
			if n, err := b.Enqueue(t.Context(), records); n != want || err != nil {
				t.Fatalf("Enqueue = %d, %v; want %d", n, err, want)
			}
		}
		b.want("4499 1", `SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'quarantined')) FROM failed_geotasks`)
		b.want("2", `SELECT count(*) FROM failed_geotasks WHERE payload_raw IS NOT NULL AND feature_geojson IS NULL`)
		b.want("4500", `SELECT sum(n) FROM dlq_ledger WHERE transition = 'arrived' AND batch_id = '2026-q4'`)
		c := claim(5000)
		c.Batch = "2026-q4"
		for _, task := range b.claim(c).Tasks {
			var i int
			fmt.Sscanf(b.one(`SELECT source_record FROM failed_geotasks WHERE id = $1`, task.ID), "%d", &i)
			if i < 20 && string(task.Payload) != string(records[i].Payload) {
				t.Errorf("record %d came back as %q, was %q", i, task.Payload, records[i].Payload)
			}
		}
		b.balanced()
	})
}

func TestSuspectsOfOneBatchOnly(t *testing.T) {
	t.Parallel()
	b := newBundle(t, pgx.QueryExecModeCacheStatement)
	b.insert(1, "a")
	b.insert(1, "b")
	b.exec(`UPDATE failed_geotasks SET lost_leases = 1`)
	c := claim(1)
	c.Batch = "b"
	lease, err := b.ClaimSuspect(t.Context(), c)
	if err != nil || batches(lease)["b"] != 1 {
		t.Errorf("ClaimSuspect = %+v, %v; want the row of batch b", lease.Tasks, err)
	}
	settled := b.settle(lease, nil, fail(lease.Tasks[0], transform.ClassUnknown, deadletter.ReasonUnknown))
	b.wantResults(settled, map[queue.Result]int{queue.Retried: 1})
	b.want("1", `SELECT lost_leases FROM failed_geotasks WHERE batch_id = 'b'`)
}
