// Package config reads what a function is told by its environment. There is one
// struct per function, made of shared parts; [Load] fills it, checks every value,
// and reports all problems together, so that a deployment is not debugged one
// variable at a time. The struct tags are the single source: the parser, the range
// checks, the README's table and the test over template.yaml read the same ones.
package config

import (
	"log/slog"
	"time"
)

// Capture is the environment of the function that takes failure files in.
type Capture struct {
	Runtime
	Database
	Inbox
	Archive
	Features
	Deadline
	MaxObjectBytes Bytes `env:"MAX_OBJECT_BYTES" envDefault:"8GiB" range:"1MiB..1TiB" help:"Largest inbox object after decompression; what lies beyond becomes one dead letter that says so."`
}

// Replay is the environment of the function that drains the queue into the target.
type Replay struct {
	Runtime
	Database
	Archive
	Features
	Contract
	Attempts
	Deadline
	Workers    int           `env:"WORKERS" envDefault:"2" range:"1..32" help:"Claims worked on at once by one invocation; each has a database connection of its own."`
	ClaimSize  int           `env:"CLAIM_SIZE" envDefault:"500" range:"1..5000" help:"Rows a worker claims at a time."`
	Lease      time.Duration `env:"LEASE" envDefault:"5m" range:"1s..1h" help:"How long a claim is a worker's own. Rows of a worker that vanished are due again after it."`
	RowTimeout time.Duration `env:"ROW_TIMEOUT" envDefault:"10s" range:"10ms..5m" help:"Time one row's transform may take, at most half of LEASE."`
}

// Metrics is the environment of the function that keeps the books.
type Metrics struct {
	Runtime
	Database
	Archive
	Namespace           string        `env:"METRICS_NAMESPACE" envDefault:"GeoDLQ" form:"namespace" allowed:"1 to 255 of A-Z a-z 0-9 . _ / # : -" help:"CloudWatch namespace; the function's role may write to this one only."`
	PoisonRateThreshold float64       `env:"POISON_RATE_THRESHOLD" envDefault:"0.05" range:"0..1" help:"Share of a batch in quarantine above which the batch is reported as a systemic failure."`
	Window              time.Duration `env:"METRICS_WINDOW" envDefault:"5m" range:"1m..1h" help:"Length of one window of the books; the schedule's rate."`
	PublishTimeout      time.Duration `env:"METRICS_TIMEOUT" envDefault:"10s" range:"1s..5m" help:"Time one call to CloudWatch may take; without a route to it the call would hang."`
}

// Redrive is the environment of the function people use to look at quarantine,
// requeue, fix, discard, export and restore. It transforms as replay does.
type Redrive struct {
	Runtime
	Database
	Archive
	Features
	Contract
	Attempts
	Deadline
}

// Migrate is the environment of the function that makes schema and roles.
type Migrate struct {
	Runtime
	Database
	SecretARN   string        `env:"DATABASE_SECRET_ARN" form:"secret ARN" allowed:"ARN of a Secrets Manager secret, or empty" help:"Secret with username and password of a user who may create roles, read when migrate runs. Empty: IAM authentication as DATABASE_USER."`
	LockTimeout time.Duration `env:"DATABASE_LOCK_TIMEOUT" envDefault:"30s" range:"100ms..10m" help:"How long a migration waits for a table in use; whatever else wants the table waits behind it."`
}

// Runtime is what every function has.
type Runtime struct {
	Stage    string     `env:"STAGE" envDefault:"dev" form:"stage" allowed:"1 to 32 of A-Z a-z 0-9 _ -" help:"Deployment this is; the Stage dimension of every metric."`
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"INFO" oneof:"DEBUG|INFO|WARN|ERROR" help:"Least level that is logged."`
}

// Database says how to reach PostGIS: by host with IAM authentication, or, on a
// developer's machine, by URL. See package database.
type Database struct {
	URL  Secret `env:"DATABASE_URL" allowed:"a postgres:// URL" help:"Local use only: the whole connection, password included. Excludes DATABASE_HOST."`
	Host string `env:"DATABASE_HOST" form:"host" allowed:"a host name" help:"Database or proxy endpoint; IAM authentication, TLS with full verification."`
	Port uint16 `env:"DATABASE_PORT" envDefault:"5432" range:"1..65535" help:"Port of the endpoint."`
	Name string `env:"DATABASE_NAME" envDefault:"postgres" form:"label" allowed:"1 to 63 characters" help:"Database with PostGIS."`
	User string `env:"DATABASE_USER" form:"label" allowed:"1 to 63 characters" help:"Database role the function signs in as; each function has its own."`
	// Region signs the authentication token.
	Region string `env:"AWS_REGION" form:"region" allowed:"an AWS region" help:"Region of the database; Lambda sets it."`
	CAFile string `env:"DATABASE_CA_FILE" allowed:"path of a PEM file, or empty" help:"Certificate authorities to trust instead of the system's and Amazon RDS's."`

	ExecMode         ExecMode      `env:"DATABASE_EXEC_MODE" envDefault:"cache_statement" oneof:"cache_statement|exec" help:"How statements are sent: prepared and cached, or without session state, for RDS Proxy and PgBouncer."`
	MaxConns         int           `env:"DATABASE_MAX_CONNS" envDefault:"0" range:"0..64" help:"Connections of one function instance; 0: one per worker and one to spare."`
	ConnectTimeout   time.Duration `env:"DATABASE_CONNECT_TIMEOUT" envDefault:"5s" range:"100ms..1m" help:"Time one attempt to connect may take."`
	StatementTimeout time.Duration `env:"DATABASE_STATEMENT_TIMEOUT" envDefault:"5m" range:"0s..1h" help:"Time after which the server ends a statement whose caller may be gone; 0: never. Not sent in exec mode; not used by migrate."`

	// Application is application_name in pg_stat_activity; Load sets it to
	// "geodlq-" and the function's name.
	Application string
}

// Inbox is where failure files arrive.
type Inbox struct {
	InboxBucket string `env:"INBOX_BUCKET" required:"true" form:"bucket" allowed:"an S3 bucket name" help:"Bucket failure files arrive in; events about another bucket are refused."`
	InboxPrefix string `env:"INBOX_PREFIX" form:"prefix" allowed:"a key prefix that ends in /, or empty" help:"Prefix failure files arrive under; events about other keys are refused. Empty: any key of the inbox. The template sets incoming/."`
}

// Archive is the append-only history in S3.
type Archive struct {
	DeadLetterBucket string `env:"DEAD_LETTER_BUCKET" required:"true" form:"bucket" allowed:"an S3 bucket name" help:"Bucket of the archive: dead-letters/, outcomes/, lineage/ and exports/."`
}

// Features bounds one feature.
type Features struct {
	MaxFeatureBytes Bytes `env:"MAX_FEATURE_BYTES" envDefault:"32MiB" range:"1KiB..128MiB" help:"Largest feature that is kept whole and replayed."`
}

// Contract says what the transform must make of a feature.
type Contract struct {
	ContractURI      string `env:"CONTRACT_URI" form:"contract URI" allowed:"s3://bucket/key, a path, or empty" help:"Transform contract: target, attributes, their types and constraints. Empty: the built-in one."`
	AllowBallparkCRS bool   `env:"ALLOW_BALLPARK_CRS" envDefault:"false" help:"Accept transformations without the datum grid they need, metres off. Off: such features are refused."`
}

// Attempts bounds how often a feature is tried, and how soon again.
type Attempts struct {
	MaxAttempts       int           `env:"MAX_ATTEMPTS" envDefault:"5" range:"1..100" help:"Replays charged before a feature with an unforeseen failure is quarantined."`
	DataFaultAttempts int           `env:"DATA_FAULT_ATTEMPTS" envDefault:"1" range:"1..100" help:"Replays charged before a feature with a data fault is quarantined."`
	BackoffBase       time.Duration `env:"BACKOFF_BASE" envDefault:"30s" range:"0s..15m" help:"Wait after a failure, times the attempts so far, plus up to 20 % jitter, at most 15 minutes."`
}

// Deadline is how functions end before Lambda ends them.
type Deadline struct {
	DeadlineMargin time.Duration `env:"DEADLINE_MARGIN" envDefault:"5s" range:"100ms..5m" help:"Time left of an invocation at which no new work is begun and work at hand is brought to a safe end."`
}

// function is a function's configuration: its name, what it needs of the pool, and
// the checks that hold between settings.
type function interface {
	name() string
	complete(p *problems)
}

func (c *Capture) name() string { return "capture" }

func (c *Capture) complete(p *problems) {
	c.Database.complete(p, c.name(), 2)
	c.signsIn(p)
}

func (c *Replay) name() string { return "replay" }

func (c *Replay) complete(p *problems) {
	c.Database.complete(p, c.name(), c.Workers+1)
	c.signsIn(p)
	c.Attempts.complete(p)
	c.RowTimeout = min(c.RowTimeout, c.Lease/2)
}

func (c *Metrics) name() string { return "metrics" }

func (c *Metrics) complete(p *problems) {
	c.Database.complete(p, c.name(), 2)
	c.signsIn(p)
	if isReservedNamespace(c.Namespace) {
		p.add("METRICS_NAMESPACE", quote(c.Namespace), "begins with AWS/, which CloudWatch keeps for itself", "any other beginning")
	}
	if c.Window > 0 && time.Hour%c.Window != 0 {
		p.add("METRICS_WINDOW", c.Window.String(), "does not divide an hour, so windows would straddle it", "1m, 2m, 3m, 5m, 10m, 15m, 20m, 30m or 1h")
	}
}

func (c *Redrive) name() string { return "redrive" }

func (c *Redrive) complete(p *problems) {
	c.Database.complete(p, c.name(), 2)
	c.signsIn(p)
	c.Attempts.complete(p)
}

func (c *Migrate) name() string { return "migrate" }

func (c *Migrate) complete(p *problems) {
	c.Database.complete(p, c.name(), 1)
	if c.Host != "" && c.User == "" && c.SecretARN == "" {
		p.add("DATABASE_USER", "", "is not set, and neither is DATABASE_SECRET_ARN, which would name the user", "one of the two")
	}
	c.StatementTimeout = 0 // building an index may take as long as it takes
}

func (a *Attempts) complete(p *problems) {
	if a.DataFaultAttempts > a.MaxAttempts {
		p.add("DATA_FAULT_ATTEMPTS", itoa(a.DataFaultAttempts), "is more than MAX_ATTEMPTS, which is "+itoa(a.MaxAttempts), "at most MAX_ATTEMPTS")
	}
}

// signsIn checks that there is a role to sign in as.
func (d *Database) signsIn(p *problems) {
	if d.Host != "" && d.User == "" {
		p.add("DATABASE_USER", "", "is not set; DATABASE_HOST needs it", "the database role of this function")
	}
}

// complete checks that the database can be reached in exactly one way and fills
// what follows from the function: its application name and the size of its pool.
func (d *Database) complete(p *problems, function string, conns int) {
	d.Application = "geodlq-" + function
	if d.MaxConns == 0 {
		d.MaxConns = conns
	}
	switch {
	case d.URL != "" && d.Host != "":
		p.add("DATABASE_HOST", quote(d.Host), "is set beside DATABASE_URL, so it is not clear which database is meant", "one of the two")
	case d.URL == "" && d.Host == "":
		p.add("DATABASE_HOST", "", "is not set, and neither is DATABASE_URL", "DATABASE_HOST in the cloud, DATABASE_URL on a developer's machine")
	case d.Host != "" && d.Region == "":
		p.add("AWS_REGION", "", "is not set; the authentication token for DATABASE_HOST is signed for a region", "an AWS region")
	}
}
