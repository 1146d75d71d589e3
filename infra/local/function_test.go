package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"geodlq/infra/local"
)

type response struct {
	Text      string    `json:"text"`
	PID       int       `json:"pid"`
	Child     int       `json:"child"`
	RequestID string    `json:"request_id"`
	Deadline  time.Time `json:"deadline"`
}

func newFunction(t *testing.T, configure ...func(*local.FunctionConfig)) *local.Function {
	t.Helper()
	config := local.FunctionConfig{Name: "test", Bootstrap: bootstrapPath(t), Timeout: 30 * time.Second}
	for _, f := range configure {
		f(&config)
	}
	f, err := local.NewFunction(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func invoke(t *testing.T, f *local.Function, event string) response {
	t.Helper()
	b, err := f.Invoke(t.Context(), []byte(event))
	if err != nil {
		t.Fatal(err)
	}
	var r response
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("response %s: %v", b, err)
	}
	return r
}

func timeout(d time.Duration) func(*local.FunctionConfig) {
	return func(c *local.FunctionConfig) { c.Timeout = d }
}

func env(kv ...string) func(*local.FunctionConfig) {
	return func(c *local.FunctionConfig) { c.Env = append(c.Env, kv...) }
}

func TestFunctionAnswers(t *testing.T) {
	t.Parallel()
	f := newFunction(t, env("MAX_ATTEMPTS=2"))
	before := time.Now()
	first := invoke(t, f, `{"do":"echo","text":"a"}`)
	second := invoke(t, f, `{"do":"getenv","text":"MAX_ATTEMPTS"}`)
	if first.Text != "a" || second.Text != "2" {
		t.Errorf("texts %q and %q; want a and 2", first.Text, second.Text)
	}
	if first.PID != second.PID {
		t.Error("the second invocation did not reuse the process of the first")
	}
	if first.RequestID == "" || first.RequestID == second.RequestID {
		t.Errorf("request ids %q and %q; want two different ones", first.RequestID, second.RequestID)
	}
	if limit := first.Deadline.Sub(before); limit <= 0 || limit > time.Minute {
		t.Errorf("the deadline is %s after the call; want about 30s", limit)
	}
}

func TestFunctionReportsTypeAndMessageOfItsError(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	_, err := f.Invoke(t.Context(), []byte(`{"do":"fail","text":"not today"}`))
	var failed *local.FunctionError
	if !errors.As(err, &failed) {
		t.Fatalf("%v (%T); want a FunctionError", err, err)
	}
	if failed.Type != "refused" || failed.Message != "refused: not today" || failed.RequestID == "" {
		t.Errorf("%+v", failed)
	}
	if r := invoke(t, f, `{"do":"echo","text":"b"}`); r.Text != "b" {
		t.Errorf("after an error the function answers %q; want b", r.Text)
	}
}

func TestFunctionPanicIsAnErrorAndTheNextInvocationStartsAfresh(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	before := invoke(t, f, `{}`)
	_, err := f.Invoke(t.Context(), []byte(`{"do":"panic","text":"index out of range"}`))
	var failed *local.FunctionError
	if !errors.As(err, &failed) || failed.Message != "index out of range" || len(failed.StackTrace) == 0 {
		t.Fatalf("%v (%T); want a FunctionError with a stack trace", err, err)
	}
	if after := invoke(t, f, `{}`); after.PID == before.PID {
		t.Error("the process that panicked was invoked again")
	}
}

func TestFunctionCrash(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, event string
		init        string
		exitCode    int
		signal      syscall.Signal
		stderr      string
		invoked     bool
	}{
		{name: "exits while it works", event: `{"do":"exit","text":"out of luck"}`, exitCode: 3, stderr: "out of luck", invoked: true},
		{name: "is killed while it works", event: `{"do":"kill-self"}`, exitCode: -1, signal: syscall.SIGKILL, invoked: true},
		{name: "exits before it takes an invocation", init: "exit", exitCode: 1, stderr: "DATABASE_URL is not set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFunction(t, env("BOOTSTRAP_INIT="+c.init))
			_, err := f.Invoke(t.Context(), []byte(c.event))
			var crash *local.CrashError
			if !errors.As(err, &crash) {
				t.Fatalf("%v (%T); want a CrashError", err, err)
			}
			if crash.ExitCode != c.exitCode || crash.Signal != c.signal || !strings.Contains(crash.Stderr, c.stderr) || (crash.RequestID != "") != c.invoked {
				t.Errorf("%#v", crash)
			}
			var other *local.FunctionError
			if errors.As(err, &other) {
				t.Error("the crash is a function error, too")
			}
			if c.init == "" {
				invoke(t, f, `{}`) // a new process
			}
		})
	}
}

func TestFunctionThatFailsItsInitialisationSaysWhy(t *testing.T) {
	t.Parallel()
	f := newFunction(t, env("BOOTSTRAP_INIT=error"))
	_, err := f.Invoke(t.Context(), []byte(`{}`))
	var failed *local.FunctionError
	if !errors.As(err, &failed) || failed.Type != "Runtime.ConfigInvalid" || failed.RequestID != "" {
		t.Fatalf("%v (%T); want a FunctionError of the initialisation", err, err)
	}
}

func TestFunctionTimeout(t *testing.T) {
	t.Parallel()
	told := filepath.Join(t.TempDir(), "told")
	for _, c := range []struct {
		name      string
		configure func(*local.FunctionConfig)
		file      string
	}{
		{name: "with an extension it gets SIGTERM first", configure: env("SIGTERM_FILE=" + told), file: told},
		{name: "without one it is killed", configure: env()},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFunction(t, timeout(300*time.Millisecond), c.configure)
			before := invoke(t, f, `{}`)
			_, report, err := f.InvokeReport(t.Context(), []byte(`{"do":"wait"}`))
			var late *local.TimeoutError
			if !errors.As(err, &late) || late.Limit != 300*time.Millisecond {
				t.Fatalf("%v (%T); want a TimeoutError", err, err)
			}
			if report.Duration < late.Limit {
				t.Errorf("given up after %s, before the limit of %s", report.Duration, late.Limit)
			}
			if alive(before.PID) {
				t.Error("the process is still there")
			}
			if c.file != "" {
				if _, err := os.Stat(c.file); err != nil {
					t.Errorf("the SIGTERM handler did not run: %v", err)
				}
			}
			if after := invoke(t, f, `{}`); after.PID == before.PID {
				t.Error("the process that timed out was invoked again")
			}
		})
	}
}

func TestFunctionThatEndsAfterItsAnswerIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	pid := invoke(t, f, `{"do":"answer-and-exit"}`).PID
	await(t, "the end of the process", func() bool { return !alive(pid) })
	if invoke(t, f, `{}`).PID == pid {
		t.Error("a process that ended was invoked again")
	}
}

func TestKilledInvocationIsACrash(t *testing.T) {
	t.Parallel()
	logs := &syncBuffer{}
	f := newFunction(t, func(c *local.FunctionConfig) { c.Logs = logs })
	pid := invoke(t, f, `{}`).PID
	failed := make(chan error)
	go func() {
		_, err := f.Invoke(context.Background(), []byte(`{"do":"wait"}`))
		failed <- err
	}()
	// Kill until the invocation is over: it may not have begun at the first.
	var err error
	for over := false; !over; {
		f.Kill()
		select {
		case err = <-failed:
			over = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	var crash *local.CrashError
	if !errors.As(err, &crash) || crash.Signal != syscall.SIGKILL {
		t.Fatalf("%v (%T); want a CrashError by SIGKILL", err, err)
	}
	if alive(pid) {
		t.Error("the process is still there")
	}
	invoke(t, f, `{}`)
}

func TestCancelledInvocationEndsTheProcess(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	pid := invoke(t, f, `{}`).PID
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err := f.Invoke(ctx, []byte(`{"do":"wait"}`))
	if err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("%v; want the cause of the cancellation", err)
	}
	if alive(pid) {
		t.Error("the process is still there")
	}
}

func TestGrandchildrenEndWithTheFunction(t *testing.T) {
	t.Parallel()
	f := newFunction(t, env("PATH="+os.Getenv("PATH")))
	child := invoke(t, f, `{"do":"spawn"}`).Child
	if !alive(child) {
		t.Fatal("the child is not there to begin with")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the function's child", func() bool { return !alive(child) })
}

func TestConcurrentInvocationsHaveProcessesOfTheirOwn(t *testing.T) {
	t.Parallel()
	f := newFunction(t, func(c *local.FunctionConfig) { c.Concurrency = 3; c.Timeout = time.Second })
	var wait sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		wait.Go(func() { _, errs[i] = f.Invoke(t.Context(), []byte(`{"do":"wait"}`)) })
	}
	begin := time.Now()
	wait.Wait()
	for _, err := range errs {
		var late *local.TimeoutError
		if !errors.As(err, &late) {
			t.Errorf("%v (%T); want a TimeoutError", err, err)
		}
	}
	if time.Since(begin) < time.Second {
		t.Error("the invocations ended before their time limit")
	}
}

func TestPayloadLimits(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	const limit = 6 << 20
	event := func(size int) []byte {
		const frame = `{"text":""}`
		return []byte(`{"text":"` + strings.Repeat("x", size-len(frame)) + `"}`)
	}
	if _, err := f.Invoke(t.Context(), event(limit+1)); err == nil {
		t.Error("an event over the limit was accepted")
	}
	_, err := f.Invoke(t.Context(), []byte(`{"do":"fill","size":6291456}`))
	var failed *local.FunctionError
	if !errors.As(err, &failed) || failed.Type != "Function.ResponseSizeTooLarge" {
		t.Errorf("%v; want Function.ResponseSizeTooLarge", err)
	}
	if r := invoke(t, f, string(event(limit-1000))); len(r.Text) < limit-2000 {
		t.Errorf("an event below the limit came back with %d bytes", len(r.Text))
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	_, cold, err := f.InvokeReport(t.Context(), []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	_, warm, err := f.InvokeReport(t.Context(), []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if cold.InitDuration == 0 || warm.InitDuration != 0 {
		t.Errorf("init durations %s and %s; want one for the first invocation alone", cold.InitDuration, warm.InitDuration)
	}
	if cold.RequestID == "" || cold.Duration == 0 {
		t.Errorf("%+v", cold)
	}
}

func TestLogsReachTheWriterWhole(t *testing.T) {
	t.Parallel()
	logs := &syncBuffer{}
	f := newFunction(t, func(c *local.FunctionConfig) { c.Logs = logs })
	invoke(t, f, `{"do":"log","text":"hello from inside"}`)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logs.String(), "hello from inside\n") {
		t.Errorf("logs: %q", logs.String())
	}
}

func TestAFunctionIsClosedInSilence(t *testing.T) {
	t.Parallel()
	told := filepath.Join(t.TempDir(), "told")
	for _, c := range []struct {
		name      string
		configure func(*local.FunctionConfig)
	}{
		{name: "without an extension", configure: env()},
		{name: "with an extension, whose process lives on for a moment", configure: env("SIGTERM_FILE=" + told)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			logs := &syncBuffer{}
			f := newFunction(t, c.configure, func(c *local.FunctionConfig) { c.Logs = logs })
			invoke(t, f, `{}`)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if logs.String() != "" {
				t.Errorf("the idle function says: %s", logs.String())
			}
		})
	}
}

func TestClosedFunctionRefuses(t *testing.T) {
	t.Parallel()
	f := newFunction(t)
	pid := invoke(t, f, `{}`).PID
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Error("the process is still there")
	}
	if _, err := f.Invoke(t.Context(), []byte(`{}`)); err == nil {
		t.Error("a closed function was invoked")
	}
}

func TestNewFunctionNeedsAnExecutable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "absent"), plain, dir} {
		if _, err := local.NewFunction(local.FunctionConfig{Name: "test", Bootstrap: path}); err == nil {
			t.Errorf("%s was accepted as a bootstrap", path)
		}
	}
}

// syncBuffer is a buffer that a function's output can be written to while a test
// reads it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
