package redrive_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/queue"
	"geodlq/shared/redrive"
)

// archive stores records as capture does: one file, then the rows.
func (b *bundle) archive(records []deadletter.Record) {
	b.t.Helper()
	var file archive.Buffer
	w, err := archive.NewWriter(&file)
	if err != nil {
		b.t.Fatal(err)
	}
	rows := make([]archive.Row, len(records))
	for i := range records {
		rows[i].Record = records[i]
	}
	if err := w.Write(rows); err != nil {
		b.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.t.Fatal(err)
	}
	part := archive.Part{Bucket: "inbox", Key: records[0].DLQID.String(), Version: "v", BatchID: records[0].BatchID, Day: records[0].ArrivedAt}
	if _, err := archive.NewStore(b.s3, b.Bucket).Put(context.Background(), part.ObjectKey(), &file); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.Queue.Enqueue(context.Background(), records); err != nil {
		b.t.Fatal(err)
	}
}

// state is what a restore must bring back of every row.
const state = `SELECT string_agg(concat_ws(' ', dlq_id, batch_id, feature_id, status, attempts, attempts - attempts_forgiven, redrives, error_type, failed_rule, error,
	coalesce(contract_version, '-'), overrides, source_crs, epsg, ST_AsText(geom), md5(feature_geojson), md5(payload_raw), geom_hash, first_seen), e'\n' ORDER BY dlq_id) FROM failed_geotasks`

// lifetime makes a bundle whose rows have been through everything that can happen to them.
func lifetime(t testing.TB) *bundle {
	b := newBundle(t)
	b.archive(b.records(20, "county", "1987"))        // replayed
	b.archive(b.records(20, "county", "n/a"))         // quarantined, requeued, replayed
	b.archive(b.records(5, "county", "circa 1905"))   // quarantined, fixed twice, some replayed
	b.archive(b.records(5, "village/1", "withdrawn")) // quarantined, discarded
	raw := b.records(2, "village/1", "x")
	raw[0].Payload, raw[0].Geometry, raw[0].EPSG, raw[0].GeomHash = []byte("{\"site\":\"Caf\xe9\"}"), nil, 0, ""
	raw[1].Quarantined, raw[1].ErrorType = true, string(deadletter.ReasonInvalidJSON)
	raw[1].Payload, raw[1].Geometry, raw[1].EPSG, raw[1].GeomHash = []byte("{"), nil, 0, ""
	b.archive(raw)
	b.replay()
	b.use(lenientContract)
	do[redrive.Run](b, "requeue", real(nil))
	b.replay()
	do[redrive.Run](b, "discard", real(object{"filter": object{"batch_id": "village/1", "reason": "coerce_failed"}, "reason": "withdrawn"}))
	do[redrive.Run](b, "fix", real(object{"overrides": object{"set": object{"built_year": 1905}}}))
	do[redrive.Run](b, "fix", real(object{"overrides": object{"set": object{"note": "deed"}}}))
	do[redrive.Run](b, "requeue", real(object{"limit": 3}))
	b.replay()
	b.archive(b.records(3, "county", "1990")) // not yet replayed
	b.want("discarded 5, pending 3, quarantined 4, replayed 43", `SELECT string_agg(status || ' ' || n, ', ' ORDER BY status) FROM (SELECT status, count(*) n FROM failed_geotasks GROUP BY 1) s`)
	return b
}

func TestRestoreAfterTheQueueIsLost(t *testing.T) {
	t.Parallel()
	b := lifetime(t)
	before := b.one(state)
	b.exec(`DELETE FROM failed_geotasks`)

	all := object{"batch_id": "*", "actor": "ada"}
	dry := do[redrive.Run](b, "restore", all)
	if dry.State != "done" || dry.Counts.Rows != 55 || dry.Counts.WouldAdd != 55 || dry.Counts.Changed != 0 {
		t.Errorf("dry run: %+v", dry.Counts)
	}
	b.want("0", `SELECT count(*) FROM failed_geotasks`)

	all["dry_run"] = false
	r := do[redrive.Run](b, "restore", all)
	if r.State != "done" || r.Counts.Rows != 55 || r.Counts.Changed != 55 || r.Handled != r.Members {
		t.Errorf("restore: %+v", r)
	}
	if diff := cmp.Diff(before, b.one(state)); diff != "" {
		t.Errorf("rows that were lost and those that came back (-lost +back):\n%s", diff)
	}
	b.want("55", `SELECT count(*) FROM failed_geotasks_history WHERE event = 'restored' AND actor = 'ada'`)
	b.want("0", `SELECT count(*) FROM redrive_outcomes`)
	b.balanced()

	again := do[redrive.Run](b, "restore", all)
	if again.Counts.Changed != 0 || again.Counts.There != 55 {
		t.Errorf("once more: %+v", again.Counts)
	}
	if diff := cmp.Diff(before, b.one(state)); diff != "" {
		t.Errorf("the second restore changed rows:\n%s", diff)
	}
	// The restored queue works on, and lands nothing twice.
	b.replay()
	b.want("46", `SELECT count(*) FROM failed_geotasks WHERE status = 'replayed'`)
	b.want("46", `SELECT count(*) FROM processed_features`)
}

func TestRestoreAfterTheTargetIsLostToo(t *testing.T) {
	t.Parallel()
	b := lifetime(t)
	b.exec(`DELETE FROM failed_geotasks`)
	landed := b.one(`SELECT string_agg(concat_ws(' ', feature_id, geom_hash, properties, ST_AsText(geom)), e'\n' ORDER BY geom_hash) FROM processed_features`)
	b.exec(`DELETE FROM processed_features`)
	r := do[redrive.Run](b, "restore", object{"batch_id": "*", "actor": "ada", "dry_run": false, "target_lost": true})
	if r.Counts.Changed != 55 {
		t.Errorf("restore: %+v", r)
	}
	b.want("46 4 5", `SELECT concat_ws(' ', count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'quarantined'), count(*) FILTER (WHERE status = 'discarded')) FROM failed_geotasks`)
	b.replay()
	got := b.one(`SELECT string_agg(concat_ws(' ', feature_id, geom_hash, properties, ST_AsText(geom)), e'\n' ORDER BY geom_hash) FROM processed_features WHERE geom_hash IN (SELECT unnest(string_to_array($1, ' ')))`, landed)
	if diff := cmp.Diff(landed, got); diff != "" {
		t.Errorf("features that were lost and those that landed again (-lost +again):\n%s", diff)
	}
}

func TestRestorePartOfIt(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	for day := 1; day <= 3; day++ {
		records := b.records(10, "county", "1987")
		for i := range records {
			records[i].ArrivedAt = time.Date(2026, 11, day, 12, 0, 0, 0, time.UTC)
		}
		b.archive(records)
	}
	b.archive(b.records(10, "village/1", "1987"))
	b.archive(b.records(10, "weird *?[ name", "1987"))
	ask := func(more object) redrive.Counts {
		t.Helper()
		b.exec(`DELETE FROM failed_geotasks`)
		request := object{"actor": "ada", "dry_run": false}
		for k, v := range more {
			request[k] = v
		}
		return do[redrive.Run](b, "restore", request).Counts
	}
	for _, c := range []struct {
		name    string
		request object
		want    int64
	}{
		{"a batch", object{"batch_id": "county"}, 30},
		{"a batch with a slash", object{"batch_id": "village/1"}, 10},
		{"a glob over a slash", object{"batch_id": "v*1"}, 10},
		{"a name full of wildcards, escaped", object{"batch_id": `weird \*\?[ *`}, 10},
		{"a batch there is not", object{"batch_id": "moon"}, 0},
		{"one day", object{"batch_id": "county", "date": object{"from": "2026-11-02", "to": "2026-11-02"}}, 10},
		{"from a day on", object{"batch_id": "county", "date": object{"from": "2026-11-02"}}, 20},
		{"until a day", object{"batch_id": "county", "date": object{"to": "2026-11-02"}}, 20},
		{"everything", object{"batch_id": "*"}, 50},
	} {
		if got := ask(c.request); got.Changed != c.want {
			t.Errorf("%s: %d rows came back, want %d", c.name, got.Changed, c.want)
		}
	}
	b.refuse("date", "restore", object{"batch_id": "*", "actor": "ada", "date": object{"from": "yesterday"}})
	// Rows that are there keep what they have become.
	ask(object{"batch_id": "county"})
	b.exec(`DELETE FROM failed_geotasks WHERE id % 2 = 0`)
	b.exec(`UPDATE failed_geotasks SET status = 'discarded'`)
	r := do[redrive.Run](b, "restore", object{"batch_id": "county", "actor": "ada", "dry_run": false})
	if r.Counts.Changed != 15 || r.Counts.There != 15 {
		t.Errorf("half of them: %+v", r.Counts)
	}
	b.want("15", `SELECT count(*) FROM failed_geotasks WHERE status = 'discarded'`)
	b.balanced()
}

func TestRestoreThatBreaksOffAnywhere(t *testing.T) {
	t.Parallel()
	b := lifetime(t)
	before := b.one(state)
	whole := b.Service
	for at := 1; ; at++ {
		b.exec(`DELETE FROM failed_geotasks`)
		b.exec(`DELETE FROM redrive_outcomes`)
		b.exec(`DELETE FROM redrive_chunks`)
		b.exec(`DELETE FROM redrive_runs`)
		cut := &severed{DB: b.db, at: at}
		broken := *whole
		broken.DB, broken.Queue = cut, queue.New(cut)
		b.Service = &broken
		request := object{"batch_id": "*", "actor": "ada", "dry_run": false, "run": "0b2f1a52-9a41-4c7e-8f16-2d95e07bc438"}
		_, err := b.try(context.Background(), "restore", request)
		b.Service = whole
		if finished := cut.calls < at; finished != (err == nil) {
			t.Fatalf("severed at call %d of %d: %v", at, cut.calls, err)
		}
		// Whatever is there by now has its final state already.
		b.want("0", `SELECT count(*) FROM failed_geotasks WHERE status = 'pending' AND feature_id NOT IN ('p52', 'p53', 'p54')`)
		do[redrive.Run](b, "restore", request)
		if diff := cmp.Diff(before, b.one(state)); diff != "" {
			t.Fatalf("severed at call %d (-lost +back):\n%s", at, diff)
		}
		if err == nil {
			return
		}
	}
}

func TestOutcomesOfRedrivesAreLogged(t *testing.T) {
	t.Parallel()
	b := quarantined(t, 3, 0)
	do[redrive.Run](b, "fix", real(object{"overrides": object{"source_crs": "EPSG:32610"}, "filter": object{"id": 1}}))
	do[redrive.Run](b, "requeue", real(object{"filter": object{"id": []int{1, 2}}}))
	do[redrive.Run](b, "discard", real(object{"reason": "withdrawn"}))
	events := map[string]int{}
	err := b.Log.Keys(t.Context(), "county", func(keys []string) error {
		for _, key := range keys {
			rows, err := b.Log.Read(t.Context(), key)
			if err != nil {
				return err
			}
			for _, o := range rows {
				events[fmt.Sprint(o.Event, " ", o.Status, " ", o.Actor, " ", o.Redrives, " ", string(o.Overrides))]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		`quarantined quarantined  0 `:                         3,
		`fixed quarantined ada 0 {"source_crs":"EPSG:32610"}`: 1,
		`requeued pending ada 1 {"source_crs":"EPSG:32610"}`:  1,
		`requeued pending ada 1 `:                             1,
		`discarded discarded ada 0 `:                          1,
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}
