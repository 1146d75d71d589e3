package templatetest

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"geodlq/shared/config"
)

const module = "geodlq/"

// pkg is a package as "go list" describes it. Imports are those of its non-test files.
type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Imports,Standard", "-tags", "lambda.norpc"}, args...)...)
	cmd.Dir = root
	// As the functions are built, whatever the machine.
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// functions -> shared -> shared/deadletter, and nothing the other way.
func TestArrowsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./functions/...", "./shared/...", "./infra/migrations") {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, i := range p.Imports {
			to, own := strings.CutPrefix(i, module)
			if !own {
				continue
			}
			may := strings.HasPrefix(to, "shared/")
			switch {
			case from == "shared/deadletter" || from == "infra/migrations":
				may = false // leaves
			case strings.HasPrefix(from, "functions/"):
				function := strings.Join(strings.Split(from, "/")[:2], "/")
				may = may || strings.HasPrefix(to, function+"/") || from == "functions/migrate" && to == "infra/migrations"
				// The command line of redrive is a program of people, not deployed.
				may = may || from == "functions/redrive/cli"
			}
			if !may {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
}

func TestWhatNeverRunsInTheCloud(t *testing.T) {
	t.Parallel()
	forbidden := []struct {
		pattern *regexp.Regexp
		why     string
		except  string // function that may
	}{
		{regexp.MustCompile(`^geodlq/infra/local`), "the local stack", ""},
		{regexp.MustCompile(`^google\.golang\.org/grpc`), "gRPC: 10 MiB for nothing", ""},
		{regexp.MustCompile(`/parquet/pqarrow$|/arrow/flight|/arrow/compute`), "brings gRPC and half of Arrow", ""},
		{regexp.MustCompile(`gofakes3|duckdb|/sigv4test`), "a server or engine of the tests", ""},
		{regexp.MustCompile(`^testing$|^testing/|^net/http/httptest$|go-cmp`), "test code", ""},
		{regexp.MustCompile(`orb/geojson$`), "re-marshals what must stay verbatim", ""},
		{regexp.MustCompile(`^net/rpc$`), "the protocol of a runtime that is gone", ""},
		{regexp.MustCompile(`gopkg\.in/yaml`), "a library of the tests", ""},
		{regexp.MustCompile(`/service/secretsmanager`), "secrets are for migrate alone", "migrate"},
		{regexp.MustCompile(`/jackc/tern/`), "migrations are for migrate alone", "migrate"},
	}
	for _, function := range config.Functions() {
		for _, p := range list(t, "-deps", "./functions/"+function) {
			for _, i := range p.Imports {
				for _, f := range forbidden {
					// Thrift's logger has a type that logs to a test; it cannot be had without.
					if f.pattern.MatchString(i) && function != f.except && p.ImportPath != "github.com/apache/thrift/lib/go/thrift" {
						t.Errorf("%s contains %s, by way of %s: %s", function, i, p.ImportPath, f.why)
					}
				}
			}
		}
	}
}

// The bootstraps as "sam build" makes them: for the right machine, static, stripped,
// small, and the same wherever they are built.
func TestBootstraps(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	limits := map[string]int64{"capture": 18 * mib, "replay": 14 * mib, "metrics": 14 * mib, "redrive": 20 * mib, "migrate": 18 * mib}
	for _, function := range config.Functions() {
		t.Run(function, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command("make", "--no-print-directory", "build-"+logicalID(function), "ARTIFACTS_DIR="+dir)
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			name := filepath.Join(dir, "bootstrap")
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm()&0o111 == 0 {
				t.Error("bootstrap is not executable")
			}
			t.Logf("%s: %.1f MiB", function, float64(info.Size())/mib)
			if info.Size() > limits[function] {
				t.Errorf("%d bytes, want at most %d", info.Size(), limits[function])
			}
			f, err := elf.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if f.Machine != elf.EM_AARCH64 {
				t.Errorf("built for %s", f.Machine)
			}
			if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
				t.Errorf("needs libraries %v, %v", libs, err)
			}
			if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
				t.Error("not stripped")
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			abs, err := filepath.Abs(root)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), abs+string(filepath.Separator)) {
				t.Error("names the folder it was built in, so that the same source gives another binary elsewhere")
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			names := []string{}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if !slices.Equal(names, []string{"bootstrap"}) {
				t.Errorf("the package holds %v", names)
			}
		})
	}
}
