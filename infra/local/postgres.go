package local

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Postgres is a throw-away PostgreSQL server with PostGIS on a loopback port. It
// is stopped and its files are removed by Close, or when this process ends in any
// other way.
//
// It is a plain server with one exception: it does not wait for the disk (fsync is
// off), so that it survives the end of its processes but not of the machine.
type Postgres struct {
	keeper *keeper
	port   int
	secret string

	mu      sync.Mutex
	running bool
	pid     int
}

// databaseName is the database that StartPostgres makes.
const databaseName = "geodlq"

// StopMode says how [Postgres.Stop] stops the server.
type StopMode string

// The modes of pg_ctl that fit a server with open connections.
const (
	StopFast      StopMode = "INT"  // roll back what is open, write a checkpoint, end
	StopImmediate StopMode = "QUIT" // end at once; the next start recovers, as after a crash
)

//go:embed postgres.sh
var postgresScript string

// StartPostgres makes a cluster with the given installation, starts it on a free
// loopback port, and makes a database in which the postgis extension is created.
func StartPostgres(ctx context.Context, inst Installation) (*Postgres, error) {
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	parent := os.TempDir()
	if as != nil {
		if parent, err = openTo(parent, "/tmp", "/var/tmp"); err != nil {
			return nil, fmt.Errorf("choose a place for the files of PostgreSQL, which runs as %s: %w", as.name, err)
		}
	}
	p := &Postgres{secret: rand.Text()}
	p.keeper, err = startKeeper(ctx, postgresScript, parent, "geodlq-postgres-", as, []string{"PGSECRET=" + p.secret}, inst.Bin)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL %s: %w", inst.Version, err)
	}
	if err := p.prepare(ctx, inst); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL %s: %w", inst.Version, err), p.Close())
	}
	return p, nil
}

func (p *Postgres) prepare(ctx context.Context, inst Installation) error {
	switch outcome, err := p.keeper.expect(ctx, "cluster "); {
	case err != nil:
		return fmt.Errorf("make a cluster with %s/initdb: %w", inst.Bin, err)
	case outcome != "made":
		return fmt.Errorf("%s/initdb failed%s", inst.Bin, p.tail("initdb.log"))
	}
	// Between the moment a port is found free and the moment the server takes it,
	// somebody else may. Then another is tried.
	const tries = 5
	var err error
	for range tries {
		if p.port, err = freePort(); err != nil {
			return err
		}
		if err = p.Start(ctx); !errors.Is(err, errServerEnded) {
			break
		}
	}
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, p.url("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+databaseName)
	conn.Close(ctx)
	if err != nil {
		return fmt.Errorf("create the database %s: %w", databaseName, err)
	}
	if _, err := EnsureExtension(ctx, p.URL()); err != nil {
		return err
	}
	return nil
}

// EnsureExtension creates the postgis extension in the database where it is
// missing and returns the schema it is in. It is safe to be called by several
// processes at once.
func EnsureExtension(ctx context.Context, databaseURL string) (schema string, err error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return "", fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const find = `SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'postgis'`
	err = conn.QueryRow(ctx, find).Scan(&schema)
	if errors.Is(err, pgx.ErrNoRows) {
		// CREATE EXTENSION IF NOT EXISTS fails with a unique violation when two
		// sessions run it at the same time; the lock makes them take turns.
		const create = `DO $$ BEGIN
			PERFORM pg_advisory_xact_lock(hashtext('geodlq create extension postgis'));
			CREATE EXTENSION IF NOT EXISTS postgis SCHEMA public;
		END $$`
		if _, err := conn.Exec(ctx, create); err != nil {
			return "", fmt.Errorf("create the postgis extension (as a superuser, run: CREATE EXTENSION postgis): %w", err)
		}
		err = conn.QueryRow(ctx, find).Scan(&schema)
	}
	if err != nil {
		return "", fmt.Errorf("look for the postgis extension: %w", err)
	}
	return schema, nil
}

// URL is the connection string of the database, as the superuser.
func (p *Postgres) URL() string { return p.url(databaseName) }

func (p *Postgres) url(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", p.secret),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// serverOptions are the settings in which the cluster differs from what initdb
// writes. full_page_writes and synchronous_commit stay on: a commit that was
// acknowledged is there after an immediate stop.
var serverOptions = map[string]string{
	"listen_addresses":           "127.0.0.1",
	"unix_socket_directories":    "", // a socket file would be one more thing to leave behind
	"fsync":                      "off",
	"max_connections":            "200", // many tests at once, each with a pool of its own
	"shared_buffers":             "256MB",
	"max_wal_size":               "2GB",
	"dynamic_shared_memory_type": "mmap", // in the cluster's own directory: /dev/shm is tiny in containers and outlives a kill
	"timezone":                   "UTC",
	"log_timezone":               "UTC",
}

// errServerEnded is returned when the server ended instead of accepting connections.
var errServerEnded = errors.New("the server ended at once")

// Start starts a stopped server on the port it had and waits until it accepts
// connections. It does nothing when the server runs.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		return nil
	}
	command := []string{"start", strconv.Itoa(p.port)}
	for name, value := range serverOptions {
		command = append(command, "-c", name+"="+value)
	}
	if err := p.keeper.say("%s", strings.Join(command, " ")); err != nil {
		return err
	}
	pid, err := p.keeper.expect(ctx, "pid ")
	if err != nil {
		return err
	}
	if p.pid, err = strconv.Atoi(pid); err != nil {
		return fmt.Errorf("the keeper says the server is process %q: %w", pid, err)
	}
	for {
		conn, err := pgx.Connect(ctx, p.url("postgres"))
		if err == nil {
			p.running = true
			return conn.Close(ctx)
		}
		select {
		case line, open := <-p.keeper.lines:
			if !open || strings.HasPrefix(line, "exited ") {
				return fmt.Errorf("%w%s", errServerEnded, p.tail("server.log"))
			}
		case <-ctx.Done():
			return fmt.Errorf("wait until PostgreSQL accepts connections: %w (last try: %w)", context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop stops the server and waits for its end. The cluster's files stay. It does
// nothing when the server is stopped.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return nil
	}
	if err := p.keeper.say("stop %s", mode); err != nil {
		return err
	}
	if _, err := p.keeper.expect(ctx, "stopped"); err != nil {
		return fmt.Errorf("wait until PostgreSQL has stopped: %w", err)
	}
	p.running = false
	return nil
}

// Restart stops the server and starts it again on the same port.
func (p *Postgres) Restart(ctx context.Context, mode StopMode) error {
	if err := p.Stop(ctx, mode); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Log returns what the server has logged.
func (p *Postgres) Log() (string, error) {
	b, err := os.ReadFile(filepath.Join(p.keeper.dir, "server.log"))
	if err != nil {
		return "", fmt.Errorf("read the log of PostgreSQL: %w", err)
	}
	return string(b), nil
}

// Close stops the server and removes its files.
func (p *Postgres) Close() error { return p.keeper.close() }

// tail returns the end of one of the cluster's logs, to go with an error.
func (p *Postgres) tail(name string) string {
	b, err := os.ReadFile(filepath.Join(p.keeper.dir, name))
	if err != nil || len(b) == 0 {
		return ""
	}
	const keep = 2000
	return "; " + name + " ends with:\n" + string(b[max(0, len(b)-keep):])
}

// freePort returns a loopback port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
