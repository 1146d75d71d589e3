package local_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"geodlq/infra/local"
)

// ownerVariable makes the test program play the owner of a stack that a test kills.
const ownerVariable = "GEODLQ_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) != "" {
		own()
		return
	}
	switch filepath.Base(os.Args[0]) {
	case "initdb":
		return // it has nothing to make
	case "postgres":
		serveDeaf()
		return
	}
	code := m.Run()
	if built.scratch != nil {
		if err := built.scratch.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// built is the test bootstrap, built once for all tests.
var built struct {
	once    sync.Once
	scratch *local.Scratch
	path    string
	err     error
}

func bootstrapPath(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.scratch, built.err = local.NewScratch(context.Background()); built.err != nil {
			return
		}
		built.path = filepath.Join(built.scratch.Dir(), "bootstrap")
		args := append(append([]string{"build"}, local.BuildFlags...), "-o", built.path, "./testdata/bootstrap")
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build the test bootstrap: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}
