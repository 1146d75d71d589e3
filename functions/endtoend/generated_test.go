package endtoend_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGeneratedFiles runs the generator: what is committed must be what it writes.
func TestGeneratedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	generate := exec.CommandContext(t.Context(), "go", "run", "geodlq/testdata/generate", "-dir", dir)
	generate.Dir = testdata("generate")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("run the generator: %v\n%s", err, out)
	}
	written, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(written) == 0 {
		t.Fatal("the generator wrote nothing")
	}
	for _, file := range written {
		got, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if want := readTestdata(t, file.Name()); !bytes.Equal(got, want) {
			t.Errorf("testdata/%s is not what the generator writes: run go generate ./testdata/generate and look at the difference", file.Name())
		}
	}
}
