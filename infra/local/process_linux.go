package local

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// dieWithOwner makes the kernel kill the process when this one ends, even by
// SIGKILL. start must be used to start it.
func dieWithOwner(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// The parent-death signal is sent when the thread that forked ends, not the
// process. All processes are therefore started from one goroutine that keeps its
// thread for the life of the program.
var (
	starterOnce sync.Once
	starter     chan func()
)

func start(cmd *exec.Cmd) error {
	starterOnce.Do(func() {
		starter = make(chan func())
		go func() {
			runtime.LockOSThread()
			for f := range starter {
				f()
			}
		}()
	})
	done := make(chan error)
	starter <- func() { done <- cmd.Start() }
	return <-done
}

// runningPeak reads the peak resident memory of a running process, in bytes.
func runningPeak(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "\nVmHWM:")
	var kilobytes int64
	fmt.Sscan(rest, &kilobytes)
	return kilobytes << 10
}

// endedPeak is the peak resident memory of an ended process, in bytes. Linux
// counts in kilobytes.
func endedPeak(state *os.ProcessState) int64 {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return int64(usage.Maxrss) << 10
}
