package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"geodlq/infra/local"
	"geodlq/infra/local/localtest"
)

// Versions of the checkers that lint runs.
const (
	staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"
	govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"
)

// testTimeout leaves a package the time to compile the functions on a slow machine.
const testTimeout = "-timeout=30m"

// session runs go commands that end, with what they have started and written, when
// this process does.
type session struct {
	*app
	scratch *local.Scratch
	env     []string
}

func (a *app) session(ctx context.Context) (*session, error) {
	scratch, err := local.NewScratch(ctx)
	if err != nil {
		return nil, err
	}
	return &session{app: a, scratch: scratch, env: os.Environ()}, nil
}

// command runs a program in the module's directory.
func (s *session) command(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.root
	cmd.Env = slices.Clone(s.env)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return s.scratch.Run(ctx, cmd)
}

// withStack starts a stack for the commands that follow and returns how to stop it.
// They find it in the variables of .local/stack.env and, the tests, through
// package localtest.
func (s *session) withStack(ctx context.Context) (stop func() error, err error) {
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	s.say("Starting PostGIS, S3 and CloudWatch ...")
	stack, err := local.StartStack(ctx)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.scratch.Dir(), "stack.env")
	if err := stack.Settings.WriteFile(file); err != nil {
		return nil, errors.Join(err, stack.Close())
	}
	s.env = append(s.env, localtest.SettingsVariable+"="+file)
	return stack.Close, nil
}

// test is all that is checked before a change is accepted: format, vet, tests.
func (a *app) test(ctx context.Context, args []string) (err error) {
	s, err := a.session(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.scratch.Close()) }()
	installer := local.NewInstaller(func(line string) { a.say("%s", line) })
	if err := installer.Compiler(ctx); err != nil {
		return err
	}
	if err := installer.Browser(ctx); err != nil {
		return err
	}
	// Some tests stop their database, which must be one of their own.
	if _, err := installer.PostGIS(ctx); err != nil {
		if os.Getenv("DATABASE_URL") == "" {
			return err
		}
		a.say("The tests that need a database of their own will fail: %v", err)
	}
	stop, err := s.withStack(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	bootstraps := filepath.Join(s.scratch.Dir(), "bin")
	a.say("Building the bootstraps ...")
	if err := local.BuildBootstraps(ctx, bootstraps); err != nil {
		return err
	}
	// The tests' independent reader of Parquet is a C++ library.
	s.env = append(s.env, localtest.BootstrapsVariable+"="+bootstraps, "CGO_ENABLED=1")

	failed := s.format(ctx)
	a.say("go vet ./...")
	failed = errors.Join(failed, s.command(ctx, a.stderr, a.stderr, "go", "vet", "./..."))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(args) == 0 {
		args = []string{"./..."}
	}
	args = append([]string{"test", testTimeout}, args...)
	a.say("go %s", strings.Join(args, " "))
	if err := s.command(ctx, a.stdout, a.stderr, "go", args...); err != nil {
		failed = errors.Join(failed, fmt.Errorf("go test: %w", err))
	}
	return failed
}

// format lists the files that gofmt would change.
func (s *session) format(ctx context.Context) error {
	s.say("gofmt -l .")
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("ask go for its directory: %w", err)
	}
	// Not the directories that begin with a dot: what lies there was made, not written.
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return fmt.Errorf("list the module's directory: %w", err)
	}
	args := []string{"-l"}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && (e.IsDir() || strings.HasSuffix(e.Name(), ".go")) {
			args = append(args, e.Name())
		}
	}
	var unformatted bytes.Buffer
	gofmt := filepath.Join(strings.TrimSpace(string(goroot)), "bin", "gofmt")
	if err := s.command(ctx, &unformatted, s.stderr, gofmt, args...); err != nil {
		return fmt.Errorf("run gofmt: %w", err)
	}
	if unformatted.Len() > 0 {
		return fmt.Errorf("gofmt would change these files (run gofmt -w on them):\n%s", unformatted.String())
	}
	return nil
}

// lint runs the static checks. Those that need the network or a program that is
// not installed are left out, and said to be.
func (a *app) lint(ctx context.Context) (err error) {
	s, err := a.session(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.scratch.Close()) }()

	failed := s.format(ctx)
	check := func(name string, args ...string) {
		if ctx.Err() != nil {
			return
		}
		a.say("%s %s", name, strings.Join(args, " "))
		if err := s.command(ctx, a.stdout, a.stderr, name, args...); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err))
		}
	}
	check("go", "vet", "./...")
	if s.obtainable(ctx, staticcheck) {
		check("go", "run", staticcheck, "./...")
	}
	if s.obtainable(ctx, govulncheck) {
		failed = errors.Join(failed, s.vulnerabilities(ctx))
	}
	template := filepath.Join(a.root, "template.yaml")
	if _, err := exec.LookPath("sam"); err == nil {
		check("sam", "validate", "--lint", "--template-file", template)
	} else if _, err := exec.LookPath("cfn-lint"); err == nil {
		check("cfn-lint", template)
	} else {
		a.say("Left out: template.yaml, for neither sam nor cfn-lint is installed.")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return failed
}

// obtainable builds a checker, to tell "cannot be had" from "has found something".
func (s *session) obtainable(ctx context.Context, tool string) bool {
	var output bytes.Buffer
	if err := s.command(ctx, &output, &output, "go", "install", "-n", tool); err != nil {
		s.say("Left out: %s cannot be downloaded here (%s).", tool, firstLine(output.String(), err))
		return false
	}
	return true
}

// vulnerabilities reports known vulnerabilities that the code can reach.
func (s *session) vulnerabilities(ctx context.Context) error {
	s.say("go run %s ./...", govulncheck)
	var output bytes.Buffer
	err := s.command(ctx, &output, &output, "go", "run", govulncheck, "./...")
	if err != nil && ctx.Err() == nil && strings.Contains(output.String(), "vuln.go.dev") && !strings.Contains(output.String(), "Vulnerability #") {
		s.say("Left out: the vulnerability database cannot be reached from here (%s).", firstLine(output.String(), err))
		return nil
	}
	io.Copy(s.stdout, &output)
	if err != nil {
		return fmt.Errorf("govulncheck: %w", err)
	}
	return nil
}

func firstLine(output string, err error) string {
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "go: downloading") {
			return line
		}
	}
	return err.Error()
}

// bench runs the benchmarks, or the one with the given name, each against a fresh
// stack of its own.
func (a *app) bench(ctx context.Context, name string) (err error) {
	names := []string{name}
	if name == "" {
		if names, err = a.benchmarks(); err != nil {
			return err
		}
	}
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(a.root, "infra", "bench", name)); err != nil || !info.IsDir() {
			all, err := a.benchmarks()
			return errors.Join(fmt.Errorf("there is no benchmark %q: BENCH is one of %s", name, strings.Join(all, ", ")), err)
		}
		if err := a.benchmark(ctx, name); err != nil {
			return fmt.Errorf("benchmark %s: %w", name, err)
		}
	}
	return nil
}

func (a *app) benchmarks() ([]string, error) {
	mains, err := filepath.Glob(filepath.Join(a.root, "infra", "bench", "*", "main.go"))
	if err != nil {
		return nil, fmt.Errorf("list the benchmarks: %w", err)
	}
	var names []string
	for _, path := range mains {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names, nil
}

func (a *app) benchmark(ctx context.Context, name string) (err error) {
	s, err := a.session(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.scratch.Close()) }()
	stop, err := s.withStack(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	settings, err := local.ReadSettings(filepath.Join(s.scratch.Dir(), "stack.env"))
	if err != nil {
		return err
	}
	s.env = append(append(s.env, settings.Environ()...), settings.AWSEnviron()...)
	a.say("Benchmark %s", name)
	return s.command(ctx, a.stdout, a.stderr, "go", "run", "./infra/bench/"+name)
}
