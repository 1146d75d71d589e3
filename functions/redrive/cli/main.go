// Command cli is redrive from a terminal: it sends one request to the deployed
// function, or works on the local stack, and prints the answer as a table or as JSON.
//
//	go run ./functions/redrive/cli groups
//	go run ./functions/redrive/cli requeue -batch 'county-*' -reason coerce_failed
//	go run ./functions/redrive/cli requeue -batch 'county-*' -reason coerce_failed -canary 100 -for-real
//
// The function is the one that -function or REDRIVE_FUNCTION names; without either it
// is the stack that "make up" started. A run or an export that outlives an invocation
// is gone on with until it ends; -once leaves that to somebody else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "redrive:", err)
		os.Exit(1)
	}
}

// run carries out one command line.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	c, err := parse(args, progress)
	if err != nil {
		return err
	}
	b, err := c.backend(ctx)
	if err != nil {
		return err
	}
	answer, err := converse(ctx, b, c, progress)
	if err != nil {
		return err
	}
	if c.json {
		_, err := fmt.Fprintf(out, "%s\n", answer)
		return err
	}
	return table(out, c.action, answer)
}
