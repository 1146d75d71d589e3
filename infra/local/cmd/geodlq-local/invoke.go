package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"geodlq/infra/local"
)

// timeouts are the time limits of the deployed functions, as in template.yaml.
var timeouts = map[string]time.Duration{
	"capture": 5 * time.Minute,
	"replay":  4 * time.Minute,
	"metrics": 5 * time.Minute,
	"redrive": 15 * time.Minute,
	"migrate": 15 * time.Minute,
}

// invoke builds a function and runs it once against the stack that is up. What
// Lambda would answer goes to standard output, also for a failure.
func (a *app) invoke(ctx context.Context, name, eventFile string) error {
	if !slices.Contains(local.Functions, name) {
		return fmt.Errorf("there is no function %q: FN is one of %s", name, strings.Join(local.Functions, ", "))
	}
	event := []byte("{}")
	if eventFile != "" {
		var err error
		if event, err = os.ReadFile(callersPath(eventFile)); err != nil {
			return fmt.Errorf("read the event: %w", err)
		}
		if !json.Valid(event) {
			return fmt.Errorf("the event in %s is no JSON: EVENT is the file of an event, and the event names the object that capture reads", eventFile)
		}
	}
	settings, err := a.running()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(a.dir.bin(), name)); errors.Is(err, fs.ErrNotExist) {
		a.say("Building %s ...", name)
	}
	if err := local.BuildBootstraps(ctx, a.dir.bin(), name); err != nil {
		return err
	}
	directory, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the current directory: %w", err)
	}
	f, err := local.NewFunction(local.FunctionConfig{
		Name:      name,
		Bootstrap: filepath.Join(a.dir.bin(), name),
		Env:       a.environment(settings),
		Dir:       directory,
		Timeout:   timeouts[name],
		Logs:      a.stderr,
	})
	if err != nil {
		return err
	}
	response, report, err := f.InvokeReport(ctx, event)
	closeErr := f.Close()
	a.say("REPORT RequestId: %s Duration: %.2f ms Init Duration: %.2f ms Max Memory Used: %d MB",
		report.RequestID, milliseconds(report.Duration), milliseconds(report.InitDuration), report.MaxMemory>>20)
	if err != nil {
		if payload := failurePayload(err); payload != nil {
			fmt.Fprintf(a.stdout, "%s\n", payload)
		}
		return errors.Join(err, closeErr)
	}
	fmt.Fprintf(a.stdout, "%s\n", response)
	return closeErr
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// failurePayload is what Lambda answers to the caller of a function that failed.
func failurePayload(err error) []byte {
	var failed *local.FunctionError
	var late *local.TimeoutError
	var crash *local.CrashError
	var kind, id, what string
	switch {
	case errors.As(err, &failed):
		return failed.Payload
	case errors.As(err, &late):
		kind, id, what = "Sandbox.Timedout", late.RequestID, fmt.Sprintf("Task timed out after %.2f seconds", late.Limit.Seconds())
	case errors.As(err, &crash):
		what = fmt.Sprintf("Runtime exited with error: exit status %d", crash.ExitCode)
		if crash.Signal != 0 {
			what = "Runtime exited with error: signal: " + crash.Signal.String()
		}
		kind, id = "Runtime.ExitError", crash.RequestID
	default:
		return nil
	}
	b, marshalErr := json.Marshal(map[string]string{"errorType": kind, "errorMessage": "RequestId: " + id + " Error: " + what})
	if marshalErr != nil {
		panic(marshalErr) // two strings always marshal
	}
	return b
}

// hidden are the variables of the caller that a function does not get: whatever
// could make the SDK use somebody's real account, and what make adds for itself.
var hidden = []string{
	"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SECURITY_TOKEN", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
	"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
	"AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT",
	"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CALLER_DIR", "FN", "EVENT",
}

// overridable are the stack's settings that the caller's environment may replace,
// to try what happens when a part of the stack is away, say. Region and
// credentials are always the stack's.
var overridable = []string{"DATABASE_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_CLOUDWATCH", "INBOX_BUCKET", "DEAD_LETTER_BUCKET"}

// environment is what a function run by hand sees: the caller's environment on top
// of the stack's settings.
func (a *app) environment(settings local.Settings) []string {
	var env []string
	for _, kv := range os.Environ() {
		if key, _, _ := strings.Cut(kv, "="); !slices.Contains(hidden, key) {
			env = append(env, kv)
		}
	}
	seen := map[string]bool{}
	for _, kv := range append(settings.Environ(), settings.AWSEnviron()...) {
		key, value, _ := strings.Cut(kv, "=")
		if seen[key] {
			continue
		}
		seen[key] = true
		callers, given := os.LookupEnv(key)
		if !given || !slices.Contains(overridable, key) {
			env = append(env, kv)
		} else if callers != value {
			a.say("%s is taken from your environment, not from the stack.", key)
		}
	}
	return env
}
