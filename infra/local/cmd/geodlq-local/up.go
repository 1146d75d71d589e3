package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"geodlq/infra/local"
)

// serveCommand is the command of the background process; people use up.
const serveCommand = "serve-stack"

// readyLine is what the background process says to up when it is.
const readyLine = "ready"

// up starts the stack in the background and returns when it is ready, its
// database migrated. A stack that is up is left alone.
func (a *app) up(ctx context.Context) error {
	// Two at once take turns; the second finds the first's stack.
	turn, err := lockFile(a.dir.upLock(), syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer turn.Close()
	pid, err := a.dir.holder()
	if err != nil {
		return err
	}
	if pid != 0 {
		fmt.Fprintf(a.stdout, "The stack is already up (process %d).\n", pid)
		return a.describe()
	}
	if err := a.prepare(ctx); err != nil {
		return err
	}
	a.say("Building the migration ...")
	if err := local.BuildBootstraps(ctx, a.dir.bin(), "migrate"); err != nil {
		return err
	}
	a.say("Starting PostGIS, S3 and CloudWatch ...")
	if pid, err = a.background(ctx); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "The stack is up (process %d).\n", pid)
	return a.describe()
}

// prepare installs PostGIS where it is needed and missing. It is done by the
// process that a person started: sudo may have to ask.
func (a *app) prepare(ctx context.Context) error {
	if os.Getenv("DATABASE_URL") != "" {
		return nil
	}
	_, err := local.NewInstaller(func(line string) { a.say("%s", line) }).PostGIS(ctx)
	return err
}

// background starts the process that owns the stack and waits until it is ready.
func (a *app) background(ctx context.Context) (pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	log, err := os.Create(a.dir.log())
	if err != nil {
		return 0, fmt.Errorf("open the stack's log: %w", err)
	}
	defer log.Close()
	from, to, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("open a pipe to the stack's process: %w", err)
	}
	defer from.Close()
	cmd := exec.Command(self, serveCommand)
	cmd.Dir = a.root
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{to}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	to.Close()
	if err != nil {
		return 0, fmt.Errorf("start the stack's process: %w", err)
	}
	// It ends when its other end of the pipe closes before it is ready. Waiting for
	// it, too, makes sure that nothing is left of a start that failed.
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(from).ReadString('\n')
		said <- strings.TrimSpace(line)
	}()
	select {
	case line := <-said:
		if line == readyLine {
			return cmd.Process.Pid, nil
		}
		cmd.Wait()
	case <-ctx.Done():
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		return 0, context.Cause(ctx)
	}
	b, err := os.ReadFile(a.dir.log())
	if err != nil {
		return 0, fmt.Errorf("read the stack's log: %w", err)
	}
	return 0, fmt.Errorf("the stack did not start:\n%s", b)
}

func (a *app) describe() error {
	s, err := local.ReadSettings(a.dir.env())
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, `  database   %s
  metrics    %s/recorded
  settings   %s
  log        %s

Upload a failure file:  make put FILE=testdata/county_parcels.ndjson
Run functions:          make -s invoke FN=capture EVENT=%s
                        make -s invoke FN=replay
Stop and remove:        make down
`, s.DatabaseURL, s.MetricsEndpoint, a.shorten(a.dir.env()), a.shorten(a.dir.log()), a.shorten(a.dir.event()))
	return nil
}

// shorten writes a path relative to the module, where it is in it.
func (a *app) shorten(path string) string {
	if short, err := filepath.Rel(a.root, path); err == nil && filepath.IsLocal(short) {
		return short
	}
	return path
}

// serve is the background process: it owns the stack until it is told to end.
func (a *app) serve(ctx context.Context) (err error) {
	lock, err := takeStackLock(a.dir.lock())
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	if _, err := fmt.Fprintln(lock, os.Getpid()); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	stack, err := local.StartStack(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	if err := a.migrate(ctx, stack.Settings); err != nil {
		return err
	}
	if err := a.samEnvironment(stack.Settings); err != nil {
		return err
	}
	defer os.Remove(a.dir.samEnv())
	if err := stack.Settings.WriteFile(a.dir.env()); err != nil {
		return err
	}
	defer func() {
		if gone := os.Remove(a.dir.env()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("remove the stack's settings: %w", gone))
		}
	}()
	// If up was killed nobody has been told of this stack, and it ends.
	ready := os.NewFile(3, "pipe to up")
	_, err = fmt.Fprintln(ready, readyLine)
	ready.Close()
	if err != nil {
		return fmt.Errorf("tell up that the stack is ready: %w", err)
	}
	fmt.Println("The stack is ready.")
	a.awaitEnd(ctx, lock)
	fmt.Println("The stack ends.")
	return nil
}

// takeStackLock takes the lock that says that a stack is up. Somebody who looks
// whether it is taken holds it for a moment.
func takeStackLock(path string) (*os.File, error) {
	for tries := 0; ; tries++ {
		lock, err := lockFile(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, errLocked) || tries == 50 {
			return lock, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitEnd waits for a signal, or until the stack's directory has been removed:
// nobody could find the stack any more to stop it.
func (a *app) awaitEnd(ctx context.Context, lock *os.File) {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			ours, err1 := lock.Stat()
			there, err2 := os.Stat(a.dir.lock())
			if errors.Is(err2, fs.ErrNotExist) || err1 == nil && err2 == nil && !os.SameFile(ours, there) {
				return
			}
		}
	}
}

// migrate runs the migrate function as a deployment does.
func (a *app) migrate(ctx context.Context, settings local.Settings) error {
	f, err := local.NewFunction(local.FunctionConfig{
		Name:      "migrate",
		Bootstrap: filepath.Join(a.dir.bin(), "migrate"),
		Env:       a.environment(settings),
		Timeout:   timeouts["migrate"],
		Logs:      a.stderr,
	})
	if err != nil {
		return err
	}
	_, err = f.Invoke(ctx, []byte("{}"))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// stopLimit is how long a stack may take to end before it is killed. What it
// started ends then, too.
const stopLimit = 30 * time.Second

// down stops the stack and waits until it is gone.
func (a *app) down(ctx context.Context) error {
	pid, err := a.dir.holder()
	if err != nil {
		return err
	}
	if pid == 0 {
		// What a stack that was killed has left.
		if err := os.Remove(a.dir.env()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the settings of a stack that is no more: %w", err)
		}
		fmt.Fprintln(a.stdout, "No stack is up.")
		return nil
	}
	signal, limit := syscall.SIGTERM, time.Now().Add(stopLimit)
	for pid != 0 {
		if time.Now().After(limit) {
			signal = syscall.SIGKILL
		}
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the stack's process %d: %w", pid, err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of the stack's process %d: %w", pid, context.Cause(ctx))
		}
		if pid, err = a.dir.holder(); err != nil {
			return err
		}
	}
	if err := os.Remove(a.dir.env()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the stack's settings: %w", err)
	}
	fmt.Fprintln(a.stdout, "The stack is down.")
	return nil
}

// running returns the settings of the stack that is up.
func (a *app) running() (local.Settings, error) {
	pid, err := a.dir.holder()
	if err != nil {
		return local.Settings{}, err
	}
	if pid == 0 {
		return local.Settings{}, errors.New("no stack is up: start it with \"make up\"")
	}
	return local.ReadSettings(a.dir.env())
}

// samEnvironment writes events/env.json, the variables that sam local invoke gives
// the functions, with the addresses of this stack.
func (a *app) samEnvironment(s local.Settings) error {
	text, err := os.ReadFile(filepath.Join(a.root, "events", "env.json"))
	if err != nil {
		return fmt.Errorf("read what sam local is to give the functions: %w", err)
	}
	var functions map[string]map[string]string
	if err := json.Unmarshal(text, &functions); err != nil {
		return fmt.Errorf("read events/env.json: %w", err)
	}
	for _, variables := range functions {
		for name, value := range map[string]string{
			"DATABASE_URL": s.DatabaseURL, "AWS_ENDPOINT_URL_S3": s.S3Endpoint, "AWS_ENDPOINT_URL_CLOUDWATCH": s.MetricsEndpoint,
		} {
			if _, ok := variables[name]; ok {
				variables[name] = value
			}
		}
	}
	if text, err = json.MarshalIndent(functions, "", "  "); err != nil {
		return fmt.Errorf("write %s: %w", a.dir.samEnv(), err)
	}
	if err := os.WriteFile(a.dir.samEnv(), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write what sam local is to give the functions: %w", err)
	}
	return nil
}
