package node

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// serviceIP is the address of the Service "kubernetes" of a local control plane.
const serviceIP = "10.96.0.1"

// RouterIP is the address of the router, at which the API server of a Network is reachable.
var RouterIP = netip.MustParseAddr("10.200.255.254")

// Config configures a Network.
type Config struct {
	// Services are further addresses that nodes and Pods reach.
	Services Services
	// KubeProxy makes nodes run kube-proxy, so that they and their Pods reach Services. The control plane must advertise
	// RouterIP, because kube-proxy also directs the Service "kubernetes".
	KubeProxy bool
}

// Network connects nodes, their Pods and the API server. A router in a network namespace of its own has a virtual
// cable to each node, and forwards connections to the API server and Services to the test.
type Network struct {
	t         *testing.T
	cp        *controlplane.ControlPlane
	kubeProxy bool
	binaries  string
	// dir contains sockets, and the pause image.
	dir    string
	pause  string
	router *program.Process
	nodes  int
}

// NewNetwork starts a network for a control plane that runs a controller manager and a scheduler. It stops at the end of
// the test.
func NewNetwork(t *testing.T, cp *controlplane.ControlPlane, config Config) *Network {
	t.Helper()
	Needs(t)
	n := &Network{t: t, cp: cp, kubeProxy: config.KubeProxy, dir: tempDir(t)}
	var err error
	if n.binaries, err = env.Binaries(); err != nil {
		t.Fatal(err)
	}
	n.buildPause()
	port := fmt.Sprint(cp.Port())
	apiserver := To(net.JoinHostPort("127.0.0.1", port))
	services := Services{net.JoinHostPort(serviceIP, "443"): apiserver, net.JoinHostPort(RouterIP.String(), port): apiserver}
	maps.Copy(services, config.Services)
	for address, serve := range services {
		n.serve(address, serve)
	}
	n.router = run(t, process{Router: &router{Dir: n.dir, Services: slices.Sorted(maps.Keys(services))}}, syscall.CLONE_NEWNET)
	t.Cleanup(func() {
		n.router.Kill()
		if t.Failed() {
			t.Logf("the router printed:\n%s", n.router.Output.Tail(tail))
		}
	})
	// Until a network has an address, the kernel rejects routes through a gateway.
	if err := inNetwork(n.router.PID(), func(h *netlink.Handle) error {
		return configure(h, "lo", host(RouterIP.String()))
	}); err != nil {
		t.Fatalf("configuring the router: %v", err)
	}
	return n
}

// tempDir creates a directory with a short path, because the paths of sockets must be short.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "millwright-node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing the directory of a node: %v", err)
		}
	})
	return dir
}

// serve serves the socket behind an address until the end of the test.
func (n *Network) serve(address string, serve func(net.Conn)) {
	n.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(n.t.Context(), "unix", filepath.Join(n.dir, socketOf(address)))
	if err != nil {
		n.t.Fatal(err)
	}
	go accept(listener, serve)
	n.t.Cleanup(func() { _ = listener.Close() }) // nothing to flush
}

// router is the configuration of the router's process.
type router struct {
	Dir      string
	Services []string
}

// start forwards connections to the Services until the process is killed. The kernel forwards packets between nodes.
func (r *router) start() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, address := range r.Services {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		if err := addLoopback(host); err != nil {
			return err
		}
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		if err != nil {
			return err
		}
		go forward(listener, "unix", filepath.Join(r.Dir, socketOf(address)))
	}
	select {}
}
