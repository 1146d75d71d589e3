package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"testing"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/google/go-cmp/cmp"

	"geodlq/shared/telemetry"
)

func TestLogger(t *testing.T) {
	t.Parallel()
	invocation := lambdacontext.NewContext(context.Background(), &lambdacontext.LambdaContext{AwsRequestID: "r-1"})
	for _, tc := range []struct {
		situation string
		ctx       context.Context
		level     slog.Level
		log       func(context.Context, *slog.Logger)
		want      map[string]any // nil: no line
	}{
		{
			"a line within an invocation", invocation, slog.LevelInfo,
			func(ctx context.Context, l *slog.Logger) { l.InfoContext(ctx, "folded", "entries", 3) },
			map[string]any{"level": "INFO", "message": "folded", "entries": 3.0, "requestId": "r-1"},
		},
		{
			"a line outside any invocation", context.Background(), slog.LevelInfo,
			func(ctx context.Context, l *slog.Logger) { l.WarnContext(ctx, "cold") },
			map[string]any{"level": "WARN", "message": "cold"},
		},
		{
			"an error's text", invocation, slog.LevelInfo,
			func(ctx context.Context, l *slog.Logger) {
				l.ErrorContext(ctx, "failed", "error", errors.New("no route"))
			},
			map[string]any{"level": "ERROR", "message": "failed", "error": "no route", "requestId": "r-1"},
		},
		{
			"a line below the level", invocation, slog.LevelWarn,
			func(ctx context.Context, l *slog.Logger) { l.InfoContext(ctx, "chatter") },
			nil,
		},
		{
			"a logger with attributes keeps the request id", invocation, slog.LevelDebug,
			func(ctx context.Context, l *slog.Logger) { l.With("batch_id", "b").DebugContext(ctx, "seen") },
			map[string]any{"level": "DEBUG", "message": "seen", "batch_id": "b", "requestId": "r-1"},
		},
	} {
		t.Run(tc.situation, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			tc.log(tc.ctx, telemetry.NewLogger(&out, tc.level))
			if tc.want == nil {
				if out.Len() > 0 {
					t.Fatalf("logged %s", out.Bytes())
				}
				return
			}
			var got map[string]any
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%s is no JSON line: %v", out.Bytes(), err)
			}
			if _, ok := got["timestamp"]; !ok {
				t.Errorf("%s has no timestamp", out.Bytes())
			}
			delete(got, "timestamp")
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestLoggerKeepsTheStandardLogPlain(t *testing.T) {
	telemetry.NewLogger(&bytes.Buffer{}, slog.LevelInfo)
	if f := log.Flags(); f != 0 {
		t.Errorf("flags are %d, so a line of package log is no JSON", f)
	}
}
