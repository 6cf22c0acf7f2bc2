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
	// Dir is the directory of the control plane. It is created if it does not exist. A later Start with the
	// same Dir continues with its data, certificate authorities and, while they are free, ports. It is
	// required.
	Dir string

	// Binaries is the directory with the executables etcd, kube-apiserver, kube-controller-manager and
	// kube-scheduler; see FindBinaries. It is required.
	Binaries string

	// Name of the cluster in kubeconfigs and log lines. Defaults to "millwright".
	Name string

	// Without lists components to omit: ControllerManager, Scheduler or both. An API server alone is ready
	// sooner, but there are no default service accounts, no garbage collection and no bootstrap token signing,
	// and namespaces never finish terminating.
	Without []string

	// UnsafeNoFsync lets etcd skip fsync. This is several times as fast on slow disks, but data may be lost if
	// the machine crashes. It is not lost if processes crash.
	UnsafeNoFsync bool

	// NoWatchCache makes kube-apiserver serve lists and watches from etcd instead of its memory: a watch then
	// cannot begin at a revision that etcd has compacted.
	NoWatchCache bool

	// APIServerPort is the port of kube-apiserver on 127.0.0.1. 0 means a free port, if possible the same as
	// last time.
	APIServerPort int

	// ServerNames are additional host names and IP addresses in the certificate of kube-apiserver. Loopback
	// addresses, the names of the Service kubernetes and the addresses of the host in QEMU's user-mode networks
	// (10.0.2.2, fec0::2) are always included.
	ServerNames []string

	// PodNetwork is the network from which each Node gets a part for its Pods. If unset, Nodes get none.
	PodNetwork netip.Prefix

	// PodNetwork6 is the IPv6 counterpart, with a prefix length of 48 to 64. With it, Services can have
	// addresses of both versions. If unset, there is only IPv4. It requires PodNetwork.
	PodNetwork6 netip.Prefix

	// AdvertiseAddress is the address at which Pods reach kube-apiserver through the Service kubernetes.
	// Another component must forward connections from there to 127.0.0.1. If unset, the Service has no
	// endpoints.
	AdvertiseAddress netip.Addr

	// EgressSocket is a Unix socket through which kube-apiserver connects, by HTTP CONNECT, to nodes and to
	// other servers that it calls. Its path has at most 107 bytes. If empty, kube-apiserver connects directly.
	EgressSocket string

	// Logger gets a line for each start, stop and unexpected exit of a component or child. The zero value
	// discards them.
	Logger logr.Logger

	// orphanable children outlive their parent, for tests of how Start handles them.
	orphanable bool
}

const defaultName = "millwright"

// ErrBinariesMissing means that a directory has no built control plane.
var ErrBinariesMissing = errors.New("control plane binaries are missing: run `make controlplane`")

// FindBinaries returns the directory with the executables that hack/controlplane.sh last built into the cache
// directory cacheDir (by default "millwright" in the user's cache directory). It returns ErrBinariesMissing if
// there are none.
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
			return fmt.Errorf("finding %s: %w", c.name, err)
		}
	}
	return nil
}

// withDefaults returns the completed and validated configuration.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("a control plane needs a directory (Config.Dir)")
	}
	for _, path := range []*string{&c.Dir, &c.Binaries} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("resolving directory %s: %w", *path, err)
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
			return c, fmt.Errorf("%q cannot be omitted from a control plane, only %s and %s can", name, ControllerManager, Scheduler)
		}
	}
	if c.APIServerPort < 0 || c.APIServerPort > 65535 {
		return c, fmt.Errorf("%d is not a port number", c.APIServerPort)
	}
	return c, checkBinaries(c.Binaries, c.components())
}

// components returns the components to start, in that order.
func (c Config) components() []component {
	return slices.DeleteFunc(components(), func(component component) bool { return slices.Contains(c.Without, component.name) })
}
