// Package summary is what a person looks at after a failure file was captured and
// replayed: how each batch came out, why features are in quarantine, and what
// stands in the target. The generator writes the expected one, the end-to-end
// test the real one, in the same words.
package summary

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// Summary is the outcome of a failure file.
type Summary struct {
	Records []Record
	Targets []Target
}

// Record is one dead letter after its replays.
type Record struct {
	Ordinal   int64 // in the file, from 0
	Batch     string
	FeatureID string // "" when the record names none
	Reason    string // of its quarantine; "" when it cleared
}

// Target counts the rows of one layer in the target.
type Target struct {
	Layer    string
	Rows     int
	Repaired int // of Rows, those whose shape was made valid
}

// String lays the summary out: a table of batches, one of reasons, one of the
// target, and the list of what is in quarantine.
func (s Summary) String() string {
	type count struct{ arrived, quarantined int }
	total := count{}
	batches := map[string]count{}
	reasons := map[[2]string]int{}
	var parked []Record
	for _, r := range s.Records {
		c := batches[r.Batch]
		c.arrived++
		total.arrived++
		if r.Reason != "" {
			c.quarantined++
			total.quarantined++
			reasons[[2]string{r.Reason, r.Batch}]++
			parked = append(parked, r)
		}
		batches[r.Batch] = c
	}

	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(table, "\t")
			}
			fmt.Fprint(table, c)
		}
		fmt.Fprintln(table)
	}
	outcome := func(name string, c count) {
		row(name, c.arrived, c.arrived-c.quarantined, c.quarantined, fmt.Sprintf("%.4f", float64(c.quarantined)/float64(max(c.arrived, 1))))
	}
	row("batch", "arrived", "cleared", "quarantined", "poison rate")
	for _, name := range sorted(batches, strings.Compare) {
		outcome(name, batches[name])
	}
	outcome("all", total)
	table.Flush()

	b.WriteByte('\n')
	row("reason", "batch", "features")
	for _, key := range sorted(reasons, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		row(key[0], key[1], reasons[key])
	}
	table.Flush()

	b.WriteByte('\n')
	row("layer", "rows in the target", "repaired")
	slices.SortFunc(s.Targets, func(a, b Target) int { return strings.Compare(a.Layer, b.Layer) })
	for _, t := range s.Targets {
		row(t.Layer, t.Rows, t.Repaired)
	}
	table.Flush()

	b.WriteByte('\n')
	row("record", "feature", "reason")
	slices.SortFunc(parked, func(a, b Record) int { return int(a.Ordinal - b.Ordinal) })
	for _, r := range parked {
		id := r.FeatureID
		if id == "" {
			id = "-"
		}
		row(r.Ordinal, id, r.Reason)
	}
	table.Flush()
	return b.String()
}

func sorted[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	return keys
}
