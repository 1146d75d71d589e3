// Command capture is the function that takes failure files in: it archives the
// dead letters of every object that arrives in the inbox and queues them.
package main

import (
	"context"
	"log"
	"os"
	"runtime/debug"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/archive"
	"geodlq/shared/awsenv"
	"geodlq/shared/capture"
	"geodlq/shared/config"
	"geodlq/shared/database"
	"geodlq/shared/inbox"
	"geodlq/shared/telemetry"
)

func main() {
	stop, terminate := context.WithCancel(context.Background())
	cfg, err := config.Load[config.Capture]()
	logger := telemetry.NewLogger(os.Stderr, cfg.LogLevel)
	if err != nil {
		log.Fatal(err)
	}
	pool, err := database.Open(stop, cfg.Database)
	if err != nil {
		log.Fatal(err)
	}
	aws, err := awsenv.Config()
	if err != nil {
		log.Fatal(err)
	}
	debug.SetGCPercent(capture.GCPercent)
	client := s3.NewFromConfig(aws)
	h := &Handler{
		Open: func(ctx context.Context, bucket, key, versionID string) (inbox.Object, error) {
			return capture.Open(ctx, client, bucket, key, versionID)
		},
		Capturer: &capture.Capturer{
			Archive: archive.NewStore(client, cfg.DeadLetterBucket),
			Queue:   capture.Postgres{DB: pool},
			Limits:  inbox.Limits{MaxFeatureBytes: int64(cfg.MaxFeatureBytes), MaxObjectBytes: int64(cfg.MaxObjectBytes)},
		},
		Bucket: cfg.InboxBucket, Prefix: cfg.InboxPrefix, Margin: cfg.DeadlineMargin,
		Stop: stop, Log: logger,
	}
	lambda.StartWithOptions(h.Handle, lambda.WithEnableSIGTERM(terminate))
}
