package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/names"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// CloudOptions configure a [Cloud].
type CloudOptions struct {
	// Seed of all random decisions. Zero is a seed like any other.
	Seed uint64
}

// Cloud is a simulated provider: VMs, a journal and faults. It may be used concurrently,
// and by several drivers. Make it with [NewCloud] or [OpenCloud].
type Cloud struct {
	seed   uint64
	store  *store
	faults faults

	mu        sync.Mutex
	listeners map[*kubelets]struct{}
}

// NewCloud returns an empty cloud in memory. Its journal keeps at least the newest 90,000
// entries.
func NewCloud(options CloudOptions) *Cloud { return newCloud(newStore(), options) }

// OpenCloud returns the cloud in a directory, and creates it if there is none. Several
// processes, and several handles of one process, may use it at the same time. Faults
// belong to the handle. Close it after use.
func OpenCloud(dir string, options CloudOptions) (*Cloud, error) {
	store, err := openStore(dir)
	if err != nil {
		return nil, fmt.Errorf("opening simulated cloud: %w", err)
	}
	return newCloud(store, options), nil
}

func newCloud(s *store, options CloudOptions) *Cloud {
	return &Cloud{seed: options.Seed, store: s, faults: faults{seed: options.Seed}, listeners: map[*kubelets]struct{}{}}
}

// Close releases the file of a cloud in a directory. The VMs stay. The cloud must
// not be used afterwards. A cloud in memory has nothing to close.
func (c *Cloud) Close() error { return c.store.close() }

// Fail adds a fault.
func (c *Cloud) Fail(f Fault) { c.faults.add(f) }

// ClearFaults removes all faults. Calls that hang already are not released.
func (c *Cloud) ClearFaults() { c.faults.clear() }

// VMs returns all VMs, sorted by provider ID. VMs whose deletion has not ended are
// included.
func (c *Cloud) VMs() ([]VM, error) {
	var vms []VM
	err := c.locked(func() error {
		vms = c.store.get(slices.Sorted(maps.Keys(c.store.vms))...)
		return nil
	})
	return vms, err
}

// Journal returns the journal, oldest entry first.
func (c *Cloud) Journal() ([]Entry, error) {
	var entries []Entry
	err := c.locked(func() (err error) {
		entries, err = c.store.journal()
		return err
	})
	return entries, err
}

// Add creates a VM without a call of the driver: a second one of a machine, an orphan, one of
// another cluster, or one that had vanished. Of v, Namespace (default "default"), Machine, Account, Pool,
// Tags and Node are used, and the ProviderID if it is not empty. The VM is initialised, and
// visible at once. Add returns the VM with its provider ID.
func (c *Cloud) Add(v VM) (VM, error) {
	if v.Namespace == "" {
		v.Namespace = defaultNamespace
	}
	if err := spec.CheckName(v.Machine); err != nil {
		return VM{}, err
	}
	v = v.clone()
	v.NodeName, v.Initialized, v.GoneAt = v.Machine, true, time.Time{}
	v.CreatedAt = time.Now()
	v.VisibleAt = v.CreatedAt
	err := c.locked(func() error { return c.make(Added, &v) })
	if err == nil {
		c.notify(v, (*kubelets).planJoin)
	}
	return v, err
}

// Vanish removes the VMs of all machines that pattern selects (see Fault.Machine), as if
// they were lost, and returns their number. A driver that runs on this handle turns their
// nodes to Ready=Unknown, as the node lifecycle controller does.
func (c *Cloud) Vanish(pattern string) (int, error) {
	return c.vanish(func() []VM { return c.selected(pattern) })
}

// vanish is Vanish for the VMs that are chosen under the lock.
func (c *Cloud) vanish(chosen func() []VM) (int, error) {
	var gone []VM
	err := c.locked(func() error {
		for _, v := range chosen() {
			if err := c.unmake(Vanished, v); err != nil {
				return err
			}
			gone = append(gone, v)
		}
		return nil
	})
	for _, v := range gone {
		c.notify(v, func(k *kubelets, v VM) { k.plan(lost, v, 0) })
	}
	return len(gone), err
}

// Move moves all VMs of an account to another one, as if the infrastructure was restored elsewhere.
func (c *Cloud) Move(from, to string) error {
	return c.locked(func() error {
		for _, v := range c.selected("") {
			if v.account() != from {
				continue
			}
			v.Account = to
			if err := c.store.add(change{VM: &v}); err != nil {
				return err
			}
		}
		return nil
	})
}

// SetNodeReady sets the Ready condition of the nodes of all machines that pattern selects
// (see Fault.Machine). Drivers that run on this handle write it at once; nodes that have
// not joined yet are not affected. It returns how many VMs were selected.
func (c *Cloud) SetNodeReady(pattern string, ready corev1.ConditionStatus) (int, error) {
	var vms []VM
	err := c.locked(func() error {
		vms = c.selected(pattern)
		return nil
	})
	for _, v := range vms {
		c.notify(v, func(k *kubelets, v VM) { k.planReady(v, ready) })
	}
	return len(vms), err
}

// SetAgent replaces the agents of all machines that pattern selects (see Fault.Machine) and that become
// nodes. An update that is under way goes on with the new agent. It returns how many VMs were selected.
func (c *Cloud) SetAgent(pattern string, agent Agent, updateTime time.Duration) (int, error) {
	if !spec.Agent(agent).Valid() {
		return 0, fmt.Errorf("there is no agent %q", agent)
	}
	var vms []VM
	err := c.locked(func() error {
		for _, v := range c.selected(pattern) {
			if v.Node == nil {
				continue
			}
			v = v.clone()
			v.Node.Agent, v.Node.UpdateTime = agent, updateTime
			if err := c.store.add(change{VM: &v}); err != nil {
				return err
			}
			vms = append(vms, v)
		}
		return nil
	})
	for _, v := range vms {
		c.notify(v, (*kubelets).planUpdate)
	}
	return len(vms), err
}

// SetZones replaces the zones of the cloud. VMs in other zones stay. A new cloud has no
// zones. A zone has to be a valid value of a label.
func (c *Cloud) SetZones(names ...string) error {
	for _, name := range names {
		if !spec.IsZone(name) {
			return fmt.Errorf("%q cannot be a zone", name)
		}
	}
	zones := slices.AppendSeq([]string{}, slices.Values(slices.Compact(slices.Sorted(slices.Values(names)))))
	return c.locked(func() error { return c.store.add(change{Zones: zones}) })
}

// Zones returns the zones of the cloud, sorted.
func (c *Cloud) Zones() ([]string, error) {
	var zones []string
	err := c.locked(func() error {
		zones = slices.Clone(c.store.zones)
		return nil
	})
	return zones, err
}

// listen notifies kubelets until stop is called.
func (c *Cloud) listen(k *kubelets) (stop func()) {
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
func (c *Cloud) notify(v VM, plan func(*kubelets, VM)) {
	if v.Node == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.listeners {
		plan(k, v)
	}
}

// locked runs f with exclusive access to the store. Its errors have a code, Internal for
// those of the store.
func (c *Cloud) locked(f func() error) error {
	unlock, err := c.store.lock()
	if err == nil {
		if err = c.expire(); err == nil {
			err = f()
		}
		unlock()
	}
	if _, hasCode := status.FromError(err); !hasCode {
		return status.WrapError(codes.Internal, fmt.Sprintf("simulated cloud: %v", err), err)
	}
	return err
}

// limits are how many VMs may be in the pool and in the zone of a new one.
type limits struct{ pool, zone int }

// create creates a VM, or finds the one that was created before. It returns the VM and
// whether it is new. A limit of zero is none.
func (c *Cloud) create(want VM, limit limits) (v VM, made bool, err error) {
	err = c.locked(func() error {
		if vms := c.ofMachine(want.key(), want.account()); len(vms) > 0 {
			v = vms[0]
			return c.adopt(vms, want)
		}
		if want.Zone != "" && !slices.Contains(c.store.zones, want.Zone) {
			return status.Error(codes.FailedPrecondition, fmt.Sprintf("there is no zone %q (zones: %s)", want.Zone, strings.Join(c.store.zones, ", ")))
		}
		if used := c.store.inPool[want.Pool]; limit.pool > 0 && used >= limit.pool {
			return status.Error(codes.ResourceExhausted, fmt.Sprintf("pool %s is full: %d of %d VMs exist", want.Pool, used, limit.pool))
		}
		if used := c.store.inZone[want.Zone]; limit.zone > 0 && used >= limit.zone {
			return status.Error(codes.ResourceExhausted, fmt.Sprintf("zone %q is full: %d of %d VMs exist", want.Zone, used, limit.zone))
		}
		v, made = want, true
		return c.make(Created, &v)
	})
	return v, made && err == nil, err
}

// adopt returns an error unless a machine has one VM, which is what is wanted.
func (c *Cloud) adopt(vms []VM, want VM) error {
	v := vms[0]
	switch {
	case len(vms) > 1:
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("there are %d VMs for %s", len(vms), v.key()))
	case !fits(v, want):
		return status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists with another pool, other tags, in another zone or of another API", v.ProviderID))
	case !v.GoneAt.IsZero():
		return status.Error(codes.Aborted, fmt.Sprintf("VM %s is being deleted", v.ProviderID))
	}
	return c.store.add(change{Entry: effectOn(v, Adopted)})
}

// find returns the one VM that a call is about.
func (c *Cloud) find(call call) (v VM, err error) {
	err = c.locked(func() error {
		vms := c.candidates(call)
		if call.id == "" {
			vms = visible(vms)
		}
		switch len(vms) {
		case 0:
			return status.Error(codes.NotFound, "no VM for "+call.vm())
		case 1:
			v = vms[0]
			return nil
		default:
			return status.Error(codes.OutOfRange, fmt.Sprintf("there are %d VMs for %s", len(vms), call.vm()))
		}
	})
	return v, err
}

// remove deletes all VMs that a call is about, after its delay if that is not zero, and returns
// them.
func (c *Cloud) remove(call call) (vms []VM, err error) {
	err = c.locked(func() (err error) {
		vms = c.candidates(call)
		for i := 0; i < len(vms) && err == nil; i++ {
			switch v := vms[i]; {
			case call.spec.DeleteDelay == 0:
				err = c.unmake(Deleted, v)
			case v.GoneAt.IsZero():
				v.GoneAt = time.Now().Add(call.spec.DeleteDelay)
				err = c.store.add(change{VM: &v})
			}
		}
		return err
	})
	return vms, err
}

// list returns the visible VMs that o owns.
func (c *Cloud) list(o owner) ([]VM, error) {
	vms, err := c.VMs()
	return visible(o.own(vms)), err
}

// change applies f, which may be nil, to a VM, if the VM still exists.
func (c *Cloud) change(id string, f func(*VM)) (v VM, exists bool, err error) {
	err = c.locked(func() error {
		vms := c.store.get(id)
		if exists = len(vms) > 0; !exists {
			return nil
		}
		if v = vms[0]; f == nil {
			return nil
		}
		f(&v)
		return c.store.add(change{VM: &v})
	})
	return v, exists, err
}

// The methods below need the store locked.

// candidates returns the VMs that a call is about: those of its owner that have the ID or, if
// there is none, that are of the machine.
func (c *Cloud) candidates(call call) []VM {
	if call.id != "" {
		return call.created().own(c.store.get(call.id))
	}
	return call.created().own(c.ofMachine(call.key, call.account))
}

func (c *Cloud) ofMachine(key, account string) []VM {
	vms := c.store.get(c.store.byMachine[key]...)
	return slices.DeleteFunc(vms, func(v VM) bool { return v.account() != account })
}

// selected returns the VMs of all machines that pattern selects, see Fault.Machine.
func (c *Cloud) selected(pattern string) []VM {
	vms := c.store.get(slices.Sorted(maps.Keys(c.store.vms))...)
	return slices.DeleteFunc(vms, func(v VM) bool { return !names.Matches(pattern, v.key()) })
}

// expire removes the VMs whose delayed deletion has ended. A cloud has no process of its own
// that would do so.
func (c *Cloud) expire() error {
	var problems []error
	for _, v := range c.store.get(slices.Sorted(maps.Keys(c.store.deleting))...) {
		if !time.Now().Before(v.GoneAt) {
			problems = append(problems, c.unmake(Deleted, v))
		}
	}
	return errors.Join(problems...)
}

// make stores a new VM, with a provider ID unless it has one.
func (c *Cloud) make(effect Effect, v *VM) error {
	if v.ProviderID == "" {
		v.ProviderID = names.ProviderID(c.seed, v.key(), c.store.made[v.key()]+1)
	}
	return c.store.add(change{Entry: effectOn(*v, effect), VM: v})
}

func (c *Cloud) unmake(effect Effect, v VM) error {
	return c.store.add(change{Entry: effectOn(v, effect)})
}

// visible returns the VMs that are found by name and listed.
func visible(vms []VM) []VM {
	return slices.DeleteFunc(vms, func(v VM) bool { return time.Now().Before(v.VisibleAt) })
}
