// Package fetch reads contracts from S3. It stands apart from package transform so
// that who brings a contract from elsewhere does not link the SDK.
package fetch

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/transform"
)

// Getter is the one call needed of S3; *s3.Client is one.
type Getter interface {
	GetObject(ctx context.Context, in *s3.GetObjectInput, opts ...func(*s3.Options)) (*s3.GetObjectOutput, error)
}

// S3 fetches contracts; it is a [transform.Fetcher].
type S3 struct{ Client Getter }

var _ transform.Fetcher = S3{}

// Fetch returns the object's bytes, of which it reads no more than a contract may
// have and one, so that the size check of the parser still sees that it is too large.
func (f S3) Fetch(ctx context.Context, bucket, key string) ([]byte, error) {
	out, err := f.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		return nil, fmt.Errorf("get s3://%s/%s: %w", bucket, key, err)
	}
	defer out.Body.Close()
	b, err := io.ReadAll(io.LimitReader(out.Body, transform.MaxContractBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read s3://%s/%s: %w", bucket, key, err)
	}
	return b, nil
}
