// Command metrics is the function that keeps the books: it folds the ledger into
// totals, publishes them to CloudWatch and writes lineage manifests.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/awsenv"
	"geodlq/shared/config"
	"geodlq/shared/database"
	"geodlq/shared/ledger"
	"geodlq/shared/telemetry"
	"geodlq/shared/telemetry/gauge"
)

func main() {
	ctx := context.Background()
	cfg, err := config.Load[config.Metrics]()
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
	server := pool.Config().ConnConfig
	h := &Handler{
		Books:           ledger.New(pool, cfg.Window),
		Publisher:       gauge.NewPublisher(cloudwatch.NewFromConfig(aws), cfg.Namespace, cfg.PublishTimeout),
		Objects:         s3.NewFromConfig(aws),
		Log:             logger,
		Stage:           cfg.Stage,
		Bucket:          cfg.DeadLetterBucket,
		TargetNamespace: fmt.Sprintf("postgres://%s:%d", server.Host, server.Port),
		Threshold:       cfg.PoisonRateThreshold,
	}
	lambda.Start(h.Handle)
}
