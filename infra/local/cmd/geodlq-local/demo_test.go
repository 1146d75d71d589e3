package main

import (
	"context"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"geodlq/infra/local"
)

func TestDemoTellsTheStoryAndLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	out := p.must(t, "demo")
	for _, want := range []string{
		`capture stored 2200 dead letters`,
		`The same event once more, as S3 may deliver it: 0 more`,
		`replay, run \d+, left 0 to do`,
		`metrics published [1-9]\d* data to CloudWatch`,
		`(?m)^  batch +arrived +cleared +quarantined +poison rate +why$`,
		`(?m)^  parcels-2026-03-02T04 +\d+ +\d+ +\d+ +0\.\d{4} +\d+ coerce_failed, `,
		`(?m)^  all +2200 +\d+ +\d+ +0\.\d{4}`,
		`(?m)^ +\d+  dead-letters/batch_id=parcels-2026-03-02T04/date=[0-9-]+/.+\.parquet$`,
		`(?m)^  SELECT .*;\n  feature_id +error_type +error\n  .+`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the demonstration does not show %s", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
	p.awaitNothingLeft(t)
}

func TestDemoThatIsInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	demo := p.command("demo")
	var out strings.Builder
	demo.Stdout, demo.Stderr = &out, &out
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- demo.Wait() }()
	// In the middle of things: the database is being made, the functions are being built.
	p.awaitPostgres(t)
	if err := demo.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(out.String(), "interrupted") {
		t.Errorf("an interrupted demonstration ends with %v and says:\n%s", err, out.String())
	}
	p.awaitNothingLeft(t)
}

func TestDemoInSomebodysDatabaseLeavesItAsItWas(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inst, err := local.FindPostGIS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server, err := local.StartPostgres(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	demo := p.command("demo")
	demo.Env = append(demo.Env, "DATABASE_URL="+server.URL())
	// Nobody reads to the end.
	stdout, err := demo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	demo.Stderr = &stderr
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	stdout.Close()
	if err := demo.Wait(); err == nil || !strings.HasSuffix(strings.TrimSpace(stderr.String()), "broken pipe") {
		t.Errorf("it ends with %v and says:\n%s", err, stderr.String())
	}
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var left []string
	const query = `SELECT coalesce(array_agg(n.nspname || '.' || coalesce(c.relname, '')), '{}') FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid
		AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') AND c.relkind = 'r'
		WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema'`
	if err := conn.QueryRow(t.Context(), query).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"public."}, left); diff != "" {
		t.Errorf("schemas and tables afterwards (-want +got):\n%s", diff)
	}
	p.awaitNothingLeft(t)
}

func TestBrief(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, response, want string }{
		{"counts", `{"claimed":12,"lost_leases":0}`, "claimed 12, lost leases 0"},
		{"the rest is left out", `{"a":"5","n":1,"f":0.5,"o":{"m":2},"l":[3,{"k":4}],"t":true,"z":null,"e":6}`, "n 1, e 6"},
		{"nothing to count", `{}`, ""},
		{"no object", `null`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := brief([]byte(c.response)); got != c.want {
				t.Errorf("%q; want %q", got, c.want)
			}
		})
	}
}
