// Geodlq-local runs GeoDLQ on one machine. The make targets call it:
//
//	geodlq-local up                        start the stack in the background
//	geodlq-local down                      stop it
//	geodlq-local put <file> [<key>]        upload a failure file to the inbox
//	geodlq-local invoke <function> [event] run a function against the stack
//	geodlq-local demo                      everything once, with a story
//	geodlq-local test [go test arguments]  format, vet and all tests on a stack of their own
//	geodlq-local lint                      static checks
//	geodlq-local bench [<name>]            the benchmarks, on a stack of their own
//
// It is run in the module's directory. What the stack writes lies in .local there.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"geodlq/infra/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A reader that has seen enough (make demo | head) is no reason to die before
	// everything is cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	if !errors.Is(err, errTold) {
		fmt.Fprintln(os.Stderr, err)
	}
	stop()
	os.Exit(1)
}

// errTold is returned when what went wrong has been said already.
var errTold = errors.New("failed")

// app is what the commands share.
type app struct {
	root   string // directory of go.mod
	dir    stackDir
	stdout io.Writer
	stderr io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root, err := local.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	a := &app{root: root, dir: stackDir(filepath.Join(root, ".local")), stdout: stdout, stderr: stderr}
	if dir := os.Getenv(directoryVariable); dir != "" {
		a.dir = stackDir(dir)
	}
	command, rest := "", []string(nil)
	if len(args) > 0 {
		command, rest = args[0], args[1:]
	}
	switch {
	case command == "up" && len(rest) == 0:
		return a.up(ctx)
	case command == serveCommand && len(rest) == 0:
		return a.serve(ctx)
	case command == "down" && len(rest) == 0:
		return a.down(ctx)
	case command == "put" && (len(rest) == 1 || len(rest) == 2):
		return a.put(ctx, rest[0], optional(rest, 1))
	case command == "invoke" && (len(rest) == 1 || len(rest) == 2):
		return a.invoke(ctx, rest[0], optional(rest, 1))
	case command == "demo" && len(rest) == 0:
		return a.demo(ctx)
	case command == "test":
		return a.test(ctx, rest)
	case command == "lint" && len(rest) == 0:
		return a.lint(ctx)
	case command == "bench" && len(rest) <= 1:
		return a.bench(ctx, optional(rest, 0))
	}
	return fmt.Errorf("geodlq-local does not know %q: the commands are up, down, put <file> [<key>], invoke <function> [<event file>], demo, test [go test arguments], lint, bench [<name>]", args)
}

// directoryVariable puts the stack's files elsewhere than in .local: tests start
// stacks of their own.
const directoryVariable = "GEODLQ_LOCAL_DIR"

func optional(args []string, i int) string {
	if i < len(args) {
		return args[i]
	}
	return ""
}

// say tells a person what goes on. Standard output is for results.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// callersPath finds a file that a person named. make has changed the directory
// with -C and by then "relative" means two things: to here, or to where they are.
func callersPath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if from := os.Getenv("CALLER_DIR"); from != "" {
		if _, err := os.Stat(filepath.Join(from, path)); err == nil {
			return filepath.Join(from, path)
		}
	}
	return path
}
