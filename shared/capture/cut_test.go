package capture_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"geodlq/shared/archive"
	"geodlq/shared/capture"
	"geodlq/shared/inbox"
)

// mixed is an object of n records of many batches, which come in turns, in runs and at random.
func mixed(n, batches int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for i := range n {
		batch := i % batches
		switch i / (n / 3) {
		case 1:
			batch = i / 10 % batches
		case 2:
			batch = rng.IntN(batches)
		}
		fmt.Fprintf(&b, `{"feature_id":"f%d","batch_id":"run %d","source_crs":"EPSG:4326","feature":{"type":"Feature","geometry":{"type":"Point","coordinates":[11.5,48.1]},"properties":{"pad":%q}}}`+"\n", i, batch, strings.Repeat("x", 10+i%4000))
	}
	return b.String()
}

// Where an object is cut follows from its bytes alone: every reading makes the same
// files, whatever the cores and the pace, and each record is in one of them.
func TestCutIsDeterministic(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ records, batches int }{{30000, 1}, {30000, 7}, {12000, 500}, {6000, 5000}} {
		t.Run(fmt.Sprintf("%d records of %d batches", tc.records, tc.batches), func(t *testing.T) {
			t.Parallel()
			content := mixed(tc.records, tc.batches)
			first := new(shelf)
			for i, workers := range []int{1, 2, 4} {
				other, queue := new(shelf), new(tally)
				c := capture.Capturer{Archive: other, Queue: queue, Limits: inbox.Limits{Workers: workers}}
				counts, err := c.Capture(t.Context(), context.Background(), inMemory(content))
				if err != nil {
					t.Fatal(err)
				}
				if n := int64(tc.records); counts.Records != n || counts.Captured != n || counts.Files != int64(len(other.files)) {
					t.Errorf("counts %+v, want %d records in %d files", counts, n, len(other.files))
				}
				if queue.geometries != tc.records || len(queue.ids) != tc.records || len(queue.files) != len(other.files) {
					t.Errorf("%d of %d queued rows have a geometry, %d files are noted", queue.geometries, len(queue.ids), len(queue.files))
				}
				if i == 0 {
					first = other
					continue
				}
				if diff := cmp.Diff(slices.Sorted(maps.Keys(first.files)), slices.Sorted(maps.Keys(other.files))); diff != "" {
					t.Fatalf("files (-first +other):\n%s", diff)
				}
				for key, content := range other.files {
					if string(content) != string(first.files[key]) {
						t.Errorf("%s differs", key)
					}
				}
			}
			seen := map[int64]bool{}
			for key, content := range first.files {
				b := new(archive.Buffer)
				b.Write(content)
				last := int64(-1)
				for _, r := range rowsOf(t, b) {
					if seen[r.SourceRecord] || r.SourceRecord <= last || !strings.HasPrefix(key, archive.BatchPrefix(r.BatchID)) {
						t.Fatalf("record %d, behind %d, of batch %q is in %s", r.SourceRecord, last, r.BatchID, key)
					}
					seen[r.SourceRecord], last = true, r.SourceRecord
				}
			}
			if len(seen) != tc.records {
				t.Errorf("%d records are archived, want %d", len(seen), tc.records)
			}
			if tc.batches == 1 && len(first.files) != 1 {
				t.Errorf("one batch of %d MB is cut into %d files", len(content)>>20, len(first.files))
			}
		})
	}
}

// An object that is stopped again and again is still captured, each file once, and the
// last try finds all done.
func TestCaptureStopsAndGoesOn(t *testing.T) {
	t.Parallel()
	content := mixed(6000, 5000)
	files, queue := new(shelf), new(tally)
	c := capture.Capturer{Archive: files, Queue: queue}
	var total capture.Counts
	stops := 0
	for try := 1; ; try++ {
		stop, cancel := context.WithCancel(t.Context())
		o := inMemory(content)
		o.Open = func(context.Context) (io.ReadCloser, error) {
			// Time runs out a little later each time.
			return io.NopCloser(&ending{strings.NewReader(content), try * 2 << 20, cancel}), nil
		}
		counts, err := c.Capture(t.Context(), stop, o)
		cancel()
		total.Add(counts)
		if err == nil {
			break
		}
		if stops++; !errors.Is(err, capture.ErrStopped) || !strings.Contains(err.Error(), "record ") {
			t.Fatalf("error %v, want one of class ErrStopped that says where", err)
		}
	}
	if stops < 3 {
		t.Errorf("it was stopped %d times, want several", stops)
	}
	if len(queue.ids) != 6000 || total.Captured != 6000 || total.Files != int64(len(files.files)) || len(queue.files) != len(files.files) {
		t.Errorf("%d rows are queued, counts %+v, %d files; want each once", len(queue.ids), total, len(files.files))
	}
}

// ending calls a function once so many bytes were read.
type ending struct {
	r    io.Reader
	left int
	end  func()
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if e.left -= n; e.left <= 0 {
		e.end()
	}
	return n, err
}

// A mismatch costs its own file: the rows of all others are queued.
func TestCaptureMismatch(t *testing.T) {
	t.Parallel()
	content := records("a", 10) + records("b", 10) + records("c", 10)
	files, queue := new(shelf), new(tally)
	c := capture.Capturer{Archive: files, Queue: queue}
	if _, err := c.Capture(t.Context(), context.Background(), inMemory(content)); err != nil {
		t.Fatal(err)
	}
	for key := range files.files {
		if strings.Contains(key, "batch_id=b/") {
			files.files[key] = []byte("other rows")
		}
	}
	queue = new(tally)
	c.Queue = queue
	counts, err := c.Capture(t.Context(), context.Background(), inMemory(content))
	var mismatch *archive.MismatchError
	if !errors.As(err, &mismatch) {
		t.Errorf("error %v, want a mismatch", err)
	}
	if counts.Records != 20 || len(queue.ids) != 20 || len(queue.files) != 2 {
		t.Errorf("counts %+v, %d rows queued; want those of the two other files", counts, len(queue.ids))
	}
}

// Storage that fails ends the capture at once, and nothing is queued that is not archived.
func TestCaptureWithoutArchive(t *testing.T) {
	t.Parallel()
	full := errors.New("access denied")
	queue := new(tally)
	c := capture.Capturer{Archive: shut{full}, Queue: queue}
	if _, err := c.Capture(t.Context(), context.Background(), inMemory(mixed(20000, 3))); !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
	if len(queue.ids) != 0 || len(queue.files) != 0 {
		t.Errorf("%d rows are queued that are not archived", len(queue.ids))
	}
}

type shut struct{ err error }

func (s shut) Put(context.Context, string, *archive.Buffer) (archive.Stored, error) {
	return archive.Stored{}, s.err
}
