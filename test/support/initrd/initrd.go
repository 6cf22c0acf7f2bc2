// Package initrd puts programs of tests into the initrd of the small guest.
package initrd

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/millwright-dev/millwright/test/support/env"
)

// With returns the path of an initrd like the original, with the program of another package as the first. The package
// is a path relative to the test.
func With(t *testing.T, original, pkg string) string {
	t.Helper()
	dir := t.TempDir()
	program, made := filepath.Join(dir, "init"), filepath.Join(dir, "initrd")
	_, err := env.Sources() // those of the program
	must(t, err)
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", pkg, err, output)
	}
	content, err := os.ReadFile(program)
	must(t, err)
	archive, err := os.ReadFile(original)
	must(t, err)
	out, err := os.Create(made)
	must(t, err)
	// The kernel unpacks concatenated archives, each aligned to four bytes.
	_, err = out.Write(append(archive, make([]byte, -len(archive)&3)...))
	must(t, err)
	files := []cpio.Record{cpio.StaticFile("init", string(content), 0o755), cpio.TrailerRecord}
	must(t, cpio.WriteRecords(cpio.Newc.Writer(out), files))
	must(t, out.Close())
	return made
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
