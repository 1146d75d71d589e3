// Package database opens the connection pool to PostGIS.
//
// In the cloud a function signs in by host name as a database role of its own: the
// password is an AWS Identity and Access Management (IAM) token, computed locally
// for each new connection and never stored, and the server is verified in full, name
// and chain. A developer's machine uses a URL instead.
//
// The pool dials when a connection is first needed, so that a cold start does not
// wait for the database, and it expects to be frozen between invocations: nothing
// runs in the background that matters, and a connection that rested is asked whether
// it still lives before it is handed out.
package database

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/rds/auth"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"geodlq/shared/awsenv"
	"geodlq/shared/config"
)

const (
	// restedAfter is how long a connection may lie in the pool before it is pinged,
	// and pingTimeout how long the answer may take: a peer that vanished while the
	// sandbox was frozen sends no reset, and would otherwise be waited for as long
	// as the invocation lasts.
	restedAfter = time.Second
	pingTimeout = 3 * time.Second

	// maxRest is below the idle time-outs of NAT gateways and load balancers
	// (350 s), which drop a flow without telling either end.
	maxRest = 5 * time.Minute

	// keepAlive finds a dead peer under a statement that is waited for.
	keepAlive = 30 * time.Second

	// idleInTransaction frees the row locks of a sandbox that was killed or frozen
	// in the middle of a transaction.
	idleInTransaction = time.Minute
)

// Credentials returns the role and password for one connection attempt.
type Credentials func(ctx context.Context) (user, password string, err error)

// Option changes how [Open] connects.
type Option func(*options)

type options struct {
	credentials Credentials
	now         func() time.Time
}

// WithCredentials replaces IAM authentication by credentials that are asked for at
// each new connection. It has no effect on a pool opened by URL.
func WithCredentials(c Credentials) Option {
	return func(o *options) { o.credentials = c }
}

// withClock replaces the wall clock.
func withClock(now func() time.Time) Option {
	return func(o *options) { o.now = now }
}

// Open makes a pool for cfg without dialling. The error says what in cfg cannot be
// used; that the database cannot be reached, or refuses the role, shows at the first
// query. Close the pool when done.
func Open(ctx context.Context, cfg config.Database, opts ...Option) (*pgxpool.Pool, error) {
	o := options{now: time.Now}
	for _, opt := range opts {
		opt(&o)
	}
	var pc *pgxpool.Config
	var err error
	if cfg.URL != "" {
		pc, err = byURL(cfg)
	} else {
		pc, err = byHost(cfg, o)
	}
	if err != nil {
		return nil, err
	}

	pc.MinConns = 0
	pc.MaxConns = int32(cfg.MaxConns)
	pc.MaxConnIdleTime = maxRest
	pc.PingTimeout = pingTimeout
	pingRested(pc, o.now)

	cc := pc.ConnConfig
	cc.ConnectTimeout = cfg.ConnectTimeout
	cc.DialFunc = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	cc.RuntimeParams["application_name"] = cfg.Application
	switch cfg.ExecMode {
	case config.ExecPlain:
		// Neither named statements nor startup parameters: a pooler hands the next
		// transaction to another session, and PgBouncer refuses parameters that it
		// does not track.
		cc.DefaultQueryExecMode = pgx.QueryExecModeExec
		cc.StatementCacheCapacity, cc.DescriptionCacheCapacity = 0, 0
	case config.ExecCacheStatement:
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		cc.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(idleInTransaction)
		if cfg.StatementTimeout > 0 {
			cc.RuntimeParams["statement_timeout"] = milliseconds(cfg.StatementTimeout)
		}
	default:
		return nil, fmt.Errorf("open the database: exec mode %q: want %q or %q", cfg.ExecMode, config.ExecCacheStatement, config.ExecPlain)
	}

	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", target(cfg), err)
	}
	return pool, nil
}

func byURL(cfg config.Database) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(string(cfg.URL))
	if err != nil {
		// The parser's error quotes the URL with the password taken out, which only
		// works on a URL that it can take apart; so it is not passed on.
		return nil, errors.New("open the database: DATABASE_URL (not shown) is not a connection URL: want postgres://user:password@host:port/database?sslmode=…")
	}
	return pc, nil
}

func byHost(cfg config.Database, o options) (*pgxpool.Config, error) {
	if cfg.Host == "" {
		return nil, errors.New("open the database: neither DATABASE_HOST nor DATABASE_URL is set")
	}
	trust, err := trusted(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	credentials := o.credentials
	if credentials == nil {
		credentials = signedIn(cfg)
	}

	// The parser starts from the PG… variables of the environment, so everything that
	// says where to connect and as whom is set again.
	pc, err := pgxpool.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", target(cfg), err)
	}
	cc := pc.ConnConfig
	cc.Host, cc.Port, cc.Database, cc.User, cc.Password = cfg.Host, cfg.Port, cfg.Name, cfg.User, ""
	cc.Fallbacks = nil
	cc.RuntimeParams = map[string]string{}
	// A cluster endpoint can still name the old writer right after a failover. A
	// connection that cannot write would fail every statement until it is closed.
	cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	pc.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
		roots, err := trust()
		if err != nil {
			return err
		}
		cc.TLSConfig = &tls.Config{ServerName: cfg.Host, RootCAs: roots, MinVersion: tls.VersionTLS12}
		cc.User, cc.Password, err = credentials(ctx)
		if err != nil {
			return fmt.Errorf("sign in to the database %s: %w", target(cfg), err)
		}
		return nil
	}
	return pc, nil
}

// signedIn makes an IAM token for each connection: a token is valid for 15 minutes
// and looked at only when the connection is made. Signing is local; only the
// credentials may need a call, and Lambda has those in the environment.
func signedIn(cfg config.Database) Credentials {
	provider := sync.OnceValues(func() (aws.CredentialsProvider, error) {
		ac, err := awsenv.Config()
		return ac.Credentials, err
	})
	endpoint := net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	return func(ctx context.Context) (string, string, error) {
		creds, err := provider()
		if err != nil {
			return "", "", err
		}
		token, err := auth.BuildAuthToken(ctx, endpoint, cfg.Region, cfg.User, creds)
		if err != nil {
			return "", "", fmt.Errorf("make an IAM token for role %s: %w", cfg.User, err)
		}
		return cfg.User, token, nil
	}
}

// pingRested pings a connection that was handed out longer than restedAfter ago. The
// time is taken from the wall clock: the monotonic clock, which the pool would use,
// need not advance while the sandbox is frozen. It counts from when the connection
// was handed out, not from when it came back, because a hook on the latter would make
// every release wait for a goroutine.
func pingRested(pc *pgxpool.Config, now func() time.Time) {
	const key = "geodlq.handed-out"
	pc.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		data, t := p.Conn.PgConn().CustomData(), now().Round(0)
		last, used := data[key].(time.Time)
		data[key] = t
		return used && t.Sub(last) > restedAfter
	}
}

// target names the database in an error.
func target(cfg config.Database) string {
	if cfg.URL != "" {
		return "of DATABASE_URL"
	}
	return fmt.Sprintf("%s at %s:%d", cfg.Name, cfg.Host, cfg.Port)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// trusted returns the roots to verify the server with, read when first needed.
func trusted(file string) (func() (*x509.CertPool, error), error) {
	if file == "" {
		return sync.OnceValues(defaultRoots), nil
	}
	roots, err := rootsFile(file)
	if err != nil {
		return nil, err
	}
	return func() (*x509.CertPool, error) { return roots, nil }, nil
}
