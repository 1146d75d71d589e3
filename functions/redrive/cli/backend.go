package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"geodlq/functions/redrive/service"
	"geodlq/shared/config"
	"geodlq/shared/deadletter"
	"geodlq/shared/redrive"
)

// backend carries out requests.
type backend interface {
	send(ctx context.Context, request []byte) (answer []byte, err error)
}

// backend is where the command line wants to go.
func (c *command) backend(ctx context.Context) (backend, error) {
	if c.function != "" {
		return deployed(ctx, c.function)
	}
	return stack(ctx, c.stack)
}

// function is the deployed function.
type function struct {
	client *lambda.Client
	name   string
}

// longestInvocation is as long as Lambda lets a function run, and a little more.
const longestInvocation = 16 * time.Minute

func deployed(ctx context.Context, name string) (backend, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(longestInvocation)))
	if err != nil {
		return nil, fmt.Errorf("find the configuration of AWS: %w", err)
	}
	return &function{lambda.NewFromConfig(cfg), name}, nil
}

func (f *function) send(ctx context.Context, request []byte) ([]byte, error) {
	out, err := f.client.Invoke(ctx, &lambda.InvokeInput{FunctionName: &f.name, Payload: request})
	if err != nil {
		return nil, fmt.Errorf("invoke %s: %w", f.name, err)
	}
	if out.FunctionError == nil {
		return out.Payload, nil
	}
	var failure struct {
		Message string `json:"errorMessage"`
	}
	if err := json.Unmarshal(out.Payload, &failure); err != nil || failure.Message == "" {
		failure.Message = string(out.Payload)
	}
	return nil, errors.New(failure.Message)
}

// local is the service in this process, on the local stack.
type local struct{ service *redrive.Service }

func stack(ctx context.Context, path string) (backend, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no local stack (%s): start one with \"make up\", or name the deployed function with -function", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of the local stack: %w", err)
	}
	// The AWS clients look into the environment. What is set there by hand goes first.
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if _, set := os.LookupEnv(key); ok && !set {
			if err := os.Setenv(key, value); err != nil {
				return nil, fmt.Errorf("use the settings of %s: %w", path, err)
			}
		}
	}
	cfg, err := config.Load[config.Redrive]()
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := service.Open(ctx, cfg, logger)
	if err != nil {
		return nil, err
	}
	return &local{s}, nil
}

func (l *local) send(ctx context.Context, request []byte) ([]byte, error) {
	answer, err := l.service.Do(ctx, redrive.Caller{}, request)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

// converse sends the request and goes on with what it began until that has ended.
func converse(ctx context.Context, b backend, c *command, progress io.Writer) ([]byte, error) {
	switch c.action {
	case "requeue", "fix", "discard", "restore":
		// So that a request which is sent twice, by a retry say, begins one run.
		c.request["run"] = deadletter.NewUUID().String()
	case "export":
		return exportAll(ctx, b, c, progress)
	}
	answer, err := sendOne(ctx, b, c.request)
	if err != nil || c.once {
		return answer, err
	}
	switch c.action {
	case "requeue", "fix", "discard", "restore", "resume":
		for {
			var run redrive.Run
			if err := json.Unmarshal(answer, &run); err != nil {
				return nil, fmt.Errorf("read the answer: %w", err)
			}
			if run.State != "running" {
				return answer, nil
			}
			fmt.Fprintf(progress, "run %s: %d of %d\n", run.ID, run.Handled, run.Members)
			runs, err := sendOne(ctx, b, map[string]any{"action": "continue", "run": run.ID})
			if err != nil {
				return nil, err
			}
			var list struct{ Runs []json.RawMessage }
			if err := json.Unmarshal(runs, &list); err != nil || len(list.Runs) != 1 {
				return nil, fmt.Errorf("read the answer: %w", errors.Join(err, fmt.Errorf("%d runs for one", len(list.Runs))))
			}
			answer = list.Runs[0]
		}
	}
	return answer, nil
}

func sendOne(ctx context.Context, b backend, request map[string]any) ([]byte, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("write the request: %w", err)
	}
	return b.send(ctx, text)
}

// exportAll exports in as many invocations as it takes and puts their answers together.
func exportAll(ctx context.Context, b backend, c *command, progress io.Writer) ([]byte, error) {
	var all redrive.Export
	for {
		answer, err := sendOne(ctx, b, c.request)
		if err != nil {
			return nil, err
		}
		var part redrive.Export
		if err := json.NewDecoder(bytes.NewReader(answer)).Decode(&part); err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		all = redrive.Export{
			Export: part.Export, Prefix: part.Prefix, Next: part.Next,
			Rows: all.Rows + part.Rows, Mapped: all.Mapped + part.Mapped, Files: append(all.Files, part.Files...),
		}
		if all.Next == 0 || c.once {
			return json.Marshal(all)
		}
		fmt.Fprintf(progress, "export %s: %d rows\n", all.Export, all.Rows)
		c.request["export"], c.request["after"] = all.Export, all.Next
		if limit, ok := c.request["limit"].(int64); ok {
			c.request["limit"] = limit - part.Rows
		}
	}
}
