// Package node runs a Kubernetes node in tests: the real kubelet, with containerd and runc.
//
// All of its processes, its network and its mounts are in namespaces of their own, which end with
// the test, also if that is killed. A package that starts a node calls Main first:
//
//	func TestMain(m *testing.M) {
//		node.Main()
//		env.Main(m)
//	}
//
// It needs root, a Linux with control groups, and what hack/install-containerd.sh installs. Only one
// node runs at a time in a package.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// Name is the name of the node.
const Name = "node"

// pauseImage is the image of the container that holds a Pod's namespaces.
const pauseImage = "node.local/pause:v1"

// Node is a running node.
type Node struct {
	t *testing.T
	// dir contains sockets, logs, images and volumes.
	dir     string
	process *program.Process
}

// Start starts a node of a control plane that runs a controller manager and a scheduler, with images from
// directories in the OCI layout. The node stops at the end of the test. Start does not wait until the node is
// Ready.
func Start(t *testing.T, cp *controlplane.ControlPlane, layouts ...string) *Node {
	t.Helper()
	return StartWith(t, cp, nil, layouts...)
}

// StartWith is like Start, for a node whose Pods can reach Services.
func StartWith(t *testing.T, cp *controlplane.ControlPlane, services Services, layouts ...string) *Node {
	t.Helper()
	Needs(t)
	dir, err := os.MkdirTemp("", "millwright-node-")
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{t: t, dir: dir}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing the node's directory: %v", err)
		}
	})
	in := &inside{Dir: dir, Cgroup: makeCgroups(t), Layouts: append(layouts, n.pause()), Services: slices.Sorted(maps.Keys(services))}
	if in.Binaries, err = env.Binaries(); err != nil {
		t.Fatal(err)
	}
	for name, content := range in.files() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.writeKubeconfig(cp)
	n.serve(cp.Port())
	n.serveServices(services)
	n.run(in)
	return n
}

// Needs skips the test if nodes cannot run in this environment, and fails it if only programs are missing.
func Needs(t *testing.T) {
	t.Helper()
	const takes = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_MKNOD
	header, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	if has := uint64(data[1].Effective)<<32 | uint64(data[0].Effective); has&takes != takes {
		t.Skipf("a node requires root privileges: CapEff of this process is %016x (/proc/self/status), and lacks some of %016x", has, uint64(takes))
	}
	for _, name := range []string{"containerd", "ctr", "runc", cniPlugins + "/ptp", cniPlugins + "/host-local", cniPlugins + "/loopback"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v; run `make containerd`", err)
		}
	}
}

// pause builds the pause image, and returns the directory of its layout.
func (n *Node) pause() string {
	n.t.Helper()
	root, err := env.Sources()
	if err != nil {
		n.t.Fatal(err)
	}
	binary, layout := filepath.Join(n.dir, "pause"), filepath.Join(n.dir, "pause-image")
	for _, args := range [][]string{
		{"build", "-C", root, "-ldflags=-s -w", "-o", binary, "./test/support/node/pause"},
		{"run", "-C", filepath.Join(root, "hack", "image"), ".", "--layout", layout, "--reference", pauseImage, "linux/" + arch() + "=" + binary},
	} {
		command := exec.CommandContext(n.t.Context(), "go", args...)
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath", "GOWORK=off")
		if out, err := command.CombinedOutput(); err != nil {
			n.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	return layout
}

// writeKubeconfig writes the kubeconfig of the kubelet, which reaches the API server as Pods do.
func (n *Node) writeKubeconfig(cp *controlplane.ControlPlane) {
	n.t.Helper()
	file := filepath.Join(n.dir, "kubeconfig")
	if err := cp.WriteKubeconfig(file, "system:node:"+Name, "system:nodes"); err != nil {
		n.t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + serviceIP
	}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		n.t.Fatal(err)
	}
}

// serve forwards a socket, which is visible in the node, to the API server.
func (n *Node) serve(port int) {
	n.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(n.t.Context(), "unix", filepath.Join(n.dir, apiSocket))
	if err != nil {
		n.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		forward(listener, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	}()
	n.t.Cleanup(func() {
		_ = listener.Close() // nothing to flush
		<-done
	})
}

// forward forwards each connection that a listener accepts to an address, until the listener is closed.
func forward(listener net.Listener, network, address string) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
			if err != nil {
				return // the client sees that its connection is closed
			}
			join(from, to)
		}()
	}
}

// join copies between two connections until either is closed, and closes both.
func join(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	go func() {
		defer from.Close()
		defer to.Close()
		_, _ = io.Copy(from, to) // either side may close it
	}()
	_, _ = io.Copy(to, from)
}

// tail is the number of last lines that a failed test prints of each log. The logs of containerd and the kubelet
// are long, and would hide the failure.
const tail = 10

// run starts the first process of the node.
func (n *Node) run(in *inside) {
	n.t.Helper()
	description, err := json.Marshal(in)
	if err != nil {
		n.t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), os.Args[0])
	command.Env = append(os.Environ(), asNode+"="+string(description))
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	n.process = program.StartOther(n.t, command)
	n.t.Cleanup(func() {
		n.process.Kill() // kills all processes of its PID namespace
		if n.t.Failed() {
			n.t.Logf("the node printed:\n%s", n.process.Output.Tail(tail))
			for _, name := range []string{"containerd.log", "kubelet.log"} {
				text, err := os.ReadFile(filepath.Join(n.dir, name))
				lines := strings.Split(string(text), "\n")
				n.t.Logf("%s (%v):\n%s", name, err, strings.Join(lines[max(0, len(lines)-tail):], "\n"))
			}
		}
	})
}

// Done is closed when the node has stopped.
func (n *Node) Done() <-chan struct{} { return n.process.Done() }

// KillKubelet kills the kubelet. It is restarted without its state in memory.
func (n *Node) KillKubelet() {
	n.t.Helper()
	found := program.Processes(n.t, n.dir, "/kubelet --config=")
	if len(found) != 1 {
		n.t.Fatalf("kubelets: %v", found)
	}
	if err := unix.Kill(found[0].PID, unix.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
}

// Logs opens the latest log of the only container of a Pod, in the format of the kubelet.
func (n *Node) Logs(namespace, pod, uid string) *os.File {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.dir, "logs", namespace+"_"+pod+"_"+uid, "*", "*.log"))
	if err != nil || len(found) == 0 {
		n.t.Fatalf("no logs of %s, %v", pod, err)
	}
	file, err := os.Open(slices.Max(found))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = file.Close() }) // opened for reading
	return file
}

// setUpNetwork adds the addresses of the API server's Service and of the node to this network namespace.
func setUpNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, ip := range []string{serviceIP, nodeIP} {
		address, err := netlink.ParseAddr(ip + "/32")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(lo, address); err != nil {
			return fmt.Errorf("adding %s: %w", ip, err)
		}
	}
	return netlink.LinkSetUp(lo)
}
