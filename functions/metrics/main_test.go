package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"geodlq/infra/local/localtest"
)

// The built bootstrap answers every event in events/ that is its own.
func TestBootstrapAnswersItsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(batches)
	f := localtest.Function(t, "metrics", map[string]string{
		"DATABASE_URL":       b.db.Config().ConnString(),
		"DEAD_LETTER_BUCKET": b.bucket,
		"METRICS_NAMESPACE":  b.recorder.Namespace,
		"STAGE":              "test",
	})
	for _, tc := range []struct {
		event string
		keys  []string // of the answer
	}{
		{"metrics.json", []string{"batches", "folded", "manifests", "published", "systemic", "windows"}},
		{"metrics-scheduled.json", []string{"batches", "folded", "manifests", "published", "systemic", "windows"}},
		{"metrics-check.json", []string{"checked", "differing", "mismatches"}},
	} {
		event, err := os.ReadFile(filepath.Join("../../events", tc.event))
		if err != nil {
			t.Fatal(err)
		}
		response, err := f.Invoke(t.Context(), event)
		if err != nil {
			t.Fatalf("%s: %v", tc.event, err)
		}
		var answer map[string]json.RawMessage
		if err := json.Unmarshal(response, &answer); err != nil {
			t.Fatalf("%s: %s: %v", tc.event, response, err)
		}
		var keys []string
		for k := range answer {
			keys = append(keys, k)
		}
		if slices.Sort(keys); !slices.Equal(keys, tc.keys) {
			t.Errorf("%s: answer %s, want the keys %v", tc.event, response, tc.keys)
		}
	}
	if !slices.ContainsFunc(b.published(), func(line string) bool { return strings.HasSuffix(line, " Arrived 100") }) {
		t.Errorf("published %q, want 100 arrivals among it", b.published())
	}
}
