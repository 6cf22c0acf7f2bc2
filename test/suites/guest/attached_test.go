package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/network/packetsocket"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestGuest_KeepsConnectionsOnNetworks checks that a guest on a secondary network keeps its connections to a machine of this
// network in a live migration, although source and target connect through different interfaces.
func TestGuest_KeepsConnectionsOnNetworks(t *testing.T) {
	tier.All(t)
	n := newAttached(t)
	initrd := intruder(t, direct(t).Kernel.Initrd)
	machine := func(pod string) qemu.Config {
		config := direct(t)
		config.Network, config.Sockets = nil, t.TempDir()
		config.Kernel.Initrd = initrd
		config.Kernel.Cmdline += " last=23 try=mirror:10.0.2.23:7"
		config.Interfaces = []qemu.Interface{n.open(pod)}
		return config
	}
	from := machine("a")
	source := boot(t, from)
	source.until(done)
	conn := n.dial("10.0.2.23:7")
	wantEcho(t, conn, 1<<20)

	to := machine("b")
	to.Incoming = true
	target, err := qemu.Start(bounded(t), "", to)
	must(t, err)
	t.Cleanup(func() { must(t, target.Kill(bounded(t))) })
	info, err := os.Stat(from.Disks.Root.Path)
	must(t, err)
	exports := []qemu.Export{{Name: "disk", Bytes: uint64(info.Size())}}
	must(t, target.Receive(bounded(t), exports))
	join(t, source.Process, target)
	must(t, source.Send(bounded(t), qemu.Destination{Exports: exports}, func(qemu.Progress) {}))
	must(t, source.Finish(bounded(t), qemu.Destination{Exports: exports}))
	must(t, target.Received(bounded(t)))
	must(t, target.CloseExports(bounded(t)))
	must(t, target.Cont(bounded(t)))
	must(t, source.Kill(bounded(t)))
	wantEcho(t, conn, 1<<20)
}

// wantEcho checks that a mirror returns the data that it gets.
func wantEcho(t *testing.T, conn net.Conn, size int) {
	t.Helper()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	deadline, _ := bounded(t).Deadline()
	must(t, conn.SetDeadline(deadline))
	wrote := make(chan error, 1)
	go func() { _, err := conn.Write(sent); wrote <- err }()
	got := make([]byte, size)
	_, err := io.ReadFull(conn, got)
	must(t, err)
	must(t, <-wrote)
	if !bytes.Equal(got, sent) {
		t.Error("the guest returned other data")
	}
}

// join connects the sockets of a migration.
func join(t *testing.T, source, target *qemu.Process) {
	t.Helper()
	ctx := bounded(t)
	for _, socket := range []qemu.Socket{qemu.MemorySocket, qemu.DiskSocket} {
		listener, err := source.Listen(socket)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				from, err := listener.Accept()
				if err != nil {
					return
				}
				to, err := target.Dial(ctx, socket)
				if err != nil {
					_ = from.Close()
					return
				}
				context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
				go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
				go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			}
		}()
	}
}

// attached is a secondary network: a bridge with the address 10.0.2.2, in its own namespace. Pods a and b are namespaces whose
// interface net1 is connected to the bridge, and has no address.
type attached struct {
	t    *testing.T
	name string
}

func newAttached(t *testing.T) *attached {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("creating network namespaces requires root")
	}
	n := &attached{t: t, name: fmt.Sprintf("mwnet%d", rand.N(1<<16))}
	n.add("")
	n.ip("-n %s link add br0 type bridge", n.name)
	n.ip("-n %s addr add 10.0.2.2/24 dev br0", n.name)
	n.ip("-n %s link set br0 up", n.name)
	for _, pod := range []string{"a", "b"} {
		n.add(pod)
		n.ip("-n %s link add port-%s type veth peer name net1 netns %s", n.name, pod, n.name+pod)
		n.ip("-n %s link set port-%s master br0 up", n.name, pod)
		n.ip("-n %s link set net1 up", n.name+pod)
	}
	return n
}

func (n *attached) add(pod string) {
	n.t.Helper()
	n.ip("netns add %s", n.name+pod)
	n.t.Cleanup(func() { n.ip("netns del %s", n.name+pod) })
}

func (n *attached) ip(command string, args ...any) {
	n.t.Helper()
	if out, err := exec.Command("ip", strings.Fields(fmt.Sprintf(command, args...))...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", fmt.Sprintf(command, args...), err, out)
	}
}

// in calls a function in a namespace.
func (n *attached) in(pod string, call func() error) {
	n.t.Helper()
	called := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		namespace, err := os.Open(filepath.Join("/run/netns", n.name+pod))
		if err == nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = call()
		}
		called <- err
	}()
	must(n.t, <-called)
}

// open returns the interface of a guest in a pod.
func (n *attached) open(pod string) qemu.Interface {
	n.t.Helper()
	mac := net.HardwareAddr{2, 0, 10, 0, 2, 23}
	var socket *packetsocket.Socket
	n.in(pod, func() (err error) {
		socket, err = packetsocket.Open("net1", packetsocket.Guest{VM: "default/vm-1", MAC: mac}, slog.New(slog.DiscardHandler))
		return err
	})
	n.t.Cleanup(socket.Close)
	return qemu.Interface{MAC: mac, Pass: socket.Pass}
}

// dial connects from a machine of the network.
func (n *attached) dial(address string) net.Conn {
	n.t.Helper()
	var conn net.Conn
	n.in("", func() (err error) {
		conn, err = (&net.Dialer{Timeout: time.Minute}).Dial("tcp", address)
		return err
	})
	n.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
