package redrive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/shared/deadletter"
	"geodlq/shared/outcome"
	"geodlq/shared/transform"
)

// Run is one bulk act and how far it is.
type Run struct {
	ID     string `json:"run"`
	Action string `json:"action"`
	DryRun bool   `json:"dry_run"`
	// State is running (also between two invocations), paused, stopped (by its canary),
	// cancelled, or done.
	State  string `json:"state"`
	Actor  string `json:"actor"`
	Counts Counts `json:"counts"`

	Members int64 `json:"members"` // rows it began with; of a restore, files
	Handled int64 `json:"handled"` // of these, whatever became of them

	CanaryPassed    *bool           `json:"canary_passed,omitempty"`
	StoppedBecause  string          `json:"stopped_because,omitempty"`
	ContractVersion string          `json:"contract_version,omitempty"`
	StartedAt       time.Time       `json:"started_at"`
	UpdatedAt       time.Time       `json:"updated_at"`
	EndedAt         *time.Time      `json:"ended_at,omitempty"`
	Request         json.RawMessage `json:"request"`

	statuses    []string
	rate        *float64
	canary      int64
	canaryShare float64
	wait        time.Duration // until its rate allows the next chunk
}

// Counts say what became of the rows of a run.
type Counts struct {
	Changed int64 `json:"changed"` // requeued, fixed, discarded or restored
	Skipped int64 `json:"skipped"` // changed by somebody else since the run began, or being worked on

	// Of a dry run.
	WouldClear int64 `json:"would_clear,omitempty"`
	WouldFail  int64 `json:"would_fail,omitempty"`
	InTarget   int64 `json:"in_target_already,omitempty"` // of WouldClear
	// Untried rows cost a worker its life before, or seem to cost this one its own: only
	// replay may try them, each alone.
	Untried int64 `json:"untried,omitempty"`
	// Causes are those of WouldFail, the most frequent first, at most 100.
	Causes []Cause `json:"causes,omitempty"`

	// Canary is what became of the rows that were tried before the others.
	Canary *Canary `json:"canary,omitempty"`

	// Of a restore.
	Rows      int64 `json:"rows,omitempty"`              // in the archive files read
	There     int64 `json:"already_there,omitempty"`     // of these, in the queue
	WouldAdd  int64 `json:"would_add,omitempty"`         // of these, of a dry run, not in the queue
	Outcomes  int64 `json:"outcomes_read,omitempty"`     // in the log
	Unwritten int64 `json:"outcomes_unlogged,omitempty"` // committed, but the outcome log could not be written
}

// Cause is why rows would fail, or did.
type Cause struct {
	Reason deadletter.Reason `json:"reason"`
	Rule   string            `json:"failed_rule,omitempty"`
	Rows   int64             `json:"rows"`
}

// Canary is the outcome of the rows tried first.
type Canary struct {
	Tried   int64   `json:"tried"`
	Cleared int64   `json:"cleared"`
	Failed  int64   `json:"failed"`
	Causes  []Cause `json:"causes,omitempty"`
}

const maxCauses = 100

func (c *Counts) add(d Counts) {
	c.Changed += d.Changed
	c.Skipped += d.Skipped
	c.WouldClear += d.WouldClear
	c.WouldFail += d.WouldFail
	c.InTarget += d.InTarget
	c.Untried += d.Untried
	c.Rows += d.Rows
	c.There += d.There
	c.WouldAdd += d.WouldAdd
	c.Outcomes += d.Outcomes
	c.Unwritten += d.Unwritten
	for _, cause := range d.Causes {
		c.failed(cause.Reason, cause.Rule, cause.Rows)
	}
	sort.SliceStable(c.Causes, func(i, j int) bool { return c.Causes[i].Rows > c.Causes[j].Rows })
	if len(c.Causes) > maxCauses {
		c.Causes = c.Causes[:maxCauses]
	}
	if d.Canary != nil {
		c.Canary = d.Canary
	}
}

func (c *Counts) failed(reason deadletter.Reason, rule string, n int64) {
	for i := range c.Causes {
		if c.Causes[i].Reason == reason && c.Causes[i].Rule == rule {
			c.Causes[i].Rows += n
			return
		}
	}
	c.Causes = append(c.Causes, Cause{reason, rule, n})
}

// Bulk is what all requests that change rows have.
type Bulk struct {
	Filter Filter `json:"filter"`
	// DryRun does everything but write; it is true unless the request says false.
	DryRun *bool   `json:"dry_run,omitempty"`
	Limit  int64   `json:"limit,omitempty"` // most rows, the oldest; 0 is no limit
	Rate   float64 `json:"rate,omitempty"`  // most rows a second; 0 is no limit. A dry run has none.
	Actor  string  `json:"actor,omitempty"` // who asks, where the platform does not know
	Why    string  `json:"why,omitempty"`   // for the audit table
	// Run is a UUID for the run. A request that is sent again with the same one finds
	// the run it began the first time.
	Run string `json:"run,omitempty"`
}

func (b *Bulk) dry() bool { return b.DryRun == nil || *b.DryRun }

// Rows in a chunk: so many that commits do not dominate, so few that a pause or a
// deadline waits for less than a second or two. A dry run reads and transforms them.
const (
	chunkRows       = 5000
	dryChunkRows    = 500
	canaryChunkRows = 500
)

// plan is what an action makes of a request.
type plan struct {
	action      string
	bulk        *Bulk
	request     any
	statuses    Texts // default, where the filter names none
	allowed     Texts
	canary      int64
	canaryShare float64
	needs       bool // the contract, to run at all
}

// freezeRows begins a run: it writes down which rows it is about, in one snapshot, and
// that it was asked for. The canary's rows are taken evenly from all over the members.
const freezeRows = `
	WITH matched AS MATERIALIZED (
	    SELECT f.id FROM failed_geotasks f WHERE %[1]s ORDER BY f.id LIMIT %[2]s::bigint
	), numbered AS (
	    SELECT id, row_number() OVER (ORDER BY id) - 1 AS i, count(*) OVER () AS n FROM matched
	), picked AS (
	    SELECT id, (i + 1) * least(%[3]s::bigint, n) / n > i * least(%[3]s::bigint, n) / n AS canary FROM numbered
	), placed AS (
	    SELECT id, canary, (row_number() OVER (PARTITION BY canary ORDER BY id) - 1)
	           / CASE WHEN canary THEN %[4]s::bigint ELSE %[5]s::bigint END AS part
	    FROM picked
	), begun AS (
	    INSERT INTO redrive_runs (id, action, dry_run, state, request, actor, statuses, members, rate, canary, canary_share, contract_version, ended_at)
	    SELECT %[6]s::text::uuid, %[7]s::text, %[8]s::boolean, CASE WHEN n > 0 THEN 'running' ELSE 'done' END, %[9]s::jsonb, %[10]s::text, %[11]s::text[],
	           n, %[12]s::float8, least(%[3]s::bigint, n), %[13]s::float8, %[14]s::text, CASE WHEN n > 0 THEN NULL ELSE now() END
	    FROM (SELECT count(*) AS n FROM matched) counted
	    RETURNING id, members
	), chunks AS (
	    INSERT INTO redrive_chunks (run, chunk, canary, tasks)
	    SELECT b.id, row_number() OVER (ORDER BY NOT p.canary, p.part), p.canary, p.tasks
	    FROM begun b, (SELECT canary, part, array_agg(id ORDER BY id) AS tasks FROM placed GROUP BY canary, part) p
	)
	INSERT INTO redrive_audit (actor, request_id, action, request, run, counts)
	SELECT %[10]s::text, %[15]s::text, %[7]s::text, %[9]s::jsonb, id, jsonb_build_object('members', members) FROM begun`

// begin freezes the members of a run and works on it for as long as there is time.
func (s *Service) begin(ctx context.Context, c Caller, p plan) (Run, error) {
	b := p.bulk
	actor, err := c.actor(b.Actor)
	if err != nil {
		return Run{}, err
	}
	if !b.Filter.All && !b.Filter.conditions() {
		return Run{}, badRequest(`an empty filter selects every row; if you mean that, give "filter": {"all": true}`)
	}
	if b.Limit < 0 || b.Rate < 0 || math.IsInf(b.Rate, 0) || math.IsNaN(b.Rate) {
		return Run{}, badRequest("limit and rate are 0, for none, or more")
	}
	f := b.Filter
	if f.Status == nil {
		f.Status = p.statuses
	}
	for _, status := range f.Status {
		if !slices.Contains(p.allowed, status) {
			return Run{}, badRequest("%s does not take rows that are %s", p.action, status)
		}
	}
	id := b.Run
	if id == "" {
		id = deadletter.NewUUID().String()
	} else if _, err := deadletter.ParseUUID(id); err != nil {
		return Run{}, &RequestError{err}
	}
	var version *string
	if b.dry() || p.needs || p.canary > 0 {
		t, err := s.Contract(ctx)
		if err != nil {
			return Run{}, fmt.Errorf("load the contract; nothing was begun: %w", err)
		}
		v := t.Version()
		version = &v
	}
	var q query
	where, err := s.compiled(ctx, &f, &q)
	if err != nil {
		return Run{}, err
	}
	request, err := json.Marshal(p.request)
	if err != nil {
		return Run{}, fmt.Errorf("keep the request: %w", err)
	}
	size, rate := int64(chunkRows), (*float64)(nil)
	switch {
	case b.dry():
		size, p.canary = dryChunkRows, 0
	case b.Rate > 0:
		// A chunk for each second.
		size = int64(max(1, min(chunkRows, math.Ceil(b.Rate))))
		rate = &b.Rate
	}
	var limit *int64
	if b.Limit > 0 {
		limit = &b.Limit
	}
	sql := fmt.Sprintf(freezeRows, where, q.arg(limit), q.arg(p.canary), q.arg(canaryChunkRows), q.arg(size), q.arg(id), q.arg(p.action), q.arg(b.dry()),
		q.arg(string(request)), q.arg(actor), q.arg([]string(f.Status)), q.arg(rate), q.arg(p.canaryShare), q.arg(version), q.arg(c.RequestID))
	_, err = s.DB.Exec(ctx, sql, q.args...)
	var pg *pgconn.PgError
	switch {
	case err == nil:
	case errors.As(err, &pg) && pg.Code == "23505" && pg.TableName == "redrive_runs":
		// The same request once more: go on with what it began.
	default:
		return Run{}, fmt.Errorf("fix the rows of the run; nothing was begun: %w", err)
	}
	if _, err := s.DB.Exec(ctx, `DELETE FROM redrive_chunks c USING redrive_runs r WHERE r.id = c.run AND r.ended_at < now() - interval '1 month'`); err != nil {
		return Run{}, fmt.Errorf("run %s is begun and goes on with the action continue: remove the members of old runs: %w", id, err)
	}
	return s.work(ctx, id)
}

// work goes on with a run until it ends, is paused, or the time is up.
func (s *Service) work(ctx context.Context, id string) (Run, error) {
	var cost time.Duration
	for tries := 0; ; {
		if !s.mayGoOn(ctx, cost) {
			break
		}
		began := time.Now()
		r, err := s.step(ctx, id)
		if class, _ := transform.Classify(err); err != nil && class == transform.ClassDownstream && tries < 3 && ctx.Err() == nil {
			tries++ // a deadlock or a lost connection; the chunk was rolled back
			if sleep(ctx, time.Duration(tries)*100*time.Millisecond) {
				continue
			}
		}
		if err != nil {
			return Run{}, fmt.Errorf("run %s stays where it was, and goes on with the action continue: %w", id, err)
		}
		tries = 0
		if r.State != "running" {
			break
		}
		if r.wait > 0 {
			hard := s.deadline(ctx)
			if !hard.IsZero() && time.Now().Add(r.wait).After(hard) || !sleep(ctx, r.wait) {
				break
			}
			continue
		}
		took := time.Since(began)
		// Half of what it was, or what it is now: one slow chunk is remembered for a few.
		cost = max(took, (cost+took)/2)
	}
	return s.load(context.WithoutCancel(ctx), id)
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

const runColumns = `id::text, action, dry_run, state, actor, counts::text, members, handled, canary_passed, coalesce(stopped_because, ''),
	coalesce(contract_version, ''), started_at, updated_at, ended_at, request::text, statuses, rate, canary, canary_share,
	extract(epoch FROM greatest(next_chunk_at - clock_timestamp(), interval '0'))::float8`

func scanRun(row pgx.CollectableRow) (Run, error) {
	var r Run
	var counts, request string
	var wait float64
	err := row.Scan(&r.ID, &r.Action, &r.DryRun, &r.State, &r.Actor, &counts, &r.Members, &r.Handled, &r.CanaryPassed, &r.StoppedBecause,
		&r.ContractVersion, &r.StartedAt, &r.UpdatedAt, &r.EndedAt, &request, &r.statuses, &r.rate, &r.canary, &r.canaryShare, &wait)
	if err != nil {
		return Run{}, err
	}
	r.Request = json.RawMessage(request)
	r.wait = time.Duration(wait * float64(time.Second))
	if err := json.Unmarshal([]byte(counts), &r.Counts); err != nil {
		return Run{}, fmt.Errorf("read the counts of run %s: %w", r.ID, err)
	}
	return r, nil
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func runBy(ctx context.Context, db querier, id, suffix string) (Run, error) {
	rows, err := db.Query(ctx, `SELECT `+runColumns+` FROM redrive_runs WHERE id = $1::text::uuid`+suffix, id)
	if err != nil {
		return Run{}, fmt.Errorf("read run %s: %w", id, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRun)
	if errors.Is(err, pgx.ErrNoRows) {
		return Run{}, badRequest("there is no run %s", id)
	}
	if err != nil {
		return Run{}, fmt.Errorf("read run %s: %w", id, err)
	}
	return r, nil
}

func (s *Service) load(ctx context.Context, id string) (Run, error) { return runBy(ctx, s.DB, id, "") }

// chunk is a part of a run's members.
type chunk struct {
	Number  int64
	Canary  bool
	Tasks   []int64
	Objects []string
	Tries   int
}

// maxTries is how often a chunk of a dry run may be begun and not be ended, because
// its process died each time, before it is given up.
const maxTries = 3

// step does one chunk of a run, or ends it. The run's row is locked meanwhile, so that
// a chunk is done once however many work on the run, and a pause takes effect between two.
func (s *Service) step(ctx context.Context, id string) (Run, error) {
	var r Run
	var outcomes []outcome.Outcome
	var part *chunk
	var later bool // the chunk is worked on outside the transaction
	err := pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		var err error
		if r, err = runBy(ctx, tx, id, " FOR UPDATE"); err != nil || r.State != "running" || r.wait > 0 {
			return err
		}
		if part, err = nextChunk(ctx, tx, id); err != nil {
			return err
		}
		if r.canary > 0 && r.CanaryPassed == nil && (part == nil || !part.Canary) {
			if err := s.judgeCanary(ctx, tx, &r); err != nil || r.State != "running" || r.wait > 0 {
				return err
			}
		}
		switch {
		case part == nil:
			return s.finish(ctx, tx, &r)
		case part.Canary:
			later = true
			return nil
		case r.DryRun && r.Action != "restore":
			if part.Tries >= maxTries {
				return s.record(ctx, tx, &r, part, Counts{Untried: int64(len(part.Tasks))})
			}
			later = true
			return tried(ctx, tx, &r, part, +1)
		}
		var counts Counts
		if r.Action == "restore" {
			counts, err = s.restoreChunk(ctx, tx, &r, part)
		} else {
			counts, outcomes, err = s.change(ctx, tx, &r, part)
		}
		if err != nil {
			return err
		}
		return s.record(ctx, tx, &r, part, counts)
	})
	if err != nil {
		return Run{}, err
	}
	if later {
		if part.Canary {
			return r, s.tryCanary(ctx, &r, part)
		}
		if err := s.rehearse(ctx, &r, part); err != nil {
			// It is alive to say so: this try does not count.
			return Run{}, errors.Join(err, tried(context.WithoutCancel(ctx), s.DB, &r, part, -1))
		}
		return r, nil
	}
	if len(outcomes) > 0 {
		s.logOutcomes(ctx, &r, part, outcomes)
	}
	return r, nil
}

// logOutcomes writes what committed to the log. If that fails the run goes on: the
// log only ever lacks something, and the run says how much.
func (s *Service) logOutcomes(ctx context.Context, r *Run, part *chunk, outcomes []outcome.Outcome) {
	err := s.Log.Append(ctx, fmt.Sprintf("run %s chunk %d", r.ID, part.Number), outcomes)
	if err == nil {
		return
	}
	s.Logger.WarnContext(ctx, "outcomes of a redrive are not in the log", "run", r.ID, "chunk", part.Number, "rows", len(outcomes), "error", err)
	_, err = s.DB.Exec(ctx, `UPDATE redrive_runs SET counts = jsonb_set(counts, '{outcomes_unlogged}', to_jsonb(coalesce((counts ->> 'outcomes_unlogged')::bigint, 0) + $2::bigint))
		WHERE id = $1::text::uuid`, r.ID, len(outcomes))
	if err != nil {
		s.Logger.WarnContext(ctx, "nor is that in the run", "run", r.ID, "error", err)
	}
}

// tried counts a try of a dry run's chunk, or takes it back.
func tried(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, r *Run, part *chunk, n int) error {
	_, err := db.Exec(ctx, `UPDATE redrive_chunks SET tries = tries + $3 WHERE run = $1::text::uuid AND chunk = $2`, r.ID, part.Number, n)
	if err != nil {
		return fmt.Errorf("note the try of chunk %d of run %s: %w", part.Number, r.ID, err)
	}
	return nil
}

func nextChunk(ctx context.Context, tx pgx.Tx, id string) (*chunk, error) {
	chunks, err := collect[chunk](ctx, tx, `SELECT chunk, canary, tasks, objects, tries FROM redrive_chunks
		WHERE run = $1::text::uuid AND done_at IS NULL ORDER BY chunk LIMIT 1`, id)
	if err != nil {
		return nil, fmt.Errorf("find the next rows of run %s: %w", id, err)
	}
	if len(chunks) == 0 {
		return nil, nil
	}
	return &chunks[0], nil
}

// record marks a chunk as done and adds up what became of it. It changes nothing where
// the chunk was done already, and then says so.
func (s *Service) record(ctx context.Context, tx pgx.Tx, r *Run, part *chunk, counts Counts) error {
	tag, err := tx.Exec(ctx, `UPDATE redrive_chunks SET done_at = now() WHERE run = $1::text::uuid AND chunk = $2 AND done_at IS NULL`, r.ID, part.Number)
	if err != nil {
		return fmt.Errorf("record chunk %d of run %s: %w", part.Number, r.ID, err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	r.Counts.add(counts)
	handled := int64(len(part.Tasks) + len(part.Objects))
	return s.save(ctx, tx, r, handled)
}

// save writes progress. next_chunk_at keeps to the rate whoever works on the run.
func (s *Service) save(ctx context.Context, tx pgx.Tx, r *Run, handled int64) error {
	counts, err := json.Marshal(r.Counts)
	if err != nil {
		return fmt.Errorf("record run %s: %w", r.ID, err)
	}
	r.Handled += handled
	_, err = tx.Exec(ctx, `UPDATE redrive_runs SET counts = $2::jsonb, handled = $3, state = $4, canary_passed = $5, stopped_because = nullif($6::text, ''),
		next_chunk_at = CASE WHEN rate > 0 AND $7::bigint > 0 THEN greatest(next_chunk_at, clock_timestamp()) + make_interval(secs => $7::bigint / rate) ELSE next_chunk_at END,
		updated_at = clock_timestamp(), ended_at = CASE WHEN $4 IN ('done', 'cancelled') THEN clock_timestamp() END
		WHERE id = $1::text::uuid`, r.ID, string(counts), r.Handled, r.State, r.CanaryPassed, r.StoppedBecause, handled)
	if err != nil {
		return fmt.Errorf("record run %s: %w", r.ID, err)
	}
	return nil
}

// finish ends a run of which nothing is left, and writes its counts to the audit table.
func (s *Service) finish(ctx context.Context, tx pgx.Tx, r *Run) error {
	if r.Action == "restore" {
		if _, err := tx.Exec(ctx, `DELETE FROM redrive_outcomes WHERE run = $1::text::uuid`, r.ID); err != nil {
			return fmt.Errorf("end run %s: %w", r.ID, err)
		}
	}
	r.State = "done"
	if err := s.save(ctx, tx, r, 0); err != nil {
		return err
	}
	return closingAudit(ctx, tx, r, r.Action+" ended")
}

func closingAudit(ctx context.Context, tx pgx.Tx, r *Run, action string) error {
	counts, err := json.Marshal(r.Counts)
	if err != nil {
		return fmt.Errorf("write to the audit table: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO redrive_audit (actor, action, request, run, counts) VALUES ($1, $2, $3::jsonb, $4::text::uuid, $5::jsonb)`,
		r.Actor, action, string(r.Request), r.ID, string(counts))
	if err != nil {
		return fmt.Errorf("write to the audit table: %w", err)
	}
	return nil
}
