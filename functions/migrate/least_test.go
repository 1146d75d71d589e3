package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"geodlq/infra/local/localtest"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/redrive"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

// signInURL is the connection string of a new login role that is a member of role
// and of nothing else.
func signInURL(t *testing.T, databaseURL, role string) string {
	t.Helper()
	admin := connect(t, databaseURL)
	name, password := "test_"+strings.ToLower(rand.Text()[:16]), rand.Text()
	exec(t, admin, "CREATE ROLE "+name+" LOGIN PASSWORD '"+password+"' IN ROLE "+role)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), databaseURL)
		if err == nil {
			_, err = conn.Exec(context.Background(), "DROP ROLE "+name)
			conn.Close(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, password)
	return u.String()
}

// The functions as they are deployed, each signed in as its own role, take a failure
// file all the way. A statement that a role is not allowed fails here and not in the
// first deployment.
func TestFunctionsRunWithTheirOwnRoles(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	inbox, archive := localtest.Bucket(t), localtest.Bucket(t)
	heard := &listener{byRole: map[string][]string{}}
	env := func(role string, more ...string) map[string]string {
		m := map[string]string{
			"DATABASE_URL": heard.between(t, signInURL(t, db, role), role), "DATABASE_HOST": "", "INBOX_BUCKET": inbox, "DEAD_LETTER_BUCKET": archive,
			"BACKOFF_BASE": "0s", "METRICS_WINDOW": "1m",
		}
		for _, kv := range more {
			k, v, _ := strings.Cut(kv, "=")
			m[k] = v
		}
		return m
	}
	invoke := func(name string, env map[string]string, event string) map[string]any {
		t.Helper()
		response, err := localtest.Function(t, name, env).Invoke(t.Context(), []byte(event))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var answer map[string]any
		if err := json.Unmarshal(response, &answer); err != nil {
			t.Fatalf("%s: %s: %v", name, response, err)
		}
		return answer
	}

	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "county_parcels.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	const key = "incoming/county.ndjson"
	if _, err := localtest.S3(t).PutObject(t.Context(), &s3.PutObjectInput{Bucket: &inbox, Key: aws.String(key), Body: bytes.NewReader(text)}); err != nil {
		t.Fatal(err)
	}
	event, err := json.Marshal(map[string]string{"bucket": inbox, "key": key})
	if err != nil {
		t.Fatal(err)
	}
	records := float64(bytes.Count(text, []byte("\n")))

	captured := invoke("capture", env("geodlq_capture"), string(event))
	if captured["records"] != records || captured["captured"] != records {
		t.Errorf("capture: %v, want %v records captured", captured, records)
	}
	// The same event again, which asks the queue what it has.
	if again := invoke("capture", env("geodlq_capture"), string(event)); again["captured"] != 0.0 {
		t.Errorf("capture of the same event again: %v", again)
	}
	replayed := invoke("replay", env("geodlq_replay"), "{}")
	if replayed["stopped_because"] != "drained" || replayed["replayed"] == 0.0 || replayed["trouble"] != nil {
		t.Errorf("replay: %v", replayed)
	}
	kept := invoke("metrics", env("geodlq_metrics", "METRICS_NAMESPACE="+rand.Text()), "{}")
	if kept["folded"] == 0.0 || kept["published"] == 0.0 {
		t.Errorf("metrics: %v", kept)
	}
	checked := invoke("metrics", env("geodlq_metrics", "METRICS_NAMESPACE="+rand.Text()), `{"check":true}`)
	if checked["checked"] == 0.0 || checked["differing"] != 0.0 {
		t.Errorf("check of the books: %v", checked)
	}
	redriveAsItsRole(t, env("geodlq_redrive")["DATABASE_URL"], archive)

	var target, arrived int64
	err = connect(t, db).QueryRow(t.Context(), "SELECT (SELECT count(*) FROM processed_features), (SELECT sum(arrived) FROM dlq_batches)").Scan(&target, &arrived)
	if err != nil {
		t.Fatal(err)
	}
	if target == 0 || float64(arrived) != records {
		t.Errorf("%d features in the target, %d arrived in the books; want some, and %v", target, arrived, records)
	}
	if *record != "" {
		heard.write(t, *record)
	}
}

// redriveAsItsRole asks for everything that redrive can do.
func redriveAsItsRole(t *testing.T, databaseURL, bucket string) {
	t.Helper()
	pool := localtest.Pool(t, databaseURL)
	client := localtest.S3(t)
	service := &redrive.Service{
		DB: pool, Queue: queue.New(pool), S3: client, Bucket: bucket, Log: outcome.New(client, bucket),
		Contract: func(ctx context.Context) (transform.Transformer, error) {
			return transform.LoadContract(ctx, "", nil, transform.Options{})
		},
		Settings: replay.Settings{
			Policy:  queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second},
			Workers: 1, ClaimSize: 100, Lease: time.Minute, RowTimeout: 10 * time.Second, Margin: 100 * time.Millisecond,
		},
		Logger: slog.New(slog.DiscardHandler),
		Stop:   context.Background(),
	}
	const who = `"actor":"gis@example","why":"a test of roles"`
	for _, request := range []string{
		`{"action":"groups","filter":{"status":"quarantined"}}`,
		`{"action":"list","filter":{"bbox":[-180,-90,180,90]}}`,
		`{"action":"show","id":1}`,
		`{"action":"requeue","filter":{"status":"quarantined"},` + who + `}`,
		`{"action":"requeue","filter":{"status":"quarantined"},"dry_run":false,"canary":1,"canary_share":0,` + who + `}`,
		`{"action":"fix","filter":{"status":["quarantined","pending"]},"overrides":{"set":{"note":"x"}},"dry_run":false,` + who + `}`,
		`{"action":"discard","filter":{"status":["quarantined","pending"],"reason":"invalid_json"},"reason":"broken","dry_run":false,` + who + `}`,
		`{"action":"restore","batch_id":"*","dry_run":false,` + who + `}`,
		`{"action":"runs"}`,
		`{"action":"continue"}`,
		`{"action":"audit"}`,
	} {
		answer, err := service.Do(t.Context(), redrive.Caller{}, []byte(request))
		var refused *redrive.RequestError
		switch {
		case errors.As(err, &refused):
			t.Errorf("%s: the request is not understood: %v", request, err)
		case err != nil:
			t.Errorf("%s: %v", request, err)
		case answer == nil:
			t.Errorf("%s: no answer", request)
		}
	}
}
