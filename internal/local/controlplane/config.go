package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"
)

// Config configures a control plane.
type Config struct {
	// Dir is the folder of the control plane. It is created if it does not exist. A later
	// Start with the same Dir goes on with its data, certificate authorities and, while
	// they are free, ports. Required.
	Dir string

	// Binaries is the folder with the executables etcd, kube-apiserver,
	// kube-controller-manager and kube-scheduler; see FindBinaries. Required.
	Binaries string

	// Name of the cluster in kubeconfigs and log lines. Default: "millwright".
	Name string

	// Without lists components to leave out: ControllerManager and Scheduler can be. An
	// API server alone is ready sooner, but there are no default service accounts, no
	// garbage collection and no bootstrap token signing, and namespaces never finish
	// terminating.
	Without []string

	// UnsafeNoFsync lets etcd skip fsync. It is several times as fast on slow disks, but
	// the data may not survive a crash of the machine. They do survive a crash of the
	// processes.
	UnsafeNoFsync bool

	// NoWatchCache has kube-apiserver answer lists and watches from etcd, and not from its memory: a
	// watch cannot begin at a revision that etcd has compacted.
	NoWatchCache bool

	// APIServerPort is the port of kube-apiserver on 127.0.0.1. 0 means a free one, the
	// same as last time if possible.
	APIServerPort int

	// ServerNames are additional host names and IP addresses in the certificate of
	// kube-apiserver. Loopback, the names of the Service kubernetes and the addresses of
	// the host in user-mode networks of QEMU (10.0.2.2, fec0::2) are always in it.
	ServerNames []string

	// PodNetwork is the network of which each Node gets a part for its Pods. Optional: without
	// it Nodes get none.
	PodNetwork netip.Prefix

	// PodNetwork6 is the same for IPv6, of 48 to 64 bits. With it Services can have addresses of both versions.
	// Optional: without it there is only IPv4. It needs PodNetwork.
	PodNetwork6 netip.Prefix

	// AdvertiseAddress is the address at which Pods reach kube-apiserver: the Service kubernetes leads to it.
	// Something outside of this package has to carry connections from there to 127.0.0.1. Optional: without it
	// the Service has no endpoints.
	AdvertiseAddress netip.Addr

	// EgressSocket is a Unix socket at which HTTP CONNECT leads to nodes, and to other servers
	// that kube-apiserver calls. It has 107 bytes at most. Optional: without it they are reached
	// directly.
	EgressSocket string

	// Logger gets a line for each start, stop and unexpected end of a component or child.
	// The zero value discards them.
	Logger logr.Logger

	// orphanable children outlive their parent: for tests of what Start does about them.
	orphanable bool
}

const defaultName = "millwright"

// ErrBinariesMissing means that a folder has no built control plane.
var ErrBinariesMissing = errors.New("control plane binaries are missing: run `make controlplane`")

// FindBinaries returns the folder with the executables that hack/controlplane.sh last built
// into the cache folder cacheDir (the script's default is "millwright" in the user's cache
// folder). The error is ErrBinariesMissing if there are none.
func FindBinaries(cacheDir string) (string, error) {
	// The link itself is returned, not its target: a rebuild removes old targets.
	dir := filepath.Join(cacheDir, "controlplane", "current")
	return dir, checkBinaries(dir, components())
}

func checkBinaries(dir string, components []component) error {
	for _, c := range components {
		info, err := os.Stat(filepath.Join(dir, c.name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
			return fmt.Errorf("%w (no executable %s in %s)", ErrBinariesMissing, c.name, dir)
		}
		if err != nil {
			return fmt.Errorf("looking for %s: %w", c.name, err)
		}
	}
	return nil
}

// withDefaults returns the completed and validated configuration.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("a control plane needs a folder (Config.Dir)")
	}
	for _, path := range []*string{&c.Dir, &c.Binaries} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("finding folder %s: %w", *path, err)
		}
		*path = absolute
	}
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	for _, name := range c.Without {
		if name != ControllerManager && name != Scheduler {
			return c, fmt.Errorf("%q cannot be left out of a control plane, only %s and %s can", name, ControllerManager, Scheduler)
		}
	}
	if c.APIServerPort < 0 || c.APIServerPort > 65535 {
		return c, fmt.Errorf("%d is not a port", c.APIServerPort)
	}
	return c, checkBinaries(c.Binaries, c.components())
}

// components returns the components to start, in that order.
func (c Config) components() []component {
	return slices.DeleteFunc(components(), func(component component) bool { return slices.Contains(c.Without, component.name) })
}
