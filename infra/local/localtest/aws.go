package localtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"geodlq/infra/local"
)

// awsConfig is built as the functions build theirs, so that a test's client sends
// the checksums theirs send.
func awsConfig(t testing.TB) aws.Config {
	t.Helper()
	s := Settings(t)
	cfg, err := config.LoadDefaultConfig(t.Context(),
		config.WithRegion(s.Region),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(s.AccessKeyID, s.SecretAccessKey, "")),
		config.WithSharedConfigFiles(nil),
		config.WithSharedCredentialsFiles(nil),
	)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// S3 returns a client of the stack's S3.
func S3(t testing.TB) *s3.Client {
	t.Helper()
	endpoint := Settings(t).S3Endpoint
	return s3.NewFromConfig(awsConfig(t), func(o *s3.Options) {
		o.BaseEndpoint = aws.String(endpoint)
		o.UsePathStyle = true
	})
}

// Bucket makes a bucket of the test's own that keeps versions, as the deployed
// buckets do. It is removed when the test ends.
func Bucket(t testing.TB) (name string) {
	t.Helper()
	client := S3(t)
	name = "test-" + strings.ToLower(rand.Text()[:16])
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		t.Fatalf("create the bucket %s: %v", name, err)
	}
	_, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
		Bucket:                  &name,
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	if err != nil {
		t.Fatalf("enable versions in the bucket %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := emptyBucket(client, name); err != nil {
			t.Errorf("empty the bucket %s: %v", name, err)
			return
		}
		if _, err := client.DeleteBucket(context.Background(), &s3.DeleteBucketInput{Bucket: &name}); err != nil {
			t.Errorf("delete the bucket %s: %v", name, err)
		}
	})
	return name
}

// emptyBucket deletes every version of every object: the stack's memory is shared
// by all tests of a run.
func emptyBucket(client *s3.Client, name string) error {
	ctx := context.Background()
	pages := s3.NewListObjectVersionsPaginator(client, &s3.ListObjectVersionsInput{Bucket: &name})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, v := range page.Versions {
			if _, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &name, Key: v.Key, VersionId: v.VersionId}); err != nil {
				return err
			}
		}
		for _, v := range page.DeleteMarkers {
			if _, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &name, Key: v.Key, VersionId: v.VersionId}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Recorder is a test's view of the stack's CloudWatch recorder: a namespace that
// no other test uses.
type Recorder struct {
	Namespace string
	endpoint  string
	client    *cloudwatch.Client
}

// CloudWatch returns a recorder with a fresh namespace.
func CloudWatch(t testing.TB) *Recorder {
	t.Helper()
	endpoint := Settings(t).MetricsEndpoint
	return &Recorder{
		Namespace: "Test/" + rand.Text()[:16],
		endpoint:  endpoint,
		client: cloudwatch.NewFromConfig(awsConfig(t), func(o *cloudwatch.Options) {
			o.BaseEndpoint = aws.String(endpoint)
		}),
	}
}

// Client returns a client that puts metrics to the recorder, in the SDK's default protocol.
func (r *Recorder) Client() *cloudwatch.Client { return r.client }

// Puts returns the requests that were accepted in the namespace, oldest first.
func (r *Recorder) Puts(t testing.TB) []local.Put {
	t.Helper()
	puts, err := recorded(t.Context(), r.endpoint, r.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	return puts
}

// Data returns the data of all [Recorder.Puts] in one list.
func (r *Recorder) Data(t testing.TB) []local.Datum {
	t.Helper()
	var data []local.Datum
	for _, put := range r.Puts(t) {
		data = append(data, put.Data...)
	}
	return data
}

func recorded(ctx context.Context, endpoint, namespace string) ([]local.Put, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/recorded?namespace="+url.QueryEscape(namespace), nil)
	if err != nil {
		return nil, fmt.Errorf("ask for the recorded metrics: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for the recorded metrics: %w", err)
	}
	defer response.Body.Close()
	var puts []local.Put
	if err := json.NewDecoder(response.Body).Decode(&puts); err != nil {
		return nil, fmt.Errorf("read the recorded metrics: %w", err)
	}
	return puts, nil
}
