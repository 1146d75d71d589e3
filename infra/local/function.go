package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Lambda's limits on synchronous payloads, in bytes; the response's is 100 larger.
const (
	maxRequestPayload  = 6 << 20
	maxResponsePayload = maxRequestPayload + 100
)

const (
	defaultTimeout = 30 * time.Second
	defaultMemory  = 512 // MB
	// initLimit is how long a bootstrap may take before it asks for its first
	// invocation. Lambda starts the initialisation again after 10 s, under the
	// function's own time limit; here it is given up.
	initLimit = 30 * time.Second
	// terminationGrace is what Lambda leaves between SIGTERM and SIGKILL to a
	// function that has registered an internal extension. Others get no SIGTERM.
	terminationGrace = 500 * time.Millisecond
	// stderrKept is how much of a crashed function's last output goes with the error.
	stderrKept = 8 << 10
)

// FunctionConfig says how to run a built bootstrap.
type FunctionConfig struct {
	Name      string        // of the function, e.g. "capture"
	Bootstrap string        // path of the executable, built for this machine
	Env       []string      // KEY=VALUE, the whole environment but for what Lambda sets
	Dir       string        // working directory; that of the bootstrap when empty, as in Lambda
	Timeout   time.Duration // of one invocation; 30 s when 0
	MemoryMB  int           // what the function is told it has; 512 when 0. It is reported, not enforced
	// Concurrency is how many invocations may run at once, each in a process of its
	// own as in Lambda; 1 when 0. More callers wait.
	Concurrency int
	Logs        io.Writer // gets the function's standard output and error; discarded when nil
}

// Function is a Lambda function on this machine: processes of one bootstrap, each
// with a runtime API of its own. A process is started when an invocation needs
// one, reused afterwards, and replaced after it ended.
type Function struct {
	config  FunctionConfig
	turns   chan struct{}
	logs    *lockedWriter
	closing context.Context
	close   context.CancelFunc

	mu     sync.Mutex
	idle   []*sandbox
	all    map[*sandbox]struct{}
	closed bool
}

// FunctionError is an error that the function itself reported.
type FunctionError struct {
	Function   string
	RequestID  string // empty when the function failed before its first invocation
	Type       string // errorType, e.g. "wrapError"
	Message    string // errorMessage
	StackTrace []byte // stackTrace as JSON, of a panic
	Payload    []byte // the whole answer, as the caller of the function sees it
}

func (e *FunctionError) Error() string {
	return fmt.Sprintf("function %s failed: %s: %s", e.Function, e.Type, e.Message)
}

// TimeoutError tells that the function had not answered at its deadline. Its
// process was ended.
type TimeoutError struct {
	Function  string
	RequestID string
	Limit     time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("function %s: task timed out after %.2f seconds", e.Function, e.Limit.Seconds())
}

// Timeout reports true: the error is a time-out in the sense of package net.
func (e *TimeoutError) Timeout() bool { return true }

// CrashError tells that the function's process ended without an answer.
type CrashError struct {
	Function  string
	RequestID string         // empty when it ended before its first invocation
	ExitCode  int            // -1 when a signal ended it
	Signal    syscall.Signal // 0 when it exited
	Stderr    string         // the end of what it wrote
}

func (e *CrashError) Error() string {
	how := "exit status " + strconv.Itoa(e.ExitCode)
	if e.Signal != 0 {
		how = "signal: " + e.Signal.String()
	}
	when := "during the invocation"
	if e.RequestID == "" {
		when = "before its first invocation"
	}
	message := fmt.Sprintf("function %s exited %s without an answer: %s", e.Function, when, how)
	if e.Stderr != "" {
		message += "; its last output:\n" + e.Stderr
	}
	return message
}

// Report is what Lambda's REPORT log line tells about an invocation.
type Report struct {
	RequestID    string
	Duration     time.Duration
	InitDuration time.Duration // 0 when a process was reused
	MaxMemory    int64         // bytes of resident memory at most so far, of the process; 0 where the system does not tell
}

// errClosed is returned by the methods of a closed function.
var errClosed = errors.New("the function is closed")

// NewFunction checks the configuration. It starts no process.
func NewFunction(config FunctionConfig) (*Function, error) {
	info, err := os.Stat(config.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("find the bootstrap of function %s: %w", config.Name, err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("the bootstrap of function %s, %s, is no executable file", config.Name, config.Bootstrap)
	}
	if config.Bootstrap, err = filepath.Abs(config.Bootstrap); err != nil {
		return nil, fmt.Errorf("find the bootstrap of function %s: %w", config.Name, err)
	}
	if config.Dir == "" {
		config.Dir = filepath.Dir(config.Bootstrap)
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	if config.MemoryMB == 0 {
		config.MemoryMB = defaultMemory
	}
	if config.Logs == nil {
		config.Logs = io.Discard
	}
	f := &Function{
		config: config,
		turns:  make(chan struct{}, max(1, config.Concurrency)),
		logs:   &lockedWriter{w: config.Logs},
		all:    map[*sandbox]struct{}{},
	}
	f.closing, f.close = context.WithCancel(context.Background())
	return f, nil
}

// Invoke runs the function once and returns its response. A failure of the
// function is a [*FunctionError], [*TimeoutError] or [*CrashError]. When ctx ends
// first the function's process is killed, as if its machine had failed.
func (f *Function) Invoke(ctx context.Context, payload []byte) (response []byte, err error) {
	response, _, err = f.InvokeReport(ctx, payload)
	return response, err
}

// InvokeReport is [Function.Invoke] with the invocation's report, which is also
// there when the function failed.
func (f *Function) InvokeReport(ctx context.Context, payload []byte) ([]byte, Report, error) {
	if len(payload) > maxRequestPayload {
		return nil, Report{}, fmt.Errorf("invoke function %s: the event has %d bytes and Lambda takes at most %d", f.config.Name, len(payload), maxRequestPayload)
	}
	select {
	case f.turns <- struct{}{}:
		defer func() { <-f.turns }()
	case <-ctx.Done():
		return nil, Report{}, fmt.Errorf("wait for a turn of function %s: %w", f.config.Name, context.Cause(ctx))
	case <-f.closing.Done():
		return nil, Report{}, fmt.Errorf("invoke function %s: %w", f.config.Name, errClosed)
	}
	// A process that ended while it was idle, or after the answer of its last
	// invocation, is no failure of this one: the next is started.
	for {
		s, reused, err := f.acquire()
		if err != nil {
			return nil, Report{}, err
		}
		response, report, err := s.invoke(ctx, payload)
		if reused && errors.Is(err, errStale) {
			f.discard(s)
			continue
		}
		if s.usable() {
			f.release(s)
		} else {
			f.discard(s)
		}
		return response, report, err
	}
}

// Kill kills the processes of the function with SIGKILL, those of invocations in
// flight too, whose Invoke then returns a [*CrashError]. The function stays usable.
func (f *Function) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.all {
		s.kill(syscall.SIGKILL)
	}
}

// Close ends the processes as Lambda ends an idle environment, and waits for their
// end. Invocations in flight return an error.
func (f *Function) Close() error {
	f.mu.Lock()
	f.closed = true
	var open []*sandbox
	for s := range f.all {
		open = append(open, s)
	}
	f.mu.Unlock()
	f.close()
	var wait sync.WaitGroup
	for _, s := range open {
		wait.Go(s.terminate)
	}
	wait.Wait()
	return nil
}

func (f *Function) acquire() (s *sandbox, reused bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, fmt.Errorf("invoke function %s: %w", f.config.Name, errClosed)
	}
	if n := len(f.idle); n > 0 {
		s := f.idle[n-1]
		f.idle = f.idle[:n-1]
		return s, true, nil
	}
	s, err = f.startSandbox()
	if err != nil {
		return nil, false, err
	}
	f.all[s] = struct{}{}
	return s, false, nil
}

func (f *Function) release(s *sandbox) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idle = append(f.idle, s)
}

func (f *Function) discard(s *sandbox) {
	s.terminate()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, s)
}

// startSandbox starts one process of the bootstrap in a process group of its own.
func (f *Function) startSandbox() (*sandbox, error) {
	s := newSandbox(f)
	if err := s.serve("Lambda runtime API", s.routes()); err != nil {
		return nil, err
	}
	// The output goes through a pipe of our own: with a writer that is no file,
	// Wait would also wait for whoever inherited it.
	output, inherited, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a pipe for the output of function %s: %w", f.config.Name, err), s.endpoint.Close())
	}
	s.cmd = exec.Command(f.config.Bootstrap)
	s.cmd.Env = f.environment(strings.TrimPrefix(s.URL(), "http://"))
	s.cmd.Dir = f.config.Dir
	s.cmd.Stdout, s.cmd.Stderr = inherited, inherited
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithOwner(s.cmd.SysProcAttr)
	s.started = time.Now()
	err = start(s.cmd)
	inherited.Close()
	if err != nil {
		output.Close()
		return nil, errors.Join(fmt.Errorf("start the bootstrap of function %s: %w", f.config.Name, err), s.endpoint.Close())
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		io.Copy(io.MultiWriter(f.logs, &s.output), output)
	}()
	go func() {
		s.cmd.Wait() // the state is read from ProcessState
		// What the process wrote last is still in the pipe; whoever else holds the
		// other end is killed with the group.
		s.kill(syscall.SIGKILL)
		<-copied
		output.Close()
		close(s.exited)
	}()
	return s, nil
}

// environment is the function's own, then what Lambda sets, which nobody can override.
func (f *Function) environment(runtimeAPI string) []string {
	name := f.config.Name
	return append(f.config.Env[:len(f.config.Env):len(f.config.Env)],
		"AWS_LAMBDA_RUNTIME_API="+runtimeAPI,
		"AWS_LAMBDA_FUNCTION_NAME="+name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE="+strconv.Itoa(f.config.MemoryMB),
		"AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/"+name,
		"AWS_LAMBDA_LOG_STREAM_NAME=local",
		"AWS_LAMBDA_LOG_FORMAT=JSON",
		"AWS_EXECUTION_ENV=AWS_Lambda_provided.al2023",
		"_HANDLER=bootstrap",
		"TZ=:UTC",
	)
}

// lockedWriter lets several processes write to one log.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// tailBuffer keeps the last bytes written to it.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if excess := len(t.b) - stderrKept; excess > 0 {
		t.b = append(t.b[:0], t.b[excess:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
