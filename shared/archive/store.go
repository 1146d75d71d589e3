package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"geodlq/shared/writeonce"
)

// S3 is what the store needs of an S3 client; *s3.Client is one.
type S3 interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
}

// Store puts archive files into their bucket, each once.
type Store struct {
	client S3
	bucket string
}

// NewStore returns the store in bucket.
func NewStore(client S3, bucket string) *Store { return &Store{client: client, bucket: bucket} }

// Outcome says what became of a file.
type Outcome int

// The outcomes of [Store.Put].
const (
	Created      Outcome = iota + 1 // the file is new
	AlreadyThere                    // an earlier attempt, or one at the same time, stored the same rows
)

// Stored is a file that is durable.
type Stored struct {
	Outcome Outcome
	Bytes   int64
	SHA256  string // hexadecimal
}

// MismatchError says that a key holds other rows than those that belong there. No
// retry cures it: nothing is overwritten, and a person must look.
type MismatchError struct {
	Bucket, Key string
	Detail      string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("s3://%s/%s holds other rows than those that belong there: %s; it was left as it is", e.Bucket, e.Key, e.Detail)
}

// metaDigest is the user metadata that holds the SHA-256 of a file.
const metaDigest = "sha256"

// headFrom is the size from which it is cheaper to ask first whether a file is
// there than to send it in vain.
const headFrom = 1 << 20

// Put stores the file that b holds under key, unless it is there. A file that is
// there is compared: the same bytes, or else the same dead letters in the same
// order, as another version of this program may have written them. Anything else
// is a [MismatchError]. When Put returns without an error, the file is durable, and
// what it returns describes the file that is there.
func (s *Store) Put(ctx context.Context, key string, b *Buffer) (Stored, error) {
	digest := digestOf(b)
	if b.Len() >= headFrom {
		there, err := s.compare(ctx, key, digest, b)
		if err != nil || there.Outcome != 0 {
			return there, err
		}
	}
	for try := 1; ; try++ {
		created, err := writeonce.Put(ctx, s.client, &s3.PutObjectInput{
			Bucket: &s.bucket, Key: &key, Body: b.Reader(), ContentLength: aws.Int64(b.Len()),
			ContentType: aws.String(ContentType), Metadata: map[string]string{metaDigest: digest},
		})
		if err != nil {
			return Stored{}, fmt.Errorf("store archive file: %w", err)
		}
		if created {
			return Stored{Created, b.Len(), digest}, nil
		}
		there, err := s.compare(ctx, key, digest, b)
		if err != nil || there.Outcome != 0 {
			return there, err
		}
		// It was there and is gone: somebody removed it just now.
		if try == writeonce.Tries {
			return Stored{}, fmt.Errorf("store archive file s3://%s/%s, tried %d times: it is there whenever it is written, and gone whenever it is read", s.bucket, key, try)
		}
		if err := writeonce.Pause(ctx, try); err != nil {
			return Stored{}, fmt.Errorf("store archive file s3://%s/%s: %w", s.bucket, key, err)
		}
	}
}

// compare returns what key holds if that is what b holds, and nothing where it holds nothing.
func (s *Store) compare(ctx context.Context, key, digest string, b *Buffer) (Stored, error) {
	head, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: &key})
	switch {
	case err == nil:
	case writeonce.Status(err) == http.StatusNotFound:
		return Stored{}, nil
	default:
		return Stored{}, fmt.Errorf("look for archive file s3://%s/%s (s3:ListBucket on the bucket is needed to tell absent from forbidden): %w", s.bucket, key, err)
	}
	if head.Metadata[metaDigest] == digest {
		return Stored{AlreadyThere, b.Len(), digest}, nil
	}
	there, err := s.Get(ctx, key)
	if err != nil {
		return Stored{}, err
	}
	detail, err := difference(there, b)
	if err != nil {
		return Stored{}, fmt.Errorf("compare with archive file s3://%s/%s: %w", s.bucket, key, err)
	}
	if detail != "" {
		return Stored{}, &MismatchError{Bucket: s.bucket, Key: key, Detail: detail}
	}
	return Stored{AlreadyThere, there.Len(), digestOf(there)}, nil
}

// Get reads the file under key into memory.
func (s *Store) Get(ctx context.Context, key string) (*Buffer, error) {
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	if err != nil {
		return nil, fmt.Errorf("read archive file s3://%s/%s: %w", s.bucket, key, err)
	}
	defer out.Body.Close()
	b := new(Buffer)
	if _, err := io.Copy(b, out.Body); err != nil {
		return nil, fmt.Errorf("read archive file s3://%s/%s: %w", s.bucket, key, err)
	}
	return b, nil
}

// difference says how the dead letters of two files differ, and "" where they are
// the same ones in the same order. Only which they are counts: what a version of
// this program or its settings made of a record may differ.
func difference(there, ours *Buffer) (string, error) {
	a, err := NewReader(there.Reader())
	if errors.Is(err, ErrNotArchive) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	b, err := NewReader(ours.Reader())
	if err != nil {
		return "", err
	}
	if a.NumRows() != b.NumRows() {
		return fmt.Sprintf("it has %d rows, not %d", a.NumRows(), b.NumRows()), nil
	}
	next := func(r *Reader) func() (*Row, error) {
		rows, at, n := make([]Row, readBatch), 0, 0
		return func() (row *Row, err error) {
			if at == n {
				at = 0
				if n, err = r.Read(rows); err != nil {
					return nil, err
				}
			}
			at++
			return &rows[at-1], nil
		}
	}
	nextA, nextB := next(a), next(b)
	for range a.NumRows() {
		x, err := nextA()
		if err != nil {
			return "", err
		}
		y, err := nextB()
		if err != nil {
			return "", err
		}
		if x.SourceObject != y.SourceObject || x.SourceRecord != y.SourceRecord {
			return fmt.Sprintf("it has record %d of %s where record %d of %s belongs",
				x.SourceRecord, x.SourceObject, y.SourceRecord, y.SourceObject), nil
		}
	}
	return "", nil
}

func digestOf(b *Buffer) string {
	h := sha256.New()
	b.writeTo(h)
	return hex.EncodeToString(h.Sum(nil))
}

func (b *Buffer) writeTo(h hash.Hash) {
	for _, seg := range b.segments {
		h.Write(seg)
	}
}
