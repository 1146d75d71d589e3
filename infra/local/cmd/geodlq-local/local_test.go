package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"geodlq/infra/local"
)

// program is this command, built once for all tests.
var program struct {
	once    sync.Once
	scratch *local.Scratch
	path    string
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if program.scratch != nil {
		if err := program.scratch.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// place is where a test has a stack of its own: its files, and all temporary files.
type place struct {
	dir stackDir
	tmp string
	env []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	program.once.Do(func() {
		if program.scratch, program.err = local.NewScratch(context.Background()); program.err != nil {
			return
		}
		program.path = filepath.Join(program.scratch.Dir(), "geodlq-local")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", program.path, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	// Not t.TempDir: PostgreSQL may run as another user, who must get there.
	tmp, err := os.MkdirTemp("/tmp", "place-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tmp, 0o1777); err != nil {
		t.Fatal(err)
	}
	p := &place{dir: stackDir(filepath.Join(t.TempDir(), ".local")), tmp: tmp}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "DATABASE_") && !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(kv, "TMPDIR=") {
			p.env = append(p.env, kv)
		}
	}
	p.env = append(p.env, directoryVariable+"="+string(p.dir), "TMPDIR="+tmp)
	t.Cleanup(func() {
		if out, err := p.command("down").CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
		if err := os.RemoveAll(tmp); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.Command(program.path, args...)
	cmd.Env = p.env
	return cmd
}

// run runs the program and returns what it writes to its two outputs, and its exit code.
func (p *place) run(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := p.command(args...)
	cmd.Env = append(slices.Clone(cmd.Env), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs the program, which must succeed, and returns its standard output.
func (p *place) must(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := p.run(t, nil, args...)
	if code != 0 {
		t.Fatalf("geodlq-local %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// awaitNothingLeft waits until the place has no stack, no temporary files and
// nobody listening on the addresses.
func (p *place) awaitNothingLeft(t *testing.T, addresses ...string) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		left, err := os.ReadDir(p.tmp)
		if err != nil {
			t.Fatal(err)
		}
		holder, err := p.dir.holder()
		if err != nil {
			t.Fatal(err)
		}
		var open []string
		for _, a := range addresses {
			if conn, err := net.Dial("tcp", a); err == nil {
				conn.Close()
				open = append(open, a)
			}
		}
		if len(left) == 0 && holder == 0 && len(open) == 0 {
			return
		}
		select {
		case <-limit:
			t.Fatalf("after a minute there are still files %v, process %d, and listeners on %v", left, holder, open)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitPostgres waits until the files of a database appear in the place.
func (p *place) awaitPostgres(t *testing.T) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		made, err := filepath.Glob(filepath.Join(p.tmp, "geodlq-postgres-*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(made) > 0 {
			return
		}
		select {
		case <-limit:
			t.Fatal("waited a minute for the files of a database")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func addresses(t *testing.T, s local.Settings) []string {
	t.Helper()
	var all []string
	for _, raw := range []string{s.DatabaseURL, s.S3Endpoint, s.MetricsEndpoint} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u.Host)
	}
	return all
}

func (p *place) settings(t *testing.T) local.Settings {
	t.Helper()
	s, err := local.ReadSettings(p.dir.env())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUpUseAndDown(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must(t, "up")
	pid, err := p.dir.holder()
	if err != nil || pid == 0 {
		t.Fatalf("after up the stack is process %d (%v)", pid, err)
	}

	sam, err := os.ReadFile(p.dir.samEnv())
	if err != nil || !strings.Contains(string(sam), p.settings(t).S3Endpoint) {
		t.Errorf("sam local is given %s (%v), want this stack's addresses", sam, err)
	}
	b, err := os.ReadFile(p.dir.env())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(value) == "" {
			t.Errorf("%s has no value", key)
		}
		keys = append(keys, key)
	}
	want := []string{"DATABASE_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_CLOUDWATCH", "AWS_REGION",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "INBOX_BUCKET", "DEAD_LETTER_BUCKET"}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys of stack.env (-want +got):\n%s", diff)
	}
	s := p.settings(t)

	t.Run("the database is migrated", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), s.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), `INSERT INTO failed_geotasks (task_id, geom, epsg, geom_hash) VALUES ('t', ST_SetSRID(ST_MakePoint(1, 2), 4326), 4326, 'aa')`); err != nil {
			t.Error(err)
		}
	})

	t.Run("a second up says that it is up", func(t *testing.T) {
		if out := p.must(t, "up"); !strings.Contains(out, "already up") {
			t.Errorf("it says %q", out)
		}
		if after := p.settings(t); after != s {
			t.Error("it changed the settings")
		}
	})

	t.Run("a file can be put into the inbox", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "a b+c.ndjson")
		if err := os.WriteFile(file, []byte("{}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		p.must(t, "put", file)
		object, err := s3Client(s).GetObject(t.Context(), &s3.GetObjectInput{Bucket: &s.InboxBucket, Key: new("incoming/a b+c.ndjson")})
		if err != nil {
			t.Fatal(err)
		}
		defer object.Body.Close()
		if body, err := io.ReadAll(object.Body); err != nil || string(body) != "{}\n" {
			t.Errorf("the object holds %q (%v)", body, err)
		}
		event, err := os.ReadFile(p.dir.event())
		if err != nil || !json.Valid(event) || !bytes.Contains(event, []byte("incoming/a b+c.ndjson")) {
			t.Errorf("the event is %s (%v)", event, err)
		}
	})

	t.Run("a response is standard output and nothing else", func(t *testing.T) {
		event := filepath.Join(t.TempDir(), "event.json")
		if err := os.WriteFile(event, []byte(`{}`), 0o644); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := p.run(t, nil, "invoke", "migrate", event)
		if code != 0 || !json.Valid([]byte(stdout)) {
			t.Errorf("exit code %d, standard output %q", code, stdout)
		}
		if !strings.Contains(stderr, "REPORT RequestId: ") {
			t.Errorf("standard error has no report: %q", stderr)
		}
	})

	t.Run("the event may lie where make was called from", func(t *testing.T) {
		from := t.TempDir()
		if err := os.WriteFile(filepath.Join(from, "e.json"), []byte(`{}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, stderr, code := p.run(t, []string{"CALLER_DIR=" + from}, "invoke", "migrate", "e.json"); code != 0 {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})

	t.Run("the caller's settings reach the function", func(t *testing.T) {
		stdout, stderr, code := p.run(t, []string{"LOG_LEVEL=nonsense"}, "invoke", "migrate")
		if code != 1 || !strings.Contains(stderr, "nonsense") {
			t.Errorf("exit code %d, standard error %q", code, stderr)
		}
		var answer struct{ ErrorType string }
		if err := json.Unmarshal([]byte(stdout), &answer); err != nil || answer.ErrorType == "" {
			t.Errorf("standard output %q (%v); want what Lambda answers for a failure", stdout, err)
		}
	})

	t.Run("a part of the stack can be replaced, and this is told", func(t *testing.T) {
		stdout, stderr, code := p.run(t, []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}, "invoke", "migrate")
		if code != 1 || !strings.Contains(stderr, "DATABASE_URL is taken from your environment") {
			t.Errorf("exit code %d, standard error %q", code, stderr)
		}
		var answer struct{ ErrorType string }
		if err := json.Unmarshal([]byte(stdout), &answer); err != nil || answer.ErrorType == "" {
			t.Errorf("standard output %q (%v); want the function's error", stdout, err)
		}
	})

	t.Run("mistakes are told", func(t *testing.T) {
		noJSON := filepath.Join(t.TempDir(), "no.json")
		if err := os.WriteFile(noJSON, []byte("hello"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			args []string
			says string
		}{
			{[]string{"invoke", "replays"}, "FN is one of capture, replay"},
			{[]string{"invoke", "migrate", "/nowhere/event.json"}, "/nowhere/event.json"},
			{[]string{"invoke", "migrate", noJSON}, "is no JSON"},
			{[]string{"put", "/nowhere/file"}, "/nowhere/file"},
			{[]string{"ups"}, "the commands are up"},
		} {
			stdout, stderr, code := p.run(t, nil, c.args...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, c.says) {
				t.Errorf("%v: exit code %d, output %q, error %q; want one that says %q", c.args, code, stdout, stderr, c.says)
			}
		}
	})

	p.must(t, "down")
	if _, err := os.Stat(p.dir.env()); err == nil {
		t.Error("down left stack.env")
	}
	p.awaitNothingLeft(t, addresses(t, s)...)
	if out := p.must(t, "down"); !strings.Contains(out, "No stack is up") {
		t.Errorf("a second down says %q", out)
	}
	if _, stderr, code := p.run(t, nil, "invoke", "migrate"); code != 1 || !strings.Contains(stderr, "make up") {
		t.Errorf("without a stack invoke has exit code %d and says %q", code, stderr)
	}
}

func TestAKilledStackLeavesNothingAndCanBeStartedAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must(t, "up")
	s := p.settings(t)
	pid, err := p.dir.holder()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.awaitNothingLeft(t, addresses(t, s)...)
	if _, stderr, code := p.run(t, nil, "invoke", "migrate"); code != 1 || !strings.Contains(stderr, "no stack is up") {
		t.Errorf("invoke has exit code %d and says %q", code, stderr)
	}
	if out := p.must(t, "up"); strings.Contains(out, "already") {
		t.Errorf("up takes the dead stack for one that is up: %s", out)
	}
	again := p.settings(t)
	p.must(t, "down")
	p.awaitNothingLeft(t, addresses(t, again)...)
}

func TestUpThatIsEndedLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			up := p.command("up")
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			p.awaitPostgres(t)
			if err := up.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			up.Wait()
			p.awaitNothingLeft(t)
		})
	}
}

func TestAStackWhoseDirectoryIsRemovedEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must(t, "up")
	s := p.settings(t)
	if err := os.RemoveAll(string(p.dir)); err != nil {
		t.Fatal(err)
	}
	p.awaitNothingLeft(t, addresses(t, s)...)
}

func TestUpThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	_, stderr, code := p.run(t, []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none?connect_timeout=2"}, "up")
	if code != 1 || !strings.Contains(stderr, "use the database of DATABASE_URL") {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	if _, err := os.Stat(p.dir.env()); err == nil {
		t.Error("it left stack.env")
	}
	p.awaitNothingLeft(t)
}

// TestTimeLimitsAreTheDeployedOnes reads the Timeout of each function in the template.
func TestTimeLimitsAreTheDeployedOnes(t *testing.T) {
	t.Parallel()
	template, err := os.ReadFile("../../../../template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	deployed := map[string]time.Duration{}
	resource := regexp.MustCompile(`(?m)^  ([A-Z][A-Za-z]*)Function:\n((?:    .*\n|\n)*)`)
	for _, m := range resource.FindAllSubmatch(template, -1) {
		if limit := regexp.MustCompile(`(?m)^      Timeout: ([0-9]+)`).FindSubmatch(m[2]); limit != nil {
			seconds, err := strconv.Atoi(string(limit[1]))
			if err != nil {
				t.Fatal(err)
			}
			deployed[strings.ToLower(string(m[1]))] = time.Duration(seconds) * time.Second
		}
	}
	if diff := cmp.Diff(deployed, timeouts); diff != "" {
		t.Errorf("time limits (-template.yaml +local):\n%s", diff)
	}
}

func TestEnvironmentOfAFunction(t *testing.T) {
	for key, value := range map[string]string{
		"MAX_ATTEMPTS": "2", "INBOX_BUCKET": "mine", "DATABASE_URL": "",
		"AWS_PROFILE": "production", "AWS_ACCESS_KEY_ID": "AKIAREAL", "AWS_SESSION_TOKEN": "real", "AWS_REGION": "eu-west-1",
		"AWS_MAX_ATTEMPTS": "1", "MAKEFLAGS": "s",
	} {
		t.Setenv(key, value)
	}
	os.Unsetenv("DATABASE_URL")
	settings := local.Settings{DatabaseURL: "postgres://stack", S3Endpoint: "http://s3", MetricsEndpoint: "http://cw", Region: "us-east-1",
		AccessKeyID: "local", SecretAccessKey: "local", InboxBucket: "inbox", DeadLetterBucket: "dead-letters"}
	var said bytes.Buffer
	a := &app{stderr: &said}
	got := map[string]string{}
	for _, kv := range a.environment(settings) {
		key, value, _ := strings.Cut(kv, "=")
		got[key] = value
	}
	for key, want := range map[string]string{
		"MAX_ATTEMPTS": "2", "AWS_MAX_ATTEMPTS": "1", // the caller's
		"INBOX_BUCKET": "mine", // the caller's instead of the stack's
		"DATABASE_URL": "postgres://stack", "DEAD_LETTER_BUCKET": "dead-letters", "AWS_ENDPOINT_URL_S3": "http://s3",
		"AWS_ACCESS_KEY_ID": "local", "AWS_SESSION_TOKEN": "", "AWS_REGION": "us-east-1", // never the caller's
		"AWS_CONFIG_FILE": os.DevNull,
	} {
		if got[key] != want {
			t.Errorf("%s=%q; want %q", key, got[key], want)
		}
	}
	for _, key := range []string{"AWS_PROFILE", "MAKEFLAGS"} {
		if _, there := got[key]; there {
			t.Errorf("%s reaches the function", key)
		}
	}
	if said.String() != "INBOX_BUCKET is taken from your environment, not from the stack.\n" {
		t.Errorf("it says %q", said.String())
	}
}
