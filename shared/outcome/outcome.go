// Package outcome keeps the append-only log of what became of dead letters: a file in
// S3 for each settled claim of replay and each step of a redrive, beside the archive
// of what arrived, in lines of JSON that DuckDB and Athena read as they are. Archive
// and log together hold what is needed to make the queue again when its database is lost.
//
// The log is written after the database committed. A process that dies in between
// leaves an outcome out; whoever restores from the log then replays that row once
// more, which the target's key makes harmless. It never says what did not happen.
package outcome

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/deadletter"
	"geodlq/shared/hive"
	"geodlq/shared/writeonce"
)

// Prefix is where outcomes lie in the dead-letter bucket. Nothing else is written below it.
const Prefix = "outcomes/"

// Outcome is what one attempt, or one act of a person, made of one dead letter.
type Outcome struct {
	DLQID     deadletter.UUID
	BatchID   string
	FeatureID string

	// At is when it happened. Its UTC day is the log's date; of two outcomes of one
	// dead letter the later counts.
	At time.Time
	// Event says what happened: inserted, unchanged, updated, retried, quarantined,
	// requeued, fixed, discarded.
	Event string
	// Status is the row's from then on: pending, replayed, quarantined, discarded.
	Status string

	Attempts int // replays charged, in all
	Forgiven int // of these, those before the latest redrive; 0 where that is not known
	Redrives int // 0 where that is not known

	// Of a failure, or of the failure that a person acted on.
	FailedRule, ErrorType, Error string

	ContractVersion string
	Overrides       []byte // JSON that a person attached; nil for none
	Actor           string // the person, where it was one
	Note            string // why the person did it
}

// line is an outcome as the log's JSON has it.
type line struct {
	DLQID           string          `json:"dlq_id"`
	BatchID         string          `json:"batch_id"`
	FeatureID       string          `json:"feature_id,omitempty"`
	At              time.Time       `json:"at"`
	Event           string          `json:"event"`
	Status          string          `json:"status"`
	Attempts        int             `json:"attempts"`
	Forgiven        int             `json:"attempts_forgiven"`
	Redrives        int             `json:"redrives"`
	FailedRule      string          `json:"failed_rule,omitempty"`
	ErrorType       string          `json:"error_type,omitempty"`
	Error           string          `json:"error_message,omitempty"`
	ContractVersion string          `json:"contract_version,omitempty"`
	Overrides       json.RawMessage `json:"overrides,omitempty"`
	Actor           string          `json:"actor,omitempty"`
	Note            string          `json:"note,omitempty"`
}

// S3 is what the log needs of an S3 client; *s3.Client is one.
type S3 interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error)
}

// Log is the outcome log in a bucket. It is safe for concurrent use.
type Log struct {
	client S3
	bucket string
}

// New returns the log in bucket.
func New(client S3, bucket string) *Log { return &Log{client: client, bucket: bucket} }

// putsAtOnce bounds how many files of one Append are under way.
const putsAtOnce = 8

// Append writes outcomes, one file for each batch and day among them. source names
// what they are outcomes of, such as the token of a lease: the same outcomes of the
// same source are the same files, so a repetition changes nothing. The error joins
// those of the files that could not be written; the others were.
func (l *Log) Append(ctx context.Context, source string, outcomes []Outcome) error {
	type partition struct{ batch, day string }
	parts := map[partition][]Outcome{}
	for _, o := range outcomes {
		p := partition{o.BatchID, o.At.UTC().Format(time.DateOnly)}
		parts[p] = append(parts[p], o)
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		slot = make(chan struct{}, putsAtOnce)
	)
	for p, rows := range parts {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			if err := l.put(ctx, source, p.batch, p.day, rows); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// BatchPrefix returns the prefix of the outcomes of one batch.
func BatchPrefix(batchID string) string {
	return Prefix + "batch_id=" + hive.Escape(batchID) + "/"
}

func key(source, batch, day string, rows []Outcome) string {
	h := sha256.New()
	for _, s := range []string{source, batch, day} {
		// Length first: no two different triples may run together into one name.
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		io.WriteString(h, s)
	}
	for _, r := range rows {
		h.Write(r.DLQID[:])
		io.WriteString(h, r.Event)
	}
	return BatchPrefix(batch) + "date=" + day + "/" + hex.EncodeToString(h.Sum(nil)[:16]) + ".ndjson.gz"
}

func (l *Log) put(ctx context.Context, source, batch, day string, rows []Outcome) error {
	rows = slices.Clone(rows)
	sort.SliceStable(rows, func(i, j int) bool { return bytes.Compare(rows[i].DLQID[:], rows[j].DLQID[:]) < 0 })
	name := key(source, batch, day, rows)
	file, err := encode(rows)
	if err != nil {
		return fmt.Errorf("encode %d outcomes of batch %q: %w", len(rows), batch, err)
	}
	// Where it is there already, an earlier try wrote it, or one at the same time.
	_, err = writeonce.Put(ctx, l.client, &s3.PutObjectInput{
		Bucket: &l.bucket, Key: &name, Body: bytes.NewReader(file), ContentType: aws.String("application/gzip"),
	})
	if err != nil {
		return fmt.Errorf("append %d outcomes: %w", len(rows), err)
	}
	return nil
}

// encode writes one JSON object a line, compressed. Compact JSON and not Parquet:
// a file holds few rows, and Parquet would make replay's bootstrap half as large again.
func encode(rows []Outcome) ([]byte, error) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	lines := json.NewEncoder(z)
	for i := range rows {
		o := &rows[i]
		err := lines.Encode(line{
			DLQID: o.DLQID.String(), BatchID: o.BatchID, FeatureID: o.FeatureID, At: o.At.UTC(), Event: o.Event, Status: o.Status,
			Attempts: o.Attempts, Forgiven: o.Forgiven, Redrives: o.Redrives, FailedRule: o.FailedRule, ErrorType: o.ErrorType, Error: o.Error,
			ContractVersion: o.ContractVersion, Overrides: o.Overrides, Actor: o.Actor, Note: o.Note,
		})
		if err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Keys calls each with the keys of a batch's outcome files, a page at a time.
func (l *Log) Keys(ctx context.Context, batchID string, each func(keys []string) error) error {
	pages := s3.NewListObjectsV2Paginator(l.client, &s3.ListObjectsV2Input{Bucket: &l.bucket, Prefix: aws.String(BatchPrefix(batchID))})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("list the outcomes of batch %q: %w", batchID, err)
		}
		keys := make([]string, len(page.Contents))
		for i, object := range page.Contents {
			keys[i] = aws.ToString(object.Key)
		}
		if err := each(keys); err != nil {
			return err
		}
	}
	return nil
}

// Read returns the outcomes in the file under key.
func (l *Log) Read(ctx context.Context, key string) ([]Outcome, error) {
	object, err := l.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &l.bucket, Key: &key})
	if err != nil {
		return nil, fmt.Errorf("read outcomes s3://%s/%s: %w", l.bucket, key, err)
	}
	defer object.Body.Close()
	rows, err := decode(object.Body)
	if err != nil {
		return nil, fmt.Errorf("read outcomes s3://%s/%s: %w", l.bucket, key, err)
	}
	return rows, nil
}

func decode(r io.Reader) ([]Outcome, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	var rows []Outcome
	for lines := json.NewDecoder(z); ; {
		var o line
		if err := lines.Decode(&o); err == io.EOF {
			return rows, nil
		} else if err != nil {
			return nil, fmt.Errorf("outcome %d: %w", len(rows), err)
		}
		id, err := deadletter.ParseUUID(o.DLQID)
		if err != nil {
			return nil, fmt.Errorf("outcome %d: %w", len(rows), err)
		}
		rows = append(rows, Outcome{
			DLQID: id, BatchID: o.BatchID, FeatureID: o.FeatureID, At: o.At, Event: o.Event, Status: o.Status,
			Attempts: o.Attempts, Forgiven: o.Forgiven, Redrives: o.Redrives, FailedRule: o.FailedRule, ErrorType: o.ErrorType, Error: o.Error,
			ContractVersion: o.ContractVersion, Overrides: o.Overrides, Actor: o.Actor, Note: o.Note,
		})
	}
}
