package local_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"geodlq/infra/local"
)

// alive reports whether there is such a process, a zombie not counted: this
// machine's first process may be slow to collect it.
func alive(pid int) bool {
	p, there := processes()[pid]
	return there && !strings.HasPrefix(p.state, "Z")
}

type processState struct {
	parent int
	state  string // as ps prints it, e.g. "S" or "Z"
}

// processes lists the processes of the machine. On Linux it reads /proc: not every
// machine has ps.
func processes() map[int]processState {
	all := map[int]processState{}
	if runtime.GOOS == "linux" {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, path := range stats {
			b, err := os.ReadFile(path)
			if err != nil {
				continue // it has ended meanwhile
			}
			// pid (name) state parent ..., and the name may hold anything.
			var p processState
			fmt.Sscan(string(b[bytes.LastIndexByte(b, ')')+1:]), &p.state, &p.parent)
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				all[pid] = p
			}
		}
		return all
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(out)) {
		var pid int
		var p processState
		if _, err := fmt.Sscan(line, &pid, &p.parent, &p.state); err == nil {
			all[pid] = p
		}
	}
	return all
}

// await waits until the condition holds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for !condition() {
		select {
		case <-limit:
			t.Fatalf("waited a minute for %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestScratchRun(t *testing.T) {
	t.Parallel()
	scratch, err := local.NewScratch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scratch.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := scratch.Run(t.Context(), exec.Command("/bin/sh", "-c", "exit 7")); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("error %v; want the exit status", err)
	}

	pidFile := filepath.Join(scratch.Dir(), "pid")
	left := exec.Command("/bin/sh", "-c", "sleep 600 & echo $! > "+pidFile)
	if err := scratch.Run(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	child := readPID(t, pidFile)
	await(t, "the end of what the command has left", func() bool { return !alive(child) })

	os.Remove(pidFile)
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- scratch.Run(ctx, exec.Command("/bin/sh", "-c", "echo $$ > "+pidFile+"; sleep 600")) }()
	await(t, "the start of the command", func() bool { b, err := os.ReadFile(pidFile); return err == nil && len(b) > 0 })
	cancel(errors.New("never mind"))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "never mind") {
		t.Errorf("error %v; want the cause of the cancellation", err)
	}
	if pid := readPID(t, pidFile); alive(pid) {
		t.Errorf("process %d is still there", pid)
	}
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// possessions is what an owner tells about itself.
type possessions struct {
	URLs []string `json:"urls"`
}

// own starts everything the package has, tells about it, and waits to be ended.
func own() {
	ctx := context.Background()
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stack, err := local.StartStack(ctx)
	if err != nil {
		fail(err)
	}
	scratch, err := local.NewScratch(ctx)
	if err != nil {
		fail(err)
	}
	if err := os.WriteFile(filepath.Join(scratch.Dir(), "file"), []byte("x"), 0o600); err != nil {
		fail(err)
	}
	f, err := local.NewFunction(local.FunctionConfig{Name: "test", Bootstrap: os.Getenv(ownerVariable), Timeout: time.Hour})
	if err != nil {
		fail(err)
	}
	b, err := f.Invoke(ctx, []byte(`{"do":"getenv","text":"AWS_LAMBDA_RUNTIME_API"}`))
	if err != nil {
		fail(err)
	}
	var r response
	if err := json.Unmarshal(b, &r); err != nil {
		fail(err)
	}
	go f.Invoke(ctx, []byte(`{"do":"wait"}`))
	// A command with a child, of the kind that wants to stay.
	go scratch.Run(ctx, exec.Command("/bin/sh", "-c", "trap '' INT TERM HUP; sleep 600 & : > \"$TMPDIR/running\"; wait"))
	for {
		if _, err := os.Stat(filepath.Join(scratch.Dir(), "tmp", "running")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	json.NewEncoder(os.Stdout).Encode(possessions{URLs: []string{
		stack.Settings.DatabaseURL, stack.Settings.S3Endpoint, stack.Settings.MetricsEndpoint, "http://" + r.Text,
	}})
	select {}
}

// descendants lists the processes that a process has started, and theirs.
func descendants(root int) []int {
	children := map[int][]int{}
	for pid, p := range processes() {
		children[p.parent] = append(children[p.parent], pid)
	}
	var all []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all
}

// openDirectory makes a directory like /tmp, in which the user that runs
// PostgreSQL can make files, too.
func openDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "owner-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o1777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func startOwner(t *testing.T, tmp string) (owner *exec.Cmd, stdout *bufio.Scanner) {
	t.Helper()
	owner = exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+bootstrapPath(t), "TMPDIR="+tmp, "DATABASE_URL=")
	owner.Stderr = os.Stderr
	pipe, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Process.Kill() })
	return owner, bufio.NewScanner(pipe)
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestNothingOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGTERM} {
		t.Run("ended by "+signal.String(), func(t *testing.T) {
			t.Parallel()
			tmp := openDirectory(t)
			owner, stdout := startOwner(t, tmp)
			if !stdout.Scan() {
				t.Fatal("the owner ended before it was ready")
			}
			var has possessions
			if err := json.Unmarshal(stdout.Bytes(), &has); err != nil {
				t.Fatal(err)
			}
			var addresses []string
			for _, u := range has.URLs {
				parsed, err := url.Parse(u)
				if err != nil {
					t.Fatal(err)
				}
				addresses = append(addresses, parsed.Host)
				if !listens(parsed.Host) {
					t.Errorf("nothing listens on %s to begin with", parsed.Host)
				}
			}
			processes := descendants(owner.Process.Pid)
			// Two keepers, the server's watcher, the server with its helpers, the function,
			// the command and its child.
			if len(processes) < 10 || len(entries(t, tmp)) != 2 {
				t.Fatalf("processes %v and directories %v: the owner has not started what it should", processes, entries(t, tmp))
			}

			if err := owner.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			owner.Wait()

			for _, pid := range processes {
				await(t, fmt.Sprintf("the end of process %d", pid), func() bool { return !alive(pid) })
			}
			await(t, "an empty directory", func() bool { return len(entries(t, tmp)) == 0 })
			for _, a := range addresses {
				if listens(a) {
					t.Errorf("somebody still listens on %s", a)
				}
			}
		})
	}
}

func TestNothingOutlivesAnOwnerKilledWhileItStarts(t *testing.T) {
	t.Parallel()
	tmp := openDirectory(t)
	owner, _ := startOwner(t, tmp)
	var processes []int
	await(t, "the start of initdb", func() bool {
		processes = descendants(owner.Process.Pid)
		return len(processes) >= 2
	})
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()
	for _, pid := range processes {
		await(t, fmt.Sprintf("the end of process %d", pid), func() bool { return !alive(pid) })
	}
	await(t, "an empty directory", func() bool { return len(entries(t, tmp)) == 0 })
}

// serveDeaf plays a server that is slow to start: for a while it ignores signals,
// as PostgreSQL does until it has installed its handlers.
func serveDeaf() {
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT)
	directory := os.Args[2] // postgres -D <directory> ...
	if err := os.WriteFile(filepath.Join(filepath.Dir(directory), "deaf"), nil, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(300 * time.Millisecond)
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGINT, syscall.SIGQUIT)
	<-heard
}

func TestAServerThatDoesNotListenYetIsStopped(t *testing.T) {
	tmp := openDirectory(t)
	t.Setenv("TMPDIR", tmp)
	bin := filepath.Join(tmp, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(bin, name), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := descendants(os.Getpid())
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := local.StartPostgres(ctx, local.Installation{Bin: bin, Version: "0"})
		failed <- err
	}()
	await(t, "the deaf server", func() bool {
		deaf, err := filepath.Glob(filepath.Join(tmp, "geodlq-postgres-*", "deaf"))
		return err == nil && len(deaf) == 1
	})
	started := without(descendants(os.Getpid()), before)
	cancel(errors.New("never mind"))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "never mind") || strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v; want the cause of the cancellation alone", err)
	}
	for _, pid := range started {
		if alive(pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
	if left := entries(t, tmp); len(left) != 1 {
		t.Errorf("left behind: %v; want bin alone", left)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	tmp := openDirectory(t)
	t.Setenv("TMPDIR", tmp)
	before := descendants(os.Getpid())
	stack, err := local.StartStack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	started := without(descendants(os.Getpid()), before)
	if err := stack.Close(); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, tmp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, pid := range started {
		if alive(pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
	for _, u := range []string{stack.Settings.DatabaseURL, stack.Settings.S3Endpoint, stack.Settings.MetricsEndpoint} {
		if parsed, err := url.Parse(u); err != nil || listens(parsed.Host) {
			t.Errorf("somebody still listens on %s (%v)", u, err)
		}
	}
}

func without(all, some []int) []int {
	known := map[int]bool{}
	for _, pid := range some {
		known[pid] = true
	}
	var rest []int
	for _, pid := range all {
		if !known[pid] {
			rest = append(rest, pid)
		}
	}
	return rest
}

func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
