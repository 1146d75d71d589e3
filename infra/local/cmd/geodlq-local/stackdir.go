package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// stackDir is the directory with the files of the background stack. Whether a
// stack is up is told by a lock that its process holds on one of them, so that a
// stack that was killed is not taken for one that is up.
type stackDir string

func (d stackDir) env() string    { return filepath.Join(string(d), "stack.env") }
func (d stackDir) samEnv() string { return filepath.Join(string(d), "env.json") }
func (d stackDir) log() string    { return filepath.Join(string(d), "stack.log") }
func (d stackDir) lock() string   { return filepath.Join(string(d), "stack.lock") }
func (d stackDir) upLock() string { return filepath.Join(string(d), "up.lock") }
func (d stackDir) bin() string    { return filepath.Join(string(d), "bin") }
func (d stackDir) event() string  { return filepath.Join(string(d), "put.json") }

// errLocked tells that another process holds the lock.
var errLocked = errors.New("another process holds the lock")

// lockFile opens a file and locks it with how, a flag of flock(2). The lock ends
// with the file's Close and with the process.
func lockFile(path string, how int) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// holder returns the process of the stack that is up, or 0.
func (d stackDir) holder() (pid int, err error) {
	if _, err := os.Stat(d.lock()); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	f, err := lockFile(d.lock(), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return 0, f.Close()
	}
	if !errors.Is(err, errLocked) {
		return 0, err
	}
	b, err := os.ReadFile(d.lock())
	if err != nil {
		return 0, fmt.Errorf("read who holds the stack: %w", err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return 0, fmt.Errorf("%s is locked but names no process: %w", d.lock(), err)
	}
	return pid, nil
}
