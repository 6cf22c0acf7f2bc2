package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"
)

// Config says what Start starts and where.
type Config struct {
	// Dir holds everything that belongs to this control plane. It is created if
	// it does not exist. A later Start with the same Dir goes on with its data,
	// certificates and, where they are still free, ports. Required.
	Dir string

	// Binaries is the folder with the executables etcd, kube-apiserver,
	// kube-controller-manager and kube-scheduler; see FindBinaries. Required.
	Binaries string

	// Name is the name of the cluster in kubeconfigs and log lines. The zero
	// value means "millwright".
	Name string

	// Without lists components that are left out: ControllerManager and
	// Scheduler can be. An apiserver alone is ready sooner and answers only to
	// its clients: no default service accounts, no garbage collection, no
	// bootstrap token signing, and namespaces never finish terminating.
	Without []string

	// AuditLog records every request, with its metadata, in AuditLogPath. The
	// file starts empty at each Start.
	AuditLog bool

	// UnsafeNoFsync lets etcd skip fsync: several times as fast on slow disks,
	// but the data may not survive a crash of the machine. It does survive a
	// crash of the processes.
	UnsafeNoFsync bool

	// APIServerPort is the port of kube-apiserver on 127.0.0.1. The zero value
	// means a free one, the same as last time if possible.
	APIServerPort int

	// ServerNames are additional host names and IP addresses under which
	// clients reach kube-apiserver, for its certificate. Loopback, the cluster's
	// own service names and the addresses under which user-mode networks of QEMU
	// show the host (10.0.2.2, fec0::2) are always in it.
	ServerNames []string

	// Logger gets a line for each start, stop and unexpected end of a child.
	// The zero value discards them.
	Logger logr.Logger

	// orphanable children are not ended by the kernel with their parent. Only
	// tests of what Start does about left-over children want that.
	orphanable bool
}

// Names of the components, for Config.Without, Kill, StopComponent and StartComponent.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

const defaultName = "millwright"

// ErrBinariesMissing means that there is no built control plane where one was expected.
var ErrBinariesMissing = errors.New("control plane binaries are missing: run `make controlplane`")

// FindBinaries returns the folder with the executables that hack/controlplane.sh
// built last into the cache folder cacheDir (the script's default is "millwright"
// in the user's cache folder). The error is ErrBinariesMissing if there are none.
func FindBinaries(cacheDir string) (string, error) {
	// The link itself is returned, not its target: a rebuild removes old targets.
	dir := filepath.Join(cacheDir, "controlplane", "current")
	return dir, checkBinaries(dir, []string{Etcd, APIServer, ControllerManager, Scheduler})
}

func checkBinaries(dir string, names []string) error {
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
			return fmt.Errorf("%w (no executable %s in %s)", ErrBinariesMissing, name, dir)
		}
		if err != nil {
			return fmt.Errorf("looking for %s: %w", name, err)
		}
	}
	return nil
}

// withDefaults returns the completed configuration, or says what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("a control plane needs a folder (Config.Dir)")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, fmt.Errorf("finding folder %s: %w", c.Dir, err)
	}
	c.Dir = dir
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
	binaries, err := filepath.Abs(c.Binaries)
	if err != nil {
		return c, fmt.Errorf("finding folder %s: %w", c.Binaries, err)
	}
	c.Binaries = binaries
	return c, checkBinaries(c.Binaries, c.components())
}

// components returns the names of what is started, in that order.
func (c Config) components() []string {
	names := []string{Etcd, APIServer}
	for _, name := range []string{ControllerManager, Scheduler} {
		if !slices.Contains(c.Without, name) {
			names = append(names, name)
		}
	}
	return names
}

// layout names the files in a control plane's folder.
type layout string

func (d layout) path(elements ...string) string {
	return filepath.Join(append([]string{string(d)}, elements...)...)
}
func (d layout) pki(name string) string        { return d.path("pki", name) }
func (d layout) credential(name string) string { return d.path("credentials", name+".kubeconfig") }
func (d layout) kubeconfig() string            { return d.path("kubeconfig") }
func (d layout) data() string                  { return d.path("etcd") }
func (d layout) log(name string) string        { return d.path("logs", name+".log") }
func (d layout) auditLog() string              { return d.path("logs", "audit.log") }
func (d layout) auditPolicy() string           { return d.path("audit-policy.yaml") }
func (d layout) pidFile(name string) string    { return d.path("run", name+".json") }
func (d layout) ports() string                 { return d.path("ports.json") }
func (d layout) lock() string                  { return d.path("lock") }

// create makes the folders. All of them hold secrets or lead to them, so nobody
// else may enter.
func (d layout) create() error {
	for _, dir := range []string{d.path(), d.path("pki"), d.path("credentials"), d.data(), d.path("logs"), d.path("run")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("the data folder %s is not writable: %w", d, err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("the data folder %s is not writable: %w", d, err)
		}
	}
	return nil
}

const loopback = "127.0.0.1"

func loopbackURL(port int) string {
	return "https://" + net.JoinHostPort(loopback, fmt.Sprint(port))
}
