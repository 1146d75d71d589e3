// Package migrations holds the database schema as numbered SQL files and brings a
// database up to it. The files are additive and never edited once released: the
// functions of the version before run on the schema of the version after, which is
// the state of every deployment half-way.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed *.sql
var files embed.FS

// plainSchema is what tern can take as the schema of its version table.
var plainSchema = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// Latest returns the version of the newest migration in this build.
func Latest() int32 {
	names, err := names()
	if err != nil {
		panic(err) // the embedded files are misnumbered: a build that no test has seen
	}
	return int32(len(names))
}

func names() ([]string, error) {
	names, err := migrate.FindMigrations(files)
	if err != nil {
		return nil, fmt.Errorf("list embedded migrations: %w", err)
	}
	return names, nil
}

// Migrate brings the schema that conn's search_path names first to the version of
// this build and returns the versions before and after. A schema that is current,
// or newer because a newer version was deployed and rolled back, is left alone.
// Each migration commits by itself, so a failure keeps those before it; concurrent
// calls wait for one another. PostGIS is created where it is missing, which needs a
// role that may (rds_superuser on RDS).
func Migrate(ctx context.Context, conn *pgx.Conn) (from, to int32, err error) {
	if err := ensurePostGIS(ctx, conn); err != nil {
		return 0, 0, err
	}
	var schema *string
	if err := conn.QueryRow(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return 0, 0, fmt.Errorf("read the schema to migrate: %w", err)
	}
	if schema == nil || !plainSchema.MatchString(*schema) {
		return 0, 0, errors.New("migrate: the first schema of search_path must exist and have a plain lower-case name; create it or set search_path")
	}
	m, err := migrate.NewMigrator(ctx, conn, *schema+".geodlq_schema_version")
	if err != nil {
		return 0, 0, fmt.Errorf("open the schema version of %q: %w", *schema, err)
	}
	names, err := names()
	if err != nil {
		return 0, 0, err
	}
	for _, name := range names {
		sql, err := fs.ReadFile(files, name)
		if err != nil {
			return 0, 0, fmt.Errorf("read embedded migration: %w", err)
		}
		m.AppendMigration(name, string(sql), "")
	}
	if from, err = m.GetCurrentVersion(ctx); err != nil {
		return 0, 0, fmt.Errorf("read the schema version of %q: %w", *schema, err)
	}
	if int(from) >= len(names) {
		return from, from, nil
	}
	if err := m.Migrate(ctx); err != nil {
		at, _ := m.GetCurrentVersion(ctx)
		return from, at, fmt.Errorf("migrate schema %q from version %d to %d, stopped at %d: %w", *schema, from, len(names), at, err)
	}
	return from, int32(len(names)), nil
}

// ensurePostGIS creates the extension where it is missing. It goes to public, not
// to the schema being migrated, which other schemas of the database do not see.
func ensurePostGIS(ctx context.Context, conn *pgx.Conn) error {
	present := func() (ok bool, err error) {
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'postgis')`).Scan(&ok)
		return ok, err
	}
	ok, err := present()
	if err != nil {
		return fmt.Errorf("look for PostGIS: %w", err)
	}
	if ok {
		return nil
	}
	_, err = conn.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS postgis SCHEMA public`)
	if err == nil {
		return nil
	}
	// Two migrations that create it at once collide in the catalogue; the loser finds it there.
	if ok, again := present(); again == nil && ok {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return fmt.Errorf("create extension postgis: this role may not; have an administrator run CREATE EXTENSION postgis once: %w", err)
	}
	return fmt.Errorf("create extension postgis: %w", err)
}
