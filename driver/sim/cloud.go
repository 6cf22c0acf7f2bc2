package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// CloudOptions are the properties of a [Cloud].
type CloudOptions struct {
	// Seed of all that is decided by chance. Zero is a seed like any other.
	Seed uint64
	// Clock of the cloud and of the drivers on it. Nil means the real one.
	Clock clock.Clock
}

// Cloud is a simulated provider: VMs, a journal and scripted faults. It may be used
// by several drivers at once. Make it with [NewCloud] or [OpenCloud].
type Cloud struct {
	seed   uint64
	clock  clock.Clock
	store  store
	faults faults

	mu        sync.Mutex
	listeners map[*Driver]struct{}
}

// NewCloud returns an empty cloud in memory. Its journal keeps the newest entries,
// 90,000 at least.
func NewCloud(options CloudOptions) *Cloud {
	return newCloud(newMemoryStore(), options)
}

// OpenCloud returns the cloud that is kept in a directory, and makes it if there is
// none. Several processes, and several handles of one process, may have it open;
// what one does, the others see. Faults belong to the handle. Close it after use.
func OpenCloud(dir string, options CloudOptions) (*Cloud, error) {
	store, err := openDirStore(dir)
	if err != nil {
		return nil, fmt.Errorf("opening simulated cloud: %w", err)
	}
	return newCloud(store, options), nil
}

func newCloud(s store, options CloudOptions) *Cloud {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Cloud{
		seed: options.Seed, clock: options.Clock, store: s,
		faults:    faults{seed: options.Seed},
		listeners: map[*Driver]struct{}{},
	}
}

// Close releases the files of a cloud in a directory. The VMs stay. The cloud must
// not be used afterwards. A cloud in memory has nothing to close.
func (c *Cloud) Close() error { return c.store.close() }

// Fail adds a fault to the script.
func (c *Cloud) Fail(f Fault) { c.faults.add(f) }

// LoseAnswers lets calls of method for the machines that pattern selects (see
// Fault.Machine) take effect and then be answered with DeadlineExceeded: times times
// in all, for ever if negative.
func (c *Cloud) LoseAnswers(method Method, pattern string, times int) {
	if times != 0 {
		c.Fail(Fault{Method: method, Machine: pattern, Codes: deadlineOnly, Times: times, LostAnswer: true})
	}
}

// ClearFaults empties the script. Calls that hang go on hanging.
func (c *Cloud) ClearFaults() { c.faults.clear() }

// VMs returns all VMs, in the order of their provider IDs. VMs whose deletion has
// not ended are included.
func (c *Cloud) VMs() ([]VM, error) {
	var vms []VM
	err := c.locked(func() (err error) {
		vms, err = c.everything()
		return err
	})
	slices.SortFunc(vms, func(a, b VM) int { return strings.Compare(a.ProviderID, b.ProviderID) })
	return vms, err
}

// Journal returns the journal, oldest entry first.
func (c *Cloud) Journal() ([]Entry, error) { return c.store.journal() }

// Add makes a VM behind the driver's back: a second one for a living machine, an
// orphan, or a foreign one. Of v, Namespace (default "default"), Machine, Pool, Tags
// and Node are used. The VM is initialised, and visible at once. It returns the VM
// with its provider ID.
func (c *Cloud) Add(v VM) (VM, error) {
	if v.Namespace == "" {
		v.Namespace = defaultNamespace
	}
	if err := checkName(v.Machine); err != nil {
		return VM{}, err
	}
	v = v.clone()
	v.NodeName, v.Initialized, v.GoneAt = v.Machine, true, time.Time{}
	v.CreatedAt = c.clock.Now()
	v.VisibleAt = v.CreatedAt
	err := c.locked(func() error { return c.make(Added, &v) })
	if err == nil {
		c.notify(func(d *Driver) { d.planJoin(v) })
	}
	return v, err
}

// Vanish removes the VMs of all machines that pattern selects (see Fault.Machine),
// as if they had burned, and returns how many that were. A driver that runs on this
// handle turns their nodes to Ready=Unknown, unless it was told not to.
func (c *Cloud) Vanish(pattern string) (int, error) {
	vms, err := c.selectVMs(pattern)
	if err != nil {
		return 0, err
	}
	gone := 0
	for _, v := range vms {
		err := c.locked(func() error {
			_, exists, err := c.get(v.ProviderID)
			if err != nil || !exists {
				return err
			}
			gone++
			return c.unmake(Vanished, v)
		})
		if err != nil {
			return gone, err
		}
		c.notify(func(d *Driver) { d.planLost(v) })
	}
	return gone, nil
}

// SetNodeReady lets the nodes of all machines that pattern selects report that
// status in their Ready condition. Drivers that run on this handle do so at once;
// nodes that have not joined yet are not affected. It returns how many VMs were
// selected.
func (c *Cloud) SetNodeReady(pattern string, ready corev1.ConditionStatus) (int, error) {
	vms, err := c.selectVMs(pattern)
	if err != nil {
		return 0, err
	}
	for _, v := range vms {
		c.notify(func(d *Driver) { d.planReady(v, ready, 0) })
	}
	return len(vms), nil
}

// FlapNode lets the nodes of all machines that pattern selects change their Ready
// condition times times, at once and then once per interval: to False, to True and so
// on. It returns how many VMs were selected.
func (c *Cloud) FlapNode(pattern string, times int, interval time.Duration) (int, error) {
	vms, err := c.selectVMs(pattern)
	if err != nil {
		return 0, err
	}
	for _, v := range vms {
		for i := range times {
			ready := corev1.ConditionFalse
			if i%2 == 1 {
				ready = corev1.ConditionTrue
			}
			c.notify(func(d *Driver) { d.planReady(v, ready, time.Duration(i)*interval) })
		}
	}
	return len(vms), nil
}

func (c *Cloud) selectVMs(pattern string) ([]VM, error) {
	vms, err := c.VMs()
	return slices.DeleteFunc(vms, func(v VM) bool { return !matches(pattern, v.key()) }), err
}

// listen has a driver notified from now on, ignore ends that.
func (c *Cloud) listen(d *Driver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners[d] = struct{}{}
}

func (c *Cloud) ignore(d *Driver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.listeners, d)
}

// notify calls f for each driver that runs.
func (c *Cloud) notify(f func(*Driver)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := range c.listeners {
		f(d)
	}
}
