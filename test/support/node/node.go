// Package node runs Kubernetes nodes in tests: the real kubelet, with containerd and runc, and optionally kube-proxy.
//
// The processes, the network and the mounts of each node are in namespaces of their own, which end with the test, also if
// that is killed. A package that starts a node calls Main first:
//
//	func TestMain(m *testing.M) {
//		node.Main()
//		env.Main(m)
//	}
//
// It needs root, a Linux with control groups, and what hack/install-containerd.sh installs.
package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// pauseImage is the image of the container that holds a Pod's namespaces.
const pauseImage = "node.local/pause:v1"

// Node is a running node.
type Node struct {
	// Name is the name of the Node object.
	Name    string
	t       *testing.T
	network *Network
	// ip is the address of the node, and podRange has those of its Pods.
	ip, podRange *net.IPNet
	// dir contains sockets, logs, images and volumes.
	dir     string
	process *program.Process
}

// Start starts a network with a single node; see Network.Start.
func Start(t *testing.T, cp *controlplane.ControlPlane, layouts ...string) *Node {
	t.Helper()
	return NewNetwork(t, cp, Config{}).Start("node", layouts...)
}

// Start starts a node with images from directories in the OCI layout. The node stops at the end of the test. Start does
// not wait until the node is Ready.
func (n *Network) Start(name string, layouts ...string) *Node {
	n.t.Helper()
	n.nodes++
	node := &Node{Name: name, t: n.t, network: n, dir: tempDir(n.t), ip: host(fmt.Sprintf("10.200.255.%d", n.nodes))}
	var err error
	if _, node.podRange, err = net.ParseCIDR(fmt.Sprintf("10.200.%d.0/24", n.nodes)); err != nil {
		n.t.Fatal(err)
	}
	in := &inside{
		Name: name, IP: node.ip.IP.String(), PodRange: node.podRange.String(), Dir: node.dir, Cgroup: makeCgroups(n.t, name),
		Binaries: n.binaries, Layouts: append(layouts, n.pause), KubeProxy: n.kubeProxy,
	}
	for name, content := range in.files() {
		if err := os.WriteFile(filepath.Join(node.dir, name), []byte(content), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	n.writeKubeconfig(in.path(kubeletConfig), "system:node:"+name, "system:nodes")
	n.writeKubeconfig(in.path(proxyConfig), "system:kube-proxy")
	node.run(in)
	n.plug(node)
	return node
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
	for _, name := range []string{"containerd", "ctr", "runc", "iptables", cniPlugins + "/ptp", cniPlugins + "/host-local", cniPlugins + "/loopback"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v; run `make containerd`", err)
		}
	}
}

// buildPause builds the pause image.
func (n *Network) buildPause() {
	n.t.Helper()
	root, err := env.Sources()
	if err != nil {
		n.t.Fatal(err)
	}
	binary := filepath.Join(n.dir, "pause")
	n.pause = filepath.Join(n.dir, "pause-image")
	for _, args := range [][]string{
		{"build", "-C", root, "-ldflags=-s -w", "-o", binary, "./test/support/node/pause"},
		{"run", "-C", filepath.Join(root, "hack", "image"), ".", "--layout", n.pause, "--reference", pauseImage, "linux/" + arch() + "=" + binary},
	} {
		command := exec.CommandContext(n.t.Context(), "go", args...)
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath", "GOWORK=off")
		if out, err := command.CombinedOutput(); err != nil {
			n.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

// writeKubeconfig writes the kubeconfig of a program of a node, which reaches the API server as Pods do.
func (n *Network) writeKubeconfig(file, user string, groups ...string) {
	n.t.Helper()
	if err := n.cp.WriteKubeconfig(file, user, groups...); err != nil {
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
	n.process = run(n.t, process{Node: in}, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID|syscall.CLONE_NEWNET|syscall.CLONE_NEWIPC)
	n.t.Cleanup(func() {
		n.process.Kill() // kills all processes of its PID namespace
		if n.t.Failed() {
			n.t.Logf("node %s printed:\n%s", n.Name, n.process.Output.Tail(tail))
			for _, name := range in.logs() {
				n.t.Logf("%s of node %s:\n%s", name, n.Name, lastLines(filepath.Join(n.dir, name)))
			}
		}
	})
}

// run starts this program as another process with namespaces of its own.
func run(t *testing.T, as process, namespaces uintptr) *program.Process {
	t.Helper()
	description, err := json.Marshal(as)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), os.Args[0])
	command.Env = append(os.Environ(), asNode+"="+string(description))
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	return program.StartOther(t, command)
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
	found := n.logs(namespace, pod, uid)
	if len(found) == 0 {
		n.t.Fatalf("no logs of %s", pod)
	}
	file, err := os.Open(slices.Max(found))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = file.Close() }) // opened for reading
	return file
}

// LogTail returns the last lines of the log of each container of a Pod.
func (n *Node) LogTail(namespace, pod, uid string) string {
	var text strings.Builder
	for _, log := range n.logs(namespace, pod, uid) {
		fmt.Fprintf(&text, "%s:\n%s\n", log, lastLines(log))
	}
	return text.String()
}

// lastLines returns the end of a file, or why it cannot be read.
func lastLines(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-tail):], "\n")
}

func (n *Node) logs(namespace, pod, uid string) []string {
	found, err := filepath.Glob(filepath.Join(n.dir, "logs", namespace+"_"+pod+"_"+uid, "*", "*.log"))
	if err != nil {
		n.t.Error(err) // a name with special characters
	}
	return found
}
