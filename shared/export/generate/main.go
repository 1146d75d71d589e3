// Command generate writes projjson.zst of package export: the definition, as PROJJSON,
// of every horizontal CRS of EPSG and ESRI, which GeoParquet wants in its metadata.
//
//	go generate ./shared/export
//
// It asks PROJ's database which there are and projinfo for the text (Debian: sqlite3,
// proj-bin). An ESRI code whose number EPSG uses too is left out: PostGIS numbers both
// alike. What does not define the CRS (scope, area of use, remarks) is dropped.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

func main() {
	projDB := flag.String("proj-db", "/usr/share/proj/proj.db", "PROJ's database")
	out := flag.String("out", "projjson.zst", "file to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *projDB, *out); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

const list = `
	SELECT code, auth_name FROM crs_view
	WHERE type IN ('geographic 2D', 'projected')
	  AND (auth_name = 'EPSG' OR auth_name = 'ESRI' AND code NOT IN (SELECT code FROM crs_view WHERE auth_name = 'EPSG'))
	ORDER BY CAST(code AS INTEGER)`

func run(ctx context.Context, projDB, out string) error {
	listed, err := exec.CommandContext(ctx, "sqlite3", "-separator", " ", projDB, list).Output()
	if err != nil {
		return fmt.Errorf("list the CRSs of %s: %w", projDB, err)
	}
	codes := strings.Split(strings.TrimSpace(string(listed)), "\n")
	lines := make([]string, len(codes))
	errs := make([]error, len(codes))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				code, authority, _ := strings.Cut(codes[i], " ")
				text, err := define(ctx, authority+":"+code)
				lines[i], errs[i] = code+"\t"+text+"\n", err
			}
		})
	}
	for i := range codes {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(zstd.MaxWindowSize>>2))
	if err != nil {
		return err
	}
	return os.WriteFile(out, enc.EncodeAll([]byte(strings.Join(lines, "")), nil), 0o644)
}

// asides are members of PROJJSON that describe a CRS without defining it.
var asides = []string{"scope", "area", "bbox", "usages", "remarks"}

func define(ctx context.Context, id string) (string, error) {
	text, err := exec.CommandContext(ctx, "projinfo", id, "-o", "PROJJSON", "--single-line", "-q").Output()
	if err != nil {
		return "", fmt.Errorf("define %s: %w", id, err)
	}
	// Member by member, so that numbers and order stay as PROJ writes them.
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return "", fmt.Errorf("define %s: %w", id, err)
	}
	var members []string
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return "", fmt.Errorf("define %s: %w", id, err)
		}
		if !slices.Contains(asides, name.(string)) {
			members = append(members, fmt.Sprintf("%q:%s", name, value))
		}
	}
	return "{" + strings.Join(members, ",") + "}", nil
}
