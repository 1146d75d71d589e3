package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/google/go-cmp/cmp"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/shared/redrive"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func TestCaller(t *testing.T) {
	for _, c := range []struct {
		name string
		ctx  context.Context
		want redrive.Caller
	}{
		{"no invocation", context.Background(), redrive.Caller{}},
		{"an IAM caller", lambdacontext.NewContext(context.Background(), &lambdacontext.LambdaContext{AwsRequestID: "r1"}), redrive.Caller{RequestID: "r1"}},
		{"a Cognito identity", lambdacontext.NewContext(context.Background(), &lambdacontext.LambdaContext{
			AwsRequestID: "r1", Identity: lambdacontext.CognitoIdentity{CognitoIdentityID: "eu-west-1:7"},
		}), redrive.Caller{RequestID: "r1", Identity: "cognito:eu-west-1:7"}},
		{"a name in the client context", lambdacontext.NewContext(context.Background(), &lambdacontext.LambdaContext{
			AwsRequestID: "r1", ClientContext: lambdacontext.ClientContext{Custom: map[string]string{"actor": "ada"}},
		}), redrive.Caller{RequestID: "r1", Claimed: "ada"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, caller(c.ctx)); diff != "" {
				t.Errorf("caller (-want +got):\n%s", diff)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Do(context.Context, redrive.Caller, []byte) (any, error) { return nil, f.err }

func TestErrorsKeepTheirKind(t *testing.T) {
	trouble := errors.New("no route to host")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"a request that makes no sense", fmt.Errorf("list: %w", &redrive.RequestError{Err: trouble}), "*main.RequestError"},
		{"trouble", trouble, "*errors.errorString"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Handler{Service: failing{c.err}, Log: slog.New(slog.DiscardHandler)}
			_, err := h.Handle(context.Background(), nil)
			if got := fmt.Sprintf("%T", err); got != c.want || !errors.Is(err, trouble) {
				t.Errorf("%s: %v, want %s", got, err, c.want)
			}
		})
	}
}

// The function as it is deployed, with the rights of its own role and no more, takes
// every event of the events folder, directly and through a pooler that keeps no session.
func TestFunctionTakesTheEvents(t *testing.T) {
	for _, mode := range []string{"cache_statement", "exec"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			takesTheEvents(t, mode)
		})
	}
}

func takesTheEvents(t *testing.T, mode string) {
	url := localtest.Database(t)
	pool := localtest.Pool(t, url)
	if _, err := pool.Exec(t.Context(), `INSERT INTO failed_geotasks (task_id, batch_id, status, error_type, geom, epsg, feature_geojson, source_crs)
		SELECT 'p' || i, 'county-1', 'quarantined', 'coerce_failed', ST_SetSRID(ST_Point(550000 + i, 4100000), 26910), 26910,
		       format('{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[%s,4100000]}}', 550000 + i), 'EPSG:26910'
		FROM generate_series(1, 20) i`); err != nil {
		t.Fatal(err)
	}
	f := localtest.Function(t, "redrive", map[string]string{
		"DATABASE_URL": url + "&role=geodlq_redrive", "DATABASE_EXEC_MODE": mode, "DEAD_LETTER_BUCKET": localtest.Bucket(t),
	})
	files, err := filepath.Glob("../../events/redrive-*.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("events: %v, %v", files, err)
	}
	for _, file := range files {
		event, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := f.Invoke(t.Context(), event)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if !json.Valid(answer) {
			t.Errorf("%s: answer %s", file, answer)
		}
	}
	var replayed, requests int
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM failed_geotasks WHERE status = 'replayed' OR status = 'pending' AND redrives = 1), (SELECT count(DISTINCT request_id) FROM redrive_audit)`).Scan(&replayed, &requests); err != nil {
		t.Fatal(err)
	}
	if replayed != 20 || requests < 5 {
		t.Errorf("%d rows were redriven, %d invocations are in the audit table; want 20, and one for each act", replayed, requests)
	}

	_, err = f.Invoke(t.Context(), []byte(`{"action": "requeue", "filter": {"batchid": "x"}, "actor": "ada"}`))
	var refused *local.FunctionError
	if !errors.As(err, &refused) || refused.Type != "RequestError" || !strings.Contains(refused.Message, "batchid") {
		t.Errorf("a misspelt filter: %v, want a RequestError that names it", err)
	}
}
