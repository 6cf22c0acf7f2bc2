package server_test

import (
	"bytes"
	"context"
	"net"
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
	"github.com/millwright-dev/millwright/test/pydriver"
)

// inPython starts the example for each test, with no VMs.
func inPython(t *testing.T, example pydriver.Driver) (d *server.Driver, kill func(), vms string) {
	socket, vms := filepath.Join(t.TempDir(), "s"), t.TempDir()
	endpoint, err := server.Socket(socket)
	if err != nil {
		t.Fatal(err)
	}
	added := make(chan *server.Driver, 1)
	m := &manager{T: t, server: server.New(server.Options{Add: func(_ string, d *server.Driver) error { added <- d; return nil }})}
	m.start(m.server.Serve, endpoint)
	process := example.Command(context.Background(), socket, vms)
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
	example := pydriver.New(t)
	contract.Check(t, func(t *testing.T) driver.Driver {
		d, _, _ := inPython(t, example)
		return d
	})
	t.Run("Killed", func(t *testing.T) {
		d, kill, _ := inPython(t, example)
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
		process := example.Command(soon(t), socket, t.TempDir())
		out, err := process.CombinedOutput()
		if process.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "UNIMPLEMENTED") {
			t.Errorf("it ends with %v:\n%s", err, out)
		}
	})
}
