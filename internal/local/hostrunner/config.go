package hostrunner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Config says which host Run plays, and where.
type Config struct {
	// Name is the name of the Node. Required.
	Name string

	// Dir holds everything that belongs to this host: its Pods' folders and logs. It is
	// created if it does not exist. A later Run with the same Dir goes on with the
	// processes that an earlier one left. Required.
	Dir string

	// REST is how the API server is reached, as user system:node:NAME of the group
	// system:nodes. Required.
	REST *rest.Config

	// Program is the executable that is run, with the argument "hypervisor", for each
	// Pod. Required.
	Program string

	// Path is the PATH of these processes, where they find QEMU. Empty means the usual
	// folders of a Linux system.
	Path string

	// Capacity is what the host offers to Pods; the scheduler counts with it, and
	// nothing holds the processes to it. The zero value of cpu means the processors of
	// this machine, of memory all of its memory, of pods 110, of ephemeral-storage the
	// size of the file system of Dir.
	Capacity corev1.ResourceList

	// VolumesDir is the folder below which the folders of volumes must lie. The zero
	// value means that they may lie anywhere.
	VolumesDir string

	// Clock tells the time. The zero value means the real one.
	Clock clock.WithTicker

	// Log gets a line for what happens to Pods. The zero value discards them.
	Log logr.Logger
}

// StopGrace is how long Run takes at most, once its context has ended, to end the
// processes in an orderly way. It is shorter than the grace period of most service
// managers, 30 seconds.
const StopGrace = 25 * time.Second

// ErrInUse means that another host runner, of this process or another, works in the folder.
var ErrInUse = errors.New("the host's folder is in use by another host runner")

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	maxPods     = 110
)

// Run plays the host until the context ends, then ends all its processes and returns
// nil: their Pods are Failed with reason HostStopped. Processes outlive a Run that is
// killed, and the next one takes them over.
//
// Errors: ErrInUse, and whatever is wrong with the configuration. An API server that
// does not answer is waited for.
func Run(ctx context.Context, config Config) error {
	config, err := config.withDefaults()
	if err != nil {
		return err
	}
	lock, err := lockDir(config.Dir)
	if err != nil {
		return err
	}
	defer lock.Close() // gives the lock back
	r, err := newRunner(config)
	if err != nil {
		return err
	}
	return r.run(ctx)
}

// withDefaults returns the completed configuration, or says what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" || c.Dir == "" || c.Program == "" || c.REST == nil {
		return c, errors.New("a host runner needs a name, a folder, a program and an API server")
	}
	if err := makeAbsolute(&c.Dir, &c.Program, &c.VolumesDir); err != nil {
		return c, err
	}
	if err := os.MkdirAll(layout(c.Dir).pods(), 0o700); err != nil {
		return c, fmt.Errorf("the host's folder is not writable: %w", err)
	}
	if c.Path == "" {
		c.Path = defaultPath
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log.GetSink() == nil {
		c.Log = logr.Discard()
	}
	return c.withCapacity()
}

// makeAbsolute makes paths independent of the working folder, which is another one for
// the processes that are run. An empty path stays empty.
func makeAbsolute(paths ...*string) error {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("finding %s: %w", *path, err)
		}
		*path = absolute
	}
	return nil
}

// withCapacity fills in what the configuration does not say of the host's size.
func (c Config) withCapacity() (Config, error) {
	machine, err := measure(c.Dir)
	if err != nil {
		return c, err
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(machine.processors, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(machine.memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(machine.storage, resource.BinarySI),
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
