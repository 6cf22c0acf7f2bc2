package scenario

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/test/support/program"
)

// link is a proxy for an API server whose connections can become silent.
type link struct {
	net.Listener
	server string

	mu     sync.Mutex
	open   []net.Conn
	silent map[net.Conn]bool
}

// through routes the user of a kubeconfig through a link, which listens on that address, and returns the path of
// another kubeconfig.
func (w *scenario) through(kubeconfig, address string) (*link, string) {
	w.t.Helper()
	config, err := clientcmd.LoadFromFile(w.path(kubeconfig))
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		w.t.Fatal(err)
	}
	l := &link{Listener: listener, silent: map[net.Conn]bool{}}
	for _, cluster := range config.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			w.t.Fatal(err)
		}
		l.server = server.Host
		cluster.Server, cluster.TLSServerName = "https://"+listener.Addr().String(), server.Hostname()
	}
	path := w.path(kubeconfig + "-link")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		w.t.Fatal(err)
	}
	go l.serve()
	w.t.Cleanup(l.end)
	return l, path
}

func (l *link) serve() {
	for {
		client, err := l.Accept()
		if err != nil {
			return // at the end of the test
		}
		server, err := net.Dial("tcp", l.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		l.mu.Lock()
		l.open = append(l.open, client, server)
		l.mu.Unlock()
		go l.carry(client, server)
		go l.carry(server, client)
	}
}

// carry copies until either side is closed. What a silent side sends is lost, including that it closes.
func (l *link) carry(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		silent := l.silent[from]
		l.mu.Unlock()
		switch {
		case silent && err != nil:
			return
		case silent:
			continue
		case err != nil:
			_ = to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			_ = from.Close()
			return
		}
	}
}

// silence makes all open connections silent without closing them, as if a gateway had dropped its state. New
// connections work.
func (l *link) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.open {
		l.silent[conn] = true
	}
}

func (l *link) end() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.open {
		_ = conn.Close()
	}
}

// netns is a network namespace that is connected to this one by a virtual cable.
type netns struct {
	t *testing.T
	// name is the name of the namespace, and of this side's interface.
	name string
	// here is the address of this side.
	here string
}

// newNetns creates a namespace that is removed at the end of the test. It skips the test if the user does not
// have permission.
func newNetns(t *testing.T) *netns {
	t.Helper()
	if err := unix.Access("/run", unix.W_OK); err != nil || os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("network namespaces need the program ip: %v", err)
	}
	// 198.18.0.0/15 is reserved for network tests (RFC 2544). Each process and namespace uses a /30.
	number := uint(os.Getpid())<<2 + uint(made.Add(1))&3
	n := &netns{t: t, name: fmt.Sprintf("mw%d", number)}
	subnet := number & 0x7fff << 2
	address := func(host uint) string {
		at := subnet + host
		return fmt.Sprintf("198.%d.%d.%d", 18+at>>16&1, at>>8&0xff, at&0xff)
	}
	n.here = address(1)
	if output, err := exec.Command("ip", "netns", "add", n.name).CombinedOutput(); strings.Contains(string(output), unix.EPERM.Error()) {
		t.Skip("this user may not make network namespaces")
	} else if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	t.Cleanup(func() { n.ip("netns", "del", n.name) }) // and the interfaces with it
	n.ip("link", "add", n.name, "type", "veth", "peer", "name", "eth0", "netns", n.name)
	n.ip("addr", "add", n.here+"/30", "dev", n.name)
	n.ip("link", "set", n.name, "up")
	n.ip("-n", n.name, "addr", "add", address(2)+"/30", "dev", "eth0")
	n.ip("-n", n.name, "link", "set", "eth0", "up")
	n.ip("-n", n.name, "link", "set", "lo", "up")
	return n
}

// made counts namespaces.
var made atomic.Int32

func (n *netns) ip(args ...string) {
	n.t.Helper()
	if output, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %v: %v: %s", args, err, output)
	}
}

// start starts the program in the namespace.
func (n *netns) start(args ...string) *program.Process {
	n.t.Helper()
	command := program.Command(context.Background(), args...)
	path, err := exec.LookPath("ip")
	if err != nil {
		n.t.Fatal(err)
	}
	command.Args = append([]string{path, "netns", "exec", n.name}, command.Args...)
	command.Path = path
	p := program.StartOther(n.t, command)
	n.t.Cleanup(func() {
		p.Kill()
		if n.t.Failed() {
			n.t.Logf("the program in the namespace printed:\n%s", p.Output.Tail(100))
		}
	})
	return p
}
