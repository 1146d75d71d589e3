package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/jackc/pgx/v5"

	"geodlq/infra/migrations"
	"geodlq/shared/awsenv"
	"geodlq/shared/config"
	"geodlq/shared/database"
)

// migrate brings schema and roles to this build's version.
func migrate(ctx context.Context, cfg config.Migrate) (Answer, error) {
	var opts []database.Option
	if cfg.SecretARN != "" {
		opts = append(opts, database.WithCredentials(secret(cfg.SecretARN)))
	}
	pool, err := database.Open(ctx, cfg.Database, opts...)
	if err != nil {
		return Answer{}, err
	}
	defer pool.Close()
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("connect to migrate: %w", err)
	}
	defer pooled.Release()
	conn := pooled.Conn()

	if _, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", cfg.LockTimeout.Milliseconds())); err != nil {
		return Answer{}, fmt.Errorf("bound the wait for locks: %w", err)
	}
	from, to, err := migrations.Migrate(ctx, conn)
	if err != nil {
		return Answer{From: from, To: to}, err
	}
	if err := grant(ctx, conn); err != nil {
		return Answer{From: from, To: to}, fmt.Errorf("the schema is at version %d, but %w", to, err)
	}
	answer := Answer{From: from, To: to, Applied: []int32{}}
	for v := from + 1; v <= to; v++ {
		answer.Applied = append(answer.Applied, v)
	}
	if err := conn.QueryRow(ctx, "SELECT postgis_lib_version()").Scan(&answer.PostGIS); err != nil {
		return answer, fmt.Errorf("read the PostGIS version: %w", err)
	}
	return answer, nil
}

// MissingRights says what an administrator must run before the functions can sign
// in: the migrating role was not allowed to.
type MissingRights struct{ Statements []string }

func (e *MissingRights) Error() string {
	return "this database role may not do everything; have an administrator run the following, then invoke migrate again: " +
		strings.Join(e.Statements, "; ")
}

// grant applies roles and privileges. Every run does, not only one that migrated: an
// administrator may have made the roles since.
func grant(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "SELECT geodlq_grant()")
	if err != nil {
		return fmt.Errorf("grant privileges: %w", err)
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("grant privileges: %w", err)
	}
	if len(missing) > 0 {
		return &MissingRights{missing}
	}
	return nil
}

// secret reads role and password from Secrets Manager each time a connection is
// made, so that a rotated password is the one used.
func secret(arn string) database.Credentials {
	return func(ctx context.Context) (user, password string, err error) {
		ac, err := awsenv.Config()
		if err != nil {
			return "", "", err
		}
		// Without a route to the service the call would hang for as long as it may.
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		out, err := secretsmanager.NewFromConfig(ac).GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &arn})
		if errors.Is(err, context.DeadlineExceeded) {
			return "", "", fmt.Errorf("read secret %s: no answer in 15 s; a function in a VPC needs a secretsmanager endpoint: %w", arn, err)
		}
		if err != nil {
			return "", "", fmt.Errorf("read secret %s: %w", arn, err)
		}
		var value struct{ Username, Password string }
		if out.SecretString == nil || json.Unmarshal([]byte(*out.SecretString), &value) != nil || value.Username == "" || value.Password == "" {
			return "", "", fmt.Errorf("read secret %s: want a JSON object with username and password, as RDS writes it", arn)
		}
		return value.Username, value.Password, nil
	}
}
