// Package hostrunner runs the Pods of hypervisors as processes where there is no kubelet.
//
// [Run] acts as one Node: it registers the Node, keeps its Lease and its status, and runs the
// Pods that are bound to it as processes of this machine. It implements what Pods of
// hypervisors use (vmpb's container contract) and refuses all others.
//
// # Workers
//
// Each Pod has one goroutine, its worker, which reconciles the Pod when it changes, when its
// process ends, and after a time. No decision depends on memory alone. The process outlives
// the host runner; package process documents how it is found again and why there is never a
// second one.
//
// # The folder
//
//	lock                     held while a host runner works here
//	pods/UID/pod.json        the Pod as it was last seen
//	pods/UID/root/           the container's mount paths, as links to the volumes
//	pods/UID/volumes/NAME/   volumes that live as long as the Pod
//	pods/UID/log, log.1      output of the process
//	pods/UID/process.*       see package process
//
// A process has no file system of its own: vmpb.EnvRoot has the path of its root folder. It
// runs as the same user, in the same network, and without resource limits.
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
	// Name of the Node. Required.
	Name string

	// Dir is the folder of this host: its Pods' files and logs. It is created if it does
	// not exist. A later Run with the same Dir takes over the processes of an earlier one.
	// Required.
	Dir string

	// REST is the access to the API server, as user system:node:NAME of the group
	// system:nodes. Required.
	REST *rest.Config

	// Program is the executable that runs, with the argument "hypervisor" or "disk-server", for each Pod.
	// Required.
	Program string

	// Path is the PATH of these processes, where they find QEMU. Empty means the usual
	// folders of a Linux system.
	Path string

	// Capacity is the capacity of the Node, for the scheduler; processes are not limited
	// to it. Defaults: the CPUs and the memory of this machine, 110 Pods, and as
	// ephemeral-storage the size of Dir's file system.
	Capacity corev1.ResourceList

	// VolumesDir is the folder below which the folders of volumes must be. Empty allows
	// any.
	VolumesDir string

	// Images and ImageServers are what the URLs of images may name on this machine:
	// vmpb.EnvImages and vmpb.EnvImageServers of the processes, whatever their Pods say.
	// Empty: nothing.
	Images, ImageServers string

	// Switch is the socket of the switch between guests, and NoOutside whether they do not
	// reach the outside: vmpb.EnvSwitch and vmpb.EnvOutside of the processes, whatever their
	// Pods say.
	Switch    string
	NoOutside bool

	// Clock is the source of the time. Nil means the real one.
	Clock clock.WithTicker

	// Log gets a line for what happens to Pods. The zero value discards them.
	Log logr.Logger
}

// StopGrace bounds how long Run waits, once its context has ended, for processes to end
// after SIGTERM. It is shorter than the 30 seconds of most service managers.
const StopGrace = 25 * time.Second

// ErrInUse means that another host runner, of this process or another, uses the folder.
var ErrInUse = errors.New("the host's folder is in use by another host runner")

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	maxPods     = 110
)

// Run runs the host until the context ends, then ends all its processes and returns nil:
// their Pods are Failed with reason HostStopped. Processes outlive a Run that is killed, and
// the next one takes them over.
//
// Errors: ErrInUse, or an invalid configuration. Run waits for an API server that does not
// answer.
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
		return c, errors.New("a host runner needs a name, a folder, a program and an API server")
	}
	// Processes have another working folder.
	for _, path := range []*string{&c.Dir, &c.Program, &c.VolumesDir, &c.Images, &c.Switch} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("finding %s: %w", *path, err)
		}
		if *path != "" {
			*path = absolute
		}
	}
	if err := os.MkdirAll(layout(c.Dir).pods(), 0o700); err != nil {
		return c, fmt.Errorf("the host's folder is not writable: %w", err)
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
		return c, fmt.Errorf("measuring the machine: %w", err)
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

// StopLeftOvers ends the processes of a host runner that was killed: gracefully until the
// context ends, then by force. It returns how many there were. The folder stays, for a later
// Run to report.
//
// Errors: ErrInUse if a host runner uses the folder, or the failures to find or end a
// process.
func StopLeftOvers(ctx context.Context, dir string) (int, error) {
	lock, err := lockDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close() // releases it
	folders, err := filepath.Glob(filepath.Join(layout(dir).pods(), "*"))
	if err != nil {
		return 0, fmt.Errorf("looking for pods in %s: %w", dir, err)
	}
	var all sync.WaitGroup
	var errs []error
	count := 0
	for _, folder := range folders {
		p, err := process.Open(podFolder(folder).process())
		switch {
		case errors.Is(err, process.ErrNeverStarted):
		case err != nil:
			errs = append(errs, fmt.Errorf("looking for the process of %s: %w", folder, err))
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
