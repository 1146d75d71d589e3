// A function for the tests of the local Lambda runtime: it does what its event says.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type event struct {
	Do   string `json:"do"`
	Text string `json:"text"`
	Size int    `json:"size"`
}

type response struct {
	Text      string    `json:"text,omitempty"`
	PID       int       `json:"pid"`
	Child     int       `json:"child,omitempty"`
	RequestID string    `json:"request_id"`
	Deadline  time.Time `json:"deadline"`
}

// refused is an error with a type of its own: Lambda reports its name.
type refused struct{ what string }

func (r *refused) Error() string { return "refused: " + r.what }

func handle(ctx context.Context, e event) (response, error) {
	deadline, _ := ctx.Deadline()
	lc, _ := lambdacontext.FromContext(ctx)
	r := response{PID: os.Getpid(), RequestID: lc.AwsRequestID, Deadline: deadline, Text: e.Text}
	switch e.Do {
	case "getenv":
		r.Text = os.Getenv(e.Text)
	case "fail":
		return r, &refused{e.Text}
	case "panic":
		panic(e.Text)
	case "exit":
		fmt.Fprintln(os.Stderr, e.Text)
		os.Exit(3)
	case "kill-self":
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return r, err
		}
		if err := self.Kill(); err != nil {
			return r, err
		}
		<-ctx.Done()
	case "answer-and-exit":
		// The answer is sent when the handler has returned; the process ends a moment later.
		go func() {
			time.Sleep(20 * time.Millisecond)
			os.Exit(0)
		}()
	case "wait":
		<-ctx.Done()
		<-make(chan struct{}) // beyond the deadline, too
	case "spawn":
		child := exec.Command("sleep", "600")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return r, err
		}
		r.Child = child.Process.Pid
	case "fill":
		r.Text = strings.Repeat("x", e.Size)
	case "log":
		fmt.Fprintln(os.Stderr, e.Text)
	}
	return r, nil
}

func main() {
	switch os.Getenv("BOOTSTRAP_INIT") {
	case "exit":
		fmt.Fprintln(os.Stderr, "DATABASE_URL is not set")
		os.Exit(1)
	case "error":
		initError()
	}
	options := []lambda.Option{}
	if path := os.Getenv("SIGTERM_FILE"); path != "" {
		options = append(options, lambda.WithEnableSIGTERM(func() {
			os.WriteFile(path, []byte("SIGTERM"), 0o644)
		}))
	}
	lambda.StartWithOptions(handle, options...)
}

// initError reports a failed initialisation, as runtimes of other languages do.
func initError() {
	body, err := json.Marshal(map[string]string{"errorType": "Runtime.ConfigInvalid", "errorMessage": "no bucket"})
	if err != nil {
		panic(err)
	}
	if err := postInitError(body); err != nil {
		panic(errors.Join(errors.New("report the failed initialisation"), err))
	}
	os.Exit(1)
}
