package controlplane

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func listen(t *testing.T, port int) int {
	t.Helper()
	listener := value[net.Listener](t)(net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}))
	t.Cleanup(func() { listener.Close() }) // the test has ended
	return listener.Addr().(*net.TCPAddr).Port
}

func TestPortsAreKeptWhileTheyAreFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	first := value[ports](t)(choosePorts(path, 0))
	second := value[ports](t)(choosePorts(path, 0))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("ports changed without need:\n%s", diff)
	}
	listen(t, first.Etcd)
	third := value[ports](t)(choosePorts(path, 0))
	want := first
	want.Etcd = third.Etcd
	if third.Etcd == first.Etcd || !cmp.Equal(third, want) {
		t.Errorf("want only the taken port changed:\n%s", cmp.Diff(first, third))
	}
}

func TestPortsDiffer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	must(t, os.WriteFile(path, []byte(`{"apiserver":20001,"etcd":20001,"scheduler":20001}`), 0o600))
	chosen := value[ports](t)(choosePorts(path, 0))
	seen := map[int]bool{}
	for _, port := range []int{chosen.APIServer, chosen.Etcd, chosen.EtcdPeer, chosen.ControllerManager, chosen.Scheduler} {
		if port < firstPort || port > lastPort || seen[port] {
			t.Errorf("port %d of %+v is out of range or there twice", port, chosen)
		}
		seen[port] = true
	}
}

func TestExplicitPort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	free := value[int](t)(freePort(nil))
	if chosen := value[ports](t)(choosePorts(path, free)); chosen.APIServer != free {
		t.Errorf("want port %d, got %d", free, chosen.APIServer)
	}
	taken := listen(t, 0)
	_, err := choosePorts(path, taken)
	var problem *PortTakenError
	if !errors.As(err, &problem) || problem.Port != taken || problem.PID != os.Getpid() {
		t.Errorf("want port %d to be taken by this process %d, got %v", taken, os.Getpid(), err)
	}
}

func TestUnreadablePortsAreNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	value[ports](t)(choosePorts(path, 0))
}
