package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"geodlq/infra/local/localtest"
)

// record keeps the statements of the functions' run as those of a version:
//
//	go test ./functions/migrate -run TestFunctionsRunWithTheirOwnRoles -record 1.0
//
// It is done once, when the version is released. From then on the file says what its
// functions ask of a database, and every later schema must take it.
var record = flag.String("record", "", "write testdata/statements/<version>.json from this run")

// A deployment migrates first and changes the functions after, so for a while, and
// after a rollback for long, the functions of a version before run on this schema.
func TestStatementsOfEarlierVersionsRunOnThisSchema(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "statements", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no statements of any version: %v", err)
	}
	db := localtest.Database(t)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var byRole map[string][]string
		if err := json.Unmarshal(text, &byRole); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for role, statements := range byRole {
			if len(statements) == 0 {
				t.Errorf("%s: no statements of %s", name, role)
			}
			conn := signIn(t, db, role).PgConn()
			for _, sql := range statements {
				if err := explain(t, conn, sql); err != nil {
					t.Errorf("%s: %s: %v\n%s", filepath.Base(name), role, err, sql)
				}
			}
		}
	}
}

var parameter = regexp.MustCompile(`\$([0-9]+)`)

// explain has the server analyse a statement, look for the rights it takes, and plan
// it, all as if it were executed, with nothing for its parameters.
func explain(t *testing.T, conn *pgconn.PgConn, sql string) error {
	t.Helper()
	n := 0
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		var i int
		if _, err := fmt.Sscan(m[1], &i); err != nil {
			t.Fatal(err)
		}
		n = max(n, i)
	}
	_, err := conn.ExecParams(t.Context(), "EXPLAIN "+sql, make([][]byte, n), nil, nil, nil).Close()
	return err
}

// Without this the test above could not fail.
func TestExplainFindsWhatIsGone(t *testing.T) {
	t.Parallel()
	db := localtest.Database(t)
	conn := signIn(t, db, "geodlq_capture").PgConn()
	for sql, want := range map[string]string{
		"SELECT dlq_id FROM failed_geotasks WHERE dlq_id = ANY ($1)":                              "",
		"SELECT gone FROM failed_geotasks WHERE dlq_id = ANY ($1)":                                "42703",
		"SELECT feature_geojson FROM failed_geotasks WHERE dlq_id = ANY ($1)":                     "42501",
		"INSERT INTO failed_geotasks (task_id, epsg) SELECT * FROM unnest($1::text[], $2::int[])": "",
		"INSERT INTO failed_geotasks (task_id, epsg) VALUES ($1, $2::text)":                       "42804",
	} {
		err := explain(t, conn, sql)
		var pg *pgconn.PgError
		if want == "" && err != nil || want != "" && (!errors.As(err, &pg) || pg.Code != want) {
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
	}
}

// listener stands between the functions and the database and notes what they send.
type listener struct {
	mu     sync.Mutex
	byRole map[string][]string
}

var queryStart = regexp.MustCompile(`(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

func (l *listener) note(role, sql string) {
	if !queryStart.MatchString(sql) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.byRole[role], sql) {
		l.byRole[role] = append(l.byRole[role], sql)
	}
}

// between returns a connection string that reaches the same database by way of l.
func (l *listener) between(t *testing.T, databaseURL, role string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				if err := l.forward(client, server, role); err != nil {
					t.Errorf("between %s and the database: %v", role, err)
				}
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		running.Wait()
	})
	u.Host = ln.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

// forward passes bytes both ways and reads the client's messages on the way: a start,
// which is a length and a body, and then a type, a length and a body each.
func (l *listener) forward(client net.Conn, server, role string) error {
	defer client.Close()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(client, upstream)
		client.Close()
	}()
	in := bufio.NewReader(client)
	for first := true; ; first = false {
		var kind byte
		if !first {
			if kind, err = in.ReadByte(); err != nil {
				return nil // the client is done
			}
		}
		var length [4]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return nil
		}
		body := make([]byte, binary.BigEndian.Uint32(length[:])-4)
		if _, err := io.ReadFull(in, body); err != nil {
			return nil
		}
		switch kind {
		case 'P': // name of the statement, its text
			if _, rest, ok := bytes.Cut(body, []byte{0}); ok {
				text, _, _ := bytes.Cut(rest, []byte{0})
				l.note(role, string(text))
			}
		case 'Q':
			l.note(role, strings.TrimRight(string(body), "\x00"))
		}
		message := append(append([]byte{kind}, length[:]...), body...)
		if first {
			message = message[1:]
		}
		if _, err := upstream.Write(message); err != nil {
			return nil // the server ended the session
		}
	}
}

// write keeps what was heard as the statements of a version.
func (l *listener) write(t *testing.T, version string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, statements := range l.byRole {
		sort.Strings(statements)
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(l.byRole); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("testdata", "statements", version+".json")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
