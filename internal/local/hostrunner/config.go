// Package hostrunner runs the Pods of hypervisors as processes, without a kubelet.
//
// [Run] acts as one Node: it registers the Node, maintains its Lease and its status, and runs the Pods that are
// bound to it as processes of this machine. It implements what Pods of hypervisors use (vmpb's container
// contract) and rejects all others.
//
// # Workers
//
// Each Pod has a worker, a goroutine that reconciles the Pod when it changes, when its process exits, and after
// some time. No decision depends on memory alone. The process outlives the host runner; package process
// describes how it is found again and why there is never a second one.
//
// # Directory
//
//	lock                     held while a host runner works here
//	pods/UID/pod.json        the Pod as it was last seen
//	pods/UID/root/           the container's mount paths, as links to the volumes
//	pods/UID/volumes/NAME/   volumes that live as long as the Pod
//	pods/UID/log, log.1      output of the process
//	pods/UID/process.*       see package process
//
// A process has no file system of its own: vmpb.EnvRoot has the path of its root directory. It runs as the same
// user, in the same network, and without resource limits.
package hostrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/internal/local/process"
)

// Config configures a host.
type Config struct {
	// Name of the Node. It is required.
	Name string

	// Dir is the directory of this host, with its Pods' files and logs. It is created if it does not exist. A
	// later Run with the same Dir takes over the processes of an earlier one. It is required.
	Dir string

	// REST is the access to the API server, as user system:node:NAME of the group system:nodes. It is required.
	REST *rest.Config

	// Program is the executable that runs, with the argument "hypervisor" or "disk-server", for each Pod. It is
	// required.
	Program string

	// Path is the PATH of these processes, where they find QEMU. If empty, the usual directories of a Linux
	// system are used.
	Path string

	// Capacity is the capacity of the Node, for the scheduler; processes are not limited to it. It defaults to
	// the CPUs and the memory of this machine, 110 Pods and, as ephemeral-storage, the size of Dir's file
	// system.
	Capacity corev1.ResourceList

	// VolumesDir is the directory below which the directories of volumes must be. If empty, any directory is
	// allowed.
	VolumesDir string

	// Images and ImageServers are what the URLs of images may refer to on this machine: vmpb.EnvImages and
	// vmpb.EnvImageServers of the processes, regardless of their Pods. If empty, nothing is allowed.
	Images, ImageServers string

	// Switch is the socket of the switch between guests, and NoOutside keeps guests from connecting to other
	// networks: vmpb.EnvSwitch and vmpb.EnvOutside of the processes, regardless of their Pods.
	Switch    string
	NoOutside bool

	// Clock is the source of the time. If nil, the real clock is used.
	Clock clock.WithTicker

	// Log gets a line for events of Pods. The zero value discards them.
	Log logr.Logger
}

// StopGrace limits how long Run waits, once its context is done, for processes to exit after SIGTERM. It is
// shorter than the 30 seconds of most service managers.
const StopGrace = 25 * time.Second

// ErrInUse means that another host runner, in this process or another, uses the directory.
var ErrInUse = errors.New("the host's directory is in use by another host runner")

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	maxPods     = 110
)

// Run runs the host until the context is done, then terminates all its processes and returns nil: their Pods
// are Failed with reason HostStopped. Processes outlive a Run that is killed, and the next Run takes them over.
//
// It returns ErrInUse, or an error for an invalid configuration. It waits for an API server that does not
// respond.
func Run(ctx context.Context, config Config) error {
	config, err := config.withDefaults()
	if err != nil {
		return err
	}
	lock, err := lockDir(config.Dir)
	if err != nil {
		return err
	}
	defer lock.Close() // releases it
	r, err := newRunner(config)
	if err != nil {
		return err
	}
	return r.run(ctx)
}

// withDefaults returns the completed and validated configuration.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" || c.Dir == "" || c.Program == "" || c.REST == nil {
		return c, errors.New("a host runner needs a name, a directory, a program and an API server")
	}
	// Processes have another working directory.
	for _, path := range []*string{&c.Dir, &c.Program, &c.VolumesDir, &c.Images, &c.Switch} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("resolving %s: %w", *path, err)
		}
		if *path != "" {
			*path = absolute
		}
	}
	if err := os.MkdirAll(layout(c.Dir).pods(), 0o700); err != nil {
		return c, fmt.Errorf("the host's directory is not writable: %w", err)
	}
	c.Path = cmp.Or(c.Path, defaultPath)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log.GetSink() == nil {
		c.Log = logr.Discard()
	}
	var system unix.Sysinfo_t
	var files unix.Statfs_t
	if err := errors.Join(unix.Sysinfo(&system), unix.Statfs(c.Dir, &files)); err != nil {
		return c, fmt.Errorf("reading the capacity of this machine: %w", err)
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(int64(system.Totalram)*int64(system.Unit), resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(files.Blocks)*files.Bsize, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	for name, quantity := range c.Capacity {
		if !quantity.IsZero() {
			capacity[name] = quantity
		}
	}
	c.Capacity = capacity
	return c, nil
}

// StopOrphans terminates the processes of a host runner that was killed: gracefully until the context is
// done, then by force. It returns how many there were. The directory is kept, for a later Run to report.
//
// It returns ErrInUse if a host runner uses the directory, and failures to find or terminate a process.
func StopOrphans(ctx context.Context, dir string) (int, error) {
	lock, err := lockDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close() // releases it
	dirs, err := filepath.Glob(filepath.Join(layout(dir).pods(), "*"))
	if err != nil {
		return 0, fmt.Errorf("listing the pods in %s: %w", dir, err)
	}
	var all sync.WaitGroup
	var errs []error
	count := 0
	for _, dir := range dirs {
		p, err := process.Open(podDir(dir).process())
		switch {
		case errors.Is(err, process.ErrNeverStarted):
		case err != nil:
			errs = append(errs, fmt.Errorf("finding the process of %s: %w", dir, err))
		case !hasEnded(p):
			count++
			all.Go(func() {
				p.Terminate()
				select {
				case <-p.Ended():
				case <-ctx.Done():
					p.Kill()
					<-p.Ended()
				}
			})
		}
	}
	all.Wait()
	return count, errors.Join(errs...)
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}
