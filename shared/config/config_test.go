package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/config"
)

// cloud is a complete environment as template.yaml gives it.
func cloud(change ...string) map[string]string {
	m := map[string]string{
		"DATABASE_HOST": "db.cluster-x.eu-west-1.rds.amazonaws.com", "DATABASE_USER": "geodlq_replay",
		"AWS_REGION": "eu-west-1", "INBOX_BUCKET": "inbox-1", "DEAD_LETTER_BUCKET": "dead-letters-1",
		"DATABASE_URL": "", "PATH": "/bin",
	}
	for _, c := range change {
		k, v, _ := strings.Cut(c, "=")
		m[k] = v
	}
	return m
}

func TestLoadFillsDefaults(t *testing.T) {
	t.Parallel()
	got, err := config.LoadFrom[config.Replay](cloud())
	if err != nil {
		t.Fatal(err)
	}
	want := config.Replay{
		Runtime: config.Runtime{Stage: "dev", LogLevel: slog.LevelInfo},
		Database: config.Database{
			Host: "db.cluster-x.eu-west-1.rds.amazonaws.com", Port: 5432, Name: "postgres", User: "geodlq_replay",
			Region: "eu-west-1", ExecMode: config.ExecCacheStatement, MaxConns: 3,
			ConnectTimeout: 5 * time.Second, StatementTimeout: 5 * time.Minute, Application: "geodlq-replay",
		},
		Archive:   config.Archive{DeadLetterBucket: "dead-letters-1"},
		Features:  config.Features{MaxFeatureBytes: 32 << 20},
		Attempts:  config.Attempts{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second},
		Deadline:  config.Deadline{DeadlineMargin: 5 * time.Second},
		Workers:   2,
		ClaimSize: 500, Lease: 5 * time.Minute, RowTimeout: 10 * time.Second,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLoadReadsEveryKindOfValue(t *testing.T) {
	t.Parallel()
	capture, err := config.LoadFrom[config.Capture](cloud("MAX_OBJECT_BYTES=512 MiB", "LOG_LEVEL=DEBUG", "DATABASE_PORT=6432", "DATABASE_EXEC_MODE=exec", "DATABASE_MAX_CONNS=7"))
	if err != nil {
		t.Fatal(err)
	}
	if capture.MaxObjectBytes != 512<<20 || capture.LogLevel != slog.LevelDebug || capture.Port != 6432 ||
		capture.ExecMode != config.ExecPlain || capture.MaxConns != 7 {
		t.Errorf("got %+v", capture)
	}
	metrics, err := config.LoadFrom[config.Metrics](cloud("POISON_RATE_THRESHOLD=0.125", "METRICS_WINDOW=10m"))
	if err != nil {
		t.Fatal(err)
	}
	if metrics.PoisonRateThreshold != 0.125 || metrics.Window != 10*time.Minute {
		t.Errorf("got %+v", metrics)
	}
	replay, err := config.LoadFrom[config.Replay](cloud("ALLOW_BALLPARK_CRS=true", "CONTRACT_URI=s3://contracts/parcels.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !replay.AllowBallparkCRS || replay.ContractURI != "s3://contracts/parcels.json" {
		t.Errorf("got %+v", replay)
	}
}

// loaders run Load for the function a test names.
var loaders = map[string]func(map[string]string) error{
	"capture": func(m map[string]string) error { _, err := config.LoadFrom[config.Capture](m); return err },
	"replay":  func(m map[string]string) error { _, err := config.LoadFrom[config.Replay](m); return err },
	"metrics": func(m map[string]string) error { _, err := config.LoadFrom[config.Metrics](m); return err },
	"redrive": func(m map[string]string) error { _, err := config.LoadFrom[config.Redrive](m); return err },
	"migrate": func(m map[string]string) error { _, err := config.LoadFrom[config.Migrate](m); return err },
}

func TestLoadReportsEachProblem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		situation, function string
		environ             map[string]string
		want                string
	}{
		{"a word for a number", "replay", cloud("MAX_ATTEMPTS=many"), `MAX_ATTEMPTS="many" is not a whole number; allowed: 1 to 100`},
		{"a fraction for a number", "replay", cloud("WORKERS=1.5"), `WORKERS="1.5" is not a whole number; allowed: 1 to 32`},
		{"zero", "replay", cloud("CLAIM_SIZE=0"), `CLAIM_SIZE="0" is out of range; allowed: 1 to 5000`},
		{"too many", "replay", cloud("CLAIM_SIZE=5001"), `CLAIM_SIZE="5001" is out of range; allowed: 1 to 5000`},
		{"a duration without a unit", "replay", cloud("LEASE=300"), `LEASE="300" is not a duration such as 30s or 5m; allowed: 1s to 1h`},
		{"no lease to speak of", "replay", cloud("LEASE=10ms"), `LEASE="10ms" is out of range; allowed: 1s to 1h`},
		{"a size in decimal units", "capture", cloud("MAX_FEATURE_BYTES=32MB"), `MAX_FEATURE_BYTES="32MB" is not a size such as 32MiB or 1048576; allowed: 1KiB to 128MiB`},
		{"a size beyond what a row can hold", "capture", cloud("MAX_FEATURE_BYTES=1GiB"), `MAX_FEATURE_BYTES="1GiB" is out of range; allowed: 1KiB to 128MiB`},
		{"a size beyond int64", "capture", cloud("MAX_OBJECT_BYTES=9999999999TiB"), `MAX_OBJECT_BYTES="9999999999TiB" is not a size such as 32MiB or 1048576; allowed: 1MiB to 1TiB`},
		{"yes for true", "replay", cloud("ALLOW_BALLPARK_CRS=yes"), `ALLOW_BALLPARK_CRS="yes" is not true or false; allowed: true, false`},
		{"a percentage", "metrics", cloud("POISON_RATE_THRESHOLD=5"), `POISON_RATE_THRESHOLD="5" is out of range; allowed: 0 to 1`},
		{"not a number", "metrics", cloud("POISON_RATE_THRESHOLD=NaN"), `POISON_RATE_THRESHOLD="NaN" is out of range; allowed: 0 to 1`},
		{"a window across the hour", "metrics", cloud("METRICS_WINDOW=7m"), `METRICS_WINDOW=7m0s does not divide an hour, so windows would straddle it; allowed: 1m, 2m, 3m, 5m, 10m, 15m, 20m, 30m or 1h`},
		{"CloudWatch's own namespace", "metrics", cloud("METRICS_NAMESPACE=AWS/Lambda"), `METRICS_NAMESPACE="AWS/Lambda" begins with AWS/, which CloudWatch keeps for itself; allowed: any other beginning`},
		{"an unknown exec mode", "metrics", cloud("DATABASE_EXEC_MODE=simple"), `DATABASE_EXEC_MODE="simple" is none of its values; allowed: cache_statement, exec`},
		{"a level slog knows and Lambda does not", "metrics", cloud("LOG_LEVEL=INFO+2"), `LOG_LEVEL="INFO+2" is none of its values; allowed: DEBUG, INFO, WARN, ERROR`},
		{"an unknown level", "metrics", cloud("LOG_LEVEL=LOUD"), `LOG_LEVEL="LOUD" is none of its values; allowed: DEBUG, INFO, WARN, ERROR`},
		{"a port beyond 16 bits", "metrics", cloud("DATABASE_PORT=70000"), `DATABASE_PORT="70000" is not a whole number; allowed: 1 to 65535`},
		{"a host with a slash", "metrics", cloud("DATABASE_HOST=db/../etc"), `DATABASE_HOST="db/../etc" does not have the right form; allowed: a host name`},
		{"no inbox", "capture", cloud("INBOX_BUCKET="), `INBOX_BUCKET is not set; allowed: an S3 bucket name`},
		{"a bucket's URL for its name", "capture", cloud("INBOX_BUCKET=s3://inbox"), `INBOX_BUCKET="s3://inbox" does not have the right form; allowed: an S3 bucket name`},
		{"a prefix that leaves no room", "capture", cloud("INBOX_PREFIX=incoming"), `INBOX_PREFIX="incoming" does not have the right form; allowed: a key prefix that ends in /, or empty`},
		{"no database", "redrive", cloud("DATABASE_HOST="), `DATABASE_HOST is not set, and neither is DATABASE_URL; allowed: DATABASE_HOST in the cloud, DATABASE_URL on a developer's machine`},
		{"two databases", "redrive", cloud("DATABASE_URL=postgres://u:hunter2@h/d"), `DATABASE_HOST="db.cluster-x.eu-west-1.rds.amazonaws.com" is set beside DATABASE_URL, so it is not clear which database is meant; allowed: one of the two`},
		{"no role", "redrive", cloud("DATABASE_USER="), `DATABASE_USER is not set; DATABASE_HOST needs it; allowed: the database role of this function`},
		{"no region", "redrive", cloud("AWS_REGION="), `AWS_REGION is not set; the authentication token for DATABASE_HOST is signed for a region; allowed: an AWS region`},
		{"data faults tried more often than the rest", "redrive", cloud("DATA_FAULT_ATTEMPTS=6"), `DATA_FAULT_ATTEMPTS=6 is more than MAX_ATTEMPTS, which is 5; allowed: at most MAX_ATTEMPTS`},
		{"a base above the cap", "redrive", cloud("BACKOFF_BASE=16m"), `BACKOFF_BASE="16m" is out of range; allowed: 0s to 15m`},
		{"neither role nor secret", "migrate", cloud("DATABASE_USER="), `DATABASE_USER is not set, and neither is DATABASE_SECRET_ARN, which would name the user; allowed: one of the two`},
		{"a secret's name for its ARN", "migrate", cloud("DATABASE_SECRET_ARN=prod/db"), `DATABASE_SECRET_ARN="prod/db" does not have the right form; allowed: ARN of a Secrets Manager secret, or empty`},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			err := loaders[tc.function](tc.environ)
			var cerr *config.Error
			if !errors.As(err, &cerr) {
				t.Fatalf("error is %v", err)
			}
			if cerr.Function != tc.function || len(cerr.Problems) != 1 || cerr.Problems[0].String() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func TestLoadReportsAllProblemsTogether(t *testing.T) {
	t.Parallel()
	_, err := config.LoadFrom[config.Capture](cloud(
		"MAX_OBJECT_BYTES=big", "DEAD_LETTER_BUCKET=", "DATABASE_PORT=0", "DATABASE_CONNECT_TIMEOUT=soon", "STAGE=a b"))
	const want = `configuration of capture: 5 of its environment variables cannot be used:
  DATABASE_CONNECT_TIMEOUT="soon" is not a duration such as 30s or 5m; allowed: 100ms to 1m
  MAX_OBJECT_BYTES="big" is not a size such as 32MiB or 1048576; allowed: 1MiB to 1TiB
  STAGE="a b" does not have the right form; allowed: 1 to 32 of A-Z a-z 0-9 _ -
  DATABASE_PORT="0" is out of range; allowed: 1 to 65535
  DEAD_LETTER_BUCKET is not set; allowed: an S3 bucket name`
	if d := cmp.Diff(want, fmt.Sprint(err)); d != "" {
		t.Error(d)
	}
}

func TestAnEmptyEnvironmentDoesNotReadTheProcess(t *testing.T) {
	t.Setenv("DATABASE_HOST", "from-the-process")
	_, err := config.LoadFrom[config.Metrics](nil)
	if err == nil || strings.Contains(err.Error(), "from-the-process") {
		t.Errorf("error is %v", err)
	}
}

func TestLoadReadsTheProcessEnvironment(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://localhost/d")
	t.Setenv("DATABASE_HOST", "")
	t.Setenv("DEAD_LETTER_BUCKET", "archive")
	got, err := config.Load[config.Metrics]()
	if err != nil || got.URL != "postgres://localhost/d" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestASecretIsNeverShown(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	cfg, err := config.LoadFrom[config.Metrics](cloud("DATABASE_HOST=", "DATABASE_URL=postgres://u:"+password+"@h/d"))
	if err != nil {
		t.Fatal(err)
	}
	if string(cfg.URL) != "postgres://u:hunter2@h/d" {
		t.Fatalf("the setting does not hold what was set: %q", string(cfg.URL))
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "config", cfg, "url", cfg.URL)
	doc, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(doc)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		shown = append(shown, fmt.Sprintf(verb, cfg), fmt.Sprintf(verb, cfg.URL))
	}
	for _, s := range shown {
		if strings.Contains(s, password) || strings.Contains(s, fmt.Sprintf("%x", password)) {
			t.Errorf("shown: %s", s)
		}
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want config.Bytes
		back string
	}{
		{"0", 0, "0B"}, {"1", 1, "1B"}, {"1024", 1024, "1KiB"}, {"1025B", 1025, "1025B"}, {"64KiB", 64 << 10, "64KiB"},
		{"32 MiB", 32 << 20, "32MiB"}, {"8GiB", 8 << 30, "8GiB"}, {"8388607TiB", 8388607 << 40, "8388607TiB"},
	} {
		var b config.Bytes
		if err := b.UnmarshalText([]byte(tc.text)); err != nil || b != tc.want || b.String() != tc.back {
			t.Errorf("%q: got %d (%s), %v", tc.text, b, b, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1e3", "1MB", "8388608TiB", "99999999999999999999"} {
		var b config.Bytes
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: read as %d", text, b)
		}
	}
}

// The tags are the only source of the checks, so the tags themselves are checked.
func TestEverySettingIsWhole(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range config.Settings() {
		if seen[s.Name] {
			t.Errorf("%s is listed twice", s.Name)
		}
		seen[s.Name] = true
		if s.Meaning == "" || s.Allowed == "" {
			t.Errorf("%s does not say what it means and what it allows", s.Name)
		}
		for fn, load := range loaders {
			// An explicit default must pass the checks that an empty one skips.
			if s.Default == "" {
				continue
			}
			if err := load(cloud(s.Name + "=" + s.Default)); err != nil {
				t.Errorf("%s: the default of %s is refused: %v", fn, s.Name, err)
			}
		}
	}
	// The parser names a field, not a variable, so names must not repeat.
	for _, cfg := range []any{config.Capture{}, config.Replay{}, config.Metrics{}, config.Redrive{}, config.Migrate{}} {
		names := map[string]string{}
		for _, sf := range reflect.VisibleFields(reflect.TypeOf(cfg)) {
			if key := sf.Tag.Get("env"); key != "" {
				if other, ok := names[sf.Name]; ok {
					t.Errorf("%T: %s and %s are both read into fields named %s", cfg, other, key, sf.Name)
				}
				names[sf.Name] = key
			}
		}
	}
}

func TestTableHasARowPerSetting(t *testing.T) {
	t.Parallel()
	table := config.Table()
	if got, want := strings.Count(table, "\n"), len(config.Settings())+2; got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	for _, row := range []string{
		"| `MAX_ATTEMPTS` | replay, redrive | `5` | 1 to 100 | Replays charged before a feature with an unforeseen failure is quarantined. |\n",
		"| `STAGE` | all | `dev` |",
		"| `INBOX_BUCKET` | capture | required | an S3 bucket name |",
	} {
		if !strings.Contains(table, row) {
			t.Errorf("row missing: %s\n%s", row, table)
		}
	}
}
