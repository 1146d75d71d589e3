package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// machine plays the machine that something is installed on.
type machine struct {
	programs    []string // in PATH
	root, asks  bool
	postgis     bool   // is installed
	compiler    bool   // is installed
	offers      string // what apt-cache search prints
	updateFails bool
	aptFails    bool

	ran  []string // commands, the installation script shortened
	said []string
}

func (m *machine) installer() *Installer {
	return &Installer{
		say:  func(line string) { m.said = append(m.said, line) },
		root: m.root,
		asks: m.asks,
		lookPath: func(name string) (string, error) {
			if slices.Contains(m.programs, name) {
				return "/usr/bin/" + name, nil
			}
			return "", exec.ErrNotFound
		},
		find: func(context.Context) (Installation, error) {
			if m.postgis {
				return Installation{Version: "15.13"}, nil
			}
			return Installation{}, fmt.Errorf("%w (PostgreSQL 15.13 in /usr/lib/postgresql/15/bin has no PostGIS)", ErrNoPostGIS)
		},
		run: m.run,
	}
}

func (m *machine) run(_ context.Context, command []string) ([]byte, error) {
	line := strings.Join(command, " ")
	line = strings.ReplaceAll(line, installScript, "INSTALL")
	switch {
	case line == "go env CC CXX":
		return []byte("gcc\ng++\n"), nil
	case strings.Contains(line, "-fsyntax-only"):
		if !m.compiler {
			return []byte("sh: g++: not found"), errors.New("exit status 127")
		}
		return nil, nil
	}
	m.ran = append(m.ran, line)
	switch {
	case strings.HasPrefix(line, "apt-cache search"):
		return []byte(m.offers), nil
	case strings.HasSuffix(line, " update"):
		if m.updateFails {
			return []byte("W: ignored\nE: Could not resolve mirror.example\n"), errors.New("exit status 100")
		}
	case strings.Contains(line, "INSTALL"):
		if m.aptFails {
			return []byte("E: Unable to locate package\n"), errors.New("exit status 100")
		}
		m.postgis = m.postgis || strings.Contains(line, "postgis")
		m.compiler = m.compiler || strings.Contains(line, "g++")
	}
	return nil, nil
}

const (
	offered = "postgresql-9-postgis-3 - Geographic objects support\npostgresql-15-postgis-3 - Geographic objects support\npostgresql-15-postgis-3-scripts - SQL\n"
	search  = "apt-cache search --names-only ^postgresql-[0-9]+-postgis-[0-9]+$"
	update  = "apt-get -qq -o DPkg::Lock::Timeout=120 update"
	install = "/bin/sh -c INSTALL sh "
)

func TestPostGISIsInstalledWhereItIsMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		on    machine
		ran   []string
		fails string // part of the error
	}{
		{name: "it is there", on: machine{postgis: true}},
		{name: "root on Debian", on: machine{programs: []string{"apt-get"}, root: true, offers: offered},
			ran: []string{update, search, install + "postgresql-15-postgis-3"}},
		{name: "a user with sudo at a terminal", on: machine{programs: []string{"apt-get", "sudo"}, asks: true, offers: offered},
			ran: []string{"sudo " + update, search, "sudo " + install + "postgresql-15-postgis-3"}},
		{name: "a user with sudo and nobody to ask", on: machine{programs: []string{"apt-get", "sudo"}, offers: offered},
			ran: []string{"sudo -n " + update, search, "sudo -n " + install + "postgresql-15-postgis-3"}},
		{name: "no network but the packages are cached", on: machine{programs: []string{"apt-get"}, root: true, offers: offered, updateFails: true},
			ran: []string{update, search, install + "postgresql-15-postgis-3"}},
		{name: "a user without sudo", on: machine{programs: []string{"apt-get"}},
			fails: "this user is not root and there is no sudo"},
		{name: "another system", on: machine{root: true},
			fails: "no apt-get"},
		{name: "apt has no PostGIS", on: machine{programs: []string{"apt-get"}, root: true},
			ran: []string{update, search}, fails: "apt offers no package of PostGIS"},
		{name: "apt fails", on: machine{programs: []string{"apt-get"}, root: true, offers: offered, aptFails: true},
			ran: []string{update, search, install + "postgresql-15-postgis-3"}, fails: "E: Unable to locate package"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inst, err := c.on.installer().PostGIS(t.Context())
			if diff := cmp.Diff(c.ran, c.on.ran); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			if c.fails == "" {
				if err != nil || inst.Version == "" {
					t.Fatalf("installation %+v, error %v", inst, err)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range []string{c.fails, "postgresql-NN-postgis-3", "DATABASE_URL"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q: %v", part, err)
				}
			}
		})
	}
}

func TestEachInstallationIsTold(t *testing.T) {
	t.Parallel()
	m := machine{programs: []string{"apt-get"}, root: true, offers: offered}
	i := m.installer()
	if _, err := i.PostGIS(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.Compiler(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(m.said) != 2 || !strings.Contains(m.said[0], "postgresql-15-postgis-3") || !strings.Contains(m.said[1], "g++") {
		t.Errorf("said %q; want a line for each of the two packages", m.said)
	}
	if diff := cmp.Diff([]string{update, search, install + "postgresql-15-postgis-3", install + "g++"}, m.ran); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}

func TestCompiler(t *testing.T) {
	t.Parallel()
	there := machine{compiler: true}
	if err := there.installer().Compiler(t.Context()); err != nil || len(there.ran) != 0 {
		t.Errorf("with a compiler: error %v, commands %q; want none", err, there.ran)
	}
	elsewhere := machine{root: true}
	if err := elsewhere.installer().Compiler(t.Context()); err == nil || !strings.Contains(err.Error(), "g++") {
		t.Errorf("without apt-get: error %v; want one that names g++", err)
	}
}

func TestBrowser(t *testing.T) {
	t.Parallel()
	there := machine{programs: []string{"chromium-headless-shell"}}
	if err := there.installer().Browser(t.Context()); err != nil || len(there.ran) != 0 {
		t.Errorf("with a browser: error %v, commands %q; want none", err, there.ran)
	}
	elsewhere := machine{root: true}
	if err := elsewhere.installer().Browser(t.Context()); err == nil || !strings.Contains(err.Error(), "chromium") {
		t.Errorf("without apt-get: error %v; want one that names chromium", err)
	}
	// Ubuntu's package of that name can install without a browser.
	empty := machine{programs: []string{"apt-get"}, root: true}
	err := empty.installer().Browser(t.Context())
	if diff := cmp.Diff([]string{update, install + "chromium"}, empty.ran); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "brought no browser") || len(empty.said) != 1 {
		t.Errorf("a package without a browser: said %q, error %v", empty.said, err)
	}
}

func TestTheCompilerOfThisMachineIsFound(t *testing.T) {
	t.Parallel()
	if !NewInstaller(func(string) {}).compiles(t.Context()) {
		t.Error("the compilers that run this machine's cgo tests are not found")
	}
	t.Run("unless it is no compiler", func(t *testing.T) {
		i := NewInstaller(func(string) {})
		run := i.run
		i.run = func(ctx context.Context, command []string) ([]byte, error) {
			if command[0] == "go" {
				return []byte("false\nfalse\n"), nil
			}
			return run(ctx, command)
		}
		if i.compiles(t.Context()) {
			t.Error("false(1) passes for a compiler")
		}
	})
}

// fakeInstallation makes a directory that looks like an installed PostgreSQL.
func fakeInstallation(t *testing.T, root, version, postgis string) {
	t.Helper()
	bin := filepath.Join(root, version, "bin")
	share := filepath.Join(root, version, "share", "extension")
	for _, dir := range []string{bin, share} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s (Debian %s-1)'\n", version, version)
	for name, script := range map[string]string{"postgres": server, "initdb": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if postgis != "" {
		control := fmt.Sprintf("# postgis\ncomment = 'x'\ndefault_version = '%s'\n", postgis)
		if err := os.WriteFile(filepath.Join(share, "postgis.control"), []byte(control), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFindPostGIS(t *testing.T) {
	for _, c := range []struct {
		name      string
		installed map[string]string // server version -> PostGIS version or ""
		inPath    string            // this version's bin is in PATH through links
		want      Installation
		fails     string
	}{
		{name: "the newest that has PostGIS", installed: map[string]string{"9.6.24": "3.2.1", "15.13": "3.3.2", "16.1": ""},
			want: Installation{Version: "15.13", PostGIS: "3.3.2"}},
		{name: "versions are numbers", installed: map[string]string{"15.9": "3.3.2", "15.13": "3.3.2"},
			want: Installation{Version: "15.13", PostGIS: "3.3.2"}},
		{name: "through links in PATH", installed: map[string]string{"17.0": "3.5.0"}, inPath: "17.0",
			want: Installation{Version: "17.0", PostGIS: "3.5.0"}},
		{name: "a server without PostGIS", installed: map[string]string{"16.1": ""}, fails: "PostgreSQL 16.1 in "},
		{name: "no server", fails: "no PostgreSQL server with PostGIS was found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			if resolved, err := filepath.EvalSymlinks(root); err == nil {
				root = resolved
			}
			for version, postgis := range c.installed {
				fakeInstallation(t, root, version, postgis)
			}
			patterns := []string{filepath.Join(root, "*", "bin")}
			path := t.TempDir()
			if c.inPath != "" {
				patterns = nil
				if err := os.Symlink(filepath.Join(root, c.inPath, "bin", "postgres"), filepath.Join(path, "postgres")); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", path) // no pg_config, and no server of this machine
			got, err := findPostGIS(t.Context(), patterns)
			if c.fails != "" {
				if !errors.Is(err, ErrNoPostGIS) || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v; want ErrNoPostGIS saying %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c.want.Bin = filepath.Join(root, c.want.Version, "bin")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("installation (-want +got):\n%s", diff)
			}
		})
	}
}
