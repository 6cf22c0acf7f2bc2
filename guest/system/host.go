package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/network"
)

// Host is the machine whose system is run. All fields are required.
type Host struct {
	// Name is its host name.
	Name string
	// Links are the machine's, the first of which has the Node's address.
	Links []metadata.Link
	// Card is the machine's network card.
	Card string
	// MachineID is systemd's.
	MachineID string
	// Processes starts the services.
	Processes *Processes
	// Logf logs a message.
	Logf func(format string, arguments ...any)
}

// Files of every system.
const (
	flannelConfig = "/etc/kubernetes/flannel.json"
	logs          = "/var/log"
	images        = "/usr/lib/millwright/images"
	containerd    = "/run/containerd/containerd.sock"
)

// modules are loaded before the services; the kernel asks for others itself.
var modules = []string{"overlay", "br_netfilter"}

// flannel connects Pods with the credentials of a Node.
func (h *Host) flannel(kubeconfig, nodeName string) Program {
	program := h.service("flanneld", "-kubeconfig="+kubeconfig, "-network="+flannelConfig, "-interface="+h.Card)
	program.Env = []string{"NODE_NAME=" + nodeName}
	return program
}

// configureFlannel writes flannel's file.
func (h *Host) configureFlannel(podNetwork string) error {
	config, err := json.Marshal(object{"Network": podNetwork, "EnableNFTables": true, "Backend": object{"Type": "vxlan"}})
	if err != nil {
		return err
	}
	return write(flannelConfig, string(config), 0o644)
}

// service returns a program of /usr/local/bin, whose log has its name.
func (h *Host) service(name string, args ...string) Program {
	return Program{
		Args: append([]string{"/usr/local/bin/" + name}, args...), Log: filepath.Join(logs, name+".log"),
	}
}

// prepare sets what belongs to the machine.
func (h *Host) prepare(ctx context.Context) error {
	modprobe := Program{Args: append([]string{"/sbin/modprobe", "-a"}, modules...), Log: filepath.Join(logs, "modprobe.log")}
	if err := h.Processes.Run(ctx, modprobe); err != nil {
		return err
	}
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	if err := network.Up(*loopback); err != nil {
		return err
	}
	name := h.Name
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	err = setSysctls(map[string]string{
		"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1",
		// The kubelet wants them so.
		"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	})
	return errors.Join(err,
		write("/etc/hostname", name+"\n", 0o644),
		h.writeHosts("/etc/hosts"),
		write("/etc/machine-id", h.MachineID+"\n", 0o444),
		write("/etc/resolv.conf", resolvConf(h.Links), 0o644),
	)
}

// writeHosts writes the file of host names, unless it has the machine's: others may have added to it.
func (h *Host) writeHosts(path string) error {
	line := fmt.Sprintf("%s %s\n", h.Links[0].Address, h.Name)
	content, err := os.ReadFile(path)
	if err == nil && strings.Contains(string(content), line) {
		return nil
	}
	return write(path, "127.0.0.1 localhost\n::1 localhost\n"+line, 0o644)
}

// resolvConf names the name server of the guest's network, which is next to the gateway.
func resolvConf(links []metadata.Link) string {
	for _, link := range links {
		if link.Peer.Is4() {
			return fmt.Sprintf("nameserver %s\n", link.Peer.Next())
		}
	}
	return ""
}

// importImages gives containerd the images on the disk, once it answers. Later boots have them.
func (h *Host) importImages(ctx context.Context) error {
	done := filepath.Join("/var/lib/containerd", "imported")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	archives, err := filepath.Glob(filepath.Join(images, "*.tar"))
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err = answers(ctx, containerd); err == nil {
			err = h.Processes.Run(ctx, h.service("ctr", append([]string{"--namespace", "k8s.io", "images", "import", "--local"}, archives...)...))
		}
		if err == nil {
			return write(done, "", 0o644)
		}
		_ = wait(ctx, pollInterval)
	}
	return err
}

// answers returns an error if nothing answers at the socket.
func answers(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// pollInterval is how often the guest looks for what a service makes.
const pollInterval = 100 * time.Millisecond

// write writes a file, and makes its folder.
func write(path, content string, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(content), mode)
}
