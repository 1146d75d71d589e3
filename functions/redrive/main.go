// Command redrive is the function people use to look at what is in quarantine, to put
// it back into the queue, and to fix, discard, export and restore it. It takes one JSON
// request and answers with JSON; see package redrive.
package main

import (
	"context"
	"log"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"geodlq/functions/redrive/service"
	"geodlq/shared/config"
	"geodlq/shared/telemetry"
)

func main() {
	stop, terminate := context.WithCancel(context.Background())
	cfg, err := config.Load[config.Redrive]()
	logger := telemetry.NewLogger(os.Stderr, cfg.LogLevel)
	if err != nil {
		log.Fatal(err)
	}
	s, err := service.Open(stop, cfg, logger)
	if err != nil {
		log.Fatal(err)
	}
	h := &Handler{Service: s, Log: logger}
	lambda.StartWithOptions(h.Handle, lambda.WithEnableSIGTERM(terminate))
}
