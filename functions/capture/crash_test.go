package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/shared/archive"
)

// deployment is capture's bootstrap on a stack of its own, with something between
// it and S3 and PostgreSQL that can end it.
type deployment struct {
	t              *testing.T
	client         *s3.Client
	inbox, archive string
	pool           *pgxpool.Pool
	function       *local.Function
	trap           *trap
}

// trap kills the function when something happens for the n-th time, once.
type trap struct {
	mu   sync.Mutex
	at   string
	left int
	kill func()
}

// spring is told what happens. It returns whether the function was killed over it.
func (tr *trap) spring(what string) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.at != what {
		return false
	}
	if tr.left--; tr.left != 0 {
		return false
	}
	tr.at = ""
	tr.kill()
	return true
}

func (tr *trap) set(at string, n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.at, tr.left = at, n
}

func (tr *trap) sprung() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.at == ""
}

func deploy(t *testing.T) *deployment {
	database := localtest.Database(t)
	d := &deployment{t: t, client: localtest.S3(t), inbox: localtest.Bucket(t), archive: localtest.Bucket(t), pool: localtest.Pool(t, database), trap: new(trap)}
	d.function = localtest.Function(t, "capture", map[string]string{
		"DATABASE_URL":             throughPostgresProxy(t, database, d.trap),
		"AWS_ENDPOINT_URL_S3":      throughS3Proxy(t, d.trap),
		"INBOX_BUCKET":             d.inbox,
		"DEAD_LETTER_BUCKET":       d.archive,
		"DATABASE_CONNECT_TIMEOUT": "2s",
	}, func(c *local.FunctionConfig) { c.Timeout = 2 * time.Minute })
	d.trap.kill = d.function.Kill
	return d
}

// throughS3Proxy returns an endpoint in front of the stack's S3. It springs the trap
// before it passes a request on, in the middle of an object's content, and before it passes the answer back.
func throughS3Proxy(t *testing.T, tr *trap) string {
	target, err := url.Parse(localtest.Settings(t).S3Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	kind := func(r *http.Request) string {
		if strings.Contains(r.URL.Path, "/dead-letters/") {
			return r.Method + " part"
		}
		return r.Method + " object"
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	proxy.ModifyResponse = func(resp *http.Response) error {
		k := kind(resp.Request)
		if k == "GET object" {
			resp.Body = &trapped{resp.Body, tr, 0}
		}
		if tr.spring("after " + k) {
			return errors.New("the function is dead")
		}
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tr.spring("before " + kind(r)) {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// trapped is an object's content in which the trap lies.
type trapped struct {
	io.ReadCloser
	tr *trap
	n  int
}

func (b *trapped) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.n += n; b.n > 100_000 && b.tr.spring("within GET object") {
		return 0, errors.New("the function is dead")
	}
	return n, err
}

// throughPostgresProxy returns a connection string that leads through a proxy. It
// springs the trap before and after it passes on the statements that open and end
// a transaction.
func throughPostgresProxy(t *testing.T, database string, tr *trap) string {
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			passed := make(chan string, 1) // the statement whose answer is awaited
			go func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := server.Read(buf)
					if err != nil {
						return
					}
					select {
					case statement := <-passed:
						if tr.spring("after " + statement) {
							return
						}
					default:
					}
					if _, err := client.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
			go func() {
				defer server.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := client.Read(buf)
					if err != nil {
						return
					}
					// A simple query: 'Q', four bytes of length, the text.
					for _, statement := range []string{"begin", "commit"} {
						if n > 5 && buf[0] == 'Q' && bytes.HasPrefix(buf[5:n], []byte(statement)) {
							if tr.spring("before " + statement) {
								return
							}
							passed <- statement
						}
					}
					if _, err := server.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	u.Host = l.Addr().String()
	return u.String()
}

func feature(id string) string {
	return `{"type":"Feature","id":"` + id + `","geometry":{"type":"Point","coordinates":[11.5,48.1]},"properties":{"name":"` + id + `"}}`
}

// failures is an object of several batches and a malformed record; its records by ordinal.
func failures() (content string, payloads []string) {
	var b strings.Builder
	for i := range 3000 {
		id := fmt.Sprint("f", i)
		if i == 1500 {
			b.WriteString("{broken\n")
			payloads = append(payloads, "{broken")
		}
		fmt.Fprintf(&b, `{"feature_id":%q,"batch_id":"batch %d","failed_rule":"r","error_type":"E","error_message":"m","attempts":2,"source_crs":"EPSG:4326","feature":%s}`+"\n", id, i%4, feature(id))
		payloads = append(payloads, feature(id))
	}
	return b.String(), payloads
}

func (d *deployment) put(key, content string) (event []byte) {
	d.t.Helper()
	if _, err := d.client.PutObject(d.t.Context(), &s3.PutObjectInput{Bucket: &d.inbox, Key: &key, Body: strings.NewReader(content)}); err != nil {
		d.t.Fatal(err)
	}
	event, err := json.Marshal(map[string]string{"bucket": d.inbox, "key": key})
	if err != nil {
		d.t.Fatal(err)
	}
	return event
}

func (d *deployment) invoke(event []byte) (Answer, error) {
	response, err := d.function.Invoke(d.t.Context(), event)
	var a Answer
	if err == nil {
		err = json.Unmarshal(response, &a)
	}
	return a, err
}

// holds checks that archive and queue hold each record once, byte for byte.
func (d *deployment) holds(payloads []string) {
	d.t.Helper()
	want := map[int64][]string{}
	for i, p := range payloads {
		want[int64(i)] = []string{p}
	}
	if diff := cmp.Diff(want, d.queued()); diff != "" {
		d.t.Errorf("queue (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, d.archived()); diff != "" {
		d.t.Errorf("archive (-want +got):\n%s", diff)
	}
}

func (d *deployment) queued() map[int64][]string {
	d.t.Helper()
	all := map[int64][]string{}
	rows, err := d.pool.Query(d.t.Context(), `SELECT source_record, coalesce(payload_raw, convert_to(feature_geojson, 'UTF8')) FROM failed_geotasks`)
	if err != nil {
		d.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var record int64
		var payload []byte
		if err := rows.Scan(&record, &payload); err != nil {
			d.t.Fatal(err)
		}
		all[record] = append(all[record], string(payload))
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	return all
}

// archived reads every version of every file: one that was written twice shows.
func (d *deployment) archived() map[int64][]string {
	d.t.Helper()
	all := map[int64][]string{}
	pages := s3.NewListObjectVersionsPaginator(d.client, &s3.ListObjectVersionsInput{Bucket: &d.archive})
	for pages.HasMorePages() {
		page, err := pages.NextPage(d.t.Context())
		if err != nil {
			d.t.Fatal(err)
		}
		for _, v := range page.Versions {
			b, err := archive.NewStore(d.client, d.archive).Get(d.t.Context(), *v.Key)
			if err != nil {
				d.t.Fatal(err)
			}
			r, err := archive.NewReader(b.Reader())
			if err != nil {
				d.t.Fatal(err)
			}
			for {
				rows := make([]archive.Row, 1000)
				n, err := r.Read(rows)
				if err == io.EOF {
					break
				}
				if err != nil {
					d.t.Fatal(err)
				}
				for _, row := range rows[:n] {
					all[row.SourceRecord] = append(all[row.SourceRecord], string(row.Payload))
				}
			}
		}
	}
	return all
}

// A function that is killed at any step leaves nothing that its retry does not put right.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	content, payloads := failures()
	for _, step := range []struct {
		at string
		n  int
	}{
		{"before GET object", 1},
		{"within GET object", 1},
		{"before PUT part", 1},
		{"after PUT part", 1}, // stored, and nobody knows
		{"before PUT part", 3},
		{"after PUT part", 4},
		{"before begin", 1}, // stored, not queued
		{"after begin", 1},
		{"before commit", 1}, // queued, not committed
		{"after commit", 1},  // committed, and nobody knows
	} {
		t.Run(fmt.Sprintf("%s, time %d", step.at, step.n), func(t *testing.T) {
			t.Parallel()
			d := deploy(t)
			event := d.put("incoming/failures.ndjson", content)
			d.trap.set(step.at, step.n)
			_, err := d.invoke(event)
			var crash *local.CrashError
			if !errors.As(err, &crash) || !d.trap.sprung() {
				t.Fatalf("error %v, want the function killed", err)
			}
			answer, err := d.invoke(event)
			if err != nil {
				t.Fatal(err)
			}
			if n := int64(len(payloads)); answer.Records != n || answer.Captured+answer.AlreadyThere != n || answer.Malformed != 1 {
				t.Errorf("the retry answered %+v, want %d records", answer, n)
			}
			d.holds(payloads)
			if answer, err = d.invoke(event); err != nil || answer.Captured != 0 || answer.Files != 0 {
				t.Errorf("a third event: %+v, %v; want nothing new", answer, err)
			}
			d.holds(payloads)
		})
	}
}

// Two events at once, each in a process of its own, end as one.
func TestTwoInvocationsAtOnce(t *testing.T) {
	t.Parallel()
	content, payloads := failures()
	d := deploy(t)
	event := d.put("incoming/failures.ndjson", content)
	other := localtest.Function(t, "capture", map[string]string{
		"DATABASE_URL": d.pool.Config().ConnString(), "INBOX_BUCKET": d.inbox, "DEAD_LETTER_BUCKET": d.archive,
	}, func(c *local.FunctionConfig) { c.Timeout = 2 * time.Minute })
	answers := make([]Answer, 2)
	var wg sync.WaitGroup
	for i, f := range []*local.Function{d.function, other} {
		wg.Go(func() {
			response, err := f.Invoke(t.Context(), event)
			if err == nil {
				err = json.Unmarshal(response, &answers[i])
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, n := answers[0].Captured+answers[1].Captured, int64(len(payloads)); got != n || answers[0].Records != n || answers[1].Records != n {
		t.Errorf("answers %+v, want %d records in each and as many captured by both together", answers, n)
	}
	d.holds(payloads)
}

// A database that is down delays the queue, never the archive.
func TestDatabaseDown(t *testing.T) {
	t.Parallel()
	content, payloads := failures()
	d := deploy(t)
	event := d.put("incoming/failures.ndjson", content)
	down := localtest.Function(t, "capture", map[string]string{
		"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "INBOX_BUCKET": d.inbox, "DEAD_LETTER_BUCKET": d.archive,
	}, func(c *local.FunctionConfig) { c.Timeout = time.Minute })
	_, err := down.Invoke(t.Context(), event)
	var failed *local.FunctionError
	if !errors.As(err, &failed) || !strings.Contains(failed.Message, "which is archived") {
		t.Fatalf("error %v, want one that says that the object is archived and not queued", err)
	}
	if got := len(d.archived()); got != len(payloads) {
		t.Errorf("%d records are archived, want all %d", got, len(payloads))
	}
	answer, err := d.invoke(event)
	if err != nil || answer.Captured != int64(len(payloads)) || answer.Files != 0 {
		t.Errorf("the retry: %+v, %v; want all captured and no file written", answer, err)
	}
	d.holds(payloads)
}
