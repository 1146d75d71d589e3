package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Functions are the functions of the application, by the name of their directory.
var Functions = []string{"capture", "replay", "metrics", "redrive", "migrate"}

// BuildFlags are those flags of the deployed bootstraps (see the Makefile) that make
// a difference to how they run: no net/rpc mode and no symbol table. The flags that
// make the deployed file the same on every machine are left out, so that packages
// compiled for other uses are used here, too.
var BuildFlags = []string{"-buildvcs=false", "-tags", "lambda.norpc", "-ldflags", "-s -w"}

// BuildBootstraps builds the given functions, or all of them, for this machine
// into dir, each under the function's name. A bootstrap that runs while it is
// replaced goes on undisturbed.
func BuildBootstraps(ctx context.Context, dir string, functions ...string) error {
	root, err := ModuleRoot(ctx)
	if err != nil {
		return err
	}
	if len(functions) == 0 {
		functions = Functions
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("find the directory of the bootstraps: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the bootstraps: %w", err)
	}
	// Two processes that write the same file would write a third.
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("take turns in building the bootstraps: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("take turns in building the bootstraps: %w", err)
	}
	args := append([]string{"build"}, BuildFlags...)
	// With a directory as output, go build names each program as its package's
	// directory. One that is up to date it leaves alone.
	args = append(args, "-o", dir+string(filepath.Separator))
	for _, name := range functions {
		args = append(args, "./functions/"+name)
	}
	// An interrupted compiler may leave its temporary files: they go with the scratch.
	scratch, err := NewScratch(ctx)
	if err != nil {
		return err
	}
	build := exec.Command("go", args...)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	var complaints bytes.Buffer
	build.Stderr = &complaints
	if err := scratch.Run(ctx, build); err != nil {
		err = fmt.Errorf("build the bootstraps of %s: %w\n%s", strings.Join(functions, ", "), err, complaints.Bytes())
		return errors.Join(err, scratch.Close())
	}
	return scratch.Close()
}

// ModuleRoot is the directory of go.mod, of the module the current directory is in.
func ModuleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for the module's directory: %w", err)
	}
	gomod := strings.TrimSpace(string(out))
	if gomod == "" || gomod == os.DevNull {
		return "", errors.New("this is not a directory of the geodlq module: change into it")
	}
	return filepath.Dir(gomod), nil
}
