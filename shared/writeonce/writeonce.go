// Package writeonce puts objects into S3 that nobody may have written before: the
// files of the archive, the outcome log and the lineage manifests. A key is written by
// a conditional put (If-None-Match: *); what is there stays as it is.
package writeonce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Putter is what is needed of an S3 client; *s3.Client is one.
type Putter interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
}

// Tries is how often a write is tried that S3 refuses because of another one to the
// same key at the same moment (409).
const Tries = 8

// Put writes the object that in describes, whose Body must be an [io.ReadSeeker],
// unless the key is taken: then created is false. Whether what is there is what
// belongs there is for the caller to ask, where keys do not say it themselves.
func Put(ctx context.Context, client Putter, in *s3.PutObjectInput) (created bool, err error) {
	body, ok := in.Body.(io.Seeker)
	if !ok {
		return false, fmt.Errorf("put s3://%s/%s: the body cannot be read twice", aws.ToString(in.Bucket), aws.ToString(in.Key))
	}
	in.IfNoneMatch = aws.String("*")
	for try := 1; ; try++ {
		if _, err := body.Seek(0, io.SeekStart); err != nil {
			return false, fmt.Errorf("put s3://%s/%s: %w", aws.ToString(in.Bucket), aws.ToString(in.Key), err)
		}
		_, err := client.PutObject(ctx, in)
		switch status := Status(err); {
		case err == nil:
			return true, nil
		case status == http.StatusPreconditionFailed:
			return false, nil
		case status != http.StatusConflict || try == Tries:
			return false, fmt.Errorf("put s3://%s/%s, try %d: %w", aws.ToString(in.Bucket), aws.ToString(in.Key), try, err)
		}
		if err := Pause(ctx, try); err != nil {
			return false, fmt.Errorf("put s3://%s/%s: %w", aws.ToString(in.Bucket), aws.ToString(in.Key), err)
		}
	}
}

// Pause waits before another try: 50 ms times the tries so far, jittered by half.
func Pause(ctx context.Context, try int) error {
	d := time.Duration(try) * 50 * time.Millisecond
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Status is the HTTP status of S3's answer in err, or 0.
func Status(err error) int {
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode()
	}
	return 0
}
