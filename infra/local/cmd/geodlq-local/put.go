package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/infra/local"
)

// put uploads a failure file to the inbox and writes the event that its arrival
// would raise.
func (a *app) put(ctx context.Context, file, key string) error {
	settings, err := a.running()
	if err != nil {
		return err
	}
	path := callersPath(file)
	if key == "" {
		key = "incoming/" + filepath.Base(path)
	}
	object, err := upload(ctx, settings, path, key)
	if err != nil {
		return err
	}
	event, err := object.event()
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.dir.event(), event, 0o644); err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	fmt.Fprintf(a.stdout, "s3://%s/%s has %d bytes. Capture it:\n  make -s invoke FN=capture EVENT=%s\n",
		object.bucket, object.key, object.size, a.shorten(a.dir.event()))
	return nil
}

// inboxObject is an object that has been put into the inbox.
type inboxObject struct {
	bucket, key, version, etag string
	size                       int64
	at                         time.Time
	region                     string
}

func s3Client(settings local.Settings) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &settings.S3Endpoint,
		UsePathStyle: true,
		Region:       settings.Region,
		Credentials:  credentials.NewStaticCredentialsProvider(settings.AccessKeyID, settings.SecretAccessKey, ""),
	})
}

func upload(ctx context.Context, settings local.Settings, path, key string) (inboxObject, error) {
	f, err := os.Open(path)
	if err != nil {
		return inboxObject{}, fmt.Errorf("open the failure file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return inboxObject{}, fmt.Errorf("open the failure file: %w", err)
	}
	out, err := s3Client(settings).PutObject(ctx, &s3.PutObjectInput{Bucket: &settings.InboxBucket, Key: &key, Body: f})
	if err != nil {
		return inboxObject{}, fmt.Errorf("upload %s to s3://%s/%s: %w", path, settings.InboxBucket, key, err)
	}
	return inboxObject{
		bucket: settings.InboxBucket, key: key, version: aws.ToString(out.VersionId), etag: strings.Trim(aws.ToString(out.ETag), `"`),
		size: info.Size(), at: time.Now().UTC(), region: settings.Region,
	}, nil
}

// event is the SQS message of EventBridge's "Object Created" event: how a deployed
// capture hears of an object.
func (o inboxObject) event() ([]byte, error) {
	type object map[string]any
	body, err := json.Marshal(object{
		"version": "0", "id": "00000000-0000-4000-8000-000000000000",
		"detail-type": "Object Created", "source": "aws.s3", "account": "000000000000",
		"time": o.at.Format(time.RFC3339), "region": o.region,
		"resources": []string{"arn:aws:s3:::" + o.bucket},
		"detail": object{
			"version": "0", "event-version": "1.0", "reason": "PutObject",
			"bucket": object{"name": o.bucket},
			"object": object{"key": o.key, "size": o.size, "etag": o.etag, "version-id": o.version},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("write the event of s3://%s/%s: %w", o.bucket, o.key, err)
	}
	event, err := json.MarshalIndent(object{"Records": []object{{
		"messageId": "00000000-0000-4000-8000-000000000001", "receiptHandle": "local", "body": string(body),
		"attributes": object{"ApproximateReceiveCount": "1"}, "messageAttributes": object{},
		"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:" + o.region + ":000000000000:geodlq-capture", "awsRegion": o.region,
	}}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the event of s3://%s/%s: %w", o.bucket, o.key, err)
	}
	return event, nil
}
