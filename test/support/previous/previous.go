// Package previous provides the program of the previous version, for tests of different versions that work together.
package previous

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// Version is the previous version, which hack/previous.sh has built.
type Version struct{ dir string }

// Build builds the previous version, unless an earlier test has. It skips the test if the clone does not contain the commit.
func Build(t *testing.T) Version {
	t.Helper()
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "hack", "previous.txt"))
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(text))
	if err := exec.CommandContext(t.Context(), "git", "-C", root, "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		t.Skipf("commit %s of hack/previous.txt is not in this clone; get it with: git fetch --depth 1 origin %[1]s", commit)
	}
	command := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "previous.sh"))
	var progress bytes.Buffer
	command.Stderr = &progress
	out, err := command.Output()
	if err != nil {
		t.Fatalf("hack/previous.sh: %v\n%s", err, &progress)
	}
	return Version{strings.TrimSpace(string(out))}
}

// CRDs returns the directory with its CRDs.
func (v Version) CRDs() string { return filepath.Join(v.dir, "crd") }

// Command returns the command of the program. The program is killed when the test exits.
func (v Version) Command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, filepath.Join(v.dir, "millwright"), args...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}
