// Command migrate brings the database's schema and roles to the version of this
// build. A deployment runs it as a CloudFormation custom resource before the other
// functions are updated; a person may invoke it with any JSON.
package main

import (
	"context"
	"os"

	"github.com/aws/aws-lambda-go/lambda"

	"geodlq/shared/config"
	"geodlq/shared/telemetry"
)

func main() {
	cfg, err := config.Load[config.Migrate]()
	h := handler{
		log: telemetry.NewLogger(os.Stderr, cfg.LogLevel),
		migrate: func(ctx context.Context) (Answer, error) {
			if err != nil {
				// Said here and not by exiting at the start: a stack whose custom
				// resource never answers hangs until its time is up.
				return Answer{}, err
			}
			return migrate(ctx, cfg)
		},
	}
	lambda.Start(h.Handle)
}
