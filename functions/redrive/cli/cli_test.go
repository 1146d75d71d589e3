package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local/localtest"
	"geodlq/shared/redrive"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func TestCommandLines(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       string // the request, or part of the error
	}{
		{"groups", "groups", `{"action":"groups","filter":{}}`},
		{"groups of a batch", "groups -batch county-* -by reason -by status -limit 5", `{"action":"groups","by":["reason","status"],"filter":{"batch_id":["county-*"]},"limit":5}`},
		{"every condition", "list -batch a -batch b -status pending -reason r -rule coerce:* -fingerprint 0123456789abcdef -feature f -crs none -bbox=-123,46,-122,47 -since 2026-11-01 -until 2026-12-01 -attempts 2-5 -redrives -1 -contract v1 -not-contract current -id 7 -dlq-id d",
			`{"action":"list","filter":{"attempts":{"max":5,"min":2},"batch_id":["a","b"],"bbox":[-123,46,-122,47],"contract_version":["v1"],"dlq_id":["d"],"failed_rule":["coerce:*"],"feature_id":["f"],"fingerprint":["0123456789abcdef"],"first_seen":{"from":"2026-11-01","to":"2026-12-01"},"id":[7],"not_contract_version":["current"],"reason":["r"],"redrives":{"max":1},"source_crs":["none"],"status":["pending"]}}`},
		{"show by id", "show 7 -json", `{"action":"show","id":7}`},
		{"show by dlq_id", "show 6b0d3f52-9a41-4c7e-8f16-2d95e07bc438", `{"action":"show","dlq_id":"6b0d3f52-9a41-4c7e-8f16-2d95e07bc438"}`},
		{"requeue is dry", "requeue -all -actor ada", `{"action":"requeue","actor":"ada","filter":{"all":true}}`},
		{"requeue", "requeue -reason r -for-real -canary 50 -canary-share 0 -rate 10 -limit 3 -actor ada -why mended",
			`{"action":"requeue","actor":"ada","canary":50,"canary_share":0,"dry_run":false,"filter":{"reason":["r"]},"limit":3,"rate":10,"why":"mended"}`},
		{"fix", "fix -id 7 -actor ada -source-crs EPSG:26910 -set year=1987 -set name=P7 -set note=null -rename A=b -geometry {\"type\":\"Point\",\"coordinates\":[1,2]} -requeue",
			`{"action":"fix","actor":"ada","filter":{"id":[7]},"overrides":{"geometry":{"type":"Point","coordinates":[1,2]},"rename":{"A":"b"},"set":{"name":"P7","note":null,"year":1987},"source_crs":"EPSG:26910"},"requeue":true}`},
		{"fix taken away", "fix -id 7 -actor ada -replace", `{"action":"fix","actor":"ada","filter":{"id":[7]},"overrides":{},"replace":true}`},
		{"discard", "discard -batch a -because old -for-real -actor ada", `{"action":"discard","actor":"ada","dry_run":false,"filter":{"batch_id":["a"]},"reason":"old"}`},
		{"export", "export -format html -title T -actor ada", `{"action":"export","actor":"ada","filter":{},"formats":["html"],"title":"T"}`},
		{"restore", "restore -batch * -from 2026-11-01 -target-lost -for-real -actor ada", `{"action":"restore","actor":"ada","batch_id":["*"],"date":{"from":"2026-11-01","to":""},"dry_run":false,"target_lost":true}`},
		{"pause, the flag behind", "pause 6b0d3f52-9a41-4c7e-8f16-2d95e07bc438 -actor ada", `{"action":"pause","actor":"ada","run":"6b0d3f52-9a41-4c7e-8f16-2d95e07bc438"}`},
		{"continue", "continue", `{"action":"continue"}`},
		{"audit", "audit -actor a* -limit 3", `{"action":"audit","actor":["a*"],"limit":3}`},

		{"no such action", "requeu", `there is no action "requeu"`},
		{"no such flag", "groups -batches a", "flag provided but not defined"},
		{"a word that means nothing", "requeue county-1", `what is "county-1" for`},
		{"an empty condition", "requeue -batch= -actor a", "it is empty"},
		{"no box", "list -bbox 1,2,x", "west,south,east,north"},
		{"no range", "list -attempts many", "want 3, 2-5, 2- or -5"},
		{"no id", "show", "want one id"},
		{"two runs", "pause a b", "want the id of one run"},
		{"two kinds of overrides", "fix -id 1 -overrides {} -set a=1", "give one of the two"},
		{"no pair", "fix -id 1 -set a", "want name=value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(strings.Fields(c.line), io.Discard)
			if !strings.HasPrefix(c.want, "{") {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error with %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// The request as JSON has its members in order.
			text, err := json.Marshal(got.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(text)); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := parse(nil, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("without arguments: %v, want help", err)
	}
}

// stackFile is a stack's settings as make up writes them, with a database of the test's own.
func stackFile(t *testing.T, url string) string {
	t.Helper()
	s := localtest.Settings(t)
	s.DatabaseURL, s.DeadLetterBucket = url, localtest.Bucket(t)
	path := filepath.Join(t.TempDir(), "stack.env")
	if err := s.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	// What run takes over from the file must not reach other tests, nor come from them.
	for _, line := range s.Environ() {
		key, _, _ := strings.Cut(line, "=")
		t.Setenv(key, "")
		os.Unsetenv(key)
	}
	for _, key := range []string{"AWS_SESSION_TOKEN", "AWS_PROFILE", "REDRIVE_FUNCTION"} {
		t.Setenv(key, "")
	}
	return path
}

func quarantine(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `INSERT INTO failed_geotasks (task_id, batch_id, status, error_type, failed_rule, error, geom, epsg, geom_hash, first_seen)
		SELECT 'p' || i, 'county-1', 'quarantined', 'coerce_failed', 'coerce:year->integer', 'built_year is "circa ' || i || '"' || e'\x1b[31m', ST_SetSRID(ST_Point(550000 + i, 4100000), 26910), 26910, 'h' || i, '2026-11-30'
		FROM generate_series(1, $1) i`, n)
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnTheLocalStack(t *testing.T) {
	url := localtest.Database(t)
	pool := localtest.Pool(t, url)
	quarantine(t, pool, 12)
	stack := stackFile(t, url)
	redrive := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := run(t.Context(), append(args, "-stack", stack), &out, io.Discard); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	has := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("there is no %q in\n%s", w, text)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Errorf("a feature speaks to the terminal:\n%q", text)
		}
	}
	has(redrive("groups"), "12    quarantined  county-1", "coerce_failed", "built_year is #", "12 rows in 1 groups")
	has(redrive("list", "-limit", "2"), "p1", "p2", "2026-11-30 00:00:00", "more: -after 2")
	has(redrive("show", "1"), "built_year is \"circa 1\"·[31m", "37.0", "-122.", "Point of 1 positions")
	has(redrive("requeue", "-batch", "county-1", "-actor", "ada"), "requeue (dry run)", "done", "nothing was changed")
	has(redrive("discard", "-id", "12", "-because", "test", "-actor", "ada", "-for-real"), "discard", "done")
	has(redrive("fix", "-id", "1", "-set", "year=1987", "-actor", "ada", "-for-real"), "fix", "done")
	has(redrive("export", "-batch", "county-1", "-actor", "ada"), "geojsonseq", "EPSG:26910", "map.html", "11 rows, 11 of them on the map")
	has(redrive("requeue", "-batch", "county-1", "-canary", "4", "-for-real", "-actor", "ada"), "requeue", "done", "canary: 4 of 4 cleared")
	has(redrive("runs"), "requeue (dry run)", "discard", "fix")
	has(redrive("audit"), "ada", "requeue ended", "export")
	has(redrive("restore", "-batch", "*", "-actor", "ada"), "restore (dry run)", "0 rows in the files")
	var groups struct{ Rows int }
	if err := json.Unmarshal([]byte(redrive("groups", "-status", "discarded", "-json")), &groups); err != nil || groups.Rows != 1 {
		t.Errorf("groups as JSON: %v, %+v", err, groups)
	}
	if err := run(t.Context(), []string{"requeue", "-stack", stack, "-actor", "ada"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "empty filter") {
		t.Errorf("requeue of everything: %v", err)
	}
	if err := run(t.Context(), []string{"groups", "-stack", stack + ".gone"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "make up") {
		t.Errorf("without a stack: %v, want the way to start one", err)
	}
}

// The deployed function is spoken to through Lambda's API, in as many invocations as a
// run or an export takes.
func TestOnADeployedFunction(t *testing.T) {
	url := localtest.Database(t)
	pool := localtest.Pool(t, url)
	quarantine(t, pool, 3000)
	stack := stackFile(t, url)
	backend, err := (&command{stack: stack}).backend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	service := backend.(*local).service
	service.Settings.Margin = time.Minute
	var invoked []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/2015-03-31/functions/geodlq-redrive/invocations" {
			http.NotFound(w, r)
			return
		}
		request, _ := io.ReadAll(r.Body)
		var head struct{ Action string }
		json.Unmarshal(request, &head)
		invoked = append(invoked, head.Action)
		// An invocation that is soon over.
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute+100*time.Millisecond)
		defer cancel()
		answer, err := service.Do(ctx, redrive.Caller{RequestID: fmt.Sprint(len(invoked))}, request)
		if err != nil {
			w.Header().Set("X-Amz-Function-Error", "Unhandled")
			answer = map[string]string{"errorMessage": err.Error(), "errorType": "RequestError"}
		}
		json.NewEncoder(w).Encode(answer)
	}))
	defer api.Close()
	t.Setenv("AWS_ENDPOINT_URL_LAMBDA", api.URL)
	t.Setenv("REDRIVE_FUNCTION", "geodlq-redrive")

	var out bytes.Buffer
	err = run(t.Context(), []string{"requeue", "-batch", "county-1", "-rate", "1000", "-for-real", "-actor", "ada"}, &out, io.Discard)
	if err != nil || !strings.Contains(out.String(), "done") {
		t.Fatalf("requeue: %v\n%s", err, out.String())
	}
	if len(invoked) < 2 || invoked[0] != "requeue" || invoked[1] != "continue" {
		t.Errorf("invocations %v, want a requeue that was gone on with", invoked)
	}
	var redriven int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM failed_geotasks WHERE redrives = 1`).Scan(&redriven); err != nil || redriven != 3000 {
		t.Errorf("%d rows were redriven, %v", redriven, err)
	}
	err = run(t.Context(), []string{"list", "-status", "dead"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "want one of pending") {
		t.Errorf("a request that makes no sense: %v", err)
	}
}
