package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
	"geodlq/infra/migrations"
	"geodlq/shared/config"
)

// settings are migrate's for a database given by URL.
func settings(databaseURL string) config.Migrate {
	return config.Migrate{Database: config.Database{
		URL: config.Secret(databaseURL), ExecMode: config.ExecCacheStatement, MaxConns: 1,
		ConnectTimeout: 10 * time.Second, Application: "geodlq-migrate",
	}, LockTimeout: 30 * time.Second}
}

// everything lists the versions from 1 to the newest.
func everything() []int32 {
	var list []int32
	for v := int32(1); v <= migrations.Latest(); v++ {
		list = append(list, v)
	}
	return list
}

func TestMigrateANewDatabaseAndAgain(t *testing.T) {
	t.Parallel()
	db := localtest.EmptyDatabase(t)
	first, err := migrate(t.Context(), settings(db))
	if err != nil {
		t.Fatal(err)
	}
	if first.PostGIS == "" {
		t.Error("the answer does not name the PostGIS version")
	}
	if d := cmp.Diff(Answer{From: 0, To: migrations.Latest(), Applied: everything(), PostGIS: first.PostGIS}, first); d != "" {
		t.Error(d)
	}
	again, err := migrate(t.Context(), settings(db))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Answer{From: first.To, To: first.To, Applied: []int32{}, PostGIS: first.PostGIS}, again); d != "" {
		t.Error(d)
	}
}

func TestANewerSchemaIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	conn := connect(t, db)
	exec(t, conn, "UPDATE geodlq_schema_version SET version = version + 7")
	answer, err := migrate(t.Context(), settings(db))
	if err != nil {
		t.Fatal(err)
	}
	if newest := migrations.Latest() + 7; answer.From != newest || answer.To != newest || len(answer.Applied) != 0 {
		t.Errorf("after a rollback of the functions: %+v", answer)
	}
}

// Roles are the cluster's: deployments into several databases and schemas of one
// cluster make them at the same time.
func TestMigrationsThatRunAtOnce(t *testing.T) {
	t.Parallel()
	server := localtest.Postgres(t)
	admin := connect(t, server.URL())
	var targets []string
	for i := range 3 {
		name := fmt.Sprintf("stage%d", i)
		exec(t, admin, "CREATE DATABASE "+name)
		targets = append(targets, inDatabase(t, server.URL(), name), inDatabase(t, server.URL(), name))
		schema, err := local.CreateSchema(t.Context(), server.URL(), name)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, schema)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(targets))
	for i, target := range targets {
		wg.Go(func() { _, errs[i] = migrate(t.Context(), settings(target)) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for _, target := range targets {
		for role, object := range map[string]string{"geodlq_capture": "failed_geotasks", "geodlq_replay": "processed_features"} {
			if !hasInsert(t, connect(t, target), role, object) {
				t.Errorf("%s may not insert into %s", role, object)
			}
		}
	}
}

// An administrator keeps the making of roles to themselves.
func TestARoleThatMayNotMakeRoles(t *testing.T) {
	t.Parallel()
	server := localtest.Postgres(t)
	admin := connect(t, server.URL())
	exec(t, admin, "CREATE ROLE rds_iam NOLOGIN")
	exec(t, admin, "CREATE ROLE deployer LOGIN PASSWORD 'p'")
	exec(t, admin, "CREATE SCHEMA deployed AUTHORIZATION deployer")
	exec(t, admin, "ALTER ROLE deployer SET search_path = deployed, public")
	deployer := asRole(t, server.URL(), "deployer", "p")

	_, err := migrate(t.Context(), settings(deployer))
	var missing *MissingRights
	if !errors.As(err, &missing) {
		t.Fatalf("error is %v", err)
	}
	want := []string{
		"CREATE ROLE geodlq_capture LOGIN", "GRANT rds_iam TO geodlq_capture",
		"CREATE ROLE geodlq_metrics LOGIN", "GRANT rds_iam TO geodlq_metrics",
		"CREATE ROLE geodlq_pipeline NOLOGIN", "CREATE ROLE geodlq_reader NOLOGIN",
		"CREATE ROLE geodlq_redrive LOGIN", "GRANT rds_iam TO geodlq_redrive",
		"CREATE ROLE geodlq_replay LOGIN", "GRANT rds_iam TO geodlq_replay",
	}
	if d := cmp.Diff(want, missing.Statements); d != "" {
		t.Error(d)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("the schema is at version %d, but this database role may not do everything; have an administrator run", migrations.Latest())) {
		t.Errorf("error is %v", err)
	}

	for _, stmt := range missing.Statements {
		exec(t, admin, stmt)
	}
	answer, err := migrate(t.Context(), settings(deployer))
	if err != nil || answer.From != migrations.Latest() {
		t.Fatalf("after the administrator ran them: %+v, %v", answer, err)
	}
	if !hasInsert(t, connect(t, deployer), "geodlq_capture", "failed_geotasks") {
		t.Error("geodlq_capture may not insert into failed_geotasks")
	}
}

func TestRolesOnRDSMaySignInWithATokenAndNotWithAPassword(t *testing.T) {
	t.Parallel()
	server := localtest.Postgres(t)
	admin := connect(t, server.URL())
	exec(t, admin, "CREATE ROLE rds_iam NOLOGIN")
	if _, err := migrate(t.Context(), settings(server.URL())); err != nil {
		t.Fatal(err)
	}
	type role struct {
		Name                    string
		Login, IAM, HasPassword bool
		Elevated                bool
		IdleInTransaction       string
	}
	rows, err := admin.Query(t.Context(), `
		SELECT rolname, rolcanlogin, pg_has_role(rolname, 'rds_iam', 'MEMBER'), rolpassword IS NOT NULL,
		       rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls, coalesce(s.setconfig[1], '')
		FROM pg_authid r LEFT JOIN pg_db_role_setting s ON s.setrole = r.oid AND s.setdatabase = 0
		WHERE rolname LIKE 'geodlq%' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[role])
	if err != nil {
		t.Fatal(err)
	}
	const idle = "idle_in_transaction_session_timeout=60s"
	want := []role{
		{"geodlq_capture", true, true, false, false, idle},
		{"geodlq_metrics", true, true, false, false, idle},
		{"geodlq_pipeline", false, false, false, false, idle},
		{"geodlq_reader", false, false, false, false, idle},
		{"geodlq_redrive", true, true, false, false, idle},
		{"geodlq_replay", true, true, false, false, idle},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestATableInUseIsNotWaitedForForLong(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	holder := connect(t, db)
	exec(t, holder, "BEGIN")
	exec(t, holder, "LOCK TABLE geodlq_roles IN ACCESS EXCLUSIVE MODE")
	cfg := settings(db)
	cfg.LockTimeout = 100 * time.Millisecond
	_, err := migrate(t.Context(), cfg)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "55P03" {
		t.Errorf("error is %v, want lock_not_available", err)
	}
	exec(t, holder, "ROLLBACK")
	if _, err := migrate(t.Context(), cfg); err != nil {
		t.Errorf("once the table is free: %v", err)
	}
}

func TestTheSecretIsReadWhenAConnectionIsMade(t *testing.T) {
	const arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf"
	for _, tc := range []struct {
		situation, answer    string
		status               int
		user, password, want string
	}{
		{"as RDS writes it", `{"SecretString":"{\"username\":\"postgres\",\"password\":\"p'\\\"w\"}"}`, 200, "postgres", `p'"w`, ""},
		{"no password in it", `{"SecretString":"{\"username\":\"postgres\"}"}`, 200, "", "", "want a JSON object with username and password"},
		{"not JSON", `{"SecretString":"hunter2"}`, 200, "", "", "want a JSON object with username and password"},
		{"binary", `{"SecretBinary":"aHVudGVyMg=="}`, 200, "", "", "want a JSON object with username and password"},
		{"not allowed", `{"__type":"AccessDeniedException","Message":"no"}`, 400, "", "", "AccessDeniedException"},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			asked := ""
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var in struct{ SecretID string }
				if json.Unmarshal(body, &in) == nil {
					asked = r.Header.Get("X-Amz-Target") + " " + in.SecretID
				}
				w.Header().Set("Content-Type", "application/x-amz-json-1.1")
				w.WriteHeader(tc.status)
				fmt.Fprint(w, tc.answer)
			}))
			defer srv.Close()
			for k, v := range map[string]string{
				"AWS_ENDPOINT_URL_SECRETS_MANAGER": srv.URL, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s",
			} {
				t.Setenv(k, v)
			}
			user, password, err := secret(arn)(t.Context())
			if user != tc.user || password != tc.password || (err == nil) != (tc.want == "") {
				t.Errorf("got %q, %q, %v", user, password, err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("error is %v, want %q in it and not the secret", err, tc.want)
			}
			if asked != "secretsmanager.GetSecretValue "+arn {
				t.Errorf("asked for %s", asked)
			}
		})
	}
}

func connect(t *testing.T, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func hasInsert(t *testing.T, conn *pgx.Conn, role, table string) (ok bool) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT has_table_privilege($1, $2, 'INSERT')", role, table).Scan(&ok); err != nil {
		t.Fatal(err)
	}
	return ok
}

// inDatabase is the connection string of another database of the same server.
func inDatabase(t *testing.T, databaseURL, name string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// asRole is the connection string of another role.
func asRole(t *testing.T, databaseURL, role, password string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, password)
	return u.String()
}
