// Command replay is the function that drains the queue: it claims dead letters,
// runs their transform again and lands each feature in the target once.
package main

import (
	"context"
	"log"
	"os"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/awsenv"
	"geodlq/shared/config"
	"geodlq/shared/database"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/replay"
	"geodlq/shared/telemetry"
	"geodlq/shared/transform"
	"geodlq/shared/transform/fetch"
)

func main() {
	ctx, terminate := context.WithCancel(context.Background())
	cfg, err := config.Load[config.Replay]()
	logger := telemetry.NewLogger(os.Stderr, cfg.LogLevel)
	if err != nil {
		log.Fatal(err)
	}
	pool, err := database.Open(ctx, cfg.Database)
	if err != nil {
		log.Fatal(err)
	}
	aws, err := awsenv.Config()
	if err != nil {
		log.Fatal(err)
	}
	objects := s3.NewFromConfig(aws)
	contracts := fetch.S3{Client: objects}
	outcomes := outcome.New(objects, cfg.DeadLetterBucket)
	options := transform.Options{MaxFeatureBytes: int(cfg.MaxFeatureBytes), AllowBallpark: cfg.AllowBallparkCRS}
	h := &Handler{
		Engine: &replay.Engine{Queue: queue.New(pool), Settings: settings(cfg), Log: logger, Stop: ctx, Settled: settled(outcomes, logger)},
		Contract: func(ctx context.Context) (transform.Transformer, error) {
			c, err := transform.LoadContract(ctx, cfg.ContractURI, contracts, options)
			if err != nil {
				return nil, err
			}
			for _, w := range c.Warnings() {
				logger.WarnContext(ctx, "the contract says what replay does not do", "at", w.Pointer, "what", w.Message)
			}
			return c, nil
		},
	}
	lambda.StartWithOptions(h.Handle, lambda.WithEnableSIGTERM(terminate))
}
