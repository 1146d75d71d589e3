// Package telemetry is how the functions report on themselves: JSON log lines as
// Lambda's log processing understands them here, figures for CloudWatch in package gauge.
package telemetry

import (
	"context"
	"io"
	"log"
	"log/slog"

	"github.com/aws/aws-lambda-go/lambdacontext"
)

// NewLogger returns a logger of one JSON object a line: timestamp, level and
// message under the names Lambda filters by, and requestId where the context of
// the call is an invocation's (so log with InfoContext and its kin).
//
// It also takes the date prefix from the standard library's log package, which
// aws-lambda-go reports a failed invocation with: the line is JSON then too.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	log.SetFlags(0)
	return slog.New(requestHandler{slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level:       level,
		ReplaceAttr: lambdacontext.ReplaceAttr,
	})})
}

// requestHandler adds the request id of the invocation. lambdacontext's own
// handler does the same but reads format and level from the environment when the
// process starts, before a configuration can be checked.
type requestHandler struct{ slog.Handler }

func (h requestHandler) Handle(ctx context.Context, r slog.Record) error {
	if invocation, ok := lambdacontext.FromContext(ctx); ok {
		r.AddAttrs(slog.String("requestId", invocation.AwsRequestID))
	}
	return h.Handler.Handle(ctx, r)
}

func (h requestHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requestHandler{h.Handler.WithAttrs(attrs)}
}

func (h requestHandler) WithGroup(name string) slog.Handler {
	return requestHandler{h.Handler.WithGroup(name)}
}
