//go:build cgo

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/klauspost/compress/gzip"

	"geodlq/infra/local"
)

// measureMemory invokes the real bootstrap with large objects and prints what
// resident memory its process came to, beside that of one that captured next to nothing.
func measureMemory(ctx context.Context, url, dir string, gibibytes float64) (err error) {
	b, err := open(ctx, url, "", dir)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := b.close(ctx); err == nil {
			err = closeErr
		}
	}()
	if err := local.BuildBootstraps(ctx, dir, "capture"); err != nil {
		return err
	}
	size := int64(gibibytes * (1 << 30))
	records := int(size / 1217)
	lines := func(w io.Writer) error { return writeFailures(w, records, 1) }
	objects := []struct {
		name  string
		write func(io.Writer) error
	}{
		{"next to nothing", func(w io.Writer) error { return writeFailures(w, 1, 1) }},
		{"NDJSON", lines},
		{"NDJSON, gzip", func(w io.Writer) error { return compressed(w, lines) }},
		{"NDJSON of 300 batches, in turns", func(w io.Writer) error { return writeFailures(w, records, 300) }},
		{"collection, crs behind its features", func(w io.Writer) error { return writeCollection(w, size) }},
		{"a gzip bomb of twice the size", func(w io.Writer) error {
			return compressed(w, func(w io.Writer) error { return writeZeros(w, 2*size) })
		}},
	}
	runtime := int64(0)
	for i, o := range objects {
		report, answer, err := b.invoke(ctx, fmt.Sprintf("incoming/large-%d", i), o.write, size)
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		if i == 0 {
			runtime = report.MaxMemory
			fmt.Printf("%-36s %6.0f MB resident\n", o.name, float64(report.MaxMemory)/1e6)
			continue
		}
		fmt.Printf("%-36s %6.0f MB resident, %4.0f MB more than that; %v, %s\n", o.name, float64(report.MaxMemory)/1e6, float64(report.MaxMemory-runtime)/1e6, report.Duration.Round(time.Second), answer)
	}
	return nil
}

// invoke captures an object by a process of its own.
func (b *bench) invoke(ctx context.Context, key string, write func(io.Writer) error, limit int64) (local.Report, string, error) {
	var report local.Report
	if err := b.empty(ctx); err != nil {
		return report, "", err
	}
	path := filepath.Join(b.dir, "large")
	if err := makeFile(path, write); err != nil {
		return report, "", err
	}
	defer os.Remove(path)
	f, err := os.Open(path)
	if err != nil {
		return report, "", err
	}
	defer f.Close()
	put, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.inbox, Key: &key, Body: f})
	if err != nil {
		return report, "", err
	}
	env := []string{"DATABASE_URL=" + b.pool.Config().ConnString(), "MAX_OBJECT_BYTES=" + fmt.Sprint(limit+limit/8)}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "AWS_") || strings.HasPrefix(kv, "INBOX_BUCKET=") || strings.HasPrefix(kv, "DEAD_LETTER_BUCKET=") {
			env = append(env, kv)
		}
	}
	function, err := local.NewFunction(local.FunctionConfig{Name: "capture", Bootstrap: filepath.Join(b.dir, "capture"), Env: env, Timeout: 15 * time.Minute, Logs: os.Stderr})
	if err != nil {
		return report, "", err
	}
	defer function.Close()
	event, err := json.Marshal(map[string]string{"bucket": b.inbox, "key": key})
	if err != nil {
		return report, "", err
	}
	answer, report, err := function.InvokeReport(ctx, event)
	if err != nil {
		return report, "", err
	}
	_, err = b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.inbox, Key: &key, VersionId: put.VersionId})
	return report, string(answer), err
}

func writeCollection(w io.Writer, size int64) error {
	b := bufio.NewWriterSize(w, 1<<20)
	b.WriteString("{\n\"type\": \"FeatureCollection\",\n\"features\": [\n")
	for i, n := 0, int64(0); n < size; i++ {
		if i > 0 {
			b.WriteString(",\n")
		}
		x := 400000 + float64(i)*0.37
		k, err := fmt.Fprintf(b, `{ "type": "Feature", "id": %d, "properties": { "name": "parcel %d" }, "geometry": { "type": "Polygon", "coordinates": [ [ [ %.2f, 5000000.0 ], [ %.2f, 5000000.0 ], [ %.2f, 5000100.0 ], [ %.2f, 5000000.0 ] ] ] } }`, i, i, x, x+100, x+100, x)
		if err != nil {
			return err
		}
		n += int64(k)
	}
	b.WriteString("\n],\n\"crs\": { \"type\": \"name\", \"properties\": { \"name\": \"urn:ogc:def:crs:EPSG::26910\" } }\n}\n")
	return b.Flush()
}

func writeZeros(w io.Writer, size int64) error {
	zeros := make([]byte, 1<<20)
	for n := int64(0); n < size; n += int64(len(zeros)) {
		if _, err := w.Write(zeros); err != nil {
			return err
		}
	}
	return nil
}

func compressed(w io.Writer, write func(io.Writer) error) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := write(z); err != nil {
		return err
	}
	return z.Close()
}
