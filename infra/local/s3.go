package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// S3 is an S3 server on a loopback port that keeps its objects in memory. It
// speaks plain HTTP: over TLS the SDK sends bodies in a framing that gofakes3
// would store as if it were content.
//
// It honours If-None-Match and If-Match on PutObject, versions, ranges, listing
// and multipart uploads. It ignores, and does not check: signatures, policies,
// tags and the SDK's additional checksums.
type S3 struct {
	endpoint
	backend *s3mem.Backend
}

// StartS3 starts a server with the given buckets.
func StartS3(buckets ...string) (*S3, error) {
	backend := s3mem.New()
	s := &S3{backend: backend}
	for _, name := range buckets {
		if err := s.CreateBucket(name); err != nil {
			return nil, err
		}
	}
	faker := gofakes3.New(backend, gofakes3.WithIntegrityCheck(true))
	if err := s.serve("S3", refuseUnsupported(faker.Server())); err != nil {
		return nil, err
	}
	return s, nil
}

// CreateBucket makes a bucket that keeps versions, as the deployed buckets do.
func (s *S3) CreateBucket(name string) error {
	if err := gofakes3.ValidateBucketName(name); err != nil {
		return fmt.Errorf("create the bucket %q: %w", name, err)
	}
	if err := s.backend.CreateBucket(name); err != nil {
		return fmt.Errorf("create the bucket %q: %w", name, err)
	}
	versioned := gofakes3.VersioningConfiguration{Status: gofakes3.VersioningEnabled}
	if err := s.backend.SetVersioningConfiguration(name, versioned); err != nil {
		return fmt.Errorf("enable versions in the bucket %q: %w", name, err)
	}
	return nil
}

// refuseUnsupported answers 501 to the requests that gofakes3 would answer with
// success and get wrong: bodies in the framing with a trailing checksum, of which
// it would store the framing, and conditional completion of a multipart upload,
// of which it would ignore the condition.
func refuseUnsupported(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var what string
		switch {
		case r.Header.Get("X-Amz-Content-Sha256") == "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
			r.Header.Get("X-Amz-Content-Sha256") == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER":
			what = "a body with a trailing checksum (send a seekable body over plain HTTP)"
		case r.Method == http.MethodPost && r.URL.Query().Has("uploadId") &&
			(r.Header.Get("If-None-Match") != "" || r.Header.Get("If-Match") != ""):
			what = "a condition on CompleteMultipartUpload (use one PutObject)"
		default:
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusNotImplemented)
		fmt.Fprintf(w, "<Error><Code>NotImplemented</Code><Message>The local S3 server does not support %s.</Message></Error>", what)
	})
}

// endpoint is an HTTP server on a free loopback port.
type endpoint struct {
	server *http.Server
	url    string
	done   chan struct{}
}

func (e *endpoint) serve(name string, handler http.Handler) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the local %s server: %w", name, err)
	}
	e.server = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	e.url = "http://" + l.Addr().String()
	e.done = make(chan struct{})
	go func() {
		defer close(e.done)
		e.server.Serve(l)
	}()
	return nil
}

// URL is where the server listens, e.g. "http://127.0.0.1:34567". The SDK picks
// path-style addressing by itself because the host is an IP address.
func (e *endpoint) URL() string { return e.url }

// Close stops the server. Requests in flight have a second to end.
func (e *endpoint) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := e.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = e.server.Close()
	}
	<-e.done
	return err
}
