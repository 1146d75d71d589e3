package main

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/deadletter"
)

// nowhere is a bucket that takes everything and keeps nothing: the log's rows are
// written as ever, and where they go is not what is measured here.
type nowhere struct{}

func (nowhere) PutObject(_ context.Context, in *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	_, err := io.Copy(io.Discard, in.Body)
	return &s3.PutObjectOutput{}, err
}

func (nowhere) GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	return nil, fmt.Errorf("nothing is kept")
}

func (nowhere) ListObjectsV2(context.Context, *s3.ListObjectsV2Input, ...func(*s3.Options)) (*s3.ListObjectsV2Output, error) {
	return &s3.ListObjectsV2Output{}, nil
}

// fault is a failure as replay charges it.
func fault(id int64) *deadletter.Fault {
	return deadletter.Faultf(deadletter.ReasonCoerceFailed, "coerce:year->integer", "year is \"circa %d\", which is not an integer", id)
}
