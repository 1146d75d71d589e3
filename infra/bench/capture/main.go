//go:build cgo

// Command capture measures how fast failure files are taken in, beside the tools
// people would use instead, on one file and the same cores:
//
//	duckdb    read_ndjson -> one zstd Parquet file: no geometry decoded, nothing
//	          hashed, the feature as a JSON value or taken apart into a struct
//	parquet   capture without its queue: every record checked, its geometry decoded and
//	          hashed, zstd Parquet files
//	copy      \copy of the rows that capture queued into the same table, with its
//	          indexes and the triggers that keep the books
//	capture   from S3 to S3 and the queue
//
// Runs are interleaved and the median counts. CPU is that of this process; "copy" and
// "capture" keep PostgreSQL busy besides, "capture" the local S3 server, too.
//
// With -large it measures instead the memory that capture takes for a large object.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	records := flag.Int("records", 200_000, "records in the file, polygons of 33 vertices, 240 MB")
	rounds := flag.Int("rounds", 3, "interleaved runs of each; the median counts")
	large := flag.Bool("large", false, "measure the memory that a large object takes instead")
	gigabytes := flag.Float64("gib", 1, "with -large: size of the object in GiB, decompressed")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("bench capture: DATABASE_URL is not set; run it by make bench BENCH=capture")
	}
	dir, err := os.MkdirTemp("", "bench-capture-")
	if err != nil {
		log.Fatal("bench capture: ", err)
	}
	ctx := context.Background()
	if *large {
		err = measureMemory(ctx, url, dir, *gigabytes)
	} else {
		err = measureSpeed(ctx, url, dir, *records, *rounds)
	}
	if removeErr := os.RemoveAll(dir); err == nil {
		err = removeErr
	}
	if err != nil {
		log.Fatal("bench capture: ", err)
	}
}

// run is what one run took.
type run struct {
	wall, cpu time.Duration
	note      string
}

// contender is something that takes the file in.
type contender struct {
	name string
	run  func() (note string, err error)
	runs []run
}

func measureSpeed(ctx context.Context, url, dir string, records, rounds int) (err error) {
	path := filepath.Join(dir, "failures.ndjson")
	if err := makeFile(path, func(w io.Writer) error { return writeFailures(w, records, 1) }); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("%d records, %.0f MB, %d bytes each\n\n", records, float64(info.Size())/1e6, info.Size()/int64(records))
	b, err := open(ctx, url, path, dir)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := b.close(ctx); err == nil {
			err = closeErr
		}
	}()
	contenders := []*contender{
		{name: "duckdb, feature as JSON", run: func() (string, error) { return b.duckdb(ctx, true) }},
		{name: "duckdb, feature as struct", run: func() (string, error) { return b.duckdb(ctx, false) }},
		{name: "parquet", run: func() (string, error) { return b.parquet(ctx) }},
		{name: "capture", run: func() (string, error) { return b.capture(ctx) }},
		{name: "copy", run: func() (string, error) { return b.copy(ctx) }},
	}
	for range rounds {
		for _, c := range contenders {
			b.took = run{}
			began, cpu := time.Now(), cpuTime()
			note, err := c.run()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			took := b.took
			if took.wall == 0 {
				took = run{wall: time.Since(began), cpu: cpuTime() - cpu}
			}
			took.note = note
			c.runs = append(c.runs, took)
		}
	}
	fmt.Printf("%-26s %12s %10s %12s   %s\n", "", "records/s", "MB/s", "CPU us/rec", "")
	for _, c := range contenders {
		slices.SortFunc(c.runs, func(a, b run) int { return cmp.Compare(a.wall, b.wall) })
		m := c.runs[len(c.runs)/2]
		seconds := m.wall.Seconds()
		fmt.Printf("%-26s %12.0f %10.0f %12.1f   %s\n", c.name, float64(records)/seconds, float64(info.Size())/1e6/seconds,
			float64(m.cpu.Microseconds())/float64(records), m.note)
	}
	return nil
}

// cpuTime is the processor time this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func makeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
