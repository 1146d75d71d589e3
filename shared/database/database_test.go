package database

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"geodlq/shared/config"
)

// authority is a certificate authority of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate as PEM
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, file}
}

// issue makes a server certificate for name.
func (a authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// postgres is a server that speaks as much of the protocol as a sign-in and a simple
// query need, and remembers who came.
type postgres struct {
	port uint16

	mu       sync.Mutex
	dialled  int
	sessions []session
	pings    int
	readOnly bool
	live     []net.Conn
}

type session struct {
	parameters map[string]string
	password   string
}

// serve starts a server on localhost; without a certificate it declines TLS.
func serve(t *testing.T, cert *tls.Certificate) *postgres {
	t.Helper()
	ln, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &postgres{port: uint16(ln.Addr().(*net.TCPAddr).Port)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.dialled++
			p.live = append(p.live, conn)
			p.mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				if err := p.session(conn, cert); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) {
					t.Logf("session ended: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		p.hangUp()
		running.Wait()
	})
	return p
}

// hangUp drops every connection, as a server that restarts does.
func (p *postgres) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.live {
		c.Close()
	}
	p.live = nil
}

func (p *postgres) seen() (dialled, pings int, sessions []session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dialled, p.pings, append([]session(nil), p.sessions...)
}

func (p *postgres) session(conn net.Conn, cert *tls.Certificate) error {
	b := pgproto3.NewBackend(conn, conn)
	first, err := b.ReceiveStartupMessage()
	if err != nil {
		return err
	}
	if _, ok := first.(*pgproto3.SSLRequest); ok {
		if cert == nil {
			_, err := conn.Write([]byte("N"))
			return err
		}
		if _, err := conn.Write([]byte("S")); err != nil {
			return err
		}
		conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*cert}})
		b = pgproto3.NewBackend(conn, conn)
		if first, err = b.ReceiveStartupMessage(); err != nil {
			return err
		}
	}
	start, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return nil // the client gives up a statement of another connection
	}
	s := session{parameters: start.Parameters}

	b.Send(&pgproto3.AuthenticationCleartextPassword{})
	if err := b.Flush(); err != nil {
		return err
	}
	if err := b.SetAuthType(pgproto3.AuthTypeCleartextPassword); err != nil {
		return err
	}
	msg, err := b.Receive()
	if err != nil {
		return err
	}
	if pw, ok := msg.(*pgproto3.PasswordMessage); ok {
		s.password = pw.Password
	}
	p.mu.Lock()
	p.sessions = append(p.sessions, s)
	readOnly := p.readOnly
	p.mu.Unlock()

	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for {
		if err := b.Flush(); err != nil {
			return err
		}
		msg, err := b.Receive()
		if err != nil {
			return err
		}
		q, ok := msg.(*pgproto3.Query)
		switch {
		case !ok:
			return nil // Terminate
		case strings.Contains(q.String, "transaction_read_only"):
			value := map[bool]string{false: "off", true: "on"}[readOnly]
			b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("transaction_read_only"), DataTypeOID: 25, DataTypeSize: -1, TypeModifier: -1}}})
			b.Send(&pgproto3.DataRow{Values: [][]byte{[]byte(value)}})
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SHOW")})
		default:
			p.mu.Lock()
			p.pings++
			p.mu.Unlock()
			b.Send(&pgproto3.EmptyQueryResponse{})
		}
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

func settings(p *postgres, caFile string) config.Database {
	return config.Database{
		Host: "localhost", Port: p.port, Name: "gis", User: "geodlq_replay", Region: "eu-west-1", CAFile: caFile,
		ExecMode: config.ExecCacheStatement, MaxConns: 2, ConnectTimeout: 5 * time.Second,
		StatementTimeout: 2 * time.Minute, Application: "geodlq-replay",
	}
}

// awsCredentials puts credentials where Lambda puts them.
func awsCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
	t.Setenv("AWS_SESSION_TOKEN", "session")
	t.Setenv("AWS_REGION", "eu-west-1")
}

func TestSignInWithAToken(t *testing.T) {
	awsCredentials(t)
	ca := newAuthority(t)
	cert := ca.issue(t, "localhost")
	p := serve(t, &cert)
	pool, err := Open(t.Context(), settings(p, ca.file))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if dialled, _, _ := p.seen(); dialled != 0 {
		t.Fatal("the pool dialled before it was used")
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, sessions := p.seen()
	if len(sessions) != 1 {
		t.Fatalf("%d sessions", len(sessions))
	}
	want := map[string]string{
		"user": "geodlq_replay", "database": "gis", "application_name": "geodlq-replay",
		"statement_timeout": "120000", "idle_in_transaction_session_timeout": "60000",
	}
	if d := cmp.Diff(want, sessions[0].parameters); d != "" {
		t.Error(d)
	}
	token, err := url.Parse("https://" + sessions[0].password)
	if err != nil {
		t.Fatal(err)
	}
	q := token.Query()
	got := []string{
		token.Host, q.Get("Action"), q.Get("DBUser"), q.Get("X-Amz-Expires"), q.Get("X-Amz-Security-Token"),
		strings.Join(strings.Split(q.Get("X-Amz-Credential"), "/")[2:], "/"),
	}
	if d := cmp.Diff([]string{fmt.Sprintf("localhost:%d", p.port), "connect", "geodlq_replay", "900", "session", "eu-west-1/rds-db/aws4_request"}, got); d != "" {
		t.Error(d)
	}
	if len(q.Get("X-Amz-Signature")) != 64 {
		t.Errorf("signature is %q", q.Get("X-Amz-Signature"))
	}
}

func TestEachConnectionHasItsOwnCredentials(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert := ca.issue(t, "localhost")
	p := serve(t, &cert)
	n := 0
	pool, err := Open(t.Context(), settings(p, ca.file), WithCredentials(func(context.Context) (string, string, error) {
		n++
		return "admin", fmt.Sprintf("password %d", n), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for range 2 {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
	}
	_, _, sessions := p.seen()
	if len(sessions) != 2 || sessions[0].password != "password 1" || sessions[1].password != "password 2" || sessions[0].parameters["user"] != "admin" {
		t.Errorf("sessions: %v", sessions)
	}
}

func TestServersThatAreRefused(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	right, wrongName := ca.issue(t, "localhost"), ca.issue(t, "elsewhere.example")
	for _, tc := range []struct {
		situation string
		cert      *tls.Certificate
		caFile    string
		readOnly  bool
		want      string
	}{
		{"another authority", &right, other.file, false, "certificate signed by unknown authority"},
		{"an authority that neither the system nor Amazon RDS has", &right, "", false, "certificate signed by unknown authority"},
		{"another server's certificate", &wrongName, ca.file, false, "certificate is valid for elsewhere.example, not localhost"},
		{"no TLS", nil, ca.file, false, "server refused TLS connection"},
		{"a server that cannot write", &right, ca.file, true, "read only connection"},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			p := serve(t, tc.cert)
			p.readOnly = tc.readOnly
			pool, err := Open(t.Context(), settings(p, tc.caFile), WithCredentials(func(context.Context) (string, string, error) {
				return "u", "hunter2", nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			err = pool.Ping(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error is %v, want %q in it", err, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows the password: %v", err)
			}
			if _, _, sessions := p.seen(); !tc.readOnly && len(sessions) != 0 {
				t.Error("the password was sent to a server that could not be verified")
			}
		})
	}
}

func TestExecModeLeavesNoSessionState(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert := ca.issue(t, "localhost")
	p := serve(t, &cert)
	cfg := settings(p, ca.file)
	cfg.ExecMode = config.ExecPlain
	pool, err := Open(t.Context(), cfg, WithCredentials(func(context.Context) (string, string, error) { return "u", "p", nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, sessions := p.seen()
	if d := cmp.Diff(map[string]string{"user": "u", "database": "gis", "application_name": "geodlq-replay"}, sessions[0].parameters); d != "" {
		t.Error(d)
	}
	if mode := pool.Config().ConnConfig.DefaultQueryExecMode; mode != pgx.QueryExecModeExec {
		t.Errorf("exec mode is %v", mode)
	}
}

func TestARestedConnectionIsAskedFirst(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert := ca.issue(t, "localhost")
	p := serve(t, &cert)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	pool, err := Open(t.Context(), settings(p, ca.file), withClock(func() time.Time { return now }),
		WithCredentials(func(context.Context) (string, string, error) { return "u", "p", nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	use := func() {
		t.Helper()
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.Release()
	}
	use()
	use()
	if _, pings, sessions := p.seen(); len(sessions) != 1 || pings != 0 {
		t.Fatalf("in quick succession: %d sessions, %d pings; want 1, 0", len(sessions), pings)
	}
	now = now.Add(2 * time.Second)
	use()
	if _, pings, sessions := p.seen(); len(sessions) != 1 || pings != 1 {
		t.Fatalf("after a rest: %d sessions, %d pings; want 1, 1", len(sessions), pings)
	}
	p.hangUp()
	now = now.Add(time.Hour)
	use()
	if _, _, sessions := p.seen(); len(sessions) != 2 {
		t.Errorf("after the server went away: %d sessions, want a second one", len(sessions))
	}
}

func TestOpenByURL(t *testing.T) {
	t.Parallel()
	p := serve(t, nil)
	pool, err := Open(t.Context(), config.Database{
		URL:      config.Secret(fmt.Sprintf("postgres://dev:secret@localhost:%d/gis?sslmode=disable&search_path=mine,public", p.port)),
		ExecMode: config.ExecCacheStatement, MaxConns: 1, ConnectTimeout: 5 * time.Second, Application: "geodlq-capture",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, sessions := p.seen()
	want := []session{{password: "secret", parameters: map[string]string{
		"user": "dev", "database": "gis", "search_path": "mine,public", "application_name": "geodlq-capture",
		"idle_in_transaction_session_timeout": "60000",
	}}}
	if d := cmp.Diff(want, sessions, cmp.AllowUnexported(session{})); d != "" {
		t.Error(d)
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		situation string
		cfg       config.Database
		want      string
	}{
		{"nothing set", config.Database{}, "neither DATABASE_HOST nor DATABASE_URL is set"},
		{"a URL that is none", config.Database{URL: "postgres://u:hunter2@h:port/d"}, "DATABASE_URL (not shown) is not a connection URL"},
		{"no such file", config.Database{Host: "h", CAFile: "/nonexistent/ca.pem"}, "read DATABASE_CA_FILE: open /nonexistent/ca.pem"},
		{"a file without certificates", config.Database{Host: "h", CAFile: empty}, "holds no PEM certificate"},
		{"an exec mode that is none", config.Database{Host: "h", ExecMode: "simple", MaxConns: 1}, `exec mode "simple"`},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			pool, err := Open(t.Context(), tc.cfg)
			if err == nil {
				pool.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error is %v, want %q in it and no password", err, tc.want)
			}
		})
	}
}

func TestEmbeddedRoots(t *testing.T) {
	t.Parallel()
	rest, err := embedded.ReadFile("roots/rds-g1.pem")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]int{} // by region
	var roots []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		cn := strings.Fields(cert.Subject.CommonName) // Amazon RDS <region> Root CA <key> G1
		if len(cn) != 7 || cn[0] != "Amazon" || cn[1] != "RDS" || cert.Subject.Organization[0] != "Amazon Web Services, Inc." {
			t.Errorf("unexpected subject %s", cert.Subject)
			continue
		}
		keys[cn[2]]++
		roots = append(roots, cert)
		if err := cert.CheckSignatureFrom(cert); err != nil {
			t.Errorf("%s is not a root: %v", cert.Subject, err)
		}
		if cert.NotAfter.Year() < 2061 {
			t.Errorf("%s ends %s", cert.Subject, cert.NotAfter)
		}
	}
	if len(keys) != 27 {
		t.Errorf("%d regions", len(keys))
	}
	for region, n := range keys {
		if n != 3 {
			t.Errorf("%s has %d roots, want RSA 2048, RSA 4096 and ECC 384", region, n)
		}
	}
	if len(roots) == 0 || !verifies(t, roots) {
		t.Error("the default pool lacks an embedded root")
	}
}

// verifies tells whether the default pool trusts each root.
func verifies(t *testing.T, roots []*x509.Certificate) bool {
	t.Helper()
	pool, err := defaultRoots()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range roots {
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Log(err)
			return false
		}
	}
	return true
}
