package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"geodlq/shared/inbox"
)

// S3 is what reading the inbox needs of an S3 client; *s3.Client is one.
type S3 interface {
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
}

const (
	// stall is how long a connection may give nothing before it is taken for dead.
	stall = 30 * time.Second
	// reconnects is how often in a row a download is taken up again without
	// having got any further.
	reconnects = 5
)

// Open opens the object and pins its version: all that is read of it belongs to one
// content. An empty versionID means the current one. The download has begun; the
// first call of the object's Open takes it over.
func Open(ctx context.Context, client S3, bucket, key, versionID string) (inbox.Object, error) {
	d := &download{ctx: ctx, client: client, get: s3.GetObjectInput{Bucket: &bucket, Key: &key}}
	if versionID != "" {
		d.get.VersionId = &versionID
	}
	out, err := d.connect()
	if err != nil {
		hint := ""
		if code := status(err); code == http.StatusNotFound || code == http.StatusForbidden {
			hint = " (was it removed before it was captured, or may the function not read it?)"
		}
		return inbox.Object{}, fmt.Errorf("%w%s", err, hint)
	}
	o := inbox.Object{
		Bucket: bucket, Key: key, ETag: strings.Trim(aws.ToString(out.ETag), `"`),
		LastModified: aws.ToTime(out.LastModified).UTC(), Metadata: map[string]string{},
	}
	for name, value := range out.Metadata {
		o.Metadata[strings.ToLower(name)] = value
	}
	d.get.IfMatch = out.ETag
	// "null" is the version of what was put while the bucket kept none. It can be
	// overwritten, so it identifies nothing.
	if v := aws.ToString(out.VersionId); v != "" && v != "null" {
		o.VersionID = v
		d.get.VersionId = &v
	}
	d.size = aws.ToInt64(out.ContentLength)
	again := *d
	var begun atomic.Bool
	o.Open = func(ctx context.Context) (io.ReadCloser, error) {
		if begun.CompareAndSwap(false, true) {
			d.ctx = ctx
			d.undo = context.AfterFunc(ctx, func() { d.cancel(context.Cause(ctx)) })
			return d, nil
		}
		d := &download{ctx: ctx, client: client, get: again.get, size: again.size}
		if _, err := d.connect(); err != nil {
			return nil, err
		}
		return d, nil
	}
	return o, nil
}

// download reads an object and takes up again what breaks off.
type download struct {
	ctx    context.Context
	client S3
	get    s3.GetObjectInput
	size   int64

	at     int64 // bytes read
	body   io.ReadCloser
	cancel context.CancelCauseFunc
	undo   func() bool // of what cancels the first connection with the reader's context
	timer  *time.Timer
	failed int // connections in a row that gave nothing
}

var errStalled = fmt.Errorf("no data for %v", stall)

func (d *download) connect() (*s3.GetObjectOutput, error) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	d.cancel = cancel
	d.timer = time.AfterFunc(stall, func() { cancel(errStalled) })
	get := d.get
	if d.at > 0 {
		get.Range = aws.String(fmt.Sprintf("bytes=%d-", d.at))
	}
	out, err := d.client.GetObject(ctx, &get)
	if err != nil {
		err = because(ctx, err)
		d.disconnect()
		hint := ""
		if status(err) == http.StatusPreconditionFailed {
			hint = ", which was overwritten meanwhile"
		}
		return nil, fmt.Errorf("read s3://%s/%s from byte %d%s: %w", *d.get.Bucket, *d.get.Key, d.at, hint, err)
	}
	d.body = out.Body
	d.timer.Stop()
	return out, nil
}

func (d *download) disconnect() {
	d.timer.Stop()
	if d.undo != nil {
		d.undo()
		d.undo = nil
	}
	d.cancel(nil) // first, so that closing does not read to the end
	if d.body != nil {
		d.body.Close()
		d.body = nil
	}
}

// Read implements io.Reader. Its errors are those of S3 and the network.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.body == nil {
			if err := d.reconnect(); err != nil {
				return 0, err
			}
		}
		d.timer.Reset(stall)
		n, err := d.body.Read(p)
		d.timer.Stop()
		d.at += int64(n)
		if n > 0 {
			d.failed = 0
		}
		switch {
		case err == nil:
			return n, nil
		case err == io.EOF && d.at >= d.size:
			return n, io.EOF
		case d.at >= d.size:
			// All is there, and yet wrong: the checksum of the object.
			return n, fmt.Errorf("read s3://%s/%s: %w", *d.get.Bucket, *d.get.Key, err)
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		}
		if d.ctx.Err() != nil {
			return n, context.Cause(d.ctx)
		}
		d.disconnect()
		if d.failed++; d.failed > reconnects {
			return n, fmt.Errorf("read s3://%s/%s from byte %d, after %d connections that gave nothing: %w", *d.get.Bucket, *d.get.Key, d.at, reconnects, err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (d *download) reconnect() error {
	wait := time.Duration(d.failed*d.failed) * 50 * time.Millisecond
	timer := time.NewTimer(wait/2 + rand.N(wait+1))
	defer timer.Stop()
	select {
	case <-d.ctx.Done():
		return context.Cause(d.ctx)
	case <-timer.C:
	}
	_, err := d.connect()
	return err
}

// Close ends the download.
func (d *download) Close() error {
	d.disconnect()
	return nil
}

// because puts the reason for which ctx was cancelled into err.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// status returns the HTTP status in err's chain, 0 where there is none.
func status(err error) int {
	var re *smithyhttp.ResponseError
	if errors.As(err, &re) {
		return re.HTTPStatusCode()
	}
	return 0
}
