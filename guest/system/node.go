package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/network"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// Node describes the desired system. All fields are required, except for Bootstrap.
type Node struct {
	// Data has the cluster and the Node. Bootstrap only needs the Node's name.
	Data userdata.UserData
	// Links are the machine's links. The first one has the Node's address.
	Links []metadata.Link
	// Card is the machine's network card.
	Card string
	// MachineID is systemd's machine ID.
	MachineID string
	// Authority finds the cluster's certificate authorities. Bootstrap does not need it.
	Authority func(context.Context) ([]byte, error)
	// Processes starts the services.
	Processes *Processes
	// Logf logs a message.
	Logf func(format string, arguments ...any)
}

// Files of the system.
const (
	authorityFile   = "/etc/kubernetes/ca.crt"
	kubeletConfig   = "/etc/kubernetes/kubelet.json"
	bootstrapConfig = "/run/kubernetes/bootstrap.kubeconfig"
	nodeConfig      = "/var/lib/kubelet/kubeconfig"
	flannelConfig   = "/etc/kubernetes/flannel.json"
	logs            = "/var/log"
	images          = "/usr/lib/millwright/images"
	pauseImage      = "container.tar" // which every Pod needs
	containerd      = "/run/containerd/containerd.sock"
)

// clusterDomain is the domain of the names of Services, also in the control plane's certificates.
const clusterDomain = "cluster.local"

// modules are loaded before the services; the kernel loads others on demand.
var modules = []string{"overlay", "br_netfilter"}

// Run configures the system, and runs its services until the context is done, whose error it returns.
func (n *Node) Run(ctx context.Context) error {
	if err := n.prepare(ctx); err != nil {
		return fmt.Errorf("preparing the system: %w", err)
	}
	go n.Processes.Keep(ctx, n.service("containerd"))
	if err := n.configure(ctx); err != nil {
		return fmt.Errorf("configuring the kubelet: %w", err)
	}
	n.importImages(ctx, pauseImage)
	n.Logf("kubelet: starting as node %s", n.Data.NodeName)
	go n.Processes.Keep(ctx, n.service("kubelet", n.kubeletFlags()...))
	// Without KVM, the other images take seconds, in which the Node can join.
	go n.importImages(ctx, "*.tar")
	return n.connectPods(ctx)
}

// connectPods runs the programs that connect Pods and Services, with the kubelet's credentials.
func (n *Node) connectPods(ctx context.Context) error {
	for {
		if _, err := os.Stat(nodeConfig); err == nil {
			break
		}
		if err := wait(ctx, pollInterval); err != nil {
			return err
		}
	}
	go n.Processes.Keep(ctx, n.flannel(nodeConfig))
	n.Processes.Keep(ctx, n.service("kube-proxy", "--kubeconfig="+nodeConfig, "--hostname-override="+n.Data.NodeName,
		"--proxy-mode=nftables", "--cluster-cidr="+strings.Join(n.podNetworks(), ",")))
	return ctx.Err()
}

// flannel connects Pods, with the credentials of the Node.
func (n *Node) flannel(kubeconfig string) Program {
	program := n.service("flanneld", "-kubeconfig="+kubeconfig, "-network="+flannelConfig, "-interface="+n.Card)
	program.Env = []string{"NODE_NAME=" + n.Data.NodeName}
	return program
}

// service returns a program in /usr/local/bin, whose log has its name.
func (n *Node) service(name string, args ...string) Program {
	return Program{
		Args: append([]string{"/usr/local/bin/" + name}, args...), Log: filepath.Join(logs, name+".log"),
	}
}

// prepare configures the machine.
func (n *Node) prepare(ctx context.Context) error {
	modprobe := Program{Args: append([]string{"/sbin/modprobe", "-a"}, modules...), Log: filepath.Join(logs, "modprobe.log")}
	if err := n.Processes.Run(ctx, modprobe); err != nil {
		return err
	}
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	if err := network.Up(*loopback); err != nil {
		return err
	}
	name := n.Data.NodeName
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	return errors.Join(setSysctls(n.sysctls()),
		write("/etc/hostname", name+"\n", 0o644),
		n.writeHosts("/etc/hosts"),
		write("/etc/machine-id", n.MachineID+"\n", 0o444),
		write("/etc/resolv.conf", resolvConf(n.Links), 0o644),
	)
}

// sysctls returns the settings of the kernel.
func (n *Node) sysctls() map[string]string {
	settings := map[string]string{
		"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1",
		// The kubelet requires these.
		"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	}
	if len(n.podNetworks()) > 1 {
		settings["net/ipv6/conf/all/forwarding"], settings["net/bridge/bridge-nf-call-ip6tables"] = "1", "1"
	}
	return settings
}

// podNetworks returns the effective networks of Pods: the IPv6 network only if the machine has an IPv6 address.
func (n *Node) podNetworks() []string {
	networks := strings.Split(n.Data.PodNetwork, ",")
	isIPv6 := func(link metadata.Link) bool { return link.Address.Is6() }
	if !slices.ContainsFunc(n.Links, isIPv6) {
		networks = networks[:1]
	}
	return networks
}

// resolvConf names the name server of the guest's network, whose address is next to the gateway's. One is
// enough, since both forward to the same server. Without any, CoreDNS would not start.
func resolvConf(links []metadata.Link) string {
	if len(links) == 0 {
		return ""
	}
	return fmt.Sprintf("nameserver %s\n", links[0].Peer.Next())
}

// configure writes the kubelet's files.
func (n *Node) configure(ctx context.Context) error {
	// A later boot does not need the token, which may have expired.
	authority, err := os.ReadFile(authorityFile)
	if errors.Is(err, os.ErrNotExist) {
		if authority, err = n.Authority(ctx); err == nil {
			err = write(authorityFile, string(authority), 0o644)
		}
	}
	if err != nil {
		return err
	}
	config, err := json.MarshalIndent(n.kubeletConfiguration(), "", "  ")
	if err != nil {
		return err
	}
	bootstrap, err := json.Marshal(n.bootstrapKubeconfig(authority))
	if err != nil {
		return err
	}
	flannel, err := json.Marshal(n.flannelConfiguration())
	if err != nil {
		return err
	}
	return errors.Join(
		write(flannelConfig, string(flannel), 0o644),
		write(kubeletConfig, string(config), 0o644),
		write(bootstrapConfig, string(bootstrap), 0o600),
	)
}

func (n *Node) flannelConfiguration() object {
	networks := n.podNetworks()
	config := object{"Network": networks[0], "EnableNFTables": true, "Backend": object{"Type": "vxlan"}}
	if len(networks) > 1 {
		config["EnableIPv6"], config["IPv6Network"] = true, networks[1]
	}
	return config
}

// object is a JSON object.
type object = map[string]any

func (n *Node) bootstrapKubeconfig(authority []byte) object {
	return object{
		"apiVersion": "v1", "kind": "Config", "current-context": "bootstrap",
		"clusters": []object{{"name": "cluster", "cluster": object{
			"server": n.Data.Server, "certificate-authority-data": authority,
		}}},
		"users":    []object{{"name": "bootstrap", "user": object{"token": n.Data.Token}}},
		"contexts": []object{{"name": "bootstrap", "context": object{"cluster": "cluster", "user": "bootstrap"}}},
	}
}

func (n *Node) kubeletConfiguration() object {
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{"x509": object{"clientCAFile": authorityFile}},
		"cgroupDriver":   "cgroupfs", "containerRuntimeEndpoint": "unix://" + containerd,
		"resolvConf": "/etc/resolv.conf", "rotateCertificates": true, "providerID": n.Data.ProviderID,
		"clusterDNS": []string{n.Data.ClusterDNS}, "clusterDomain": clusterDomain,
	}
	if len(n.Data.Taints) > 0 {
		config["registerWithTaints"] = n.Data.Taints
	}
	return config
}

func (n *Node) kubeletFlags() []string {
	flags := []string{
		"--config=" + kubeletConfig, "--bootstrap-kubeconfig=" + bootstrapConfig, "--kubeconfig=" + nodeConfig,
		"--cert-dir=/var/lib/kubelet/pki", "--hostname-override=" + n.Data.NodeName, "--node-ip=" + nodeIPs(n.Links),
	}
	if labels := joined(n.Data.Labels); labels != "" {
		flags = append(flags, "--node-labels="+labels)
	}
	return flags
}

func nodeIPs(links []metadata.Link) string {
	var addresses []string
	for _, link := range links {
		addresses = append(addresses, netip.Addr.String(link.Address))
	}
	return strings.Join(addresses, ",")
}

func joined(labels map[string]string) string {
	var pairs []string
	for key, value := range labels {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// importImages gives containerd the images on the disk whose files match a pattern, once it responds. Later
// boots have them.
func (n *Node) importImages(ctx context.Context, pattern string) {
	archives, err := filepath.Glob(filepath.Join(images, pattern))
	for _, archive := range archives {
		done := filepath.Join("/var/lib/containerd/imported", filepath.Base(archive))
		if _, there := os.Stat(done); there == nil {
			continue
		}
		if err = n.importImage(ctx, archive); err == nil {
			err = write(done, "", 0o644)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		n.Logf("images: %v", err)
	}
}

// importImage tries until it succeeds or the context is done.
func (n *Node) importImage(ctx context.Context, archive string) error {
	var err error
	for ctx.Err() == nil {
		if err = listens(ctx, containerd); err == nil {
			err = n.Processes.Run(ctx, n.service("ctr", "--namespace", "k8s.io", "images", "import", "--local", archive))
		}
		if err == nil {
			return nil
		}
		_ = wait(ctx, pollInterval)
	}
	return err
}

// listens returns an error if no process listens on the socket.
func listens(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// pollInterval is how often the guest looks for what a service makes.
const pollInterval = 100 * time.Millisecond

// write writes a file, and creates its directory.
func write(path, content string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(content), mode)
}
