package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"

	"geodlq/infra/local"
)

// The failure file of the demonstration and the contract it is replayed under.
const (
	demoFile     = "testdata/county_parcels.ndjson"
	demoContract = "testdata/parcels.contract.json"
)

// demonstration runs the real bootstraps on a stack of its own, whatever else is up.
type demonstration struct {
	*app
	began    time.Time
	settings local.Settings
	conn     *pgx.Conn
	bin      string
}

func (a *app) demo(ctx context.Context) (err error) {
	d := &demonstration{app: a, began: time.Now()}
	d.step("GeoDLQ takes the features that a county's parcel load could not write, replays them, and parks what no replay can save.")
	d.step("Building the functions and starting PostGIS, S3 and CloudWatch")
	d.bin = a.dir.bin()
	built := make(chan error, 1)
	go func() { built <- local.BuildBootstraps(ctx, d.bin, "migrate", "capture", "replay", "metrics") }()
	if err := a.prepare(ctx); err != nil {
		return errors.Join(err, <-built)
	}
	stack, err := local.StartStack(ctx)
	if err != nil {
		return errors.Join(err, <-built)
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	if err := <-built; err != nil {
		return err
	}
	d.settings = stack.Settings
	if stack.Postgres == nil {
		// A database of somebody's: a schema of our own, gone afterwards.
		drop, err := d.ownSchema(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, drop()) }()
	}
	if d.conn, err = pgx.Connect(ctx, d.settings.DatabaseURL); err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer d.conn.Close(context.WithoutCancel(ctx))

	for _, chapter := range []func(context.Context) error{d.capture, d.replay, d.metrics, d.outcome, d.archive, d.queries} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stdout, `
All of this is gone now. To keep it and look at it with psql or QGIS:
  make up
  make put FILE=%s
  make -s invoke FN=capture EVENT=%s
  CONTRACT_URI=./%s make -s invoke FN=replay
  . .local/stack.env && psql "$DATABASE_URL"
`, demoFile, a.shorten(a.dir.event()), demoContract)
	return nil
}

// step tells what comes next and when.
func (d *demonstration) step(format string, args ...any) {
	fmt.Fprintf(d.stdout, "[%5.1f s] %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// ownSchema moves the demonstration into a schema of its own.
func (d *demonstration) ownSchema(ctx context.Context) (drop func() error, err error) {
	base, schema := d.settings.DatabaseURL, "geodlq_demo_"+strings.ToLower(rand.Text()[:8])
	if d.settings.DatabaseURL, err = local.CreateSchema(ctx, base, schema); err != nil {
		return nil, err
	}
	d.step("Using the database of DATABASE_URL, in the schema %s", schema)
	return func() error { return local.DropSchema(context.WithoutCancel(ctx), base, schema) }, nil
}

// invoke runs a function once and returns its response.
func (d *demonstration) invoke(ctx context.Context, name string, event []byte) ([]byte, error) {
	var logs bytes.Buffer
	f, err := local.NewFunction(local.FunctionConfig{
		Name:      name,
		Bootstrap: filepath.Join(d.bin, name),
		Env: append(append(d.settings.Environ(), d.settings.AWSEnviron()...),
			// Waiting half a minute for a second try would make a poor demonstration.
			"BACKOFF_BASE=200ms", "LOG_LEVEL=WARN",
			"CONTRACT_URI="+filepath.Join(d.root, demoContract)),
		Timeout: timeouts[name],
		Logs:    &logs,
	})
	if err != nil {
		return nil, err
	}
	response, err := f.Invoke(ctx, event)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%w\nIts log:\n%s", err, logs.Bytes())
	}
	return response, nil
}

// brief is one line about a function's response: its counts.
func brief(response []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(response))
	decoder.UseNumber()
	var counts []string
	depth, name := 0, ""
	for {
		token, err := decoder.Token()
		if err != nil {
			return strings.Join(counts, ", ")
		}
		switch v := token.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
			name = ""
		case string:
			if name == "" && depth == 1 {
				name = v
				continue
			}
			name = ""
		case json.Number:
			if n, err := v.Int64(); err == nil && depth == 1 {
				counts = append(counts, fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), n))
			}
			name = ""
		default:
			name = ""
		}
	}
}

// scalar reads one number.
func (d *demonstration) scalar(ctx context.Context, query string) (n int64, err error) {
	if err := d.conn.QueryRow(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("%s: %w", query, err)
	}
	return n, nil
}

func (d *demonstration) capture(ctx context.Context) error {
	if _, err := d.invoke(ctx, "migrate", []byte("{}")); err != nil {
		return err
	}
	path := filepath.Join(d.root, demoFile)
	object, err := upload(ctx, d.settings, path, "incoming/"+filepath.Base(path))
	if err != nil {
		return err
	}
	d.step("The pipeline's failure file arrives: s3://%s/%s, %d kB", object.bucket, object.key, object.size>>10)
	event, err := object.event()
	if err != nil {
		return err
	}
	response, err := d.invoke(ctx, "capture", event)
	if err != nil {
		return err
	}
	const count = `SELECT count(*) FROM failed_geotasks`
	rows, err := d.scalar(ctx, count)
	if err != nil {
		return err
	}
	d.step("capture stored %d dead letters: %s", rows, brief(response))
	if _, err := d.invoke(ctx, "capture", event); err != nil {
		return err
	}
	again, err := d.scalar(ctx, count)
	if err != nil {
		return err
	}
	d.step("The same event once more, as S3 may deliver it: %d more", again-rows)
	return nil
}

// replay runs replays, as the schedule does, until nothing is pending.
func (d *demonstration) replay(ctx context.Context) error {
	const pending = `SELECT count(*) FROM failed_geotasks WHERE status = 'pending'`
	const maxRuns = 50
	for run := 1; run <= maxRuns; run++ {
		response, err := d.invoke(ctx, "replay", []byte("{}"))
		if err != nil {
			return err
		}
		left, err := d.scalar(ctx, pending)
		if err != nil {
			return err
		}
		d.step("replay, run %d, left %d to do: %s", run, left, brief(response))
		if left == 0 {
			return nil
		}
		// The rest waits for its next try.
		wait, err := d.scalar(ctx, `SELECT greatest(0, ceil(1000 * extract(epoch FROM min(next_attempt_at) - clock_timestamp())))::bigint FROM failed_geotasks WHERE status = 'pending'`)
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(wait) * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("%d replays have not drained the queue", maxRuns)
}

func (d *demonstration) metrics(ctx context.Context) error {
	response, err := d.invoke(ctx, "metrics", []byte("{}"))
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.settings.MetricsEndpoint+"/recorded", nil)
	if err != nil {
		return fmt.Errorf("ask for the recorded metrics: %w", err)
	}
	recorded, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask for the recorded metrics: %w", err)
	}
	defer recorded.Body.Close()
	var puts []local.Put
	if err := json.NewDecoder(recorded.Body).Decode(&puts); err != nil {
		return fmt.Errorf("read the recorded metrics: %w", err)
	}
	data := 0
	for _, put := range puts {
		data += len(put.Data)
	}
	d.step("metrics published %d data to CloudWatch: %s", data, brief(response))
	return nil
}

// outcome prints the table of batches.
func (d *demonstration) outcome(ctx context.Context) error {
	const query = `
WITH reasons AS (
    SELECT batch_id, status, coalesce(error_type, 'unknown') AS reason, count(*) AS n
    FROM failed_geotasks GROUP BY batch_id, status, reason
), batches AS (
    SELECT batch_id, sum(n) AS arrived,
           coalesce(sum(n) FILTER (WHERE status = 'replayed'), 0) AS cleared,
           coalesce(sum(n) FILTER (WHERE status = 'quarantined'), 0) AS quarantined,
           coalesce(string_agg(n || ' ' || reason, ', ' ORDER BY n DESC, reason) FILTER (WHERE status = 'quarantined'), '') AS why
    FROM reasons GROUP BY batch_id
)
SELECT name, arrived::text, cleared::text, quarantined::text, round(quarantined / arrived, 4)::text, why FROM (
    SELECT 1 AS part, batch_id AS name, arrived, cleared, quarantined, why FROM batches
    UNION ALL
    SELECT 2, 'all', sum(arrived), sum(cleared), sum(quarantined), '' FROM batches
) AS lines ORDER BY part, name`
	fmt.Fprintln(d.stdout)
	return d.table(ctx, []string{"batch", "arrived", "cleared", "quarantined", "poison rate", "why"}, query, func(cells []string) {
		const widest = 70
		last := len(cells) - 1
		if len(cells[last]) > widest {
			cells[last] = cells[last][:strings.LastIndex(cells[last][:widest], ",")+1] + " ..."
		}
	})
}

// archive lists what capture has put into the dead-letter bucket.
func (d *demonstration) archive(ctx context.Context) error {
	fmt.Fprintf(d.stdout, "\nThe archive, s3://%s:\n", d.settings.DeadLetterBucket)
	pages := s3.NewListObjectsV2Paginator(s3Client(d.settings), &s3.ListObjectsV2Input{Bucket: &d.settings.DeadLetterBucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list the archive: %w", err)
		}
		for _, object := range page.Contents {
			fmt.Fprintf(d.stdout, "  %8d  %s\n", *object.Size, *object.Key)
		}
	}
	return nil
}

// queries shows three queries to begin with.
func (d *demonstration) queries(ctx context.Context) error {
	fmt.Fprintln(d.stdout, "\nThree queries to try:")
	for _, q := range []struct {
		query   string
		columns []string
	}{
		{"SELECT feature_id, error_type, error FROM failed_geotasks WHERE status = 'quarantined' ORDER BY id LIMIT 3", []string{"feature_id", "error_type", "error"}},
		{"SELECT feature_id, source_crs, ST_AsText(ST_PointOnSurface(geom), 2) AS at FROM processed_features ORDER BY id LIMIT 3", []string{"feature_id", "source_crs", "at"}},
		{"SELECT failed_rule, count(*) FROM failed_geotasks WHERE status = 'quarantined' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3", []string{"failed_rule", "count"}},
	} {
		fmt.Fprintf(d.stdout, "\n  %s;\n", q.query)
		if err := d.table(ctx, q.columns, q.query, nil); err != nil {
			return err
		}
	}
	return nil
}

// table prints the rows of a query; edit may change the cells of a row.
func (d *demonstration) table(ctx context.Context, header []string, query string, edit func(cells []string)) error {
	rows, err := d.conn.Query(ctx, query)
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	defer rows.Close()
	w := tabwriter.NewWriter(d.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  "+strings.Join(header, "\t"))
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		var cells []string
		for _, v := range values {
			cell := ""
			if v != nil {
				cell = fmt.Sprint(v)
			}
			cells = append(cells, cell)
		}
		if edit != nil {
			edit(cells)
		}
		fmt.Fprintln(w, "  "+strings.Join(cells, "\t"))
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	return w.Flush()
}
