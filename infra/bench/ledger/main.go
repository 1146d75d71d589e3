// Command ledger measures what the books cost:
//
//	rows   what the ledger adds to taking rows in and to draining them: the same
//	       work in two schemas, one of which has neither the ledger's triggers nor
//	       the index that the age of the oldest pending row is read from
//	fold   how long a fold over a large ledger takes
//	sizes  how a run of metrics grows with the rows that lie in the queue
//
// Runs are interleaved and the median counts. Beside the time it shows processor
// time (of this process and of its one backend), which says more on a machine that
// does other things at the same time; it takes a superuser and Linux to read the
// backend's.
//
// It needs DATABASE_URL; it works in schemas of its own and drops them at the end.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 9, "interleaved runs of each; the median counts")
	rows := flag.Int("rows", 5_000, "rows a run takes in or drains")
	entries := flag.Int("entries", 1_000_000, "ledger entries to fold")
	largest := flag.Int("largest", 1_000_000, "rows in the larger queue")
	parts := flag.String("parts", "rows,fold,sizes", "what to measure")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("bench ledger: DATABASE_URL is not set; run it by make bench BENCH=ledger")
	}
	ctx := context.Background()
	for _, part := range strings.Split(*parts, ",") {
		var err error
		switch part {
		case "rows":
			err = rowCost(ctx, url, *rounds, *rows)
		case "fold":
			err = foldCost(ctx, url, min(*rounds, 5), *entries)
		case "sizes":
			err = sizeCost(ctx, url, *rounds, *largest)
		default:
			err = fmt.Errorf("there is no part %q", part)
		}
		if err != nil {
			log.Fatal("bench ledger: ", err)
		}
	}
}

// rowCost compares work with and without the ledger.
func rowCost(ctx context.Context, url string, rounds, rows int) error {
	progress("taking in and draining %d rows, %d rounds", rows, rounds)
	with, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer with.close(ctx)
	without, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer without.close(ctx)
	if err := without.exec(ctx,
		`DROP TRIGGER ledger_insert ON failed_geotasks`, `DROP TRIGGER ledger_update ON failed_geotasks`,
		`DROP TRIGGER ledger_insert ON failed_geotasks_history`, `DROP INDEX failed_geotasks_waiting`); err != nil {
		return err
	}
	works := []struct {
		name          string
		prepare, work func(*bench, context.Context, int) error
	}{
		{"enqueue", (*bench).empty, (*bench).enqueueGood},
		{"claim", (*bench).refill, (*bench).claim},
		{"drain, all cleared", (*bench).refill, (*bench).drain},
		{"drain, all quarantined", (*bench).refillBad, (*bench).drain},
	}
	costs := make(map[string][2][]cost)
	for round := range rounds {
		for _, w := range works {
			sides := costs[w.name]
			for i := range sides {
				side := (i + round) % 2 // which goes first alternates
				b := []*bench{without, with}[side]
				if err := w.prepare(b, ctx, rows); err != nil {
					return err
				}
				c, err := b.measure(ctx, func() error { return w.work(b, ctx, rows) })
				if err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
				sides[side] = append(sides[side], c)
			}
			costs[w.name] = sides
		}
	}
	fmt.Printf("\n| %d rows | without | with the ledger | adds | processor without | with | adds |\n| --- | --- | --- | --- | --- | --- | --- |\n", rows)
	for _, w := range works {
		before, after := median(costs[w.name][0]), median(costs[w.name][1])
		fmt.Printf("| %s | %.0f ms | %.0f ms | %+.1f %% | %.0f ms | %.0f ms | %+.1f %% |\n", w.name,
			ms(before.wall), ms(after.wall), more(before.wall, after.wall), ms(before.cpu), ms(after.cpu), more(before.cpu, after.cpu))
	}
	return nil
}

// foldCost times a fold over a backlog.
func foldCost(ctx context.Context, url string, rounds, entries int) error {
	progress("folding %d ledger entries, %d rounds", entries, rounds)
	b, err := open(ctx, url)
	if err != nil {
		return err
	}
	defer b.close(ctx)
	var costs []cost
	for range rounds {
		if err := b.fillLedger(ctx, entries); err != nil {
			return err
		}
		c, err := b.measure(ctx, func() error {
			n, err := b.books.Fold(ctx)
			if err == nil && n != int64(entries) {
				err = fmt.Errorf("folded %d entries, want %d", n, entries)
			}
			return err
		})
		if err != nil {
			return err
		}
		costs = append(costs, c)
	}
	m := median(costs)
	fmt.Printf("\n| fold | time | entries/s | processor |\n| --- | --- | --- | --- |\n| %d entries | %.2f s | %.0f | %.2f s |\n",
		entries, m.wall.Seconds(), float64(entries)/m.wall.Seconds(), m.cpu.Seconds())
	return nil
}

// sizeCost times a run of metrics after the same work on a small and a large queue.
func sizeCost(ctx context.Context, url string, rounds, largest int) error {
	sizes := []int{10_000, largest}
	var benches []*bench
	for _, n := range sizes {
		progress("filling a queue with %d rows", n)
		b, err := open(ctx, url)
		if err != nil {
			return err
		}
		defer b.close(ctx)
		if err := b.fill(ctx, n); err != nil {
			return err
		}
		benches = append(benches, b)
	}
	progress("running metrics, %d rounds", rounds)
	costs, checks := make([][]cost, len(sizes)), make([][]cost, len(sizes))
	for range rounds {
		for i, b := range benches {
			if err := b.activity(ctx); err != nil {
				return err
			}
			c, err := b.measure(ctx, func() error { return b.metrics(ctx) })
			if err != nil {
				return err
			}
			costs[i] = append(costs[i], c)
			if c, err = b.measure(ctx, func() error { return b.check(ctx) }); err != nil {
				return err
			}
			checks[i] = append(checks[i], c)
		}
	}
	fmt.Printf("\n| rows in the queue | run of metrics | processor | check (full count) |\n| --- | --- | --- | --- |\n")
	for i, n := range sizes {
		m, c := median(costs[i]), median(checks[i])
		fmt.Printf("| %d | %.1f ms | %.1f ms | %.0f ms |\n", n, ms(m.wall), ms(m.cpu), ms(c.wall))
	}
	return nil
}

// cost is what one run took: time, and processor time of client and backend.
type cost struct{ wall, cpu time.Duration }

func median(costs []cost) cost {
	of := func(get func(cost) time.Duration) time.Duration {
		var all []time.Duration
		for _, c := range costs {
			all = append(all, get(c))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return cost{of(func(c cost) time.Duration { return c.wall }), of(func(c cost) time.Duration { return c.cpu })}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func more(before, after time.Duration) float64 {
	return 100 * (float64(after)/float64(before) - 1)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
