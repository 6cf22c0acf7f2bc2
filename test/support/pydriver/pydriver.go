// Package pydriver runs the example driver in Python.
package pydriver

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/millwright-dev/millwright/test/support/env"
)

// interpreter is the distribution's Python, for which hack/install-grpc-python.sh installs packages.
const interpreter = "/usr/bin/python3"

// Driver is a directory with the example and its generated stubs.
type Driver struct{ dir string }

// New generates the stubs. It skips the test if Python does not have gRPC.
func New(t *testing.T) Driver {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	if err := exec.CommandContext(t.Context(), interpreter, "-c", "import google.protobuf, grpc, grpc_tools.protoc").Run(); err != nil {
		t.Skipf("%s has no gRPC; hack/install-grpc-python.sh installs it as root on Debian: %v", interpreter, err)
	}
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	generate := exec.CommandContext(t.Context(), interpreter, "-m", "grpc_tools.protoc", "-I", filepath.Join(root, "proto/driver"), "--python_out="+dir, "--grpc_python_out="+dir, "driver.proto")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("generating the stubs: %v\n%s", err, out)
	}
	source, err := os.ReadFile(filepath.Join(root, "examples/python-driver/driver.py"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "driver.py"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	return Driver{dir}
}

// Command returns the command of the driver, which registers at a Unix socket and keeps its VMs in a directory.
func (d Driver) Command(ctx context.Context, socket, vms string) *exec.Cmd {
	return exec.CommandContext(ctx, interpreter, filepath.Join(d.dir, "driver.py"), "--target", "unix://"+socket, "--dir", vms)
}
