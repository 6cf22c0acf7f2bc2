package controlplane

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func listen(t *testing.T, port int) int {
	t.Helper()
	listener := value[net.Listener](t)(net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}))
	t.Cleanup(func() { listener.Close() }) // at the end of the test
	return listener.Addr().(*net.TCPAddr).Port
}

// held holds ports until the end of the test.
func held(t *testing.T) *reservations {
	t.Helper()
	r := &reservations{}
	t.Cleanup(func() { must(t, r.release()) })
	return r
}

// TestPorts_AreReserved checks that a reserved port is not assigned to others, and that its owner can listen on it,
// also again later.
func TestPorts_AreReserved(t *testing.T) {
	ours := held(t)
	port := value[int](t)(ours.freePort())
	if _, err := reserve(port, false); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another process that chooses port %d gets %v", port, err)
	}
	for range 2 {
		listener := value[net.Listener](t)(net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port))))
		if _, err := reserve(port, false); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another process that chooses port %d, which is listened on, gets %v", port, err)
		}
		client := value[net.Conn](t)(net.Dial("tcp4", listener.Addr().String()))
		must(t, value[net.Conn](t)(listener.Accept()).Close()) // so that the server's side enters TIME_WAIT
		must(t, client.Close())
		must(t, listener.Close())
	}
	must(t, ours.release())
	if len(ours.sockets) > 0 {
		t.Error("a port is still reserved")
	}
}

// TestPorts_InTimeWaitAreReserved checks that ports of the last run can be reserved while their connections are in
// TIME_WAIT.
func TestPorts_InTimeWaitAreReserved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	before := &reservations{}
	first := value[ports](t)(choosePorts(path, 0, before))
	listener := value[net.Listener](t)(net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(first.APIServer))))
	client := value[net.Conn](t)(net.Dial("tcp4", listener.Addr().String()))
	must(t, value[net.Conn](t)(listener.Accept()).Close())
	must(t, errors.Join(client.Close(), listener.Close(), before.release()))

	if again := value[ports](t)(choosePorts(path, 0, held(t))); !cmp.Equal(again, first) {
		t.Errorf("ports changed without need:\n%s", cmp.Diff(first, again))
	}
	for _, port := range []int{first.APIServer, first.Etcd} {
		if _, err := reserve(port, false); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another process that chooses port %d gets %v", port, err)
		}
		must(t, value[net.Listener](t)(net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))).Close())
	}
}

func TestPorts_AreReusedWhileFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	first := value[ports](t)(choosePorts(path, 0, held(t)))
	second := value[ports](t)(choosePorts(path, 0, held(t)))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("ports changed without need:\n%s", diff)
	}
	listen(t, first.Etcd)
	third := value[ports](t)(choosePorts(path, 0, held(t)))
	want := first
	want.Etcd = third.Etcd
	if third.Etcd == first.Etcd || !cmp.Equal(third, want) {
		t.Errorf("want only the taken port changed:\n%s", cmp.Diff(first, third))
	}
}

func TestPorts_AreDistinct(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	must(t, os.WriteFile(path, []byte(`{"apiserver":20001,"etcd":20001,"scheduler":20001}`), 0o600))
	chosen := value[ports](t)(choosePorts(path, 0, held(t)))
	seen := map[int]bool{}
	for _, port := range []int{chosen.APIServer, chosen.Etcd, chosen.EtcdPeer, chosen.ControllerManager, chosen.Scheduler} {
		if port < firstPort || port > lastPort || seen[port] {
			t.Errorf("port %d of %+v is out of range or there twice", port, chosen)
		}
		seen[port] = true
	}
}

func TestPorts_Explicit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	free := value[int](t)(held(t).freePort())
	if chosen := value[ports](t)(choosePorts(path, free, held(t))); chosen.APIServer != free {
		t.Errorf("want port %d, got %d", free, chosen.APIServer)
	}
	taken := listen(t, 0)
	_, err := choosePorts(path, taken, held(t))
	var problem *PortTakenError
	if !errors.As(err, &problem) || problem.Port != taken || problem.PID != os.Getpid() {
		t.Errorf("want port %d to be taken by this process %d, got %v", taken, os.Getpid(), err)
	}
}

func TestPorts_InvalidFileIsIgnored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports.json")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	value[ports](t)(choosePorts(path, 0, held(t)))
}
