package capture_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local/localtest"
	"geodlq/shared/archive"
	"geodlq/shared/capture"
	"geodlq/shared/deadletter"
	"geodlq/shared/inbox"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// stack is an inbox, an archive and a queue of a test's own.
type stack struct {
	t        *testing.T
	client   *s3.Client
	inbox    string
	archive  string
	pool     *pgxpool.Pool
	capturer *capture.Capturer
}

func newStack(t *testing.T) *stack {
	s := &stack{t: t, client: localtest.S3(t), inbox: localtest.Bucket(t), archive: localtest.Bucket(t), pool: localtest.Pool(t, localtest.Database(t))}
	s.capturer = s.newCapturer()
	return s
}

func (s *stack) newCapturer() *capture.Capturer {
	return &capture.Capturer{Archive: archive.NewStore(s.client, s.archive), Queue: capture.Postgres{DB: s.pool}}
}

func (s *stack) put(key, content string) {
	s.t.Helper()
	_, err := s.client.PutObject(s.t.Context(), &s3.PutObjectInput{Bucket: &s.inbox, Key: &key, Body: strings.NewReader(content)})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stack) open(key string) inbox.Object {
	s.t.Helper()
	o, err := capture.Open(s.t.Context(), s.client, s.inbox, key, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

func (s *stack) capture(key string) capture.Counts {
	s.t.Helper()
	counts, err := s.capturer.Capture(s.t.Context(), context.Background(), s.open(key))
	if err != nil {
		s.t.Fatal(err)
	}
	return counts
}

// archived returns all rows of the archive, by key, each file read once for each
// version it has: a file that was written twice shows.
func (s *stack) archived() map[string][]archive.Row {
	s.t.Helper()
	all := map[string][]archive.Row{}
	store := archive.NewStore(s.client, s.archive)
	pages := s3.NewListObjectVersionsPaginator(s.client, &s3.ListObjectVersionsInput{Bucket: &s.archive})
	for pages.HasMorePages() {
		page, err := pages.NextPage(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, v := range page.Versions {
			b, err := store.Get(s.t.Context(), *v.Key)
			if err != nil {
				s.t.Fatal(err)
			}
			all[*v.Key] = append(all[*v.Key], rowsOf(s.t, b)...)
		}
	}
	return all
}

func rowsOf(t testing.TB, b *archive.Buffer) (all []archive.Row) {
	t.Helper()
	r, err := archive.NewReader(b.Reader())
	if err != nil {
		t.Fatal(err)
	}
	for {
		rows := make([]archive.Row, 1000)
		n, err := r.Read(rows)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rows[:n]...)
	}
}

// queued returns the payloads in the queue by record, and fails where a record is there twice.
func (s *stack) queued() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	rows, err := s.pool.Query(s.t.Context(), `SELECT source_object, source_record, coalesce(payload_raw, convert_to(feature_geojson, 'UTF8')) FROM failed_geotasks`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var object string
		var record int64
		var payload []byte
		if err := rows.Scan(&object, &record, &payload); err != nil {
			s.t.Fatal(err)
		}
		name := fmt.Sprintf("%s#%d", object, record)
		if _, twice := all[name]; twice {
			s.t.Errorf("%s is in the queue twice", name)
		}
		all[name] = string(payload)
	}
	if rows.Err() != nil {
		s.t.Fatal(rows.Err())
	}
	return all
}

// each checks that archive and queue hold the same records, each once, byte for byte.
func (s *stack) each(records int) {
	s.t.Helper()
	queued := s.queued()
	archived := map[string]string{}
	for key, rows := range s.archived() {
		for _, r := range rows {
			name := fmt.Sprintf("%s#%d", r.SourceObject, r.SourceRecord)
			if _, twice := archived[name]; twice {
				s.t.Errorf("%s is in the archive twice, now in %s", name, key)
			}
			archived[name] = string(r.Payload)
		}
	}
	if len(archived) != records {
		s.t.Errorf("%d records are in the archive, want %d", len(archived), records)
	}
	if diff := cmp.Diff(archived, queued); diff != "" {
		s.t.Errorf("records (-archive +queue):\n%s", diff)
	}
}

func point(id string) string {
	return `{"type":"Feature","id":"` + id + `","geometry":{"type":"Point","coordinates":[11.5,48.1]},"properties":{"name":"` + id + `"}}`
}

func record(batch string, i int) string {
	return fmt.Sprintf(`{"feature_id":"f%d","batch_id":%q,"failed_rule":"coerce:a->integer","error_type":"ValueError","error_message":"x","attempts":3,"source_crs":"EPSG:4326","feature":%s}`, i, batch, point(fmt.Sprint("f", i)))
}

func records(batch string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(record(batch, i))
		b.WriteByte('\n')
	}
	return b.String()
}

func TestCaptureTwice(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.put("incoming/a.ndjson", records("b1", 3000)+"{broken\n"+records("b2/x", 10)+point("bare"))
	first := s.capture("incoming/a.ndjson")
	want := capture.Counts{Records: 3012, Captured: 3012, Malformed: 1, Bytes: first.Bytes, Files: 3}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("first counts (-want +got):\n%s", diff)
	}
	s.each(3012)
	second := s.capture("incoming/a.ndjson")
	want = capture.Counts{Records: 3012, AlreadyThere: 3012, Malformed: 1, Bytes: first.Bytes, FilesThere: 3}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("second counts (-want +got):\n%s", diff)
	}
	s.each(3012)
}

func TestCaptureAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.put("incoming/a.ndjson", records("b1", 20000)+records("b2", 100))
	var mu sync.Mutex
	var total capture.Counts
	var wg sync.WaitGroup
	for range 3 {
		object := s.open("incoming/a.ndjson")
		wg.Go(func() {
			counts, err := s.newCapturer().Capture(t.Context(), context.Background(), object)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			total.Add(counts)
			mu.Unlock()
		})
	}
	wg.Wait()
	if total.Captured != 20100 || total.AlreadyThere != 2*20100 || total.Files != 2 || total.FilesThere != 4 {
		t.Errorf("counts %+v, want each record captured by one of three", total)
	}
	s.each(20100)
}

// down is a queue that cannot be reached.
type down struct{ err error }

func (d down) Enqueue(context.Context, []deadletter.Record, []capture.File) (int64, error) {
	return 0, d.err
}
func (d down) Recorded(context.Context, []string) (map[string]bool, error) { return nil, d.err }
func (d down) Find(context.Context, []*deadletter.Record) ([]capture.Standing, error) {
	return nil, d.err
}

func TestCaptureWithoutQueue(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.put("incoming/a.ndjson", records("b1", 500)+records("b2", 500))
	s.capturer.Queue = down{errors.New("connection refused")}
	counts, err := s.capturer.Capture(t.Context(), context.Background(), s.open("incoming/a.ndjson"))
	if !errors.Is(err, s.capturer.Queue.(down).err) {
		t.Errorf("error %v, want that of the queue", err)
	}
	if counts.Records != 0 || counts.Files != 2 {
		t.Errorf("counts %+v, want both files archived and nothing queued", counts)
	}
	if got := len(s.queued()); got != 0 {
		t.Errorf("%d rows are queued", got)
	}
	s.capturer = s.newCapturer()
	if counts := s.capture("incoming/a.ndjson"); counts.Captured != 1000 || counts.FilesThere != 2 || counts.Files != 0 {
		t.Errorf("the retry counts %+v, want 1000 captured and both files found", counts)
	}
	s.each(1000)
}

// One id for two dead letters must not lose either; one dead letter written twice
// under its id is one.
func TestCaptureIDsOfPipelines(t *testing.T) {
	t.Parallel()
	const id = `"dlq_id":"1b671a64-40d5-491e-99b0-da01ff1f3341",`
	named := func(i int) string { return "{" + id + record("b", i)[1:] + "\n" }
	for name, tc := range map[string]struct {
		objects []string
		queued  int
		there   int64
	}{
		"the same dead letter twice in an object": {[]string{named(1) + named(2)[:0] + named(1)}, 1, 1},
		"the same dead letter in two objects":     {[]string{named(1), named(1)}, 1, 1},
		"another dead letter in the same object":  {[]string{named(1) + named(2) + named(3)}, 3, 0},
		"another dead letter in another object":   {[]string{named(1), named(2)}, 2, 0},
		"another batch":                           {[]string{named(1), strings.Replace(named(1), `"b"`, `"c"`, 1)}, 2, 0},
		"the nil id for all":                      {[]string{strings.ReplaceAll(named(1)+named(2), "1b671a64-40d5-491e-99b0-da01ff1f3341", "00000000-0000-0000-0000-000000000000")}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			for round := range 3 {
				var total capture.Counts
				for i, content := range tc.objects {
					key := fmt.Sprintf("incoming/%d.ndjson", i)
					if round == 0 {
						s.put(key, content)
					}
					total.Add(s.capture(key))
				}
				if got := len(s.queued()); got != tc.queued {
					t.Fatalf("round %d: %d rows are queued, want %d", round, got, tc.queued)
				}
				if round == 0 && (total.AlreadyThere != tc.there || total.Captured != int64(tc.queued)) {
					t.Errorf("counts %+v, want %d captured and %d there", total, tc.queued, tc.there)
				}
				if round > 0 && total.Captured != 0 {
					t.Errorf("round %d captured %d records again", round, total.Captured)
				}
			}
			rows := 0
			for _, r := range s.archived() {
				rows += len(r)
			}
			if want := strings.Count(strings.Join(tc.objects, ""), "\n"); rows != want {
				t.Errorf("%d rows are archived, want all %d", rows, want)
			}
			var first string
			if err := s.pool.QueryRow(t.Context(), `SELECT string_agg(dlq_id::text, ' ') FROM failed_geotasks WHERE dlq_id = '1b671a64-40d5-491e-99b0-da01ff1f3341'`).Scan(&first); err != nil && !strings.HasPrefix(name, "the nil") {
				t.Errorf("no row has the id the pipeline gave: %v", err)
			}
		})
	}
}

// shelf is an archive in memory.
type shelf struct {
	mu    sync.Mutex
	files map[string][]byte
}

func (s *shelf) Put(_ context.Context, key string, b *archive.Buffer) (archive.Stored, error) {
	content, err := io.ReadAll(b.Reader())
	if err != nil {
		return archive.Stored{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if there, ok := s.files[key]; ok {
		if !bytes.Equal(there, content) {
			return archive.Stored{}, &archive.MismatchError{Key: key, Detail: "other bytes"}
		}
		return archive.Stored{Outcome: archive.AlreadyThere, Bytes: b.Len()}, nil
	}
	if s.files == nil {
		s.files = map[string][]byte{}
	}
	s.files[key] = content
	return archive.Stored{Outcome: archive.Created, Bytes: b.Len()}, nil
}

// tally is a queue in memory.
type tally struct {
	mu         sync.Mutex
	ids        map[deadletter.UUID]bool
	files      map[string]bool
	calls      int
	geometries int
}

func (q *tally) Recorded(context.Context, []string) (map[string]bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.files), nil
}

func (q *tally) Enqueue(_ context.Context, records []deadletter.Record, files []capture.File) (n int64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range files {
		if q.files == nil {
			q.files = map[string]bool{}
		}
		q.files[f.Key] = true
	}
	if q.ids == nil {
		q.ids = map[deadletter.UUID]bool{}
	}
	q.calls++
	for _, r := range records {
		if !q.ids[r.DLQID] {
			q.ids[r.DLQID] = true
			n++
		}
		if r.Geometry != nil {
			q.geometries++
		}
	}
	return n, nil
}

func (q *tally) Find(_ context.Context, records []*deadletter.Record) ([]capture.Standing, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	standing := make([]capture.Standing, len(records))
	for i, r := range records {
		if q.ids[r.DLQID] {
			standing[i] = capture.There
		}
	}
	return standing, nil
}

func inMemory(content string) inbox.Object {
	return inbox.Object{
		Bucket: "geodlq-inbox", Key: "incoming/a.ndjson", VersionID: "1",
		Open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil },
	}
}
