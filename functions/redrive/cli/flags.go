package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"geodlq/shared/redrive"
)

// command is what a command line asks for.
type command struct {
	action  string
	request map[string]any

	function string // Lambda function; "" is the local stack
	stack    string // file of the local stack's settings
	json     bool
	once     bool
}

// texts is a flag that may be given several times, or once with commas.
type texts []string

func (t *texts) String() string { return strings.Join(*t, ",") }

func (t *texts) Set(s string) error {
	if s == "" {
		return errors.New("it is empty")
	}
	*t = append(*t, s)
	return nil
}

const usage = `usage: redrive <action> [flags]

  groups            how many rows there are of each cause, worst first
  list              rows
  show ID           one row with its payload and history; ID is the id or the dlq_id
  requeue           rows back into the queue; says what would become of them unless -for-real
  fix               attach changes to rows (-source-crs, -set, -rename, -geometry)
  discard           give rows up (-because)
  export            rows to S3: GeoJSON text sequence, GeoParquet, HTML page with a map
  restore           rows back from the archive (-batch, -from, -to)
  runs, run ID      how far bulk acts are
  pause ID, resume ID, cancel ID, continue [ID]
  audit             who did what

Rows are selected by -batch, -status, -reason, -rule, -fingerprint, -feature, -source-crs,
-bbox, -since, -until, -attempts, -redrives, -contract, -not-contract, -id, -dlq-id, or -all.
"redrive <action> -h" has the flags of an action.
`

// parse reads a command line.
func parse(args []string, messages io.Writer) (*command, error) {
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		fmt.Fprint(messages, usage)
		return nil, flag.ErrHelp
	}
	c := &command{action: args[0], request: map[string]any{"action": args[0]}}
	if !slices.Contains(redrive.Actions(), c.action) {
		fmt.Fprint(messages, usage)
		return nil, fmt.Errorf("there is no action %q", c.action)
	}
	fs := flag.NewFlagSet("redrive "+c.action, flag.ContinueOnError)
	fs.SetOutput(messages)
	fs.StringVar(&c.function, "function", os.Getenv("REDRIVE_FUNCTION"), "name or ARN of the deployed function (REDRIVE_FUNCTION); empty: the local stack")
	fs.StringVar(&c.stack, "stack", ".local/stack.env", "settings of the local stack")
	fs.BoolVar(&c.json, "json", false, "print the answer as JSON")
	fs.BoolVar(&c.once, "once", false, "one invocation; what is left of a run goes on with continue")
	finish := flagsOf(c, fs)
	// Flags may stand before and after what an action is about.
	var rest []string
	for left := args[1:]; ; {
		if err := fs.Parse(left); err != nil {
			return nil, err
		}
		if left = fs.Args(); len(left) == 0 {
			break
		}
		rest, left = append(rest, left[0]), left[1:]
	}
	return c, finish(rest)
}

// flagsOf declares the flags of an action. The function it returns puts them into the request.
func flagsOf(c *command, fs *flag.FlagSet) func(rest []string) error {
	var steps []func() error
	subject := func([]string) error { return nil }
	switch c.action {
	case "groups", "list", "requeue", "fix", "discard", "export":
		steps = append(steps, filterFlags(c, fs))
	}
	limit := func(meaning string) {
		n := fs.Int64("limit", 0, meaning)
		steps = append(steps, func() error { return c.set("limit", *n, *n != 0) })
	}
	switch c.action {
	case "groups":
		var by texts
		fs.Var(&by, "by", "group by batch_id, status, reason, failed_rule, fingerprint; may be repeated")
		steps = append(steps, func() error { return c.set("by", by, by != nil) })
		limit("most groups")
	case "list":
		after := fs.Int64("after", 0, "the page after this id")
		steps = append(steps, func() error { return c.set("after", *after, *after != 0) })
		limit("rows a page")
	case "show":
		subject = func(rest []string) error {
			if len(rest) != 1 {
				return errors.New("show: want one id or dlq_id")
			}
			if id, err := strconv.ParseInt(rest[0], 10, 64); err == nil {
				return c.set("id", id, true)
			}
			return c.set("dlq_id", rest[0], true)
		}
	case "requeue":
		steps = append(steps, bulkFlags(c, fs))
		canary := fs.Int64("canary", 0, "rows to try for real first")
		share := fs.Float64("canary-share", -1, "share of the canary that must clear (0.9)")
		steps = append(steps, func() error { return c.set("canary", *canary, *canary != 0) }, func() error { return c.set("canary_share", *share, *share >= 0) })
	case "fix":
		steps = append(steps, bulkFlags(c, fs), fixFlags(c, fs))
	case "discard":
		steps = append(steps, bulkFlags(c, fs))
		because := fs.String("because", "", "why they are given up")
		steps = append(steps, func() error { return c.set("reason", *because, *because != "") })
	case "export":
		var formats texts
		fs.Var(&formats, "format", "geojsonseq, geoparquet or html; may be repeated; all by default")
		title := fs.String("title", "", "of the page")
		steps = append(steps, actorFlags(c, fs), func() error { return c.set("formats", formats, formats != nil) }, func() error { return c.set("title", *title, *title != "") })
		limit("most rows")
	case "restore":
		var batches texts
		fs.Var(&batches, "batch", "batch or glob; may be repeated")
		from, to := fs.String("from", "", "first day, as 2026-11-30"), fs.String("to", "", "last day")
		lost := fs.Bool("target-lost", false, "the target table is lost too: land everything again")
		real := fs.Bool("for-real", false, "do it; otherwise it says what it would do")
		steps = append(steps, actorFlags(c, fs), func() error { return c.set("batch_id", batches, batches != nil) }, func() error {
			return c.set("date", map[string]string{"from": *from, "to": *to}, *from+*to != "")
		}, func() error { return c.set("target_lost", true, *lost) }, func() error { return c.set("dry_run", false, *real) })
	case "runs":
		var states texts
		fs.Var(&states, "state", "running, paused, stopped, cancelled or done; may be repeated")
		steps = append(steps, func() error { return c.set("state", states, states != nil) })
		limit("most runs")
	case "audit":
		var actors texts
		fs.Var(&actors, "actor", "who; glob; may be repeated")
		steps = append(steps, func() error { return c.set("actor", actors, actors != nil) })
		limit("most entries")
	case "pause", "resume", "cancel":
		steps = append(steps, actorFlags(c, fs))
	}
	switch c.action {
	case "run", "pause", "resume", "cancel", "continue":
		subject = func(rest []string) error {
			if len(rest) > 1 || len(rest) == 0 && c.action != "continue" {
				return fmt.Errorf("%s: want the id of one run", c.action)
			}
			return c.set("run", strings.Join(rest, ""), len(rest) == 1)
		}
	case "show":
	default:
		subject = func(rest []string) error {
			if len(rest) > 0 {
				return fmt.Errorf("%s: what is %q for? rows are selected by flags", c.action, rest[0])
			}
			return nil
		}
	}
	return func(rest []string) error {
		if err := subject(rest); err != nil {
			return err
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return fmt.Errorf("%s: %w", c.action, err)
			}
		}
		return nil
	}
}

// set puts a member into the request if it was given.
func (c *command) set(name string, value any, given bool) error {
	if given {
		c.request[name] = value
	}
	return nil
}

func filterFlags(c *command, fs *flag.FlagSet) func() error {
	filter := map[string]any{}
	lists := map[string]*texts{}
	list := func(flagName, member, meaning string) {
		lists[member] = new(texts)
		fs.Var(lists[member], flagName, meaning+"; may be repeated")
	}
	list("batch", "batch_id", "batch or glob")
	list("status", "status", "pending, quarantined, discarded or replayed")
	list("reason", "reason", "reason or glob")
	list("rule", "failed_rule", "failed rule or glob")
	list("fingerprint", "fingerprint", "cause, as groups shows it")
	list("feature", "feature_id", "feature or glob")
	list("crs", "source_crs", `source CRS in any spelling, or "none"`)
	list("contract", "contract_version", `contract of the latest attempt, or "current"`)
	list("not-contract", "not_contract_version", `any contract but this, or "current"`)
	list("dlq-id", "dlq_id", "dlq_id")
	var ids texts
	fs.Var(&ids, "id", "id; may be repeated")
	all := fs.Bool("all", false, "every row")
	box := fs.String("bbox", "", "west,south,east,north in degrees")
	since, until := fs.String("since", "", "first seen from, a day or a time"), fs.String("until", "", "first seen before")
	attempts, redrives := fs.String("attempts", "", "attempts since the latest redrive: 3, 2-5, 2- or -5"), fs.String("redrives", "", "redrives: 3, 2-5, 2- or -5")
	return func() error {
		for member, values := range lists {
			if *values != nil {
				filter[member] = *values
			}
		}
		if ids != nil {
			numbers := []int64{}
			for _, id := range ids {
				n, err := strconv.ParseInt(id, 10, 64)
				if err != nil {
					return fmt.Errorf("-id %q is no whole number", id)
				}
				numbers = append(numbers, n)
			}
			filter["id"] = numbers
		}
		if *all {
			filter["all"] = true
		}
		if *box != "" {
			var numbers []float64
			for part := range strings.SplitSeq(*box, ",") {
				n, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
				if err != nil {
					return fmt.Errorf("-bbox %q: want west,south,east,north", *box)
				}
				numbers = append(numbers, n)
			}
			filter["bbox"] = numbers
		}
		period := map[string]string{}
		if *since != "" {
			period["from"] = *since
		}
		if *until != "" {
			period["to"] = *until
		}
		if len(period) > 0 {
			filter["first_seen"] = period
		}
		for member, text := range map[string]string{"attempts": *attempts, "redrives": *redrives} {
			if text == "" {
				continue
			}
			r, err := numberRange(text)
			if err != nil {
				return fmt.Errorf("-%s %q: want 3, 2-5, 2- or -5", member, text)
			}
			filter[member] = r
		}
		c.request["filter"] = filter
		return nil
	}
}

// numberRange reads 3, 2-5, 2- or -5.
func numberRange(text string) (map[string]int, error) {
	r := map[string]int{}
	low, high, dash := strings.Cut(text, "-")
	if !dash {
		high = low
	}
	for name, s := range map[string]string{"min": low, "max": high} {
		if s == "" {
			continue
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, err
		}
		r[name] = n
	}
	return r, nil
}

func actorFlags(c *command, fs *flag.FlagSet) func() error {
	who := ""
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	actor := fs.String("actor", who, "who asks, for the audit table")
	why := new(string)
	if c.action != "pause" && c.action != "resume" && c.action != "cancel" {
		why = fs.String("why", "", "why, for the audit table")
	}
	return func() error {
		c.set("why", *why, *why != "")
		return c.set("actor", *actor, *actor != "")
	}
}

func bulkFlags(c *command, fs *flag.FlagSet) func() error {
	real := fs.Bool("for-real", false, "do it; otherwise it says what would happen")
	limit := fs.Int64("limit", 0, "most rows, the oldest")
	rate := fs.Float64("rate", 0, "most rows a second")
	who := actorFlags(c, fs)
	return func() error {
		c.set("dry_run", false, *real)
		c.set("limit", *limit, *limit != 0)
		c.set("rate", *rate, *rate != 0)
		return who()
	}
}

func fixFlags(c *command, fs *flag.FlagSet) func() error {
	whole := fs.String("overrides", "", "all changes as JSON, in place of the flags below")
	crs := fs.String("source-crs", "", "the CRS the geometry really is in")
	geometry := fs.String("geometry", "", "GeoJSON geometry in place of the feature's, in its source CRS")
	var set, rename texts
	fs.Var(&set, "set", "attribute=value; the value is JSON, or text where it is none; may be repeated")
	fs.Var(&rename, "rename", "old=new, of an attribute; may be repeated")
	replace := fs.Bool("replace", false, "in place of earlier fixes; with no change: take them away")
	requeue := fs.Bool("requeue", false, "requeue the rows too")
	return func() error {
		overrides := map[string]any{}
		if *crs != "" {
			overrides["source_crs"] = *crs
		}
		if *geometry != "" {
			if !json.Valid([]byte(*geometry)) {
				return fmt.Errorf("-geometry is no JSON: %s", *geometry)
			}
			overrides["geometry"] = json.RawMessage(*geometry)
		}
		values, err := pairs(set)
		if err != nil {
			return fmt.Errorf("-set %w", err)
		}
		if len(values) > 0 {
			typed := map[string]any{}
			for name, text := range values {
				if json.Valid([]byte(text)) {
					typed[name] = json.RawMessage(text)
				} else {
					typed[name] = text
				}
			}
			overrides["set"] = typed
		}
		names, err := pairs(rename)
		if err != nil {
			return fmt.Errorf("-rename %w", err)
		}
		if len(names) > 0 {
			overrides["rename"] = names
		}
		switch {
		case *whole != "" && len(overrides) > 0:
			return errors.New("-overrides stands beside other changes; give one of the two")
		case *whole != "" && !json.Valid([]byte(*whole)):
			return fmt.Errorf("-overrides is no JSON: %s", *whole)
		case *whole != "":
			c.request["overrides"] = json.RawMessage(*whole)
		default:
			c.request["overrides"] = overrides
		}
		c.set("replace", true, *replace)
		return c.set("requeue", true, *requeue)
	}
}

func pairs(list texts) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q: want name=value", s)
		}
		out[name] = value
	}
	return out, nil
}
