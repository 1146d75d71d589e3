package archive_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"geodlq/infra/local/localtest"
	"geodlq/shared/archive"
	"geodlq/shared/deadletter"
)

func TestMain(m *testing.M) { localtest.Main(m) }

const partKey = "dead-letters/batch_id=b/date=2026-11-30/0123456789abcdef0123456789abcdef.parquet"

func numbered(n int, payload func() []byte) []archive.Row {
	rows := make([]archive.Row, n)
	for i := range rows {
		rows[i] = rowsOfAllKinds()[0]
		rows[i].DLQID, rows[i].SourceRecord = deadletter.RecordID("b", "k", "v", int64(i)), int64(i)
		if payload != nil {
			rows[i].Payload = payload()
		}
	}
	return rows
}

func noise() []byte {
	p := make([]byte, 4096)
	for i := range p {
		p[i] = byte(rand.N(256))
	}
	return p
}

func TestPutOnce(t *testing.T) {
	t.Parallel()
	small, large := numbered(10, nil), numbered(1000, noise)
	other := numbered(10, nil)
	other[7].SourceRecord = 70
	for name, tc := range map[string]struct {
		before *archive.Buffer
		put    *archive.Buffer
		want   archive.Outcome
	}{
		"a new file":                        {nil, write(t, small), archive.Created},
		"a new large file":                  {nil, write(t, large), archive.Created},
		"the same bytes":                    {write(t, small), write(t, small), archive.AlreadyThere},
		"the same bytes, large":             {write(t, large), write(t, large), archive.AlreadyThere},
		"the same rows in other row groups": {write(t, small[:3], small[3:]), write(t, small), archive.AlreadyThere},
		"other rows":                        {write(t, other), write(t, small), 0},
		"fewer rows":                        {write(t, small[:9]), write(t, small), 0},
		"no Parquet":                        {junk(), write(t, small), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket, client := localtest.Bucket(t), localtest.S3(t)
			store := archive.NewStore(client, bucket)
			if tc.before != nil {
				key := partKey
				if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: tc.before.Reader()}); err != nil {
					t.Fatal(err)
				}
				if tc.want == archive.AlreadyThere {
					// As another attempt would have put it, with its digest.
					key := partKey + "2"
					if _, err := store.Put(t.Context(), key, tc.before); err != nil {
						t.Fatal(err)
					}
					if got, err := store.Put(t.Context(), key, tc.put); got.Outcome != archive.AlreadyThere || err != nil {
						t.Errorf("put over an earlier attempt's file: %v, %v", got, err)
					}
				}
			}
			got, err := store.Put(t.Context(), partKey, tc.put)
			if got.Outcome != tc.want {
				t.Errorf("outcome %v, %v; want %v", got, err, tc.want)
			}
			var mismatch *archive.MismatchError
			if errors.As(err, &mismatch) != (tc.want == 0) {
				t.Errorf("error %v", err)
			}
			kept := tc.put
			if tc.before != nil {
				kept = tc.before
			}
			there, err := store.Get(t.Context(), partKey)
			if err != nil {
				t.Fatal(err)
			}
			if string(contents(t, there)) != string(contents(t, kept)) {
				t.Error("the file that was there first is not the one that is there now")
			}
		})
	}
}

func junk() *archive.Buffer {
	b := new(archive.Buffer)
	fmt.Fprint(b, "hello")
	return b
}

func TestPutRace(t *testing.T) {
	t.Parallel()
	store := archive.NewStore(localtest.S3(t), localtest.Bucket(t))
	file := write(t, numbered(100, nil))
	var created, there atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			switch got, err := store.Put(t.Context(), partKey, file); {
			case err != nil:
				t.Error(err)
			case got.Outcome == archive.Created:
				created.Add(1)
			default:
				there.Add(1)
			}
		})
	}
	wg.Wait()
	if created.Load() != 1 || there.Load() != 15 {
		t.Errorf("%d created the file, %d found it; want 1 and 15", created.Load(), there.Load())
	}
}

// refusing is S3 that answers the first puts with a status.
type refusing struct {
	archive.S3
	status int
	left   atomic.Int32
}

func (r *refusing) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	if r.left.Add(-1) >= 0 {
		return nil, &smithyhttp.ResponseError{
			Response: &smithyhttp.Response{Response: &http.Response{StatusCode: r.status}},
			Err:      errors.New("refused"),
		}
	}
	return r.S3.PutObject(ctx, in, opts...)
}

func TestPutConflicts(t *testing.T) {
	t.Parallel()
	file := write(t, numbered(10, nil))
	for name, tc := range map[string]struct {
		status int
		times  int32
		ok     bool
	}{
		"409 twice":                           {http.StatusConflict, 2, true},
		"409 for ever":                        {http.StatusConflict, 1000, false},
		"412, but the file was removed since": {http.StatusPreconditionFailed, 1, true},
		"403":                                 {http.StatusForbidden, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &refusing{S3: localtest.S3(t), status: tc.status}
			client.left.Store(tc.times)
			store := archive.NewStore(client, localtest.Bucket(t))
			got, err := store.Put(t.Context(), partKey, file)
			if tc.ok != (err == nil) || tc.ok && got.Outcome != archive.Created {
				t.Errorf("outcome %v, error %v; want success: %v", got, err, tc.ok)
			}
		})
	}
	t.Run("a caller that gives up", func(t *testing.T) {
		t.Parallel()
		client := &refusing{S3: localtest.S3(t), status: http.StatusConflict}
		client.left.Store(1000)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := archive.NewStore(client, "b").Put(ctx, partKey, file); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
	})
}
