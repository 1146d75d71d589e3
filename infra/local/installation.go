package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Installation is a PostgreSQL server installation that has PostGIS.
type Installation struct {
	Bin     string // directory of initdb and postgres
	Version string // as "postgres --version" gives it, e.g. "15.13"
	PostGIS string // default_version of the extension's control file, e.g. "3.3.2"
}

// ErrNoPostGIS is returned by [FindPostGIS] when no installation has both the
// server's programs and the PostGIS extension.
var ErrNoPostGIS = errors.New("no PostgreSQL server with PostGIS was found")

// binaryPatterns are the places where PostgreSQL's server programs are installed
// by Debian and Ubuntu, by the PostgreSQL project's RPMs, by Homebrew, by
// Postgres.app and by "make install". Debian keeps them out of PATH.
var binaryPatterns = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

// FindPostGIS looks for PostgreSQL server programs in PATH, where pg_config
// points, and in the places packages use, and returns the newest installation
// that has the PostGIS extension. The error wraps [ErrNoPostGIS] and lists the
// installations that were found without it.
func FindPostGIS(ctx context.Context) (Installation, error) {
	return findPostGIS(ctx, binaryPatterns)
}

func findPostGIS(ctx context.Context, patterns []string) (Installation, error) {
	var found []Installation
	var without []string
	for _, bin := range candidateBins(ctx, patterns) {
		inst, err := inspect(ctx, bin)
		switch {
		case err == nil:
			found = append(found, inst)
		case errors.Is(err, fs.ErrNotExist) && inst.Version != "":
			without = append(without, fmt.Sprintf("PostgreSQL %s in %s has no PostGIS", inst.Version, bin))
		}
	}
	if len(found) == 0 {
		return Installation{}, fmt.Errorf("%w%s", ErrNoPostGIS, listed(without))
	}
	return slices.MaxFunc(found, func(a, b Installation) int {
		return cmp.Or(compareVersions(a.Version, b.Version), compareVersions(a.PostGIS, b.PostGIS))
	}), nil
}

func listed(items []string) string {
	if len(items) == 0 {
		return ""
	}
	return " (" + strings.Join(items, "; ") + ")"
}

// candidateBins lists directories that hold both initdb and postgres, each once.
func candidateBins(ctx context.Context, patterns []string) []string {
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(pattern) // the patterns are constants: they are well formed
		dirs = append(dirs, matches...)
	}
	var bins []string
	for _, dir := range dirs {
		// A link in PATH leads to the directory with the rest of the programs.
		server, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil {
			continue
		}
		bin := filepath.Dir(server)
		if executable(filepath.Join(bin, "postgres")) && executable(filepath.Join(bin, "initdb")) && !slices.Contains(bins, bin) {
			bins = append(bins, bin)
		}
	}
	return bins
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

var (
	serverVersion  = regexp.MustCompile(`PostgreSQL\) (\d+(?:\.\d+)*)`)
	defaultVersion = regexp.MustCompile(`(?m)^\s*default_version\s*=\s*'([^']+)'`)
)

// inspect reads the versions of the installation in bin. The error wraps
// fs.ErrNotExist when the server is there but PostGIS is not.
func inspect(ctx context.Context, bin string) (Installation, error) {
	inst := Installation{Bin: bin}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return inst, fmt.Errorf("run %s/postgres --version: %w", bin, err)
	}
	m := serverVersion.FindSubmatch(out)
	if m == nil {
		return inst, fmt.Errorf("%s/postgres --version says %q, which names no version", bin, out)
	}
	inst.Version = string(m[1])
	control, err := os.ReadFile(filepath.Join(shareDir(ctx, inst), "extension", "postgis.control"))
	if err != nil {
		return inst, fmt.Errorf("look for PostGIS beside %s: %w", bin, err)
	}
	if m := defaultVersion.FindSubmatch(control); m != nil {
		inst.PostGIS = string(m[1])
	}
	return inst, nil
}

// shareDir is where the installation keeps its extensions' control files.
// pg_config knows it but is in a package of its own in places; then the two
// usual layouts are tried.
func shareDir(ctx context.Context, inst Installation) string {
	if out, err := exec.CommandContext(ctx, filepath.Join(inst.Bin, "pg_config"), "--sharedir").Output(); err == nil {
		return strings.TrimSpace(string(out))
	}
	major, _, _ := strings.Cut(inst.Version, ".")
	debian := filepath.Join("/usr/share/postgresql", major)
	if inst.Bin == filepath.Join("/usr/lib/postgresql", major, "bin") {
		return debian
	}
	return filepath.Join(filepath.Dir(inst.Bin), "share")
}

// compareVersions compares dotted decimal versions part by part; a part that is
// no number counts as 0.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return 0
}
