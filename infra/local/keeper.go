package local

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// keeper is a shell that looks after what must not outlive this process: it
// makes a directory and, when its standard input ends, removes it. As the pipe's
// other end is open in this process alone, the input ends when this process does,
// by whatever cause.
type keeper struct {
	dir   string // the directory it made and will remove
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // what it says after the directory; closed at its end
	ended chan struct{}
	err   error // of the shell; set before ended is closed

	closeOnce sync.Once
}

// identity is the user a keeper runs as; nil means the user of this process.
type identity struct {
	name     string
	uid, gid uint32
}

// startKeeper runs script with dir's parent and name prefix as $1, more arguments
// after it, and waits for the first line it prints: the directory.
func startKeeper(ctx context.Context, script, parent, prefix string, as *identity, env []string, args ...string) (*keeper, error) {
	template := filepath.Join(parent, prefix+"XXXXXXXX")
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh", template}, args...)...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}, env...)
	// A session of its own: the terminal's Ctrl-C reaches this process, which then
	// closes the pipe, and not the keeper, which has work to do.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe to the keeper of %s: %w", template, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe from the keeper of %s: %w", template, err)
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the keeper of %s: %w", template, err)
	}
	k := &keeper{cmd: cmd, stdin: stdin, lines: make(chan string, 64), ended: make(chan struct{})}
	go func() {
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			k.lines <- scanner.Text()
		}
		close(k.lines)
		if err := cmd.Wait(); err != nil {
			k.err = fmt.Errorf("keeper of %s: %w: %s", template, err, strings.TrimSpace(complaints.String()))
		}
		close(k.ended)
	}()
	dir, err := k.expect(ctx, "dir ")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a directory in %s: %w", parent, err), k.close())
	}
	k.dir = dir
	return k, nil
}

// expect waits for a line that starts with prefix and returns the rest of it.
// Lines before it are dropped.
func (k *keeper) expect(ctx context.Context, prefix string) (string, error) {
	for {
		select {
		case line, open := <-k.lines:
			if !open {
				<-k.ended
				return "", errors.Join(errors.New("the keeper has ended"), k.err)
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest, nil
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// say sends one command line.
func (k *keeper) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(k.stdin, format+"\n", args...); err != nil {
		return fmt.Errorf("tell the keeper of %s: %w", k.dir, err)
	}
	return nil
}

// closingTime is longer than PostgreSQL needs to stop at once: five seconds, after
// which it kills its own children.
const closingTime = 20 * time.Second

// close ends the keeper and waits until it has cleaned up.
func (k *keeper) close() error {
	k.closeOnce.Do(func() {
		k.stdin.Close()
		go func() {
			for range k.lines { // nobody listens any more, and a full channel must not hold it up
			}
		}()
		select {
		case <-k.ended:
		case <-time.After(closingTime):
			syscall.Kill(-k.cmd.Process.Pid, syscall.SIGKILL)
			<-k.ended
			k.err = errors.Join(fmt.Errorf("the keeper of %s did not end within %s and was killed", k.dir, closingTime), k.err)
		}
	})
	<-k.ended
	return k.err
}

// Scratch is a directory that is removed by [Scratch.Close] and also when this
// process ends in any other way.
type Scratch struct{ keeper *keeper }

//go:embed scratch.sh
var scratchScript string

// NewScratch makes a directory in os.TempDir whose name begins with "geodlq-".
// Other users can pass through it but not list it: what lies in it may be needed
// by the user that runs PostgreSQL.
func NewScratch(ctx context.Context) (*Scratch, error) {
	k, err := startKeeper(ctx, scratchScript, os.TempDir(), "geodlq-", nil, nil)
	if err != nil {
		return nil, err
	}
	return &Scratch{keeper: k}, nil
}

// Dir is the path of the directory.
func (s *Scratch) Dir() string { return s.keeper.dir }

// Close kills what still runs of [Scratch.Run] and removes the directory with all
// it holds.
func (s *Scratch) Close() error { return s.keeper.close() }

// Run runs a command in a process group of its own, which ends when the command
// does, when ctx is cancelled (after an interrupt and some seconds to act on it),
// and when this process ends in any way. Its temporary files go to the directory.
func (s *Scratch) Run(ctx context.Context, cmd *exec.Cmd) error {
	tmp := filepath.Join(s.Dir(), "tmp")
	if err := os.MkdirAll(tmp, 0o777); err != nil {
		return fmt.Errorf("make a directory for temporary files: %w", err)
	}
	// As in /tmp: PostgreSQL, which may run as another user, makes files there, too.
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("open the directory for temporary files to every user: %w", err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = interruptGrace // for whoever has inherited its output
	dieWithOwner(cmd.SysProcAttr)
	if err := start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", cmd, err)
	}
	group := cmd.Process.Pid
	if err := s.keeper.say("adopt %d", group); err != nil {
		syscall.Kill(-group, syscall.SIGKILL)
		return errors.Join(err, cmd.Wait())
	}
	ended := make(chan struct{})
	go func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			syscall.Kill(-group, syscall.SIGINT)
		}
		select {
		case <-ended:
		case <-time.After(interruptGrace):
			syscall.Kill(-group, syscall.SIGKILL)
		}
	}()
	err := cmd.Wait()
	close(ended)
	syscall.Kill(-group, syscall.SIGKILL) // what it has started and left
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return errors.Join(err, s.keeper.say("release %d", group))
}

// interruptGrace is what a command has to clean up after an interrupt.
const interruptGrace = 5 * time.Second

// unprivileged returns the user PostgreSQL runs as when this process is root,
// which initdb and postgres refuse to be: postgres where there is such a user,
// else nobody. It returns nil when this process is not root.
func unprivileged() (*identity, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return &identity{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and this machine has neither a user postgres nor a user nobody: run as another user, or set DATABASE_URL")
}

// openTo returns the first of dirs in which any user may make files.
func openTo(dirs ...string) (string, error) {
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() || info.Mode().Perm()&0o003 != 0o003 {
			continue
		}
		reachable := true
		for d := filepath.Dir(dir); reachable; d = filepath.Dir(d) {
			info, err := os.Stat(d)
			reachable = err == nil && info.Mode().Perm()&0o001 != 0
			if d == filepath.Dir(d) {
				break
			}
		}
		if reachable {
			return dir, nil
		}
	}
	return "", fmt.Errorf("none of %s is writable for every user: set TMPDIR to a directory that is", strings.Join(dirs, ", "))
}
