package capture_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"geodlq/infra/local/localtest"
	"geodlq/shared/capture"
)

// flaky is S3 whose connections break.
type flaky struct {
	content []byte
	gets    []string                              // the ranges asked for
	body    func(n int, rest io.Reader) io.Reader // of the n-th GET, from 1
	refuse  int                                   // status of later GETs, 0 for none
	ctxs    []context.Context
}

func (f *flaky) GetObject(ctx context.Context, in *s3.GetObjectInput, _ ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	if pinned := aws.ToString(in.IfMatch) == `"e"` && aws.ToString(in.VersionId) == "v"; !pinned && len(f.gets) > 0 {
		return nil, fmt.Errorf("GET of If-Match %s, version %s", aws.ToString(in.IfMatch), aws.ToString(in.VersionId))
	}
	f.gets = append(f.gets, aws.ToString(in.Range))
	if f.refuse != 0 && len(f.gets) > 1 {
		return nil, &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: f.refuse}}, Err: errors.New("refused")}
	}
	from := 0
	if in.Range != nil {
		fmt.Sscanf(*in.Range, "bytes=%d-", &from)
	}
	f.ctxs = append(f.ctxs, ctx)
	return &s3.GetObjectOutput{
		ETag: aws.String(`"e"`), VersionId: aws.String("v"), LastModified: aws.Time(time.Unix(0, 0)),
		ContentLength: aws.Int64(int64(len(f.content) - from)), Body: io.NopCloser(f.body(len(f.gets), bytes.NewReader(f.content[from:]))),
	}, nil
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// stalled gives nothing until its connection is given up.
type stalled struct{ ctx func() context.Context }

func (s stalled) Read([]byte) (int, error) {
	<-s.ctx().Done()
	return 0, context.Cause(s.ctx())
}

func TestDownloadGoesOnWhereItBroke(t *testing.T) {
	t.Parallel()
	content := []byte(strings.Repeat("0123456789", 1000))
	reset := errors.New("connection reset by peer")
	for name, tc := range map[string]struct {
		body func(f *flaky) func(n int, rest io.Reader) io.Reader
		gets []string
		err  error
	}{
		"no break": {func(*flaky) func(int, io.Reader) io.Reader {
			return func(_ int, rest io.Reader) io.Reader { return rest }
		}, []string{""}, nil},
		"two breaks": {func(*flaky) func(int, io.Reader) io.Reader {
			return func(n int, rest io.Reader) io.Reader {
				if n < 3 {
					return io.MultiReader(io.LimitReader(rest, 3000), broken{reset})
				}
				return rest
			}
		}, []string{"", "bytes=3000-", "bytes=6000-"}, nil},
		"an early end": {func(*flaky) func(int, io.Reader) io.Reader {
			return func(n int, rest io.Reader) io.Reader {
				if n == 1 {
					return io.LimitReader(rest, 4000)
				}
				return rest
			}
		}, []string{"", "bytes=4000-"}, nil},
		"no progress": {func(*flaky) func(int, io.Reader) io.Reader {
			return func(n int, rest io.Reader) io.Reader { return broken{reset} }
		}, []string{"", "", "", "", "", ""}, reset},
		"a break behind the end": {func(*flaky) func(int, io.Reader) io.Reader {
			return func(n int, rest io.Reader) io.Reader { return io.MultiReader(rest, broken{reset}) }
		}, []string{""}, reset},
		"a connection that stalls": {func(f *flaky) func(int, io.Reader) io.Reader {
			return func(n int, rest io.Reader) io.Reader {
				if n == 1 {
					return io.MultiReader(io.LimitReader(rest, 100), stalled{func() context.Context { return f.ctxs[0] }})
				}
				return rest
			}
		}, []string{"", "bytes=100-"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{content: content}
				f.body = tc.body(f)
				o, err := capture.Open(t.Context(), f, "b", "k", "")
				if err != nil {
					t.Fatal(err)
				}
				rc, err := o.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer rc.Close()
				got, err := io.ReadAll(rc)
				if !errors.Is(err, tc.err) || tc.err == nil && !bytes.Equal(got, content) {
					t.Errorf("read %d bytes, error %v; want all, or error %v", len(got), err, tc.err)
				}
				if strings.Join(f.gets, ",") != strings.Join(tc.gets, ",") {
					t.Errorf("ranges asked for: %q, want %q", f.gets, tc.gets)
				}
			})
		})
	}
	t.Run("overwritten meanwhile", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{content: content, refuse: http.StatusPreconditionFailed, body: func(int, io.Reader) io.Reader { return broken{reset} }}
			o, err := capture.Open(t.Context(), f, "b", "k", "")
			if err != nil {
				t.Fatal(err)
			}
			rc, err := o.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			if _, err := io.ReadAll(rc); err == nil || !strings.Contains(err.Error(), "overwritten meanwhile") {
				t.Errorf("error %v, want one that says so", err)
			}
		})
	})
	t.Run("a caller that gives up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{content: content}
			f.body = func(int, io.Reader) io.Reader { return stalled{func() context.Context { return f.ctxs[0] }} }
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			o, err := capture.Open(ctx, f, "b", "k", "")
			if err != nil {
				t.Fatal(err)
			}
			rc, err := o.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			if _, err := io.ReadAll(rc); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want that of the deadline", err)
			}
		})
	})
}

func TestOpen(t *testing.T) {
	t.Parallel()
	client, bucket := localtest.S3(t), localtest.Bucket(t)
	put := func(content string) (version string) {
		out, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("incoming/a b+c.ndjson"), Body: strings.NewReader(content),
			Metadata: map[string]string{"Batch-Id": "run 7"}})
		if err != nil {
			t.Fatal(err)
		}
		return aws.ToString(out.VersionId)
	}
	first, second := put("one"), put("two")
	for version, want := range map[string]string{first: "one", "": "two", second: "two"} {
		o, err := capture.Open(t.Context(), client, bucket, "incoming/a b+c.ndjson", version)
		if err != nil {
			t.Fatal(err)
		}
		if want == "two" {
			version = second
		}
		if o.VersionID != version || o.Version() != version || o.Metadata["batch-id"] != "run 7" || o.LastModified.IsZero() || o.LastModified.Location() != time.UTC {
			t.Errorf("object %+v, want version %s and its metadata", o, version)
		}
		for range 2 { // it may be read again
			rc, err := o.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(rc)
			rc.Close()
			if err != nil || string(got) != want {
				t.Errorf("version %s reads %q, %v; want %q", version, got, err, want)
			}
		}
	}
	if _, err := capture.Open(t.Context(), client, bucket, "incoming/gone", ""); err == nil || !strings.Contains(err.Error(), "was it removed before it was captured") {
		t.Errorf("error %v, want one that says what may be the matter", err)
	}
}
