package writeonce_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"geodlq/infra/local/localtest"
	"geodlq/shared/writeonce"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func put(bucket, key, text string) *s3.PutObjectInput {
	return &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(key), Body: strings.NewReader(text)}
}

func TestTheFirstWriterWins(t *testing.T) {
	t.Parallel()
	client, bucket := localtest.S3(t), localtest.Bucket(t)
	for i, want := range []bool{true, false, false} {
		created, err := writeonce.Put(t.Context(), client, put(bucket, "k", strings.Repeat("x", i+1)))
		if err != nil || created != want {
			t.Errorf("put %d: created %t, %v; want %t", i, created, err, want)
		}
	}
	out, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: aws.String("k")})
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(out.Body); string(b) != "x" {
		t.Errorf("the key holds %q, want what was written first", b)
	}
}

// answers refuses with each status in turn and reads what it is sent.
type answers struct {
	statuses []int
	bodies   [][]byte
}

func (a *answers) PutObject(_ context.Context, in *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	b, err := io.ReadAll(in.Body)
	if err != nil || aws.ToString(in.IfNoneMatch) != "*" {
		return nil, errors.New("not a conditional put of a body")
	}
	a.bodies = append(a.bodies, b)
	if len(a.statuses) == 0 {
		return &s3.PutObjectOutput{}, nil
	}
	status := a.statuses[0]
	a.statuses = a.statuses[1:]
	return nil, &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}}, Err: errors.New("refused")}
}

func TestConflictsAreTriedAgain(t *testing.T) {
	t.Parallel()
	forEver := make([]int, 100)
	for i := range forEver {
		forEver[i] = http.StatusConflict
	}
	for name, c := range map[string]struct {
		statuses []int
		created  bool
		status   int // of the error
		tries    int
	}{
		"409 twice":     {[]int{409, 409}, true, 0, 3},
		"409, then 412": {[]int{409, 412}, false, 0, 2},
		"409 for ever":  {forEver, false, 409, writeonce.Tries},
		"403":           {[]int{403}, false, 403, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &answers{statuses: c.statuses}
			created, err := writeonce.Put(t.Context(), a, put("b", "k", "the whole body"))
			if created != c.created || (err != nil) != (c.status != 0) || writeonce.Status(err) != c.status || len(a.bodies) != c.tries {
				t.Errorf("created %t, error %v after %d tries; want %t, status %d, %d", created, err, len(a.bodies), c.created, c.status, c.tries)
			}
			for i, b := range a.bodies {
				if !bytes.Equal(b, []byte("the whole body")) {
					t.Errorf("try %d sent %q", i, b)
				}
			}
		})
	}
	t.Run("a caller that gives up", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := writeonce.Put(ctx, &answers{statuses: forEver}, put("b", "k", "")); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
	})
	t.Run("a body that cannot be read twice", func(t *testing.T) {
		t.Parallel()
		in := put("b", "k", "")
		in.Body = io.MultiReader()
		if _, err := writeonce.Put(t.Context(), &answers{}, in); err == nil {
			t.Error("it was sent")
		}
	})
}
