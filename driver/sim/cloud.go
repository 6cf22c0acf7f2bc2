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
	// Seed of all random decisions. Zero is a valid seed.
	Seed uint64
}

// Cloud is a simulated provider with VMs, a journal and faults. Several goroutines and drivers may use it
// concurrently. Create it with [NewCloud] or [OpenCloud].
type Cloud struct {
	seed   uint64
	store  *store
	faults faults

	mu        sync.Mutex
	listeners map[*kubelets]struct{}
}

// NewCloud returns an empty cloud in memory. Its journal keeps at least the latest 90,000 entries.
func NewCloud(options CloudOptions) *Cloud { return newCloud(newStore(), options) }

// OpenCloud returns the cloud that is stored in a directory, and creates the cloud if it does not exist. Several
// processes, and several handles of one process, may use it at the same time. Faults belong to the handle. Close
// the cloud after use.
func OpenCloud(dir string, options CloudOptions) (*Cloud, error) {
	store, err := openStore(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot open simulated cloud: %w", err)
	}
	return newCloud(store, options), nil
}

func newCloud(s *store, options CloudOptions) *Cloud {
	return &Cloud{seed: options.Seed, store: s, faults: faults{seed: options.Seed}, listeners: map[*kubelets]struct{}{}}
}

// Close releases the file of a cloud in a directory. The VMs stay. Do not use the cloud afterwards. Closing a cloud
// in memory has no effect.
func (c *Cloud) Close() error { return c.store.close() }

// Fail adds a fault.
func (c *Cloud) Fail(f Fault) { c.faults.add(f) }

// ClearFaults removes all faults. Calls that already hang are not released.
func (c *Cloud) ClearFaults() { c.faults.clear() }

// VMs returns all VMs, sorted by provider ID, including VMs whose deletion is not complete.
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

// Add creates a VM without a call of the driver, for example a second VM of a machine, an orphan, a VM of another
// cluster, or a VM that had vanished. It uses the fields Namespace (default "default"), Machine, Account, Pool,
// Tags and Node of v, and ProviderID if that is not empty. The VM is initialized and immediately visible. Add
// returns the VM with its provider ID.
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

// Vanish removes the VMs of all machines that match pattern (see Fault.Machine), as if they were lost, and returns
// their number. A driver that runs on this handle sets their nodes to Ready=Unknown, as the node lifecycle
// controller does.
func (c *Cloud) Vanish(pattern string) (int, error) {
	return c.vanish(func() []VM { return c.selected(pattern) })
}

// vanish removes the VMs that chosen returns. chosen is called with the store locked.
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

// Move moves all VMs of an account to another account, as if the infrastructure had been restored elsewhere.
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

// SetNodeReady sets the Ready condition of the nodes of all machines that match pattern (see Fault.Machine).
// Drivers that run on this handle write it immediately; nodes that have not joined yet are not affected. It returns
// the number of selected VMs.
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

// SetAgent replaces the agents of all machines that match pattern (see Fault.Machine) and that become nodes. An
// update in progress continues with the new agent. It returns the number of selected VMs.
func (c *Cloud) SetAgent(pattern string, agent Agent, updateTime time.Duration) (int, error) {
	if !spec.Agent(agent).Valid() {
		return 0, fmt.Errorf("unknown agent %q", agent)
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

// SetZones replaces the zones of the cloud. VMs in other zones stay. A new cloud has no zones. A zone must be a
// valid label value.
func (c *Cloud) SetZones(names ...string) error {
	for _, name := range names {
		if !spec.IsZone(name) {
			return fmt.Errorf("invalid zone %q: must be a valid label value", name)
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

// notify calls plan for the kubelets of each running driver if v becomes a node.
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

// locked runs f with exclusive access to the store. Its errors have a code, which is Internal for errors of the
// store.
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

// limits are the maximum numbers of VMs in a pool and in a zone.
type limits struct{ pool, zone int }

// create creates a VM or returns the existing one, and reports whether the VM is new. A limit of zero means no
// limit.
func (c *Cloud) create(want VM, limit limits) (v VM, made bool, err error) {
	err = c.locked(func() error {
		if vms := c.ofMachine(want.key(), want.account()); len(vms) > 0 {
			v = vms[0]
			return c.adopt(vms, want)
		}
		if want.Zone != "" && !slices.Contains(c.store.zones, want.Zone) {
			return status.Error(codes.FailedPrecondition, fmt.Sprintf("zone %q does not exist (zones: %s)", want.Zone, strings.Join(c.store.zones, ", ")))
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

// adopt returns an error unless the machine has exactly one VM and that VM fits the request.
func (c *Cloud) adopt(vms []VM, want VM) error {
	v := vms[0]
	switch {
	case len(vms) > 1:
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("%s has %d VMs", v.key(), len(vms)))
	case !fits(v, want):
		return status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists with a different pool, tags, zone or API group", v.ProviderID))
	case !v.GoneAt.IsZero():
		return status.Error(codes.Aborted, fmt.Sprintf("VM %s is being deleted", v.ProviderID))
	}
	return c.store.add(change{Entry: effectOn(v, Adopted)})
}

// find returns the VM of a call.
func (c *Cloud) find(call call) (v VM, err error) {
	err = c.locked(func() error {
		vms := c.candidates(call)
		if call.id == "" {
			vms = visible(vms)
		}
		switch len(vms) {
		case 0:
			return status.Error(codes.NotFound, "found no VM for "+call.vm())
		case 1:
			v = vms[0]
			return nil
		default:
			return status.Error(codes.OutOfRange, fmt.Sprintf("found %d VMs for %s, want one", len(vms), call.vm()))
		}
	})
	return v, err
}

// remove deletes all VMs of a call, after the deletion delay if there is one, and returns them.
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

// list returns the visible VMs that belong to o.
func (c *Cloud) list(o owner) ([]VM, error) {
	vms, err := c.VMs()
	return visible(o.own(vms)), err
}

// change applies f to a VM if the VM still exists. f may be nil.
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

// The methods below require the store to be locked.

// candidates returns the VMs of a call: those of its owner that have the ID or, if the machine has no ID, those of
// the machine.
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

// selected returns the VMs of all machines that match pattern, see Fault.Machine.
func (c *Cloud) selected(pattern string) []VM {
	vms := c.store.get(slices.Sorted(maps.Keys(c.store.vms))...)
	return slices.DeleteFunc(vms, func(v VM) bool { return !names.Matches(pattern, v.key()) })
}

// expire removes the VMs whose delayed deletion is complete. A cloud has no background process for this.
func (c *Cloud) expire() error {
	var problems []error
	for _, v := range c.store.get(slices.Sorted(maps.Keys(c.store.deleting))...) {
		if !time.Now().Before(v.GoneAt) {
			problems = append(problems, c.unmake(Deleted, v))
		}
	}
	return errors.Join(problems...)
}

// make stores a new VM. It generates a provider ID if the VM has none.
func (c *Cloud) make(effect Effect, v *VM) error {
	if v.ProviderID == "" {
		v.ProviderID = names.ProviderID(c.seed, v.key(), c.store.made[v.key()]+1)
	}
	return c.store.add(change{Entry: effectOn(*v, effect), VM: v})
}

func (c *Cloud) unmake(effect Effect, v VM) error {
	return c.store.add(change{Entry: effectOn(v, effect)})
}

// visible returns the VMs that can be found by name and are listed.
func visible(vms []VM) []VM {
	return slices.DeleteFunc(vms, func(v VM) bool { return time.Now().Before(v.VisibleAt) })
}
