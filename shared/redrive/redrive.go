// Package redrive is what a person does with dead letters that need one: look at
// them by cause, put them back into the queue, fix, discard, export and restore them.
//
// Everything is one JSON request with an action, and one JSON answer. What selects
// rows is a [Filter], the same in every action. What changes rows is a run: its rows
// are fixed when it begins, a chunk of them and the progress commit together, and
// whoever comes next goes on where it stopped, so a run outlives the invocation that
// began it, a crash included. Runs are dry unless the request says otherwise: they
// then do all that they would do, the transform included, and write none of it.
//
// Nothing here ever takes a row out of quarantine by itself.
package redrive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"geodlq/shared/archive"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

// S3 is what the service needs of an S3 client; *s3.Client is one.
type S3 interface {
	archive.S3
	ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error)
}

// Service carries out requests. It is safe for concurrent use, by several processes at once too.
type Service struct {
	DB     queue.DB
	Queue  *queue.Queue
	S3     S3
	Bucket string // of archive, outcome log and exports
	Log    *outcome.Log

	// Contract gives the transform as it stands now.
	Contract func(ctx context.Context) (transform.Transformer, error)
	Settings replay.Settings
	Logger   *slog.Logger
	// Stop is done when the process is being shut down.
	Stop context.Context
}

// Caller is who sent a request, as far as the platform knows.
type Caller struct {
	Identity  string // where the platform vouches for it; else the request must name an actor
	Claimed   string // what the caller says of itself, for a request that names no actor
	RequestID string // of the invocation; AWS CloudTrail knows who signed it
}

// RequestError says what is wrong with a request. Nothing was done.
type RequestError struct{ Err error }

func (e *RequestError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }

func badRequest(format string, args ...any) error {
	return &RequestError{fmt.Errorf(format, args...)}
}

// actions are what a request may ask for.
var actions = map[string]func(s *Service, ctx context.Context, c Caller, request []byte) (any, error){
	"groups":   act((*Service).groups),
	"list":     act((*Service).list),
	"show":     act((*Service).show),
	"requeue":  act((*Service).requeue),
	"fix":      act((*Service).fix),
	"discard":  act((*Service).discard),
	"restore":  act((*Service).restore),
	"export":   act((*Service).export),
	"runs":     act((*Service).runs),
	"run":      act((*Service).run),
	"continue": act((*Service).resumeAll),
	"pause":    act((*Service).pause),
	"resume":   act((*Service).resume),
	"cancel":   act((*Service).cancel),
	"audit":    act((*Service).auditTrail),
}

// Actions are the names of the actions, in the order a person meets them.
func Actions() []string {
	return []string{"groups", "list", "show", "requeue", "fix", "discard", "export", "restore", "runs", "run", "continue", "pause", "resume", "cancel", "audit"}
}

// Do carries out one request, a JSON object whose member action names what is asked
// for. A [*RequestError] says that the request makes no sense; any other error is
// trouble of the database or of S3.
func (s *Service) Do(ctx context.Context, c Caller, request []byte) (any, error) {
	var head struct {
		Action string `json:"action"`
	}
	if err := json.Unmarshal(request, &head); err != nil {
		return nil, badRequest("read the request: %w; want a JSON object with an action", err)
	}
	do := actions[head.Action]
	if do == nil {
		return nil, badRequest("action %q: want one of %q", head.Action, Actions())
	}
	answer, err := do(s, ctx, c, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", head.Action, err)
	}
	return answer, nil
}

// act makes an action of a method that takes a request of type R. A member that R
// does not have is an error: a condition that is misspelt must not select everything.
func act[R, A any](do func(*Service, context.Context, Caller, R) (A, error)) func(*Service, context.Context, Caller, []byte) (any, error) {
	return func(s *Service, ctx context.Context, c Caller, request []byte) (any, error) {
		var r struct {
			Action string `json:"action"`
			Body   R
		}
		members := map[string]json.RawMessage{}
		if err := json.Unmarshal(request, &members); err != nil {
			return nil, badRequest("read the request: %w", err)
		}
		delete(members, "action")
		body, err := json.Marshal(members)
		if err != nil {
			return nil, badRequest("read the request: %w", err)
		}
		if err := strict(body, &r.Body); err != nil {
			return nil, &RequestError{err}
		}
		answer, err := do(s, ctx, c, r.Body)
		if err != nil {
			return nil, err
		}
		return answer, nil
	}
}

func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read the request: there is more after its end")
	}
	return nil
}

// contractFor loads the contract in effect where the filter asks for it, and returns its version.
func (s *Service) contractFor(ctx context.Context, f *Filter) (string, error) {
	if !f.usesCurrent() {
		return "", nil
	}
	t, err := s.Contract(ctx)
	if err != nil {
		return "", fmt.Errorf("load the contract that the filter calls current: %w", err)
	}
	return t.Version(), nil
}

// compiled checks and compiles a filter.
func (s *Service) compiled(ctx context.Context, f *Filter, q *query) (string, error) {
	if err := f.check(); err != nil {
		return "", &RequestError{err}
	}
	current, err := s.contractFor(ctx, f)
	if err != nil {
		return "", err
	}
	return f.where(q, current), nil
}

// actor is who is to be held to a change: the platform's word before the request's.
func (c Caller) actor(claimed string) (string, error) {
	if c.Identity != "" {
		return c.Identity, nil
	}
	if claimed == "" {
		claimed = c.Claimed
	}
	if claimed == "" {
		return "", badRequest(`who asks? give "actor", a name or an address; it goes to the audit table`)
	}
	return claimed, nil
}

// deadline is when no new work may begin; the zero time without one.
func (s *Service) deadline(ctx context.Context) time.Time {
	d, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	return d.Add(-s.Settings.Margin)
}

// mayGoOn reports whether there is time for work that lately took so long.
func (s *Service) mayGoOn(ctx context.Context, cost time.Duration) bool {
	if ctx.Err() != nil || s.Stop.Err() != nil {
		return false
	}
	hard := s.deadline(ctx)
	return hard.IsZero() || time.Now().Add(cost).Before(hard)
}

func collect[T any](ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
