package localtest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/infra/local"
	"geodlq/infra/migrations"
)

// EmptyDatabase makes a schema of the test's own and returns a connection string
// whose search_path is that schema and the one of PostGIS. It is dropped when the
// test ends.
func EmptyDatabase(t testing.TB) (url string) {
	t.Helper()
	base := Settings(t).DatabaseURL
	schema := "test_" + strings.ToLower(rand.Text()[:16])
	url, err := local.CreateSchema(t.Context(), base, schema)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.DropSchema(context.Background(), base, schema); err != nil {
			t.Error(err)
		}
	})
	return url
}

// Database is [EmptyDatabase] brought to the current version of the schema.
func Database(t testing.TB) (url string) {
	t.Helper()
	url = EmptyDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, _, err := migrations.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return url
}

// Pool opens a pool on the database that is closed when the test ends.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Postgres starts a server of the test's own, for tests that stop and restart it.
// Its database is empty but for the postgis extension. It costs about two seconds.
func Postgres(t testing.TB) *local.Postgres {
	t.Helper()
	inst, err := local.FindPostGIS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server, err := local.StartPostgres(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}
