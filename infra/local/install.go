package local

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// Installer installs what the stack and the tests need with the package manager
// of Debian and Ubuntu. The zero value is not usable; see [NewInstaller].
type Installer struct {
	say      func(line string)
	run      func(ctx context.Context, command []string) (output []byte, err error)
	lookPath func(name string) (string, error)
	find     func(ctx context.Context) (Installation, error)
	root     bool // no sudo is needed
	asks     bool // somebody can type sudo's password

	updated bool // apt-get update has been run
}

// NewInstaller returns an installer that tells a person through say what it
// installs, a line each time.
func NewInstaller(say func(line string)) *Installer {
	stdin, err := os.Stdin.Stat()
	return &Installer{
		say:      say,
		run:      runCommand,
		lookPath: exec.LookPath,
		find:     FindPostGIS,
		root:     os.Geteuid() == 0,
		asks:     err == nil && stdin.Mode()&os.ModeCharDevice != 0,
	}
}

func runCommand(ctx context.Context, command []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = os.Stdin // sudo may ask
	return cmd.CombinedOutput()
}

// PostGIS returns the newest PostgreSQL installation with PostGIS, after
// installing one where there is none.
func (i *Installer) PostGIS(ctx context.Context) (Installation, error) {
	inst, err := i.find(ctx)
	if !errors.Is(err, ErrNoPostGIS) {
		return inst, err
	}
	const manual = "install PostgreSQL with PostGIS (Debian and Ubuntu: postgresql-NN-postgis-3; Fedora: postgresql-server and postgis; Homebrew: postgresql and postgis), or set DATABASE_URL to a database that has it"
	if unable := i.unable(); unable != nil {
		return Installation{}, fmt.Errorf("%w, and %w: %s", err, unable, manual)
	}
	if err := i.update(ctx); err != nil {
		return Installation{}, err
	}
	pkg, err := i.postGISPackage(ctx)
	if err != nil {
		return Installation{}, fmt.Errorf("%w: %s", err, manual)
	}
	i.say("PostgreSQL with PostGIS is not installed: installing " + pkg + " with apt-get (once; about a minute)")
	if err := i.install(ctx, pkg); err != nil {
		return Installation{}, fmt.Errorf("%w\n%s", err, manual)
	}
	if inst, err = i.find(ctx); err != nil {
		return Installation{}, fmt.Errorf("after the installation of %s: %w", pkg, err)
	}
	return inst, nil
}

// Compiler makes sure that there is a C++ compiler, which the tests need: the
// independent reader of Parquet files that they use is a C++ library.
func (i *Installer) Compiler(ctx context.Context) error {
	if i.compiles(ctx) {
		return nil
	}
	const manual = "install a C and C++ compiler (Debian and Ubuntu: g++; Fedora: gcc-c++; macOS: xcode-select --install)"
	if unable := i.unable(); unable != nil {
		return fmt.Errorf("no C++ compiler was found, and %w: %s", unable, manual)
	}
	if err := i.update(ctx); err != nil {
		return err
	}
	i.say("A C++ compiler, which the tests need, is not installed: installing g++ with apt-get (once; about a minute)")
	if err := i.install(ctx, "g++"); err != nil {
		return fmt.Errorf("%w\n%s", err, manual)
	}
	if !i.compiles(ctx) {
		return fmt.Errorf("g++ was installed, but the compilers that \"go env CC CXX\" names still do not work: set CC and CXX, or %s", manual)
	}
	return nil
}

// browsers are the names under which a Chromium or Chrome is found.
var browsers = []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome"}

// Browser makes sure that there is a Chromium, which the tests open the exported map
// page in.
func (i *Installer) Browser(ctx context.Context) error {
	if _, err := findBrowser(i.lookPath); err == nil {
		return nil
	}
	const manual = "install Chromium or Chrome (Debian: chromium) so that one of these is in PATH: chromium, chromium-headless-shell, google-chrome"
	if unable := i.unable(); unable != nil {
		return fmt.Errorf("no Chromium was found, and %w: %s", unable, manual)
	}
	if err := i.update(ctx); err != nil {
		return err
	}
	i.say("Chromium, which the tests open the map page in, is not installed: installing chromium with apt-get (once; about a minute)")
	if err := i.install(ctx, "chromium"); err != nil {
		return fmt.Errorf("%w\n%s", err, manual)
	}
	if _, err := findBrowser(i.lookPath); err != nil {
		return fmt.Errorf("the package chromium was installed, but brought no browser: %s", manual)
	}
	return nil
}

// FindBrowser returns the path of a Chromium or Chrome.
func FindBrowser() (string, error) { return findBrowser(exec.LookPath) }

func findBrowser(lookPath func(string) (string, error)) (string, error) {
	for _, name := range browsers {
		if path, err := lookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("none of %s is in PATH; make test installs Chromium", strings.Join(browsers, ", "))
}

// compiles reports whether the compilers that cgo uses are there with their
// headers: those come in packages of their own.
func (i *Installer) compiles(ctx context.Context) bool {
	out, err := i.run(ctx, []string{"go", "env", "CC", "CXX"})
	if err != nil {
		return false
	}
	compilers := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(compilers) != 2 {
		return false
	}
	const (
		c   = `printf '#include <stdlib.h>\n' | $0 -x c -fsyntax-only -`
		cpp = `printf '#include <cstdlib>\n' | $0 -x c++ -fsyntax-only -`
	)
	for n, probe := range []string{c, cpp} {
		if _, err := i.run(ctx, []string{"/bin/sh", "-c", probe, compilers[n]}); err != nil {
			return false
		}
	}
	return true
}

// unable says why nothing can be installed here, or nil.
func (i *Installer) unable() error {
	if _, err := i.lookPath("apt-get"); err != nil {
		return errors.New("this machine has no apt-get to install it with")
	}
	if i.root {
		return nil
	}
	if _, err := i.lookPath("sudo"); err != nil {
		return errors.New("this user is not root and there is no sudo to install it with")
	}
	return nil
}

// privileged puts sudo before the command where it is needed. Without a terminal
// sudo must not ask.
func (i *Installer) privileged(command ...string) []string {
	switch {
	case i.root:
		return command
	case i.asks:
		return append([]string{"sudo"}, command...)
	}
	return append([]string{"sudo", "-n"}, command...)
}

// update refreshes apt's lists, once. Where it fails the lists of before may still
// do; if they do not, the installation says so.
func (i *Installer) update(ctx context.Context) error {
	if i.updated {
		return nil
	}
	i.updated = true
	out, err := i.run(ctx, i.privileged("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "update"))
	if ctx.Err() != nil {
		return fmt.Errorf("apt-get update: %w", context.Cause(ctx))
	}
	if err != nil {
		i.say("apt-get update failed (" + lastLine(out, err) + "); going on with the package lists that are there")
	}
	return nil
}

// postGISPackage finds the package of the newest PostgreSQL that apt offers with PostGIS.
func (i *Installer) postGISPackage(ctx context.Context) (string, error) {
	out, err := i.run(ctx, []string{"apt-cache", "search", "--names-only", `^postgresql-[0-9]+-postgis-[0-9]+$`})
	if err != nil {
		return "", fmt.Errorf("look for PostGIS among apt's packages: %w: %s", err, lastLine(out, err))
	}
	offered := postGISPackages.FindAllStringSubmatch(string(out), -1)
	if len(offered) == 0 {
		return "", errors.New("apt offers no package of PostGIS")
	}
	return slices.MaxFunc(offered, func(a, b []string) int {
		return cmp.Or(compareVersions(a[2], b[2]), compareVersions(a[3], b[3]))
	})[1], nil
}

var postGISPackages = regexp.MustCompile(`(?m)^(postgresql-([0-9]+)-postgis-([0-9]+)) `)

//go:embed install.sh
var installScript string

func (i *Installer) install(ctx context.Context, packages ...string) error {
	command := append([]string{"/bin/sh", "-c", installScript, "sh"}, packages...)
	if out, err := i.run(ctx, i.privileged(command...)); err != nil {
		const keep = 2000
		return fmt.Errorf("install %s with apt-get: %w:\n%s", strings.Join(packages, " "), err, out[max(0, len(out)-keep):])
	}
	return nil
}

func lastLine(output []byte, err error) string {
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	if last := string(lines[len(lines)-1]); last != "" {
		return last
	}
	return err.Error()
}
