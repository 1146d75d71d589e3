// Package localtest gives tests the local stack: a database schema, buckets, a
// CloudWatch namespace and functions of their own, on PostGIS and servers that
// are shared by a whole run.
//
// A test package calls [Main] in its TestMain:
//
//	func TestMain(m *testing.M) { localtest.Main(m) }
//
// Under "make test" all packages share one stack and bootstraps that were built
// once. Under plain "go test" each test process starts its own stack when the
// first test asks for it.
package localtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"geodlq/infra/local"
)

// The environment through which "make test" hands its stack to the tests.
const (
	SettingsVariable   = "GEODLQ_TEST_STACK"      // path of a file of local.Settings
	BootstrapsVariable = "GEODLQ_TEST_BOOTSTRAPS" // directory of built bootstraps
)

// shared is what the tests of this process use together. Each part is made when
// it is first asked for.
var shared struct {
	stackOnce sync.Once
	stack     *local.Stack // nil when the settings came from the environment
	settings  local.Settings
	stackErr  error

	bootstraps sync.Mutex
	scratch    *local.Scratch  // nil when the bootstraps came from the environment
	built      map[string]bool // into scratch
}

// Main runs the tests, stops what was started for them and exits with their code.
func Main(m *testing.M) {
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the tests' stack:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func closeShared() error {
	var errs []error
	if shared.stack != nil {
		errs = append(errs, shared.stack.Close())
	}
	if shared.scratch != nil {
		errs = append(errs, shared.scratch.Close())
	}
	return errors.Join(errs...)
}

// Settings returns the settings of the stack the tests run on.
func Settings(t testing.TB) local.Settings {
	t.Helper()
	shared.stackOnce.Do(func() {
		if path := os.Getenv(SettingsVariable); path != "" {
			shared.settings, shared.stackErr = local.ReadSettings(path)
			return
		}
		shared.stack, shared.stackErr = local.StartStack(context.Background())
		if shared.stackErr == nil {
			shared.settings = shared.stack.Settings
		}
	})
	if errors.Is(shared.stackErr, local.ErrNoPostGIS) {
		t.Fatalf("%v: run the tests with \"make test\", which installs it, or set DATABASE_URL", shared.stackErr)
	}
	if shared.stackErr != nil {
		t.Fatal(shared.stackErr)
	}
	return shared.settings
}

// bootstrap returns the path of a function's bootstrap, built for this machine.
func bootstrap(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv(BootstrapsVariable); dir != "" {
		return filepath.Join(dir, name)
	}
	shared.bootstraps.Lock()
	defer shared.bootstraps.Unlock()
	if shared.scratch == nil {
		scratch, err := local.NewScratch(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		shared.scratch, shared.built = scratch, map[string]bool{}
	}
	if !shared.built[name] {
		if err := local.BuildBootstraps(context.Background(), shared.scratch.Dir(), name); err != nil {
			t.Fatal(err)
		}
		shared.built[name] = true
	}
	return filepath.Join(shared.scratch.Dir(), name)
}

// AWSEnv returns the environment, as KEY=VALUE, with which a process made by the
// SDK's default configuration reaches the stack's S3 and CloudWatch and nothing else.
func AWSEnv(t testing.TB) []string {
	t.Helper()
	return Settings(t).AWSEnviron()
}

// Function runs a built bootstrap under a local runtime API until the test ends.
// Its environment is [AWSEnv] and env, in which DATABASE_URL and the buckets are
// given by the test; what it logs goes to the test's log.
func Function(t testing.TB, name string, env map[string]string, options ...func(*local.FunctionConfig)) *local.Function {
	t.Helper()
	config := local.FunctionConfig{
		Name:      name,
		Bootstrap: bootstrap(t, name),
		Env:       AWSEnv(t),
		Logs:      &testLog{t: t, name: name},
	}
	for key, value := range env {
		config.Env = append(config.Env, key+"="+value)
	}
	for _, option := range options {
		option(&config)
	}
	f, err := local.NewFunction(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close function %s: %v", name, err)
		}
	})
	return f
}
