package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"geodlq/shared/redrive"
)

// table prints an answer for a person.
func table(out io.Writer, action string, answer []byte) error {
	switch action {
	case "groups":
		return render(answer, out, groups)
	case "list":
		return render(answer, out, list)
	case "show":
		return render(answer, out, show)
	case "runs", "continue":
		return render(answer, out, runs)
	case "export":
		return render(answer, out, exported)
	case "audit":
		return render(answer, out, audit)
	}
	return render(answer, out, run1)
}

func render[A any](answer []byte, out io.Writer, print func(w io.Writer, a A)) error {
	var a A
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	print(w, a)
	return w.Flush()
}

// cell makes text fit for a terminal: no control characters, which a feature may
// bring, and no more than so many of the others.
func cell(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar || unicode.Is(unicode.Cf, r) {
			return '·'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	if s == "" {
		return "-"
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func groups(w io.Writer, a redrive.Groups) {
	fmt.Fprintln(w, "ROWS\tSTATUS\tBATCH\tREASON\tRULE\tFINGERPRINT\tMESSAGE")
	for _, g := range a.Groups {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Rows, cell(g.Status, 12), cell(g.BatchID, 30), cell(g.Reason, 30), cell(g.FailedRule, 40), cell(g.Fingerprint, 16), cell(g.Pattern, 60))
	}
	fmt.Fprintf(w, "%d rows in %d groups\n", a.Rows, a.Count)
}

func list(w io.Writer, a redrive.List) {
	fmt.Fprintln(w, "ID\tSTATUS\tBATCH\tFEATURE\tREASON\tRULE\tATTEMPTS\tREDRIVES\tFIRST SEEN\tMESSAGE")
	for _, r := range a.Rows {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", r.ID, cell(r.Status, 12), cell(r.BatchID, 30), cell(r.FeatureID, 24), cell(r.Reason, 30),
			cell(r.FailedRule, 40), r.Attempts, r.Redrives, stamp(r.FirstSeen), cell(r.Error, 60))
	}
	if a.Next != 0 {
		fmt.Fprintf(w, "more: -after %d\n", a.Next)
	}
}

func show(w io.Writer, a redrive.Shown) {
	line := func(name, value string) { fmt.Fprintf(w, "%s\t%s\n", name, value) }
	line("id", fmt.Sprint(a.ID))
	line("dlq_id", a.DLQID)
	line("feature", cell(a.FeatureID, 200))
	line("batch", cell(a.BatchID, 200))
	line("status", a.Status)
	line("reason", cell(a.Reason, 200))
	line("rule", cell(a.FailedRule, 200))
	line("message", cell(a.Error, 500))
	line("source CRS", fmt.Sprintf("%s (EPSG:%d)", cell(a.SourceCRS, 100), a.EPSG))
	line("attempts", fmt.Sprintf("%d, of these %d before the latest redrive; %d redrives; %d workers lost; %d upstream", a.Attempts, a.Forgiven, a.Redrives, a.LostLeases, a.Upstream))
	line("first seen", stamp(a.FirstSeen))
	line("last change", stamp(a.LastSeen))
	if a.Overrides != nil {
		line("fixed", cell(string(a.Overrides), 500))
	}
	if a.Where != nil {
		line("where", fmt.Sprintf("%.6f, %.6f (longitude, latitude), %s of %d positions", a.Where.Lon, a.Where.Lat, a.Where.Type, a.Where.Vertices))
	}
	if a.Landed != nil {
		line("landed", fmt.Sprintf("processed_features %d at %s", a.Landed.ID, stamp(a.Landed.ProcessedAt)))
	}
	if a.SourceObject != "" {
		line("from", cell(a.SourceObject, 300))
	}
	for _, e := range a.History {
		line("history", fmt.Sprintf("%s  %s  attempt %d  %s  %s  %s", stamp(e.At), e.Event, e.Attempt, cell(e.Reason, 40), cell(e.Error, 100), cell(e.Actor, 60)))
	}
	switch {
	case a.Payload != nil:
		line("payload", cell(*a.Payload, 2000))
	case a.PayloadBytes > 0:
		line("payload", fmt.Sprintf("%d bytes that are no text; -json has them", a.PayloadBytes))
	}
}

func runs(w io.Writer, a redrive.Runs) {
	fmt.Fprintln(w, "RUN\tACTION\tSTATE\tHANDLED\tOF\tCHANGED\tSKIPPED\tWOULD CLEAR\tWOULD FAIL\tACTOR\tSTARTED")
	for _, r := range a.Runs {
		action := r.Action
		if r.DryRun {
			action += " (dry run)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", r.ID, action, r.State, r.Handled, r.Members, r.Counts.Changed, r.Counts.Skipped,
			r.Counts.WouldClear, r.Counts.WouldFail, cell(r.Actor, 30), stamp(r.StartedAt))
	}
}

func run1(w io.Writer, r redrive.Run) {
	runs(w, redrive.Runs{Runs: []redrive.Run{r}})
	if r.StoppedBecause != "" {
		fmt.Fprintf(w, "stopped: %s\n", r.StoppedBecause)
	}
	causes := r.Counts.Causes
	if c := r.Counts.Canary; c != nil {
		fmt.Fprintf(w, "canary: %d of %d cleared\n", c.Cleared, c.Tried)
		causes = append(causes, c.Causes...)
	}
	for _, c := range causes {
		fmt.Fprintf(w, "%d\t%s\t%s\n", c.Rows, cell(string(c.Reason), 40), cell(c.Rule, 60))
	}
	if r.Action == "restore" {
		fmt.Fprintf(w, "%d rows in the files; %d were there already\n", r.Counts.Rows, r.Counts.There)
	}
	if r.DryRun {
		fmt.Fprintln(w, "nothing was changed; -for-real does it")
	}
}

func exported(w io.Writer, a redrive.Export) {
	fmt.Fprintln(w, "FORMAT\tCRS\tROWS\tBYTES\tFILE")
	for _, f := range a.Files {
		crs := "-"
		if f.CRS != 0 {
			crs = fmt.Sprintf("EPSG:%d", f.CRS)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", f.Format, crs, f.Rows, f.Bytes, f.URI)
	}
	fmt.Fprintf(w, "%d rows, %d of them on the map\n", a.Rows, a.Mapped)
}

func audit(w io.Writer, a redrive.Audit) {
	fmt.Fprintln(w, "AT\tACTOR\tACTION\tRUN\tCOUNTS\tREQUEST")
	for _, e := range a.Entries {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", stamp(e.At), cell(e.Actor, 40), e.Action, cell(e.Run, 36), cell(string(e.Counts), 80), cell(string(e.Request), 120))
	}
}
