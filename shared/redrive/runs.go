package redrive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// RunsRequest asks for the latest runs.
type RunsRequest struct {
	State Texts `json:"state,omitempty"`
	Limit int   `json:"limit,omitempty"` // 20 by default, at most 1,000
}

// Runs are runs, the latest first.
type Runs struct {
	Runs []Run `json:"runs"`
}

func (s *Service) runs(ctx context.Context, _ Caller, r RunsRequest) (Runs, error) {
	limit, err := pageSize(r.Limit, 20, 1000)
	if err != nil {
		return Runs{}, err
	}
	rows, err := s.DB.Query(ctx, `SELECT `+runColumns+` FROM redrive_runs WHERE $1::text[] IS NULL OR state = ANY ($1::text[]) ORDER BY started_at DESC, id LIMIT $2`, []string(r.State), limit)
	if err != nil {
		return Runs{}, fmt.Errorf("list runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, scanRun)
	if err != nil {
		return Runs{}, fmt.Errorf("list runs: %w", err)
	}
	return Runs{append([]Run{}, runs...)}, nil
}

// RunRequest names a run.
type RunRequest struct {
	Run   string `json:"run"`
	Actor string `json:"actor,omitempty"` // for what changes the run
}

func (s *Service) run(ctx context.Context, _ Caller, r RunRequest) (Run, error) {
	return s.load(ctx, r.Run)
}

// ContinueRequest goes on with one run, or with all that are running. A schedule sends
// it, so it also keeps the groups folded.
type ContinueRequest struct {
	Run string `json:"run,omitempty"`
}

func (s *Service) resumeAll(ctx context.Context, _ Caller, r ContinueRequest) (Runs, error) {
	ids := []string{r.Run}
	if r.Run == "" {
		if err := s.fold(ctx); err != nil {
			return Runs{}, err
		}
		list, err := collect[struct{ ID string }](ctx, s.DB, `SELECT id::text FROM redrive_runs WHERE state = 'running' ORDER BY started_at, id`)
		if err != nil {
			return Runs{}, fmt.Errorf("find open runs: %w", err)
		}
		ids = nil
		for _, l := range list {
			ids = append(ids, l.ID)
		}
	}
	answer := Runs{Runs: []Run{}}
	var errs []error
	for _, id := range ids {
		run, err := s.work(ctx, id)
		if err != nil {
			errs = append(errs, err) // the others are not to wait for it
			continue
		}
		answer.Runs = append(answer.Runs, run)
	}
	return answer, errors.Join(errs...)
}

// foldedAtOnce is how many changes geodlq_fold_groups takes, where there are so many.
const foldedAtOnce = 100_000

// fold adds up the changes of the groups, so that reading them stays fast.
func (s *Service) fold(ctx context.Context) error {
	for folded := int64(foldedAtOnce); folded == foldedAtOnce && s.mayGoOn(ctx, 0); {
		if err := s.DB.QueryRow(ctx, `SELECT geodlq_fold_groups()`).Scan(&folded); err != nil {
			return fmt.Errorf("fold the groups: %w", err)
		}
	}
	return nil
}

func (s *Service) pause(ctx context.Context, c Caller, r RunRequest) (Run, error) {
	return s.turn(ctx, c, r, "pause", "paused", "running")
}

// resume goes on with a run that was paused, or that its canary stopped: the person
// who resumes it has seen why.
func (s *Service) resume(ctx context.Context, c Caller, r RunRequest) (Run, error) {
	if _, err := s.turn(ctx, c, r, "resume", "running", "paused", "stopped"); err != nil {
		return Run{}, err
	}
	return s.work(ctx, r.Run)
}

// cancel ends a run. What it did stays done.
func (s *Service) cancel(ctx context.Context, c Caller, r RunRequest) (Run, error) {
	return s.turn(ctx, c, r, "cancel", "cancelled", "running", "paused", "stopped")
}

// turn puts a run into another state, between two of its chunks.
func (s *Service) turn(ctx context.Context, c Caller, request RunRequest, action, to string, from ...string) (Run, error) {
	actor, err := c.actor(request.Actor)
	if err != nil {
		return Run{}, err
	}
	var r Run
	err = pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		var err error
		if r, err = runBy(ctx, tx, request.Run, " FOR UPDATE"); err != nil {
			return err
		}
		if !slices.Contains(from, r.State) {
			return badRequest("%s: run %s is %s", action, r.ID, r.State)
		}
		r.State = to
		if err := s.save(ctx, tx, &r, 0); err != nil {
			return err
		}
		counts, err := json.Marshal(r.Counts)
		if err != nil {
			return fmt.Errorf("write to the audit table: %w", err)
		}
		_, err = tx.Exec(ctx, `INSERT INTO redrive_audit (actor, request_id, action, request, run, counts) VALUES ($1, $2, $3, $4::jsonb, $5::text::uuid, $6::jsonb)`,
			actor, c.RequestID, action, string(r.Request), r.ID, string(counts))
		if err != nil {
			return fmt.Errorf("write to the audit table: %w", err)
		}
		return nil
	})
	if err != nil {
		return Run{}, err
	}
	return s.load(ctx, r.ID)
}

// AuditRequest asks who did what, the latest first.
type AuditRequest struct {
	Actor Texts  `json:"actor,omitempty"`
	Run   string `json:"run,omitempty"`
	Limit int    `json:"limit,omitempty"`  // 100 by default, at most 1,000
	Until int64  `json:"before,omitempty"` // Next of the page before
}

// Audit is a page of the audit table.
type Audit struct {
	Entries []Entry `json:"entries"`
	Next    int64   `json:"next,omitempty"`
}

// Entry is one act of a person.
type Entry struct {
	ID        int64           `json:"id"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	RequestID string          `json:"request_id,omitempty"`
	Action    string          `json:"action"`
	Request   json.RawMessage `json:"request"`
	Run       string          `json:"run,omitempty"`
	Counts    json.RawMessage `json:"counts"`
}

func (s *Service) auditTrail(ctx context.Context, _ Caller, r AuditRequest) (Audit, error) {
	limit, err := pageSize(r.Limit, 100, 1000)
	if err != nil {
		return Audit{}, err
	}
	var q query
	where := "true"
	if r.Actor != nil {
		where += " AND " + matches(&q, "a.actor", r.Actor)
	}
	if r.Run != "" {
		where += " AND a.run = " + q.arg(r.Run) + "::text::uuid"
	}
	if r.Until != 0 {
		where += " AND a.id < " + q.arg(r.Until) + "::bigint"
	}
	type line struct {
		ID               int64
		At               time.Time
		Actor, RequestID string
		Action, Request  string
		Run              string
		Counts           string
	}
	lines, err := collect[line](ctx, s.DB, `SELECT a.id, a.at, a.actor, coalesce(a.request_id, ''), a.action, a.request::text, coalesce(a.run::text, ''), a.counts::text
		FROM redrive_audit a WHERE `+where+` ORDER BY a.id DESC LIMIT `+q.arg(limit)+`::bigint`, q.args...)
	if err != nil {
		return Audit{}, fmt.Errorf("read the audit table: %w", err)
	}
	answer := Audit{Entries: []Entry{}}
	for _, l := range lines {
		answer.Entries = append(answer.Entries, Entry{l.ID, l.At, l.Actor, l.RequestID, l.Action, json.RawMessage(l.Request), l.Run, json.RawMessage(l.Counts)})
	}
	if len(lines) == limit {
		answer.Next = lines[limit-1].ID
	}
	return answer, nil
}
