// Command coldstart measures how long each function takes from the start of its
// process to its first call of the runtime API for work, which is what a cold start
// adds to an invocation beyond Lambda's own part, beside a bare hello-world function.
//
// All are built as they are deployed, for this machine, and started in turn, so that
// whatever else the machine does meets all alike; medians are compared. Nothing is
// dialled: the database in their environment does not exist.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"geodlq/infra/local"
)

// most is how many times hello's cold start a function's may take.
const most = 2.0

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 41, "starts of each; the median counts")
	functions := flag.String("functions", strings.Join(local.Functions, ","), "which")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, *rounds, strings.Split(*functions, ",")); err != nil {
		log.Fatal("bench coldstart: ", err)
	}
}

func run(ctx context.Context, rounds int, functions []string) error {
	dir, err := os.MkdirTemp("", "coldstart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	names := append([]string{"hello"}, functions...)
	if err := build(ctx, dir, functions); err != nil {
		return err
	}
	api, err := newRuntimeAPI()
	if err != nil {
		return err
	}
	defer api.Close()

	times := map[string][]time.Duration{}
	const unmeasured = 2 // reads the file and its pages into memory
	for i := range rounds + unmeasured {
		for _, name := range names {
			d, err := api.start(ctx, filepath.Join(dir, name))
			if err != nil {
				return fmt.Errorf("start %s: %w", name, err)
			}
			if i >= unmeasured {
				times[name] = append(times[name], d)
			}
		}
	}

	fmt.Printf("From exec to the first call for work, %d interleaved starts each\n\n", rounds)
	fmt.Printf("%-9s %9s %10s %10s %10s\n", "function", "MiB", "median ms", "p90 ms", "x hello")
	hello := quantile(times["hello"], 0.5)
	missed := []string{}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		median := quantile(times[name], 0.5)
		ratio := float64(median) / float64(hello)
		fmt.Printf("%-9s %9.1f %10.1f %10.1f %10.2f\n", name, float64(info.Size())/(1<<20), milliseconds(median), milliseconds(quantile(times[name], 0.9)), ratio)
		if ratio > most {
			missed = append(missed, name)
		}
	}
	if len(missed) > 0 {
		fmt.Printf("\nmore than %.0f times hello: %s\n", most, strings.Join(missed, ", "))
	} else {
		fmt.Printf("\nall within %.0f times hello\n", most)
	}
	return nil
}

// build makes the bootstraps of the functions and of hello.
func build(ctx context.Context, dir string, functions []string) error {
	if err := local.BuildBootstraps(ctx, dir, functions...); err != nil {
		return err
	}
	root, err := local.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	args := append([]string{"build"}, local.BuildFlags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", filepath.Join(dir, "hello"), "./infra/bench/coldstart/hello")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build hello: %w\n%s", err, out)
	}
	return nil
}

// runtimeAPI is as much of Lambda's runtime API as a start needs: it lets a process
// register and notes when it asks for work, which it never gets.
type runtimeAPI struct {
	*http.Server
	address string
	asked   chan time.Time
}

func newRuntimeAPI() (*runtimeAPI, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	api := &runtimeAPI{address: ln.Addr().String(), asked: make(chan time.Time, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(_ http.ResponseWriter, r *http.Request) {
		api.asked <- time.Now()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /2020-01-01/extension/register", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Lambda-Extension-Identifier", "1")
		fmt.Fprint(w, "{}")
	})
	mux.HandleFunc("GET /2020-01-01/extension/event/next", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	api.Server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := api.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Print("runtime API: ", err)
		}
	}()
	return api, nil
}

// start runs a bootstrap until it asks for work and returns how long that took.
func (api *runtimeAPI) start(ctx context.Context, bootstrap string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, bootstrap)
	cmd.Stderr = &said
	// What Lambda and template.yaml give; hello reads none of the rest.
	cmd.Env = []string{
		"AWS_LAMBDA_RUNTIME_API=" + api.address, "AWS_LAMBDA_FUNCTION_NAME=coldstart", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=1769",
		"AWS_REGION=eu-west-1", "AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=example", "AWS_SESSION_TOKEN=example",
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent",
		"DATABASE_HOST=database.invalid", "DATABASE_USER=coldstart", "INBOX_BUCKET=coldstart-inbox", "DEAD_LETTER_BUCKET=coldstart-archive",
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case at := <-api.asked:
		err := cmd.Process.Kill()
		<-ended
		return at.Sub(began), err
	case err := <-ended:
		return 0, fmt.Errorf("it ended before it asked for work: %w\n%s", err, said.String())
	}
}

func quantile(d []time.Duration, q float64) time.Duration {
	d = slices.Clone(d)
	slices.SortFunc(d, cmp.Compare)
	return d[int(q*float64(len(d)-1)+0.5)]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
