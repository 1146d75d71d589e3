package local_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"geodlq/infra/local"
)

func startPostgres(t *testing.T) *local.Postgres {
	t.Helper()
	inst, err := local.FindPostGIS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := local.StartPostgres(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func TestPostgresKeepsCommitsOverARestart(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	conn := connect(t, p.URL())
	if _, err := conn.Exec(t.Context(), `CREATE TABLE kept (n int, at geometry(Point,3857))`); err != nil {
		t.Fatal(err)
	}
	for i, mode := range []local.StopMode{local.StopFast, local.StopImmediate} {
		if _, err := conn.Exec(t.Context(), `INSERT INTO kept VALUES ($1, ST_Transform(ST_SetSRID(ST_MakePoint(-122, 37), 4326), 3857))`, i); err != nil {
			t.Fatal(err)
		}
		if err := p.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `SELECT 1`); err == nil {
			t.Errorf("%s: the connection from before the restart still works", mode)
		}
		conn = connect(t, p.URL())
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM kept`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n != i+1 {
			t.Errorf("%s: %d rows after the restart; want %d", mode, n, i+1)
		}
	}
}

func TestPostgresIsAwayWhileItIsStopped(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	if err := p.Stop(t.Context(), local.StopFast); err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(t.Context(), p.URL()); err == nil {
		conn.Close(t.Context())
		t.Error("a stopped server accepts connections")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	connect(t, p.URL())
}

func TestPostgresWantsThePassword(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	config, err := pgx.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.Password = "guess"
	if conn, err := pgx.ConnectConfig(t.Context(), config); err == nil {
		conn.Close(t.Context())
		t.Error("another user of this machine could be the database's superuser")
	}
}

func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	one, err := local.CreateSchema(t.Context(), p.URL(), "one")
	if err != nil {
		t.Fatal(err)
	}
	two, err := local.CreateSchema(t.Context(), p.URL(), "two")
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, one)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE only_here (at geometry)`); err != nil {
		t.Fatal(err)
	}
	var found *string
	if err := connect(t, two).QueryRow(t.Context(), `SELECT to_regclass('only_here')::text`).Scan(&found); err != nil {
		t.Fatal(err)
	}
	if found != nil {
		t.Error("a table of one schema is seen in the other")
	}
	// The connection to it is still open, in the middle of a transaction.
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT * FROM only_here`); err != nil {
		t.Fatal(err)
	}
	if err := local.DropSchema(t.Context(), p.URL(), "one"); err != nil {
		t.Fatal(err)
	}
	var schemas int
	if err := connect(t, p.URL()).QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname IN ('one', 'two')`).Scan(&schemas); err != nil {
		t.Fatal(err)
	}
	if schemas != 1 {
		t.Errorf("%d of the two schemas are left; want 1", schemas)
	}
}
