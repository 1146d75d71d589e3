package local

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// sandbox is one process of a bootstrap and the runtime API it talks to. One
// invocation at a time.
type sandbox struct {
	endpoint
	function *Function
	cmd      *exec.Cmd
	started  time.Time
	output   tailBuffer
	exited   chan struct{} // closed when the process has ended and its output was read

	ready     chan struct{}    // the process asks for its next invocation
	handOver  chan *invocation // to the waiting request
	initError chan answer
	ended     sync.Once

	mu         sync.Mutex
	current    *invocation
	warm       bool // it has asked for an invocation
	registered bool // it has registered an extension: it gets SIGTERM
	unusable   bool
}

type invocation struct {
	id       string
	payload  []byte
	begin    time.Time
	deadline time.Time
	answered chan answer // of capacity 1
}

type answer struct {
	failed  bool
	payload []byte
}

// errStale tells that a process ended before it took the invocation.
var errStale = errors.New("the process ended before it took the invocation")

func newSandbox(f *Function) *sandbox {
	return &sandbox{
		function:  f,
		exited:    make(chan struct{}),
		ready:     make(chan struct{}),
		handOver:  make(chan *invocation),
		initError: make(chan answer, 1),
	}
}

// routes is the Lambda runtime API, version 2018-06-01, and as much of the
// extensions API, version 2020-01-01, as a runtime needs to be sent SIGTERM.
func (s *sandbox) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", s.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, false) })
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, true) })
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", s.failInit)
	mux.HandleFunc("POST /2020-01-01/extension/register", s.register)
	mux.HandleFunc("GET /2020-01-01/extension/event/next", s.nextEvent)
	return mux
}

func (s *sandbox) next(w http.ResponseWriter, r *http.Request) {
	// It waits as long as the process does: an answer without an invocation would be
	// taken for one.
	select {
	case s.ready <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	var inv *invocation
	select {
	case inv = <-s.handOver:
	case <-r.Context().Done():
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Lambda-Runtime-Aws-Request-Id", inv.id)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(inv.deadline.UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:"+s.function.config.Name)
	h.Set("Lambda-Runtime-Trace-Id", fmt.Sprintf("Root=1-%08x-%024x;Sampled=0", time.Now().Unix(), time.Now().UnixNano()))
	w.Write(inv.payload)
}

func (s *sandbox) answer(w http.ResponseWriter, r *http.Request, failed bool) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxResponsePayload+1))
	if err != nil {
		reject(w, http.StatusBadRequest, "InvalidRequest", "The body cannot be read: "+err.Error())
		return
	}
	s.mu.Lock()
	inv := s.current
	if inv == nil || inv.id != r.PathValue("id") {
		s.mu.Unlock()
		reject(w, http.StatusBadRequest, "InvalidRequestID", "Invalid request ID")
		return
	}
	s.current = nil
	s.mu.Unlock()
	if len(body) > maxResponsePayload {
		const message = "Response payload size exceeded maximum allowed payload size (6291556 bytes)."
		inv.answered <- answer{failed: true, payload: errorPayload("Function.ResponseSizeTooLarge", message)}
		reject(w, http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", message)
		return
	}
	inv.answered <- answer{failed: failed, payload: body}
	accept(w)
}

func (s *sandbox) failInit(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxResponsePayload))
	if err != nil {
		reject(w, http.StatusBadRequest, "InvalidRequest", "The body cannot be read: "+err.Error())
		return
	}
	select {
	case s.initError <- answer{failed: true, payload: body}:
		accept(w)
	default:
		reject(w, http.StatusForbidden, "InvalidStateTransition", "The initialisation has already failed")
	}
}

func (s *sandbox) register(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Lambda-Extension-Name") == "" {
		reject(w, http.StatusBadRequest, "InvalidExtensionName", "The header Lambda-Extension-Name is missing")
		return
	}
	s.mu.Lock()
	s.registered = true
	s.mu.Unlock()
	w.Header().Set("Lambda-Extension-Identifier", rand.Text())
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]string{
		"functionName": s.function.config.Name, "functionVersion": "$LATEST", "handler": "bootstrap",
	})
}

// nextEvent never answers: a runtime registers for no events, and the end of its
// environment is told by SIGTERM.
func (s *sandbox) nextEvent(w http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
}

func accept(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	io.WriteString(w, `{"status":"OK"}`)
}

func reject(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(errorPayload(kind, message))
}

func errorPayload(kind, message string) []byte {
	b, err := json.Marshal(map[string]string{"errorType": kind, "errorMessage": message})
	if err != nil {
		panic(err) // two strings always marshal
	}
	return b
}

// invoke hands the process one invocation and waits for its outcome. The time
// limit runs from the moment the process takes it.
func (s *sandbox) invoke(ctx context.Context, payload []byte) ([]byte, Report, error) {
	report := Report{RequestID: requestID()}
	inv, err := s.deliver(ctx, payload, &report)
	if err != nil {
		return nil, report, err
	}
	timer := time.NewTimer(time.Until(inv.deadline))
	defer timer.Stop()
	response, err := s.outcome(ctx, inv, timer.C)
	report.Duration = time.Since(inv.begin)
	report.MaxMemory = s.peakMemory()
	return response, report, err
}

// deliver waits until the process asks for an invocation and gives it one.
func (s *sandbox) deliver(ctx context.Context, payload []byte, report *Report) (*invocation, error) {
	s.mu.Lock()
	warm := s.warm
	s.mu.Unlock()
	timer := time.NewTimer(initLimit)
	defer timer.Stop()
	var inv *invocation
	var handOver chan<- *invocation // nil, which nobody can send to, until the process asks
	for {
		select {
		case <-s.ready:
			if !warm {
				report.InitDuration = time.Since(s.started)
			}
			begin := time.Now()
			inv = &invocation{
				id: report.RequestID, payload: payload, answered: make(chan answer, 1),
				begin: begin, deadline: begin.Add(s.function.config.Timeout),
			}
			s.mu.Lock()
			s.current, s.warm = inv, true
			s.mu.Unlock()
			handOver = s.handOver
		case handOver <- inv:
			return inv, nil
		case a := <-s.initError:
			s.spoil()
			return nil, s.failure("", a)
		case <-s.exited:
			select {
			case a := <-s.initError: // it reported the reason and exited
				return nil, s.failure("", a)
			default:
			}
			if warm {
				return nil, errStale
			}
			return nil, s.crash("")
		case <-timer.C:
			s.spoil()
			return nil, &TimeoutError{Function: s.function.config.Name, Limit: initLimit}
		case <-ctx.Done():
			s.spoil()
			return nil, fmt.Errorf("start function %s: %w", s.function.config.Name, context.Cause(ctx))
		case <-s.function.closing.Done():
			s.spoil()
			return nil, fmt.Errorf("start function %s: %w", s.function.config.Name, errClosed)
		}
	}
}

func (s *sandbox) outcome(ctx context.Context, inv *invocation, deadline <-chan time.Time) ([]byte, error) {
	select {
	case a := <-inv.answered:
		return s.result(inv, a)
	case <-s.exited:
		select {
		case a := <-inv.answered: // it answered and exited
			return s.result(inv, a)
		default:
			return nil, s.crash(inv.id)
		}
	case <-deadline:
		s.spoil()
		s.withdraw()
		return nil, &TimeoutError{Function: s.function.config.Name, RequestID: inv.id, Limit: s.function.config.Timeout}
	case <-ctx.Done():
		s.spoil()
		s.kill(syscall.SIGKILL)
		return nil, fmt.Errorf("invoke function %s: %w", s.function.config.Name, context.Cause(ctx))
	case <-s.function.closing.Done():
		s.spoil()
		return nil, fmt.Errorf("invoke function %s: %w", s.function.config.Name, errClosed)
	}
}

// withdraw makes an answer that comes after the deadline too late.
func (s *sandbox) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
}

func (s *sandbox) result(inv *invocation, a answer) ([]byte, error) {
	if a.failed {
		return nil, s.failure(inv.id, a)
	}
	return a.payload, nil
}

func (s *sandbox) failure(id string, a answer) error {
	e := &FunctionError{Function: s.function.config.Name, RequestID: id, Payload: a.payload}
	var reported struct {
		Type       string          `json:"errorType"`
		Message    string          `json:"errorMessage"`
		StackTrace json.RawMessage `json:"stackTrace"`
	}
	if err := json.Unmarshal(a.payload, &reported); err != nil {
		e.Type, e.Message = "Runtime.Unknown", string(a.payload)
		return e
	}
	e.Type, e.Message, e.StackTrace = reported.Type, reported.Message, reported.StackTrace
	return e
}

func (s *sandbox) crash(id string) error {
	e := &CrashError{Function: s.function.config.Name, RequestID: id, ExitCode: s.cmd.ProcessState.ExitCode(), Stderr: s.output.String()}
	if status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = status.Signal()
	}
	return e
}

func (s *sandbox) spoil() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unusable = true
}

// usable reports whether the process may get another invocation.
func (s *sandbox) usable() bool {
	select {
	case <-s.exited:
		return false
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.unusable
}

// kill sends the signal to the process group. It does nothing once the process is
// known to have ended: its number may be another's by then.
func (s *sandbox) kill(signal syscall.Signal) {
	select {
	case <-s.exited:
	default:
		syscall.Kill(-s.cmd.Process.Pid, signal)
	}
}

// terminate ends the process as Lambda does, SIGTERM first if it has registered an
// extension, and waits until it and its runtime API are gone.
func (s *sandbox) terminate() {
	s.ended.Do(func() {
		s.mu.Lock()
		registered := s.registered
		s.mu.Unlock()
		if registered {
			s.kill(syscall.SIGTERM)
			select {
			case <-s.exited:
			case <-time.After(terminationGrace):
			}
		}
		select {
		case <-s.exited:
		default:
			s.kill(syscall.SIGKILL)
			<-s.exited
		}
		s.endpoint.server.Close()
		<-s.endpoint.done
	})
}

// peakMemory is the largest resident memory the process has had, in bytes; 0 where
// the system does not tell.
func (s *sandbox) peakMemory() int64 {
	select {
	case <-s.exited:
		return endedPeak(s.cmd.ProcessState)
	default:
		return runningPeak(s.cmd.Process.Pid)
	}
}

// requestID is a random UUID, version 4, as Lambda's are.
func requestID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
