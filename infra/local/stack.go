package local

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Names and credentials in every stack. The credentials are no secret: the local
// servers do not check them, but the SDK insists on some.
const (
	InboxBucket      = "geodlq-inbox"
	DeadLetterBucket = "geodlq-dead-letters"
	region           = "us-east-1"
	accessKeyID      = "local"
	secretAccessKey  = "local"
)

// Stack is PostGIS, S3 and CloudWatch on this machine.
type Stack struct {
	Settings   Settings
	Postgres   *Postgres // nil when DATABASE_URL names the database
	S3         *S3
	CloudWatch *CloudWatch
}

// StartStack starts a stack. The database is the one that the environment
// variable DATABASE_URL names, which is checked to answer and otherwise left as it
// is; when it is not set, a throw-away server with what [FindPostGIS] finds.
func StartStack(ctx context.Context) (_ *Stack, err error) {
	s := &Stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.S3, err = StartS3(InboxBucket, DeadLetterBucket); err != nil {
		return nil, err
	}
	if s.CloudWatch, err = StartCloudWatch(); err != nil {
		return nil, err
	}
	s.Settings = Settings{
		DatabaseURL:      os.Getenv("DATABASE_URL"),
		S3Endpoint:       s.S3.URL(),
		MetricsEndpoint:  s.CloudWatch.URL(),
		Region:           region,
		AccessKeyID:      accessKeyID,
		SecretAccessKey:  secretAccessKey,
		InboxBucket:      InboxBucket,
		DeadLetterBucket: DeadLetterBucket,
	}
	if s.Settings.DatabaseURL != "" {
		if err := answers(ctx, s.Settings.DatabaseURL); err != nil {
			return nil, fmt.Errorf("use the database of DATABASE_URL: %w", err)
		}
		return s, nil
	}
	inst, err := FindPostGIS(ctx)
	if err != nil {
		return nil, err
	}
	if s.Postgres, err = StartPostgres(ctx, inst); err != nil {
		return nil, err
	}
	s.Settings.DatabaseURL = s.Postgres.URL()
	return s, nil
}

// Close stops what StartStack started.
func (s *Stack) Close() error {
	var errs []error
	if s.Postgres != nil {
		errs = append(errs, s.Postgres.Close())
	}
	if s.CloudWatch != nil {
		errs = append(errs, s.CloudWatch.Close())
	}
	if s.S3 != nil {
		errs = append(errs, s.S3.Close())
	}
	return errors.Join(errs...)
}
