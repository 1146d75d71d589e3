package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"geodlq/shared/deadletter"
	"geodlq/testdata/summary"
)

func main() {
	dir := flag.String("dir", ".", "directory to write to")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	letters := failureFile()
	var file strings.Builder
	for _, l := range letters {
		file.WriteString(l.line)
		file.WriteByte('\n')
	}
	for name, content := range map[string]string{
		"county_parcels.ndjson":       file.String(),
		"county_parcels.expected.txt": expected(letters).String(),
		"roads.geojson":               roads(),
		"hydrants.geojsons":           hydrantSequence(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// expected is what must become of the failure file under parcels.contract.json.
func expected(letters []letter) summary.Summary {
	var s summary.Summary
	targets := map[string]summary.Target{}
	landed := map[string]bool{}
	for i, l := range letters {
		record := summary.Record{Ordinal: int64(i), Batch: l.batch, FeatureID: l.id, Reason: l.reason}
		if l.stray {
			record.Batch, record.FeatureID = deadletter.UnattributedBatch, ""
		}
		s.Records = append(s.Records, record)
		if l.reason != "" {
			continue
		}
		// The same feature with the same shape in the same CRS is one row, however often it failed.
		key := fmt.Sprint(l.id, " ", l.epsg, " ", l.edited)
		if landed[key] {
			continue
		}
		landed[key] = true
		layer := l.properties[0].value.(string)
		t := targets[layer]
		t.Layer = layer
		t.Rows++
		if l.repaired {
			t.Repaired++
		}
		targets[layer] = t
	}
	for _, t := range targets {
		s.Targets = append(s.Targets, t)
	}
	return s
}
