package local_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"geodlq/infra/local"
)

// startS3 returns a client that differs from the SDK's default only in its address
// and credentials: it sends the checksums that the functions' clients send.
func startS3(t *testing.T) *s3.Client {
	t.Helper()
	server, err := local.StartS3(local.InboxBucket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg, err := config.LoadDefaultConfig(t.Context(), config.WithRegion("us-east-1"),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("local", "local", "")),
		config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil))
	if err != nil {
		t.Fatal(err)
	}
	return s3.NewFromConfig(cfg, func(o *s3.Options) { o.BaseEndpoint = aws.String(server.URL()) })
}

func put(t *testing.T, client *s3.Client, key, body string, configure ...func(*s3.PutObjectInput)) (*s3.PutObjectOutput, error) {
	t.Helper()
	input := &s3.PutObjectInput{Bucket: aws.String(local.InboxBucket), Key: &key, Body: strings.NewReader(body)}
	for _, f := range configure {
		f(input)
	}
	return client.PutObject(t.Context(), input)
}

func get(t *testing.T, client *s3.Client, input *s3.GetObjectInput) string {
	t.Helper()
	input.Bucket = aws.String(local.InboxBucket)
	object, err := client.GetObject(t.Context(), input)
	if err != nil {
		t.Fatal(err)
	}
	defer object.Body.Close()
	body, err := io.ReadAll(object.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var refused smithy.APIError
	if !errors.As(err, &refused) || refused.ErrorCode() != code {
		t.Errorf("error %v; want %s", err, code)
	}
}

func TestS3KeysAreVerbatim(t *testing.T) {
	t.Parallel()
	client := startS3(t)
	for _, key := range []string{"incoming/a+b.ndjson", "incoming/a b.ndjson", "incoming/a%2Bb.ndjson", "incoming/é=ü/&?.ndjson"} {
		if _, err := put(t, client, key, key); err != nil {
			t.Fatalf("put %q: %v", key, err)
		}
	}
	list, err := client.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String(local.InboxBucket)})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Contents) != 4 {
		t.Errorf("%d objects; want 4", len(list.Contents))
	}
	for _, object := range list.Contents {
		if body := get(t, client, &s3.GetObjectInput{Key: object.Key}); body != *object.Key {
			t.Errorf("object %q holds %q", *object.Key, body)
		}
	}
}

func TestS3Versions(t *testing.T) {
	t.Parallel()
	client := startS3(t)
	first, err := put(t, client, "k", "first", func(in *s3.PutObjectInput) { in.Metadata = map[string]string{"batch-id": "b1"} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(t, client, "k", "second"); err != nil {
		t.Fatal(err)
	}
	if body := get(t, client, &s3.GetObjectInput{Key: aws.String("k")}); body != "second" {
		t.Errorf("latest version: %q", body)
	}
	if body := get(t, client, &s3.GetObjectInput{Key: aws.String("k"), VersionId: first.VersionId}); body != "first" {
		t.Errorf("first version: %q", body)
	}
	head, err := client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(local.InboxBucket), Key: aws.String("k"), VersionId: first.VersionId})
	if err != nil {
		t.Fatal(err)
	}
	if head.Metadata["batch-id"] != "b1" {
		t.Errorf("metadata %v", head.Metadata)
	}
}

func TestS3ConditionalPut(t *testing.T) {
	t.Parallel()
	client := startS3(t)
	once := func(in *s3.PutObjectInput) { in.IfNoneMatch = aws.String("*") }
	const writers = 16
	results := make(chan error, writers)
	for range writers {
		go func() {
			_, err := put(t, client, "k", "body", once)
			results <- err
		}()
	}
	var won int
	for range writers {
		if err := <-results; err == nil {
			won++
		} else {
			wantCode(t, err, "PreconditionFailed")
		}
	}
	if won != 1 {
		t.Errorf("%d of %d conditional puts won; want 1", won, writers)
	}
}

func TestS3RefusesWhatItWouldGetWrong(t *testing.T) {
	t.Parallel()
	client := startS3(t)
	bucket := aws.String(local.InboxBucket)

	upload, err := client.CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: bucket, Key: aws.String("big")})
	if err != nil {
		t.Fatal(err)
	}
	part, err := client.UploadPart(t.Context(), &s3.UploadPartInput{
		Bucket: bucket, Key: aws.String("big"), UploadId: upload.UploadId, PartNumber: aws.Int32(1), Body: bytes.NewReader(make([]byte, 1<<10)),
	})
	if err != nil {
		t.Fatal(err)
	}
	complete := &s3.CompleteMultipartUploadInput{
		Bucket: bucket, Key: aws.String("big"), UploadId: upload.UploadId, IfNoneMatch: aws.String("*"),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: part.ETag}}},
	}
	_, err = client.CompleteMultipartUpload(t.Context(), complete)
	wantCode(t, err, "NotImplemented")
	complete.IfNoneMatch = nil
	if _, err := client.CompleteMultipartUpload(t.Context(), complete); err != nil {
		t.Errorf("an unconditional completion: %v", err)
	}

	request, err := http.NewRequestWithContext(context.Background(), http.MethodPut, *client.Options().BaseEndpoint+"/"+local.InboxBucket+"/framed", strings.NewReader("4\r\nbody\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNotImplemented {
		t.Errorf("a body in frames: status %d; want 501", response.StatusCode)
	}
}
