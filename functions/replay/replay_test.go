package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// The built function, as Lambda runs it, answers every event of its own.
func TestEvents(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../events/replay*.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("found %d events of replay, %v; want 3", len(files), err)
	}
	url := localtest.Database(t)
	pool := localtest.Pool(t, url)
	_, err = pool.Exec(t.Context(), `INSERT INTO failed_geotasks (task_id, batch_id, geom, epsg)
		SELECT i, CASE i % 2 WHEN 0 THEN 'direct' ELSE 'parcels-2026-03-02T04' END, ST_Point(551234.5 + i, 5190000.25, 26910), 26910 FROM generate_series(1, 10) i`)
	if err != nil {
		t.Fatal(err)
	}
	f := localtest.Function(t, "replay", map[string]string{"DATABASE_URL": url, "DEAD_LETTER_BUCKET": localtest.Bucket(t)})
	var replayed int64
	for _, name := range files {
		event, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		response, err := f.Invoke(t.Context(), event)
		if err != nil {
			t.Fatalf("%s: %v", filepath.Base(name), err)
		}
		var a replay.Answer
		if err := json.Unmarshal(response, &a); err != nil {
			t.Fatalf("%s: %s: %v", filepath.Base(name), response, err)
		}
		if a.StoppedBecause != replay.StopDrained || a.ContractVersion == "" {
			t.Errorf("%s: answered %s", filepath.Base(name), response)
		}
		replayed += a.Replayed
	}
	if replayed != 10 {
		t.Errorf("the events replayed %d rows, want 10", replayed)
	}
}

// A broken contract stops the run before a row is claimed, and names every problem; a
// corrected one is in effect with the next invocation.
func TestTheContractIsReadEachTime(t *testing.T) {
	t.Parallel()
	url := localtest.Database(t)
	pool := localtest.Pool(t, url)
	for id, year := range map[string]string{"a": `"1987"`, "b": `"MCMLX"`, "c": `1990`} {
		_, err := pool.Exec(t.Context(), `INSERT INTO failed_geotasks (feature_id, source_crs, feature_geojson)
			VALUES ($1, 'EPSG:4326', '{"type":"Feature","properties":{"built_year":' || $2 || '},"geometry":{"type":"Point","coordinates":[8,47]}}')`, id, year)
		if err != nil {
			t.Fatal(err)
		}
	}
	contract := filepath.Join(t.TempDir(), "contract.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(contract, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := localtest.Function(t, "replay", map[string]string{"DATABASE_URL": url, "DEAD_LETTER_BUCKET": localtest.Bucket(t), "CONTRACT_URI": contract})
	state := func() (s string) {
		t.Helper()
		err := pool.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', feature_id, status, attempts, failed_rule), ', ' ORDER BY feature_id) FROM failed_geotasks`).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	write(`{"fields": [{"name": "built_year", "type": "yaer"}, {"name": ""}]}`)
	var failed *local.FunctionError
	if _, err := f.Invoke(t.Context(), []byte(`{}`)); !errors.As(err, &failed) || !strings.Contains(err.Error(), "/fields/0/type") || !strings.Contains(err.Error(), "/fields/1:") {
		t.Errorf("a broken contract: got %v, want a function error that points to both problems", err)
	}
	if got, want := state(), "a pending 0, b pending 0, c pending 0"; got != want {
		t.Errorf("after a broken contract: %s, want %s", got, want)
	}

	write(`{"version": "v1", "fields": [{"name": "built_year", "type": "integer"}]}`)
	if _, err := f.Invoke(t.Context(), []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if got, want := state(), "a replayed 1, b quarantined 1 coerce:built_year->integer, c replayed 1"; got != want {
		t.Errorf("under the first contract: %s, want %s", got, want)
	}

	write(`{"version": "v2", "fields": [{"name": "built_year", "type": "integer"}], "missingValues": ["", "MCMLX"]}`)
	if _, err := pool.Exec(t.Context(), `UPDATE failed_geotasks SET status = 'pending', next_attempt_at = now() WHERE status = 'quarantined'`); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Invoke(t.Context(), []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if got, want := state(), "a replayed 1, b replayed 2 coerce:built_year->integer, c replayed 1"; got != want {
		t.Errorf("under the corrected contract: %s, want %s", got, want)
	}
	var versions string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(contract_version, ' ' ORDER BY feature_id) FROM processed_features`).Scan(&versions); err != nil {
		t.Fatal(err)
	}
	if versions != "v1 v2 v1" {
		t.Errorf("the features were made by contracts %s, want v1 v2 v1", versions)
	}
}

type brokenLog struct{}

func (brokenLog) Append(context.Context, string, []outcome.Outcome) error {
	return errors.New("the bucket is gone")
}

func TestAMissingOutcomeIsSaid(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	hook := settled(brokenLog{}, slog.New(slog.NewJSONHandler(&said, nil)))
	hook(t.Context(), queue.Lease{Tasks: []queue.Task{{ID: 1}}}, []queue.Settled{{ID: 1, Result: queue.Inserted}}, "v1")
	if !strings.Contains(said.String(), "outcomes are missing in the log") || !strings.Contains(said.String(), "the bucket is gone") {
		t.Errorf("the log says %q", said.String())
	}
}
