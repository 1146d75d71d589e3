package local

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// answers checks that the database can be reached and has PostGIS or offers it.
func answers(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var offered bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'postgis')`).Scan(&offered); err != nil {
		return fmt.Errorf("ask for the postgis extension: %w", err)
	}
	if !offered {
		return fmt.Errorf("the server has no postgis extension to create: install PostGIS there or name another server")
	}
	return nil
}

// CreateSchema makes a schema in the database, creating the postgis extension if
// it is missing, and returns a connection string whose search_path names the
// schema first, so that unqualified names are made and found there. Connections
// made with it carry the schema's name as application_name, unless they set
// their own.
func CreateSchema(ctx context.Context, databaseURL, schema string) (schemaURL string, err error) {
	postgis, err := EnsureExtension(ctx, databaseURL)
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return "", fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize()); err != nil {
		return "", fmt.Errorf("create the schema %s: %w", schema, err)
	}
	path := []string{schema, "public"}
	if postgis != "public" {
		path = append(path, postgis)
	}
	return withParameters(databaseURL, map[string]string{
		"search_path":      strings.Join(path, ","),
		"application_name": schema,
	})
}

// DropSchema ends the connections that [CreateSchema]'s connection string made and
// drops the schema with all it holds.
func DropSchema(ctx context.Context, databaseURL, schema string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const end = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid() AND usename = current_user`
	if _, err := conn.Exec(ctx, end, schema); err != nil {
		return fmt.Errorf("end the connections to the schema %s: %w", schema, err)
	}
	// A connection that renamed itself may hold a lock. Waiting for it for ever
	// would hide the mistake.
	if _, err := conn.Exec(ctx, `SET lock_timeout = '20s'`); err != nil {
		return fmt.Errorf("drop the schema %s: %w", schema, err)
	}
	if _, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE"); err != nil {
		return fmt.Errorf("drop the schema %s: %w", schema, err)
	}
	return nil
}

// withParameters adds settings to a connection string of either form.
func withParameters(databaseURL string, parameters map[string]string) (string, error) {
	if !strings.HasPrefix(databaseURL, "postgres://") && !strings.HasPrefix(databaseURL, "postgresql://") {
		for key, value := range parameters {
			databaseURL += " " + key + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
		}
		return databaseURL, nil
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", fmt.Errorf("parse the database's connection string: %w", err)
	}
	query := u.Query()
	for key, value := range parameters {
		query.Set(key, value)
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}
