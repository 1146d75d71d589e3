package redrive

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"geodlq/shared/deadletter"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

// RequeueRequest puts rows back into the queue, each with a new allowance of attempts;
// their history, first_seen and what they failed with stay.
type RequeueRequest struct {
	Bulk
	// Canary tries so many rows for real first, spread over all of them, and stops the
	// run where fewer than CanaryShare of them clear (0.9 by default).
	Canary      int64    `json:"canary,omitempty"`
	CanaryShare *float64 `json:"canary_share,omitempty"`
}

func (s *Service) requeue(ctx context.Context, c Caller, r RequeueRequest) (Run, error) {
	share := 0.9
	if r.CanaryShare != nil {
		share = *r.CanaryShare
	}
	if r.Canary < 0 || !(share >= 0 && share <= 1) {
		return Run{}, badRequest("canary is 0, for none, or more; canary_share is from 0 to 1")
	}
	return s.begin(ctx, c, plan{
		action: "requeue", bulk: &r.Bulk, request: r,
		statuses: Texts{"quarantined"}, allowed: Texts(statuses),
		canary: r.Canary, canaryShare: share,
	})
}

// FixRequest attaches changes to rows, which the transform applies from their next
// replay on. The payload stays as it came. A dry run says how many would clear with them.
type FixRequest struct {
	Bulk
	// Overrides is what to change, see [transform.Overrides]. It is laid over what was
	// fixed before, attribute by attribute; with Replace it takes its place, and {} takes it away.
	Overrides json.RawMessage `json:"overrides"`
	Replace   bool            `json:"replace,omitempty"`
	Requeue   bool            `json:"requeue,omitempty"` // the rows too, as requeue does
}

func (s *Service) fix(ctx context.Context, c Caller, r FixRequest) (Run, error) {
	if len(r.Overrides) == 0 {
		return Run{}, badRequest(`want "overrides", such as {"source_crs": "EPSG:26910"}`)
	}
	if _, err := transform.ParseOverrides(r.Overrides); err != nil {
		return Run{}, &RequestError{err}
	}
	if string(r.Overrides) == "{}" && !r.Replace {
		return Run{}, badRequest(`the overrides change nothing; with "replace": true they take earlier ones away`)
	}
	return s.begin(ctx, c, plan{
		action: "fix", bulk: &r.Bulk, request: r,
		statuses: Texts{"quarantined"}, allowed: Texts{"quarantined", "pending", "discarded"}, canaryShare: 1,
	})
}

// DiscardRequest gives rows up, with a reason. They stay in the table and in the
// books; requeue with the status discarded takes them back.
type DiscardRequest struct {
	Bulk
	Reason string `json:"reason"`
}

func (s *Service) discard(ctx context.Context, c Caller, r DiscardRequest) (Run, error) {
	if r.Reason == "" {
		return Run{}, badRequest(`why are they given up? give "reason"`)
	}
	return s.begin(ctx, c, plan{
		action: "discard", bulk: &r.Bulk, request: r,
		statuses: Texts{"quarantined"}, allowed: Texts{"quarantined", "pending"}, canaryShare: 1,
	})
}

// changeMembers does to rows what the action says, in one statement: those that are
// still in a status of the run and that nobody works on, locked in the order of their
// ids, so that two runs cannot deadlock. Each leaves a line in its history. What comes
// back is for the outcome log.
const changeMembers = `
	WITH members AS MATERIALIZED (
	    SELECT f.id FROM failed_geotasks f
	    WHERE f.id = ANY ($1::bigint[]) AND f.status = ANY ($2::text[]) AND f.lease_token IS NULL
	    ORDER BY f.id
	    FOR UPDATE
	), changed AS (
	    UPDATE failed_geotasks f
	    SET %s, last_seen = now()
	    FROM members m
	    WHERE f.id = m.id
	    RETURNING f.id, f.dlq_id, f.batch_id, f.feature_id, f.task_id, f.status, f.attempts, f.attempts_forgiven, f.redrives, f.failed_rule, f.error_type, f.error, f.contract_version, f.overrides
	), noted AS (
	    INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, failed_rule, error_type, error, contract_version, actor)
	    SELECT id, batch_id, $3::text, attempts, failed_rule, error_type, coalesce($4::text, error), contract_version, $5::text
	    FROM changed
	)
	SELECT dlq_id, batch_id, coalesce(feature_id, task_id, ''), now(), $3::text, status, attempts, attempts_forgiven, redrives,
	       coalesce(failed_rule, ''), coalesce(error_type, ''), coalesce(error, ''), coalesce(contract_version, ''), overrides::text, coalesce($4::text, '')
	FROM changed`

const (
	// requeued keeps lost_leases: a feature that killed its worker stays suspect.
	requeued  = `status = 'pending', attempts_forgiven = f.attempts, redrives = f.redrives + 1, next_attempt_at = now()`
	fixed     = `overrides = geodlq_merge_overrides(f.overrides, $6::jsonb, $7::boolean)`
	discarded = `status = 'discarded'`
)

// change does one chunk of a requeue, a fix or a discard.
func (s *Service) change(ctx context.Context, tx pgx.Tx, r *Run, part *chunk) (Counts, []outcome.Outcome, error) {
	var set, event string
	var note *string
	args := []any{part.Tasks, r.statuses, "", note, r.Actor}
	switch r.Action {
	case "requeue":
		set, event = requeued, "requeued"
	case "discard":
		var request DiscardRequest
		if err := json.Unmarshal(r.Request, &request); err != nil {
			return Counts{}, nil, fmt.Errorf("read the request of run %s: %w", r.ID, err)
		}
		why := deadletter.Message(request.Reason)
		set, event, args[3] = discarded, "discarded", &why
	case "fix":
		var request FixRequest
		if err := json.Unmarshal(r.Request, &request); err != nil {
			return Counts{}, nil, fmt.Errorf("read the request of run %s: %w", r.ID, err)
		}
		set, event = fixed, "fixed"
		if request.Requeue {
			set = fixed + ", " + requeued
		}
		if request.Why != "" {
			why := deadletter.Message(request.Why)
			args[3] = &why
		}
		args = append(args, string(request.Overrides), request.Replace)
	default:
		return Counts{}, nil, fmt.Errorf("run %s is a %s, which changes no rows", r.ID, r.Action)
	}
	args[2] = event
	rows, err := tx.Query(ctx, fmt.Sprintf(changeMembers, set), args...)
	if err != nil {
		return Counts{}, nil, fmt.Errorf("%s %d rows: %w", r.Action, len(part.Tasks), err)
	}
	outcomes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (outcome.Outcome, error) {
		o := outcome.Outcome{Actor: r.Actor}
		var overrides *string
		err := row.Scan((*[16]byte)(&o.DLQID), &o.BatchID, &o.FeatureID, &o.At, &o.Event, &o.Status, &o.Attempts, &o.Forgiven, &o.Redrives,
			&o.FailedRule, &o.ErrorType, &o.Error, &o.ContractVersion, &overrides, &o.Note)
		if overrides != nil {
			o.Overrides = []byte(*overrides)
		}
		return o, err
	})
	if err != nil {
		return Counts{}, nil, fmt.Errorf("%s %d rows: %w", r.Action, len(part.Tasks), err)
	}
	n := int64(len(outcomes))
	return Counts{Changed: n, Skipped: int64(len(part.Tasks)) - n}, outcomes, nil
}

// A dry run reads rows, and a canary claims them, with at most so many bytes of payload at a time.
const bytesAtOnce = 16 << 20

// rehearse does one chunk of a dry run: the transform, and what PostGIS and the target
// would say, with nothing written but the counts.
func (s *Service) rehearse(ctx context.Context, r *Run, part *chunk) error {
	t, err := s.Contract(ctx)
	if err != nil {
		return fmt.Errorf("load the contract: %w", err)
	}
	var fix []byte
	var replace bool
	if r.Action == "fix" {
		var request FixRequest
		if err := json.Unmarshal(r.Request, &request); err != nil {
			return fmt.Errorf("read the request of run %s: %w", r.ID, err)
		}
		fix, replace = request.Overrides, request.Replace
	}
	var counts Counts
	if r.Action == "discard" {
		// Nothing to transform: it says how many there are.
		tasks, err := collect[struct{ N int64 }](ctx, s.DB, `SELECT count(*) FROM failed_geotasks
			WHERE id = ANY ($1::bigint[]) AND status = ANY ($2::text[]) AND lease_token IS NULL`, part.Tasks, r.statuses)
		if err != nil {
			return fmt.Errorf("count rows: %w", err)
		}
		counts.Changed = tasks[0].N
		counts.Skipped = int64(len(part.Tasks)) - tasks[0].N
	} else {
		left := part.Tasks
		for len(left) > 0 {
			tasks, err := s.Queue.Peek(ctx, queue.Members{IDs: left, Statuses: r.statuses}, len(left), bytesAtOnce, fix, replace)
			if err != nil {
				return err
			}
			if len(tasks) == 0 {
				counts.Skipped += int64(len(left))
				break
			}
			if err := s.rehearseTasks(ctx, t, tasks, &counts); err != nil {
				return err
			}
			// Rows come in the order of their ids: those passed over up to the last are skipped.
			last := tasks[len(tasks)-1].ID
			n := 0
			for n < len(left) && left[n] <= last {
				n++
			}
			counts.Skipped += int64(n - len(tasks))
			left = left[n:]
		}
	}
	return pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		now, err := runBy(ctx, tx, r.ID, " FOR UPDATE")
		if err != nil {
			return err
		}
		*r = now
		return s.record(ctx, tx, r, part, counts)
	})
}

// transformed runs the transform of one row, for as long as a row may take.
func (s *Service) transformed(ctx context.Context, t transform.Transformer, task *queue.Task) (transform.Output, error) {
	in, err := task.Input()
	if err != nil {
		return transform.Output{}, err
	}
	type result struct {
		out transform.Output
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := transform.Run(ctx, t, in)
		done <- result{out, err}
	}()
	limit := time.NewTimer(s.Settings.RowTimeout)
	defer limit.Stop()
	select {
	case r := <-done:
		return r.out, r.err
	case <-limit.C:
		// It cannot be stopped from outside; it is left to itself.
		return transform.Output{}, deadletter.Faultf(deadletter.ReasonUnknown, "", "the transform took longer than %s", s.Settings.RowTimeout)
	}
}

func (s *Service) rehearseTasks(ctx context.Context, t transform.Transformer, tasks []queue.Task, counts *Counts) error {
	var cleared []queue.Cleared
	for i := range tasks {
		if tasks[i].LostLeases > 0 {
			counts.Untried++
			continue
		}
		out, err := s.transformed(ctx, t, &tasks[i])
		if err == nil {
			cleared = append(cleared, queue.Cleared{ID: tasks[i].ID, Output: out})
			continue
		}
		class, reason := transform.Classify(err)
		if class == transform.ClassDownstream {
			return fmt.Errorf("transform row %d: %w", tasks[i].ID, err)
		}
		rule := ""
		if fault, ok := deadletter.AsFault(err); ok {
			rule = deadletter.Label(fault.Rule)
		}
		counts.WouldFail++
		counts.failed(reason, rule, 1)
	}
	settled, err := s.Queue.Rehearse(ctx, queue.Contract{Target: t.Target(), Version: t.Version()}, cleared)
	if err != nil {
		return err
	}
	for _, o := range settled {
		switch o.Result {
		case queue.Inserted:
			counts.WouldClear++
		case queue.Unchanged:
			counts.WouldClear++
			counts.InTarget++
		default:
			counts.WouldFail++
			counts.failed(o.Reason, o.Rule, 1)
		}
	}
	return nil
}

// members is the queue as a canary sees it: the rows of one chunk, to be redriven as
// they are claimed, and nothing else.
type members struct {
	*queue.Queue
	rows queue.Members
}

// Rescue leaves leases that ran out to replay.
func (m *members) Rescue(context.Context, queue.Policy) (lost, quarantined int64, err error) {
	return 0, 0, nil
}

func (m *members) Claim(ctx context.Context, c queue.Claim) (queue.Lease, error) {
	return m.ClaimMembers(ctx, c, m.rows)
}

func (m *members) ClaimSuspect(ctx context.Context, c queue.Claim) (queue.Lease, error) {
	rows := m.rows
	rows.Suspects = true
	c.Limit, c.Bytes = 1, 1
	return m.ClaimMembers(ctx, c, rows)
}

// tryCanary replays the rows of a canary chunk for real, here and now. What it had no
// time for stays for the next invocation: rows that were tried have changed since the
// run began, and are not claimed again.
func (s *Service) tryCanary(ctx context.Context, r *Run, part *chunk) error {
	t, err := s.Contract(ctx)
	if err != nil {
		return fmt.Errorf("load the contract: %w", err)
	}
	engine := replay.Engine{
		Queue: &members{s.Queue, queue.Members{
			IDs: part.Tasks, Statuses: r.statuses, Unchanged: r.StartedAt, Actor: r.Actor,
		}},
		Settings: s.Settings,
		Log:      s.Logger,
		Stop:     s.Stop,
		Settled: func(ctx context.Context, lease queue.Lease, settled []queue.Settled, version string) {
			s.logCanary(context.WithoutCancel(ctx), r, lease, outcome.OfClaim(lease, settled, version, time.Now()))
		},
	}
	answer, err := engine.Run(ctx, replay.Event{}, t)
	if err != nil {
		return err
	}
	switch answer.StoppedBecause {
	case replay.StopDrained:
	case replay.StopDeadline, replay.StopTerminated:
		return nil
	default:
		return fmt.Errorf("the canary stopped (%s) after %d rows: %s", answer.StoppedBecause, answer.Claimed, answer.Trouble)
	}
	return pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		now, err := runBy(ctx, tx, r.ID, " FOR UPDATE")
		if err != nil {
			return err
		}
		*r = now
		return s.record(ctx, tx, r, part, Counts{})
	})
}

// logCanary writes the outcomes of a canary's claim to the log. Its rows were redriven
// by the claim, so all attempts but the latest are forgiven.
func (s *Service) logCanary(ctx context.Context, r *Run, lease queue.Lease, outcomes []outcome.Outcome) {
	ids := make([]string, len(outcomes))
	for i := range outcomes {
		ids[i] = outcomes[i].DLQID.String()
	}
	type line struct {
		DLQID    string
		Redrives int
	}
	lines, err := collect[line](ctx, s.DB, `SELECT dlq_id::text, redrives FROM failed_geotasks WHERE dlq_id = ANY ($1::text[]::uuid[])`, ids)
	redrives := make(map[string]int, len(lines))
	for _, l := range lines {
		redrives[l.DLQID] = l.Redrives
	}
	for i := range outcomes {
		o := &outcomes[i]
		o.Forgiven, o.Redrives, o.Actor = max(0, o.Attempts-1), redrives[ids[i]], r.Actor
	}
	if err == nil {
		err = s.Log.Append(ctx, outcome.SourceOf(lease.Token), outcomes)
	}
	if err != nil {
		s.Logger.WarnContext(ctx, "outcomes of a canary are not in the log", "run", r.ID, "rows", len(outcomes), "error", err)
	}
}

// canaryRows says what became of the rows that were tried: those that changed since
// the run began. held are under a lease still, of a worker that may have vanished.
const canaryRows = `
	SELECT f.status, coalesce(f.error_type, ''), coalesce(f.failed_rule, ''), f.lease_token IS NOT NULL AND f.next_attempt_at > now(), count(*)
	FROM redrive_chunks c CROSS JOIN unnest(c.tasks) AS m (id) JOIN failed_geotasks f ON f.id = m.id
	WHERE c.run = $1::text::uuid AND c.canary AND f.last_seen > $2::timestamptz
	GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC`

// judgeCanary decides whether a run goes on after its canary.
func (s *Service) judgeCanary(ctx context.Context, tx pgx.Tx, r *Run) error {
	type line struct {
		Status, Reason, Rule string
		Held                 bool
		Rows                 int64
	}
	lines, err := collect[line](ctx, tx, canaryRows, r.ID, r.StartedAt)
	if err != nil {
		return fmt.Errorf("look what became of the canary of run %s: %w", r.ID, err)
	}
	var c Canary
	var causes Counts
	var held int64
	for _, l := range lines {
		c.Tried += l.Rows
		switch {
		case l.Status == "replayed":
			c.Cleared += l.Rows
		case l.Held:
			held += l.Rows
		default:
			c.Failed += l.Rows
			causes.failed(deadletter.Reason(l.Reason), l.Rule, l.Rows)
		}
	}
	if held > 0 {
		// Somebody else works on the canary, or did and died: then its lease will run out.
		r.wait = time.Second
		return nil
	}
	c.Causes = causes.Causes
	passed := float64(c.Cleared) >= r.canaryShare*float64(c.Tried)
	r.Counts.add(Counts{Canary: &c, Changed: c.Tried, Skipped: r.canary - c.Tried})
	r.CanaryPassed = &passed
	if !passed {
		r.State = "stopped"
		r.StoppedBecause = fmt.Sprintf("%d of %d rows of the canary cleared; %g of them should have", c.Cleared, c.Tried, r.canaryShare)
	}
	if err := s.save(ctx, tx, r, 0); err != nil || passed {
		return err
	}
	return closingAudit(ctx, tx, r, r.Action+" stopped")
}
