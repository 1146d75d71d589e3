package outcome_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"

	"geodlq/infra/local/localtest"
	"geodlq/shared/deadletter"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
)

func TestMain(m *testing.M) { localtest.Main(m) }

var at = time.Date(2026, 11, 30, 23, 59, 59, 123456789, time.UTC)

func outcomes() []outcome.Outcome {
	return []outcome.Outcome{
		{DLQID: deadletter.UUID{2}, BatchID: "county", FeatureID: "p-2", At: at, Event: "quarantined", Status: "quarantined", Attempts: 1,
			FailedRule: "coerce:x->integer", ErrorType: "coerce_failed", Error: `x is "<&>", no integer`, ContractVersion: "c-1"},
		{DLQID: deadletter.UUID{1}, BatchID: "county", At: at.Add(time.Second), Event: "fixed", Status: "quarantined", Attempts: 1, Forgiven: 1, Redrives: 2,
			Overrides: []byte(`{"set":{"a":0.10}}`), Actor: "ada", Note: "the deed says so"},
		{DLQID: deadletter.UUID{3}, BatchID: "village/1", At: at, Event: "inserted", Status: "replayed", Attempts: 3, ContractVersion: "c-1"},
	}
}

// keys are those of a batch's files.
func keys(t *testing.T, l *outcome.Log, batch string) (all []string) {
	t.Helper()
	err := l.Keys(t.Context(), batch, func(keys []string) error {
		all = append(all, keys...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAppendAndRead(t *testing.T) {
	t.Parallel()
	client, bucket := localtest.S3(t), localtest.Bucket(t)
	l := outcome.New(client, bucket)
	if err := l.Append(t.Context(), "lease 1", outcomes()); err != nil {
		t.Fatal(err)
	}
	county, village := keys(t, l, "county"), keys(t, l, "village/1")
	if len(county) != 2 || len(village) != 1 {
		t.Fatalf("files %v and %v, want one for each batch and day", county, village)
	}
	for _, part := range []string{"outcomes/batch_id=county/date=2026-11-30/", "outcomes/batch_id=county/date=2026-12-01/"} {
		if !slices.ContainsFunc(county, func(k string) bool { return strings.HasPrefix(k, part) && strings.HasSuffix(k, ".ndjson.gz") }) {
			t.Errorf("there is no file in %s: %v", part, county)
		}
	}
	if !strings.HasPrefix(village[0], "outcomes/batch_id=village%2F1/date=2026-11-30/") {
		t.Errorf("a batch with a slash is in %s", village[0])
	}
	var got []outcome.Outcome
	for _, key := range append(county, village...) {
		rows, err := l.Read(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rows...)
	}
	if diff := cmp.Diff(outcomes(), got); diff != "" {
		t.Errorf("outcomes (-written +read):\n%s", diff)
	}

	// What a person or Athena sees: a JSON object a line.
	out, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &county[1]})
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"dlq_id":"01000000-0000-0000-0000-000000000000","batch_id":"county","at":"2026-12-01T00:00:00.123456789Z","event":"fixed","status":"quarantined","attempts":1,"attempts_forgiven":1,"redrives":2,"overrides":{"set":{"a":0.10}},"actor":"ada","note":"the deed says so"}` + "\n"
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("a file of the log (-want +got):\n%s", diff)
	}
}

func TestAppendTwiceIsOnce(t *testing.T) {
	t.Parallel()
	l := outcome.New(localtest.S3(t), localtest.Bucket(t))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rows := outcomes()[:2]
			if i%2 == 1 {
				slices.Reverse(rows) // the order a settlement reports them in is none
			}
			if err := l.Append(t.Context(), "lease 1", rows); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := keys(t, l, "county"); len(got) != 2 {
		t.Errorf("files %v, want two", got)
	}
	// Another lease, or other outcomes of the same one, are files of their own.
	for _, source := range []string{"lease 2", "lease 1"} {
		rows := outcomes()[:1]
		rows[0].Event = "retried"
		if err := l.Append(t.Context(), source, rows); err != nil {
			t.Fatal(err)
		}
	}
	if got := keys(t, l, "county"); len(got) != 4 {
		t.Errorf("files %v, want four", got)
	}
}

func TestAppendSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	l := outcome.New(localtest.S3(t), localtest.Bucket(t)+"-gone")
	if err := l.Append(t.Context(), "lease 1", outcomes()); err == nil || strings.Count(err.Error(), "append") != 3 {
		t.Errorf("got %v, want an error for each of three files", err)
	}
}

func TestReadOfADamagedFile(t *testing.T) {
	t.Parallel()
	client, bucket := localtest.S3(t), localtest.Bucket(t)
	l := outcome.New(client, bucket)
	if err := l.Append(t.Context(), "lease 1", outcomes()[:1]); err != nil {
		t.Fatal(err)
	}
	key := keys(t, l, "county")[0]
	for name, content := range map[string][]byte{"no gzip": []byte("{}"), "cut off": {0x1f, 0x8b, 8, 0, 0, 0, 0, 0}} {
		if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(content)}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Read(t.Context(), key); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
}

func TestOfClaim(t *testing.T) {
	t.Parallel()
	lease := queue.Lease{Tasks: []queue.Task{
		{ID: 1, DLQID: deadletter.UUID{1}, BatchID: "a", FeatureID: "f", Attempts: 2},
		{ID: 2, DLQID: deadletter.UUID{2}, BatchID: "b", Attempts: 1},
		{ID: 3, DLQID: deadletter.UUID{3}, BatchID: "b", Attempts: 1},
	}}
	got := outcome.OfClaim(lease, []queue.Settled{
		{ID: 2, Result: queue.Quarantined, Reason: deadletter.ReasonCoerceFailed, Rule: "coerce:x", Error: "x"},
		{ID: 1, Result: queue.Unchanged},
		{ID: 3, Result: queue.Stale},
	}, "c-1", at)
	want := []outcome.Outcome{
		{DLQID: deadletter.UUID{2}, BatchID: "b", At: at, Event: "quarantined", Status: "quarantined", Attempts: 1, FailedRule: "coerce:x", ErrorType: "coerce_failed", Error: "x", ContractVersion: "c-1"},
		{DLQID: deadletter.UUID{1}, BatchID: "a", FeatureID: "f", At: at, Event: "unchanged", Status: "replayed", Attempts: 2, ContractVersion: "c-1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	for r, want := range map[queue.Result]string{queue.Inserted: "replayed", queue.Updated: "replayed", queue.Retried: "pending", queue.Stale: ""} {
		if got := outcome.Status(r); got != want {
			t.Errorf("status after %s: %q, want %q", r, got, want)
		}
	}
}
