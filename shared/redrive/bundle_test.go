package redrive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/paulmach/orb"

	"geodlq/infra/local/localtest"
	"geodlq/shared/deadletter"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/redrive"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// object is a request or a part of one.
type object map[string]any

// bundle is the service on a database schema and a bucket of its own.
type bundle struct {
	*redrive.Service
	t        testing.TB
	pool     *pgxpool.Pool // with the owner's rights
	db       *pgxpool.Pool // the service's
	s3       *s3.Client
	contract atomic.Pointer[transform.Contract]
	queued   int64 // records so far
}

// The rule before and after somebody mended it.
const (
	strictContract  = `{"version": "parcels-1", "fields": [{"name": "built_year", "type": "integer"}]}`
	lenientContract = `{"version": "parcels-2", "fields": [{"name": "built_year", "type": "integer"}], "missingValues": ["", "n/a"]}`
)

func newBundle(t testing.TB) *bundle {
	t.Helper()
	url := localtest.Database(t)
	b := &bundle{t: t, pool: localtest.Pool(t, url), s3: localtest.S3(t)}
	bucket := localtest.Bucket(t)
	// The service has the rights of its own role and sends statements as it must through
	// a pooler, without a session to keep them in.
	b.db = localtest.Pool(t, url+"&role=geodlq_redrive&default_query_exec_mode=exec")
	b.Service = &redrive.Service{
		DB: b.db, Queue: queue.New(b.db), S3: b.s3, Bucket: bucket, Log: outcome.New(b.s3, bucket),
		Contract: func(context.Context) (transform.Transformer, error) { return b.contract.Load(), nil },
		Settings: replay.Settings{
			Policy:  queue.Policy{MaxAttempts: 5, DataFaultAttempts: 1, BackoffBase: 30 * time.Second},
			Workers: 1, ClaimSize: 100, Lease: time.Minute, RowTimeout: 10 * time.Second, Margin: 100 * time.Millisecond,
		},
		Logger: slog.New(slog.DiscardHandler),
		Stop:   context.Background(),
	}
	b.use(strictContract)
	return b
}

// use puts a contract into effect.
func (b *bundle) use(text string) {
	b.t.Helper()
	c, err := transform.ParseContract([]byte(text), transform.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.contract.Store(c)
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// one reads one value as text.
func (b *bundle) one(sql string, args ...any) (s string) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), "SELECT coalesce(("+sql+")::text, '')", args...).Scan(&s); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func (b *bundle) want(want, sql string, args ...any) {
	b.t.Helper()
	if got := b.one(sql, args...); got != want {
		b.t.Errorf("%s\n  got  %s\n  want %s", sql, got, want)
	}
}

// capture queues n parcels of a batch, in UTM zone 10N, whose built_year is the given text.
func (b *bundle) capture(n int, batch, year string) {
	b.t.Helper()
	if _, err := b.Queue.Enqueue(context.Background(), b.records(n, batch, year)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) records(n int, batch, year string) []deadletter.Record {
	epsg := "EPSG:26910"
	records := make([]deadletter.Record, n)
	for i := range records {
		k := b.queued
		b.queued++
		x, y := 550000+float64(k%1000)*20, 5190000+float64(k/1000)*20
		ring := orb.Ring{{x, y}, {x + 10, y}, {x + 10, y + 10}, {x, y + 10}, {x, y}}
		records[i] = deadletter.Record{
			DLQID: deadletter.RecordID("inbox", batch, "v", k), FeatureID: fmt.Sprintf("p%d", k), BatchID: batch, Attempts: 3,
			FailedRule: "coerce:built_year->integer", ErrorType: "ValueError", ErrorMessage: fmt.Sprintf("invalid literal for int() with base 10: '%s' (parcel p%d)", year, k),
			Payload: fmt.Appendf(nil, `{"type":"Feature","id":"p%d","geometry":{"type":"Polygon","coordinates":[[[%v,%v],[%v,%v],[%v,%v],[%v,%v],[%v,%v]]]},"properties":{"built_year":%q}}`,
				k, x, y, x+10, y, x+10, y+10, x, y+10, x, y, year),
			SourceCRS: &epsg, EPSG: 26910, Geometry: orb.Polygon{ring}, FirstSeen: time.Date(2026, 11, 1, 0, 0, int(k), 0, time.UTC),
			SourceObject: "s3://inbox/" + batch, SourceRecord: k, ArrivedAt: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC),
		}
		records[i].GeomHash = deadletter.GeomHash(records[i].FeatureID, 26910, records[i].Geometry)
	}
	return records
}

// replay drains the queue as the replay function does.
func (b *bundle) replay() {
	b.t.Helper()
	e := replay.Engine{
		Queue: b.Queue, Settings: b.Settings, Log: b.Logger, Stop: b.Stop,
		Settled: func(ctx context.Context, lease queue.Lease, settled []queue.Settled, version string) {
			if err := b.Log.Append(ctx, outcome.SourceOf(lease.Token), outcome.OfClaim(lease, settled, version, time.Now())); err != nil {
				b.t.Error(err)
			}
		},
	}
	a, err := e.Run(context.Background(), replay.Event{}, b.contract.Load())
	if err != nil || a.StoppedBecause != replay.StopDrained {
		b.t.Fatalf("replay stopped: %s %s %v", a.StoppedBecause, a.Trouble, err)
	}
}

// try sends a request as an anonymous caller.
func (b *bundle) try(ctx context.Context, action string, request object) (any, error) {
	r := object{"action": action}
	for k, v := range request {
		r[k] = v
	}
	text, err := json.Marshal(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.Do(ctx, redrive.Caller{RequestID: "request-1"}, text)
}

// do sends a request that must succeed and returns its answer.
func do[A any](b *bundle, action string, request object) A {
	b.t.Helper()
	// The time an invocation has. A run that must wait for longer ends its invocation at once.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	answer, err := b.try(ctx, action, request)
	if err != nil {
		b.t.Fatalf("%s %v: %v", action, request, err)
	}
	a, ok := answer.(A)
	if !ok {
		b.t.Fatalf("%s answers with %T", action, answer)
	}
	return a
}

// refuse sends a request that must be refused, with a message that holds the text.
func (b *bundle) refuse(text, action string, request object) {
	b.t.Helper()
	_, err := b.try(context.Background(), action, request)
	var bad *redrive.RequestError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), text) {
		b.t.Errorf("%s %v: got %v, want a RequestError with %q", action, request, err, text)
	}
}

// balanced checks the promises that hold whatever was done: the groups are what a
// count over the rows gives, and every row is in one of the two views.
func (b *bundle) balanced() {
	b.t.Helper()
	b.want("0", `SELECT count(*) FROM (
		SELECT batch_id, status, coalesce(error_type, ''), coalesce(failed_rule, ''), coalesce(fingerprint, ''), count(*) FROM failed_geotasks GROUP BY 1, 2, 3, 4, 5
		EXCEPT SELECT batch_id, status, error_type, failed_rule, fingerprint, n FROM failure_group_totals) x`)
	b.want(b.one(`SELECT count(*) FROM failed_geotasks`), `SELECT coalesce(sum(n), 0) FROM failure_group_totals`)
	b.want(b.one(`SELECT count(*) FROM failed_geotasks`), `SELECT (SELECT count(*) FROM failed_geotasks_map) + (SELECT count(*) FROM failed_geotasks_unmappable)`)
}

// unwritable is an outcome log whose bucket is not there.
func unwritable(b *bundle) *outcome.Log { return outcome.New(b.s3, b.Bucket+"-gone") }
