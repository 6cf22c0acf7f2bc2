package server_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/plugin/server"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
	"github.com/millwright-dev/millwright/test/contract"
)

// python is the distribution's, which has the packages of hack/install-grpc-python.sh.
const python = "/usr/bin/python3"

const example = "../../../examples/python-driver/driver.py"

// stubs returns a folder with the example and its generated stubs.
func stubs(t *testing.T) string {
	if testing.Short() {
		t.Skip("starts processes")
	}
	if err := exec.Command(python, "-c", "import google.protobuf, grpc, grpc_tools.protoc").Run(); err != nil {
		t.Skipf("%s has no gRPC; hack/install-grpc-python.sh installs it as root on Debian: %v", python, err)
	}
	dir := t.TempDir()
	generate := exec.Command(python, "-m", "grpc_tools.protoc", "-I", "../../../proto/driver", "--python_out="+dir, "--grpc_python_out="+dir, "driver.proto")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("generating the stubs: %v\n%s", err, out)
	}
	source, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "driver.py"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inPython starts the example for each test, with no VMs.
func inPython(t *testing.T, stubs string) (d *server.Driver, kill func(), vms string) {
	socket, vms := filepath.Join(t.TempDir(), "s"), t.TempDir()
	endpoint, err := server.Socket(socket)
	if err != nil {
		t.Fatal(err)
	}
	added := make(chan *server.Driver, 1)
	m := &manager{T: t, server: server.New(server.Options{Add: func(_ string, d *server.Driver) error { added <- d; return nil }})}
	m.start(m.server.Serve, endpoint)
	process := exec.Command(python, filepath.Join(stubs, "driver.py"), "--target", "unix://"+socket, "--dir", vms)
	var out bytes.Buffer
	process.Stdout, process.Stderr = &out, &out
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("the driver wrote:\n%s", &out)
		}
	})
	select {
	case d = <-added:
	case <-soon(t).Done():
		t.Fatal("the driver has not registered")
	}
	return d, kill, vms
}

// TestADriverInPython: the protocol suffices for a driver that has nothing of this repository but
// driver.proto.
func TestADriverInPython(t *testing.T) {
	folder := stubs(t)
	contract.Check(t, func(t *testing.T) driver.Driver {
		d, _, _ := inPython(t, folder)
		return d
	})
	t.Run("Killed", func(t *testing.T) {
		d, kill, _ := inPython(t, folder)
		kill()
		_, err := d.GetMachineStatus(soon(t), statusRequest("one"))
		wantCode(t, err, codes.Unavailable)
	})
	t.Run("RefusedForGood", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		refusing := grpc.NewServer()
		driverpb.RegisterInfraServer(refusing, driverpb.UnimplementedInfraServer{})
		go func() { _ = refusing.Serve(listener) }()
		t.Cleanup(refusing.Stop)
		process := exec.CommandContext(soon(t), python, filepath.Join(folder, "driver.py"), "--target", "unix://"+socket, "--dir", t.TempDir())
		out, err := process.CombinedOutput()
		if process.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "UNIMPLEMENTED") {
			t.Errorf("it ends with %v:\n%s", err, out)
		}
	})
}
