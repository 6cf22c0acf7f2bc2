package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/driver/sim/internal/kubelet"
)

// CloudOptions configure a [Cloud].
type CloudOptions struct {
	// Seed of all random decisions. Zero is a seed like any other.
	Seed uint64
	// Clock of the cloud and of its drivers. Nil means the real one.
	Clock clock.Clock
}

// Cloud is a simulated provider: VMs, a journal and faults. It may be used concurrently,
// and by several drivers. Make it with [NewCloud] or [OpenCloud].
type Cloud struct {
	seed   uint64
	clock  clock.Clock
	store  store
	faults faults

	mu        sync.Mutex
	listeners map[*kubelet.Kubelets]struct{}
}

// NewCloud returns an empty cloud in memory. Its journal keeps at least the newest 90,000
// entries.
func NewCloud(options CloudOptions) *Cloud {
	return newCloud(newMemoryStore(), options)
}

// OpenCloud returns the cloud in a directory, and creates it if there is none. Several
// processes, and several handles of one process, may use it at the same time. Faults
// belong to the handle. Close it after use.
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
		listeners: map[*kubelet.Kubelets]struct{}{},
	}
}

// Close releases the files of a cloud in a directory. The VMs stay. The cloud must
// not be used afterwards. A cloud in memory has nothing to close.
func (c *Cloud) Close() error { return c.store.close() }

// Fail adds a fault.
func (c *Cloud) Fail(f Fault) { c.faults.add(f) }

// LoseAnswers adds a fault: calls of method for the machines that pattern selects (see
// Fault.Machine) take effect, but are answered with DeadlineExceeded. times is how many
// calls in all; negative means all, and zero adds nothing.
func (c *Cloud) LoseAnswers(method Method, pattern string, times int) {
	if times != 0 {
		c.Fail(Fault{Method: method, Machine: pattern, Codes: deadlineOnly, Times: times, LostAnswer: true})
	}
}

// ClearFaults removes all faults. Calls that hang already are not released.
func (c *Cloud) ClearFaults() { c.faults.clear() }

// VMs returns all VMs, sorted by provider ID. VMs whose deletion has not ended are
// included.
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

// Add creates a VM without a call of the driver: a second one of a machine, an orphan, or
// one of another cluster. Of v, Namespace (default "default"), Machine, Pool, Tags and
// Node are used. The VM is initialised, and visible at once. Add returns the VM with its
// provider ID.
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
		c.notify(v, (*kubelet.Kubelets).PlanJoin)
	}
	return v, err
}

// Vanish removes the VMs of all machines that pattern selects (see Fault.Machine), as if
// they were lost, and returns their number. A driver that runs on this handle turns their
// nodes to Ready=Unknown, unless its Config says otherwise.
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
		c.notify(v, (*kubelet.Kubelets).PlanLost)
	}
	return gone, nil
}

// SetNodeReady sets the Ready condition of the nodes of all machines that pattern selects
// (see Fault.Machine). Drivers that run on this handle write it at once; nodes that have
// not joined yet are not affected. It returns how many VMs were selected.
func (c *Cloud) SetNodeReady(pattern string, ready corev1.ConditionStatus) (int, error) {
	vms, err := c.selectVMs(pattern)
	if err != nil {
		return 0, err
	}
	for _, v := range vms {
		c.setReady(v, ready, 0)
	}
	return len(vms), nil
}

// FlapNode changes the Ready condition of the nodes of all machines that pattern selects
// (see Fault.Machine): at once to False, after an interval to True, and so on, times
// changes in all. It returns how many VMs were selected.
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
			c.setReady(v, ready, time.Duration(i)*interval)
		}
	}
	return len(vms), nil
}

func (c *Cloud) selectVMs(pattern string) ([]VM, error) {
	vms, err := c.VMs()
	return slices.DeleteFunc(vms, func(v VM) bool { return !matches(pattern, v.key()) }), err
}

func (c *Cloud) setReady(v VM, ready corev1.ConditionStatus, after time.Duration) {
	c.notify(v, func(k *kubelet.Kubelets, v kubelet.VM) { k.PlanReady(v, ready, after) })
}

// listen notifies kubelets until stop is called.
func (c *Cloud) listen(k *kubelet.Kubelets) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners[k] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, k)
	}
}

// notify calls plan for the kubelets of each driver that runs, if v becomes a node.
func (c *Cloud) notify(v VM, plan func(*kubelet.Kubelets, kubelet.VM)) {
	if v.Node == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.listeners {
		plan(k, kubeletVM(v))
	}
}
