// Package service makes the redrive service of its environment, for the function and
// for the command line.
package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/awsenv"
	"geodlq/shared/config"
	"geodlq/shared/database"
	"geodlq/shared/outcome"
	"geodlq/shared/queue"
	"geodlq/shared/redrive"
	"geodlq/shared/replay"
	"geodlq/shared/transform"
	"geodlq/shared/transform/fetch"
)

// What a canary works with, one claim at a time. It is small: whoever drains the queue
// is replay.
const (
	canaryClaim   = 200
	canaryLease   = 5 * time.Minute
	canaryRowTime = 10 * time.Second
)

// Open makes the service. The database is dialled when it is first needed. stop is
// done when the process is being shut down.
func Open(stop context.Context, cfg config.Redrive, logger *slog.Logger) (*redrive.Service, error) {
	pool, err := database.Open(stop, cfg.Database)
	if err != nil {
		return nil, err
	}
	aws, err := awsenv.Config()
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(aws)
	contracts := fetch.S3{Client: client}
	options := transform.Options{MaxFeatureBytes: int(cfg.MaxFeatureBytes), AllowBallpark: cfg.AllowBallparkCRS}
	return &redrive.Service{
		DB: pool, Queue: queue.New(pool), S3: client, Bucket: cfg.DeadLetterBucket, Log: outcome.New(client, cfg.DeadLetterBucket),
		Contract: func(ctx context.Context) (transform.Transformer, error) {
			return transform.LoadContract(ctx, cfg.ContractURI, contracts, options)
		},
		Settings: replay.Settings{
			Policy:  queue.Policy{MaxAttempts: cfg.MaxAttempts, DataFaultAttempts: cfg.DataFaultAttempts, BackoffBase: cfg.BackoffBase},
			Workers: 1, ClaimSize: canaryClaim, Lease: canaryLease, RowTimeout: canaryRowTime, Margin: cfg.DeadlineMargin,
		},
		Logger: logger,
		Stop:   stop,
	}, nil
}
