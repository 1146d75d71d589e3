//go:build !linux

package local

import (
	"os"
	"os/exec"
	"syscall"
)

// dieWithOwner does nothing: this system has no parent-death signal. A bootstrap
// whose runtime API is gone ends by itself after its current invocation.
func dieWithOwner(*syscall.SysProcAttr) {}

func start(cmd *exec.Cmd) error { return cmd.Start() }

// runningPeak is not known on this system.
func runningPeak(int) int64 { return 0 }

// endedPeak is not known in the same unit on all of these systems.
func endedPeak(*os.ProcessState) int64 { return 0 }
