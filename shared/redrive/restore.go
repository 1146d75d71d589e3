package redrive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
	"geodlq/shared/geojson"
	"geodlq/shared/hive"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/transform"
)

// RestoreRequest brings rows back into the queue from the archive, as the outcome log
// says they were. Rows that the queue has are left alone, so it may be repeated.
type RestoreRequest struct {
	// BatchID is one batch or a list, or globs; "*" is every batch.
	BatchID Texts `json:"batch_id"`
	// Date takes the archive's days (UTC, of arrival) from From to To, both inclusive.
	Date *Days `json:"date,omitempty"`
	// TargetLost makes rows that were replayed pending again, because the table their
	// features landed in is lost too. Otherwise they come back as replayed.
	TargetLost bool   `json:"target_lost,omitempty"`
	DryRun     *bool  `json:"dry_run,omitempty"`
	Actor      string `json:"actor,omitempty"`
	Why        string `json:"why,omitempty"`
	Run        string `json:"run,omitempty"`
}

// Days are the first and last of some days, as 2026-11-30; either may be left out.
type Days struct {
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

func (s *Service) restore(ctx context.Context, c Caller, r RestoreRequest) (Run, error) {
	actor, err := c.actor(r.Actor)
	if err != nil {
		return Run{}, err
	}
	if r.BatchID == nil {
		return Run{}, badRequest(`want "batch_id"; "*" is every batch`)
	}
	if r.Date != nil {
		for _, day := range []string{r.Date.From, r.Date.To} {
			if _, err := time.Parse(time.DateOnly, day); day != "" && err != nil {
				return Run{}, badRequest("date %q: want the form 2026-11-30", day)
			}
		}
	}
	id := r.Run
	if id == "" {
		id = deadletter.NewUUID().String()
	} else if _, err := deadletter.ParseUUID(id); err != nil {
		return Run{}, &RequestError{err}
	}
	if _, err := s.load(ctx, id); err == nil {
		return s.work(ctx, id) // the same request once more
	}
	outcomes, files, err := s.restorable(ctx, &r)
	if err != nil {
		return Run{}, err
	}
	if err := s.beginRestore(ctx, c, id, actor, &r, outcomes, files); err != nil {
		return Run{}, err
	}
	return s.work(ctx, id)
}

// restorable lists what there is to read: first the outcome files, then the archive's.
func (s *Service) restorable(ctx context.Context, r *RestoreRequest) (outcomes, files []string, err error) {
	prefixes, err := s.batchPrefixes(ctx, r.BatchID)
	if err != nil {
		return nil, nil, err
	}
	for _, prefix := range prefixes {
		err := s.keys(ctx, archive.Prefix+prefix, func(key string) {
			day := ""
			for part := range strings.SplitSeq(key, "/") {
				if d, ok := strings.CutPrefix(part, "date="); ok {
					day = d
				}
			}
			if !strings.HasSuffix(key, ".parquet") || r.Date != nil && (day < r.Date.From || r.Date.To != "" && day > r.Date.To) {
				return
			}
			files = append(files, key)
		})
		if err != nil {
			return nil, nil, err
		}
		// All outcomes of the batch: they come on the day they happened, not on that of the arrival.
		err = s.keys(ctx, outcome.Prefix+prefix, func(key string) { outcomes = append(outcomes, key) })
		if err != nil {
			return nil, nil, err
		}
	}
	return outcomes, files, nil
}

// batchPrefixes are the partitions of the batches that match, such as "batch_id=a/". A
// name without a wildcard is looked up by its key; for globs the partitions are listed.
func (s *Service) batchPrefixes(ctx context.Context, batches Texts) ([]string, error) {
	var globs, prefixes []string
	for _, b := range batches {
		if name, glob := like(b); glob {
			globs = append(globs, b)
		} else {
			prefixes = append(prefixes, "batch_id="+hive.Escape(name)+"/")
		}
	}
	if globs == nil {
		return prefixes, nil
	}
	pages := s3.NewListObjectsV2Paginator(s.S3, &s3.ListObjectsV2Input{Bucket: &s.Bucket, Prefix: aws.String(archive.Prefix), Delimiter: aws.String("/")})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the batches of the archive: %w", err)
		}
		for _, p := range page.CommonPrefixes {
			prefix := strings.TrimPrefix(aws.ToString(p.Prefix), archive.Prefix)
			value := strings.TrimSuffix(strings.TrimPrefix(prefix, "batch_id="), "/")
			batch, err := hive.Unescape(value)
			if err != nil {
				batch = value // shortened: what is left of it must do
			}
			if slices.ContainsFunc(globs, func(g string) bool { return globMatches(g, batch) }) && !slices.Contains(prefixes, prefix) {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	return prefixes, nil
}

// globMatches is what LIKE does with the pattern that like makes of the glob. It never
// looks back further than the last star, so it takes no exponential time.
func globMatches(glob, text string) bool {
	const star, one = -1, -2 // no rune is below 0
	var pattern []rune
	escaped := false
	for _, r := range glob {
		switch {
		case escaped:
			pattern, escaped = append(pattern, r), false
		case r == '\\':
			escaped = true
		case r == '*':
			pattern = append(pattern, star)
		case r == '?':
			pattern = append(pattern, one)
		default:
			pattern = append(pattern, r)
		}
	}
	if escaped {
		pattern = append(pattern, '\\')
	}
	runes := []rune(text)
	p, t, afterStar, from := 0, 0, -1, 0
	for t < len(runes) {
		switch {
		case p < len(pattern) && pattern[p] == star:
			p++
			afterStar, from = p, t
		case p < len(pattern) && (pattern[p] == one || pattern[p] == runes[t]):
			p, t = p+1, t+1
		case afterStar >= 0:
			from++
			p, t = afterStar, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == star {
		p++
	}
	return p == len(pattern)
}

func (s *Service) keys(ctx context.Context, prefix string, each func(key string)) error {
	pages := s3.NewListObjectsV2Paginator(s.S3, &s3.ListObjectsV2Input{Bucket: &s.Bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list s3://%s/%s: %w", s.Bucket, prefix, err)
		}
		for _, object := range page.Contents {
			each(aws.ToString(object.Key))
		}
	}
	return nil
}

// outcomeFiles is how many files of the outcome log make a chunk; they are small.
const outcomeFiles = 200

// beginRestore writes down what a restore reads.
func (s *Service) beginRestore(ctx context.Context, c Caller, id, actor string, r *RestoreRequest, outcomes, files []string) error {
	request, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep the request: %w", err)
	}
	dry := r.DryRun == nil || *r.DryRun
	if dry {
		outcomes = nil // they change nothing in what it counts
	}
	state := "running"
	if len(files) == 0 {
		state, outcomes = "done", nil
	}
	members := len(outcomes) + len(files)
	err = pgx.BeginFunc(ctx, s.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO redrive_runs (id, action, dry_run, state, request, actor, statuses, members, ended_at)
			VALUES ($1::text::uuid, 'restore', $2, $3, $4::jsonb, $5, '{}', $6, CASE WHEN $3 = 'done' THEN now() END)`,
			id, dry, state, string(request), actor, members)
		if err != nil {
			return err
		}
		number := int64(0)
		for part := range slices.Chunk(outcomes, outcomeFiles) {
			number++
			if _, err := tx.Exec(ctx, `INSERT INTO redrive_chunks (run, chunk, objects) VALUES ($1::text::uuid, $2, $3::text[])`, id, number, part); err != nil {
				return err
			}
		}
		// One archive file is one chunk: it may hold a hundred thousand rows.
		for part := range slices.Chunk(files, 10000) {
			if _, err := tx.Exec(ctx, `INSERT INTO redrive_chunks (run, chunk, objects)
				SELECT $1::text::uuid, $2::bigint + n, ARRAY[key] FROM unnest($3::text[]) WITH ORDINALITY AS k (key, n)`, id, number, part); err != nil {
				return err
			}
			number += int64(len(part))
		}
		counts := fmt.Sprintf(`{"files": %d}`, members)
		_, err = tx.Exec(ctx, `INSERT INTO redrive_audit (actor, request_id, action, request, run, counts) VALUES ($1, $2, 'restore', $3::jsonb, $4::text::uuid, $5::jsonb)`,
			actor, c.RequestID, string(request), id, counts)
		return err
	})
	if err != nil {
		return fmt.Errorf("write down the %d files of the restore; nothing was begun: %w", members, err)
	}
	return nil
}

// restoreChunk reads the files of one chunk of a restore.
func (s *Service) restoreChunk(ctx context.Context, tx pgx.Tx, r *Run, part *chunk) (Counts, error) {
	var request RestoreRequest
	if err := json.Unmarshal(r.Request, &request); err != nil {
		return Counts{}, fmt.Errorf("read the request of run %s: %w", r.ID, err)
	}
	var counts Counts
	for _, key := range part.Objects {
		var err error
		if strings.HasPrefix(key, outcome.Prefix) {
			err = s.stageOutcomes(ctx, tx, r.ID, key, &counts)
		} else {
			err = s.restoreFile(ctx, tx, r, key, request.TargetLost, &counts)
		}
		if err != nil {
			return Counts{}, err
		}
	}
	return counts, nil
}

// stageOutcomes adds outcomes up to the state of their dead letters: status, attempts
// and contract are those of the latest, the error is of the latest that has one, and
// the overrides are of the latest fix. Files may come in any order, and again.
const stageOutcomes = `
	WITH i AS (
	    SELECT *, event = 'fixed' AS fixes, error_type <> '' AS fails
	    FROM unnest($2::text[]::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::int[], $7::int[], $8::int[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[])
	         AS i (dlq_id, at, event, status, attempts, forgiven, redrives, failed_rule, error_type, error, contract_version, overrides)
	), latest AS (
	    SELECT DISTINCT ON (dlq_id) *, max(forgiven) OVER w AS forgiven_most, max(redrives) OVER w AS redrives_most
	    FROM i WINDOW w AS (PARTITION BY dlq_id) ORDER BY dlq_id, at DESC, attempts DESC
	), failure AS (
	    SELECT DISTINCT ON (dlq_id) * FROM i WHERE fails ORDER BY dlq_id, at DESC, attempts DESC
	), fix AS (
	    SELECT DISTINCT ON (dlq_id) * FROM i WHERE fixes ORDER BY dlq_id, at DESC
	)
	INSERT INTO redrive_outcomes AS o (run, dlq_id, at, status, attempts, forgiven, redrives, contract_version,
	    failed_at, failed_rule, error_type, error, fixed_at, overrides)
	SELECT $1::text::uuid, l.dlq_id, l.at, l.status, l.attempts, l.forgiven_most, l.redrives_most, nullif(l.contract_version, ''),
	       f.at, nullif(f.failed_rule, ''), f.error_type, nullif(f.error, ''), x.at, x.overrides::jsonb
	FROM latest l LEFT JOIN failure f USING (dlq_id) LEFT JOIN fix x USING (dlq_id)
	ON CONFLICT (run, dlq_id) DO UPDATE SET
	    at = greatest(o.at, excluded.at),
	    status = CASE WHEN excluded.at > o.at THEN excluded.status ELSE o.status END,
	    attempts = CASE WHEN excluded.at > o.at THEN excluded.attempts ELSE o.attempts END,
	    contract_version = CASE WHEN excluded.at > o.at THEN excluded.contract_version ELSE o.contract_version END,
	    forgiven = greatest(o.forgiven, excluded.forgiven),
	    redrives = greatest(o.redrives, excluded.redrives),
	    failed_at = greatest(o.failed_at, excluded.failed_at),
	    failed_rule = CASE WHEN excluded.failed_at > coalesce(o.failed_at, '-infinity') THEN excluded.failed_rule ELSE o.failed_rule END,
	    error_type = CASE WHEN excluded.failed_at > coalesce(o.failed_at, '-infinity') THEN excluded.error_type ELSE o.error_type END,
	    error = CASE WHEN excluded.failed_at > coalesce(o.failed_at, '-infinity') THEN excluded.error ELSE o.error END,
	    fixed_at = greatest(o.fixed_at, excluded.fixed_at),
	    overrides = CASE WHEN excluded.fixed_at > coalesce(o.fixed_at, '-infinity') THEN excluded.overrides ELSE o.overrides END`

func (s *Service) stageOutcomes(ctx context.Context, tx pgx.Tx, run, key string, counts *Counts) error {
	rows, err := s.Log.Read(ctx, key)
	if err != nil {
		return err
	}
	n := len(rows)
	ids, at, events, states := make([]string, n), make([]time.Time, n), make([]string, n), make([]string, n)
	attempts, forgiven, redrives := make([]int32, n), make([]int32, n), make([]int32, n)
	rules, types, messages, versions, overrides := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]*string, n)
	for i := range rows {
		o := &rows[i]
		ids[i], at[i], events[i], states[i] = o.DLQID.String(), o.At, o.Event, o.Status
		attempts[i], forgiven[i], redrives[i] = int32(o.Attempts), int32(o.Forgiven), int32(o.Redrives)
		rules[i], types[i], messages[i], versions[i] = o.FailedRule, o.ErrorType, o.Error, o.ContractVersion
		if o.Overrides != nil {
			text := string(o.Overrides)
			overrides[i] = &text
		}
	}
	_, err = tx.Exec(ctx, stageOutcomes, run, ids, at, events, states, attempts, forgiven, redrives, rules, types, messages, versions, overrides)
	if err != nil {
		return fmt.Errorf("take in the outcomes of s3://%s/%s: %w", s.Bucket, key, err)
	}
	counts.Outcomes += int64(n)
	return nil
}

// restoreRows is how many rows of an archive file are brought back at a time.
const restoreRows = 1000

func (s *Service) restoreFile(ctx context.Context, tx pgx.Tx, r *Run, key string, targetLost bool, counts *Counts) error {
	file, err := archive.NewStore(s.S3, s.Bucket).Get(ctx, key)
	if err != nil {
		return err
	}
	reader, err := archive.NewReader(file.Reader())
	if err != nil {
		return fmt.Errorf("restore from s3://%s/%s: %w", s.Bucket, key, err)
	}
	rows := make([]archive.Row, restoreRows)
	for {
		n, err := reader.Read(rows)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.restoreBatch(ctx, tx, r, rows[:n], targetLost, counts)
		}
		if err != nil {
			return fmt.Errorf("restore from s3://%s/%s: %w", s.Bucket, key, err)
		}
	}
}

// applyOutcomes gives rows that were just brought back the state the log knows. It
// happens in the transaction that inserted them: nobody ever sees a row that was
// replayed or given up as pending.
const applyOutcomes = `
	WITH applied AS (
	    UPDATE failed_geotasks f
	    SET status = CASE WHEN o.status = 'replayed' AND $3::boolean THEN 'pending' ELSE o.status END,
	        attempts = o.attempts,
	        attempts_forgiven = CASE WHEN o.status = 'replayed' AND $3::boolean THEN o.attempts ELSE least(o.forgiven, o.attempts) END,
	        redrives = o.redrives,
	        failed_rule = coalesce(o.failed_rule, f.failed_rule),
	        error_type = coalesce(o.error_type, f.error_type),
	        error = coalesce(o.error, f.error),
	        contract_version = o.contract_version,
	        overrides = o.overrides,
	        last_seen = o.at
	    FROM redrive_outcomes o
	    WHERE o.run = $1::text::uuid AND o.dlq_id = f.dlq_id AND f.dlq_id = ANY ($2::text[]::uuid[])
	    RETURNING f.id
	)
	SELECT count(*) FROM applied`

// noteRestored leaves a line in the history of each row that came back.
const noteRestored = `
	INSERT INTO failed_geotasks_history (task, batch_id, event, attempt, failed_rule, error_type, error, contract_version, actor)
	SELECT id, batch_id, 'restored', attempts, failed_rule, error_type, error, contract_version, $2::text
	FROM failed_geotasks WHERE dlq_id = ANY ($1::text[]::uuid[])`

func (s *Service) restoreBatch(ctx context.Context, tx pgx.Tx, r *Run, rows []archive.Row, targetLost bool, counts *Counts) error {
	counts.Rows += int64(len(rows))
	ids := make([]string, len(rows))
	for i := range rows {
		ids[i] = rows[i].DLQID.String()
	}
	known, err := collect[struct{ ID string }](ctx, tx, `SELECT dlq_id::text FROM failed_geotasks WHERE dlq_id = ANY ($1::text[]::uuid[])`, ids)
	if err != nil {
		return fmt.Errorf("look which rows are there: %w", err)
	}
	there := make(map[string]bool, len(known))
	for _, k := range known {
		there[k.ID] = true
	}
	var fresh []deadletter.Record
	var freshIDs []string
	for i := range rows {
		if there[ids[i]] {
			counts.There++
			continue
		}
		there[ids[i]] = true
		record := rows[i].Record
		locate(&record)
		fresh, freshIDs = append(fresh, record), append(freshIDs, ids[i])
	}
	if r.DryRun {
		counts.WouldAdd += int64(len(fresh))
		return nil
	}
	if len(fresh) == 0 {
		return nil
	}
	n, err := queue.EnqueueTx(ctx, tx, fresh)
	if err != nil {
		return err
	}
	counts.Changed += n
	if _, err := tx.Exec(ctx, applyOutcomes, r.ID, freshIDs, targetLost); err != nil {
		return fmt.Errorf("apply the outcome log to %d rows: %w", len(freshIDs), err)
	}
	if _, err := tx.Exec(ctx, noteRestored, freshIDs, r.Actor); err != nil {
		return fmt.Errorf("note the return of %d rows: %w", len(freshIDs), err)
	}
	return nil
}

// locate reads the geometry out of the payload, as capture did: the archive does not
// repeat it. A row whose geometry cannot be read goes without one, as it did then.
func locate(r *deadletter.Record) {
	if r.EPSG == 0 || len(r.Payload) == 0 {
		return
	}
	feature, err := geojson.Decode(r.Payload, geojson.Limits{})
	if feature == nil || err != nil {
		return
	}
	if _, code, err := transform.ResolveCRS(r.SourceCRS, feature); err != nil || code != r.EPSG {
		return
	}
	r.Geometry = feature.Geometry
}
