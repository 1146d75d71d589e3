package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"geodlq/shared/redrive"
)

// Service carries out requests; *redrive.Service is one.
type Service interface {
	Do(ctx context.Context, c redrive.Caller, request []byte) (any, error)
}

// Handler is the redrive function.
type Handler struct {
	Service Service
	Log     *slog.Logger
}

// Handle carries out one request. Its errors go back to the caller: of type
// RequestError where the request makes no sense.
func (h *Handler) Handle(ctx context.Context, request json.RawMessage) (any, error) {
	c := caller(ctx)
	answer, err := h.Service.Do(ctx, c, request)
	if err != nil {
		h.Log.ErrorContext(ctx, "request failed", "error", err)
		return nil, plain(err)
	}
	return answer, nil
}

// caller is who invoked the function. A Cognito identity is vouched for by the
// platform. A name in the client context is what the caller says of itself, no more
// than the request's actor would be. Who signed the call only AWS CloudTrail knows, by
// the request id.
func caller(ctx context.Context) redrive.Caller {
	invocation, ok := lambdacontext.FromContext(ctx)
	if !ok {
		return redrive.Caller{}
	}
	c := redrive.Caller{RequestID: invocation.AwsRequestID, Claimed: invocation.ClientContext.Custom["actor"]}
	if id := invocation.Identity.CognitoIdentityID; id != "" {
		c.Identity = "cognito:" + id
	}
	return c
}

// RequestError is what a caller sees where the request makes no sense: Lambda names an
// error by its outermost type.
type RequestError struct{ err error }

func (e *RequestError) Error() string { return e.err.Error() }

// Unwrap returns the error of package redrive.
func (e *RequestError) Unwrap() error { return e.err }

func plain(err error) error {
	var bad *redrive.RequestError
	if errors.As(err, &bad) {
		return &RequestError{err}
	}
	return err
}
