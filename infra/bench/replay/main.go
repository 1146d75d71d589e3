// Command replay measures how fast the queue drains, beside what people do instead:
//
//	loop    the row-at-a-time loop that everybody starts with: claim 50 in a
//	        transaction, transform, one INSERT and one UPDATE a row, commit
//	sql     one set-based SQL statement a worker that claims, transforms with
//	        PROJ, inserts and updates everything
//	geodlq  the replay engine
//
// All three take the same rows (polygons of 33 vertices with five attributes, UTM
// zone 10N) to the same result: valid geometry in EPSG:3857, attributes as jsonb, the
// row settled. With -sizes it measures instead how the cost of a claim and of a drain
// grows with the rows that lie in the table.
//
// It needs DATABASE_URL; it works in a schema of its own and drops it at the end.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"time"
)

func main() {
	log.SetFlags(0)
	rows := flag.Int("rows", 200_000, "rows a run of sql and geodlq drains; loop drains a tenth, its rate does not depend on it")
	rounds := flag.Int("rounds", 3, "interleaved runs of each; the median counts")
	sizes := flag.Bool("sizes", false, "measure growth with 10 thousand, 1 million and 10 million rows in the table instead")
	largest := flag.Int("largest", 10_000_000, "with -sizes: rows in the largest table")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("bench replay: DATABASE_URL is not set; run it by make bench BENCH=replay")
	}
	ctx := context.Background()
	b, err := open(ctx, url)
	if err != nil {
		log.Fatal("bench replay: ", err)
	}
	if *sizes {
		err = b.growth(ctx, *largest)
	} else {
		err = b.speed(ctx, *rows, *rounds)
	}
	if closeErr := b.close(ctx); err == nil {
		err = closeErr
	}
	if err != nil {
		log.Fatal("bench replay: ", err)
	}
}

// speed prints rows a second of the three at 1, 2 and 4 workers.
func (b *bench) speed(ctx context.Context, rows, rounds int) error {
	progress("making %d dead letters", rows)
	if err := b.makeRows(ctx, rows); err != nil {
		return err
	}
	ways := []struct {
		name  string
		rows  int
		drain func(context.Context, int) error
	}{
		{"loop", max(rows/10, 1000), b.loop},
		{"sql", rows, b.sql},
		{"geodlq", rows, b.geodlq},
	}
	rates, costs := map[string][]float64{}, map[string][]float64{}
	key := func(way string, workers int) string { return fmt.Sprint(way, workers) }
	for round := range rounds {
		for _, workers := range []int{1, 2, 4} {
			for _, w := range ways {
				if err := b.reset(ctx, w.rows); err != nil {
					return err
				}
				before, err := b.cpuTime(ctx)
				if err != nil {
					return err
				}
				start := time.Now()
				if err := w.drain(ctx, workers); err != nil {
					return fmt.Errorf("%s with %d workers: %w", w.name, workers, err)
				}
				took := time.Since(start)
				after, err := b.cpuTime(ctx)
				if err != nil {
					return err
				}
				cost := float64((after - before).Microseconds()) / float64(w.rows)
				costs[key(w.name, workers)] = append(costs[key(w.name, workers)], cost)
				if err := b.verify(ctx, w.rows); err != nil {
					return fmt.Errorf("%s with %d workers: %w", w.name, workers, err)
				}
				rate := float64(w.rows) / took.Seconds()
				rates[key(w.name, workers)] = append(rates[key(w.name, workers)], rate)
				progress("round %d of %d: %-6s %d workers %7.0f rows/s, %4.0f µs of processor a row", round+1, rounds, w.name, workers, rate, cost)
			}
		}
	}
	fmt.Printf("\nrows a second, median of %d interleaved runs, %d rows\n\n", rounds, rows)
	fmt.Println("| workers | loop | sql | geodlq | geodlq / loop | geodlq / sql | processor µs a row: loop | sql | geodlq |")
	fmt.Println("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, workers := range []int{1, 2, 4} {
		loop, sql, own := median(rates[key("loop", workers)]), median(rates[key("sql", workers)]), median(rates[key("geodlq", workers)])
		fmt.Printf("| %d | %.0f | %.0f | %.0f | %.1f | %.2f | %.0f | %.0f | %.0f |\n", workers, loop, sql, own, own/loop, own/sql,
			median(costs[key("loop", workers)]), median(costs[key("sql", workers)]), median(costs[key("geodlq", workers)]))
	}
	return nil
}

// growth prints claim latency, drain rate and what ten rounds of claims leave behind,
// with ever more rows in the table that are not due.
func (b *bench) growth(ctx context.Context, largest int) error {
	type line struct {
		rows            int
		claim           time.Duration
		rate            float64
		dead            int64
		beforeB, afterB int64
	}
	var lines []line
	const due = 10_000
	for _, n := range []int{10_000, 1_000_000, largest} {
		progress("filling the table to %d rows", n)
		if err := b.fill(ctx, n-due); err != nil {
			return err
		}
		l := line{rows: n}
		var claims []time.Duration
		var rates []float64
		for range 3 {
			if err := b.addDue(ctx, due); err != nil {
				return err
			}
			c, err := b.claims(ctx, 10, 500)
			if err != nil {
				return err
			}
			claims = append(claims, c...)
			start := time.Now()
			if err := b.geodlq(ctx, 2); err != nil {
				return err
			}
			rates = append(rates, due/time.Since(start).Seconds())
		}
		l.claim, l.rate = median(claims), median(rates)
		var err error
		if l.dead, l.beforeB, l.afterB, err = b.tenRounds(ctx, due); err != nil {
			return err
		}
		lines = append(lines, l)
		progress("%d rows: claim of 500 %s, %.0f rows/s", n, l.claim.Round(10*time.Microsecond), l.rate)
	}
	fmt.Println("\n| rows in the table | claim of 500, median | ratio | rows/s, 2 workers | ratio | dead tuples after ten claim rounds | table grew by |")
	fmt.Println("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, l := range lines {
		fmt.Printf("| %d | %.2f ms | %.2f | %.0f | %.2f | %d | %.1f MB |\n", l.rows, float64(l.claim.Microseconds())/1000,
			float64(l.claim)/float64(lines[0].claim), l.rate, lines[0].rate/l.rate, l.dead, float64(l.afterB-l.beforeB)/1e6)
	}
	return nil
}

func median[T cmp.Ordered](v []T) T {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
