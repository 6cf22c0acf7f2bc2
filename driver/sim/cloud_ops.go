package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// deadlineOnly is what a caller sees of a lost answer.
var deadlineOnly = []codes.Code{codes.DeadlineExceeded}

// locked runs f with exclusive access to the store. Its errors have a code, Internal for
// those of the store.
func (c *Cloud) locked(f func() error) error {
	unlock, err := c.store.lock()
	if err == nil {
		err = f()
		unlock()
	}
	if _, hasCode := status.FromError(err); !hasCode {
		return status.WrapError(codes.Internal, fmt.Sprintf("simulated cloud: %v", err), err)
	}
	return err
}

// create creates a VM, or finds the one that was created before. It returns the VM and
// whether it is new. A capacity of zero is without limit.
func (c *Cloud) create(want VM, capacity int) (VM, bool, error) {
	made := false
	err := c.locked(func() error {
		vms, err := c.ofMachine(want.key())
		switch {
		case err != nil:
			return err
		case len(vms) > 0:
			want, err = c.adopt(vms, want)
			return err
		}
		if err := c.checkZone(want.Zone); err != nil {
			return err
		}
		if err := c.checkCapacity(want.Pool, capacity); err != nil {
			return err
		}
		made = true
		return c.make(Created, &want)
	})
	return want, made && err == nil, err
}

// adopt returns the VM of a machine, if it is the only one and is what is wanted.
func (c *Cloud) adopt(vms []VM, want VM) (VM, error) {
	v := vms[0]
	switch {
	case len(vms) > 1:
		return VM{}, status.Error(codes.FailedPrecondition, fmt.Sprintf("there are %d VMs for %s", len(vms), v.key()))
	case !fits(v, want):
		return VM{}, status.Error(codes.AlreadyExists, fmt.Sprintf("VM %s exists with another pool, other tags, in another zone or of another API", v.ProviderID))
	case !v.GoneAt.IsZero():
		return VM{}, status.Error(codes.Aborted, fmt.Sprintf("VM %s is being deleted", v.ProviderID))
	}
	return v, c.record(happened(Adopted, v))
}

func (c *Cloud) checkCapacity(pool string, capacity int) error {
	if capacity == 0 {
		return nil
	}
	used, err := c.store.inPool(pool)
	if err != nil || used < capacity {
		return err
	}
	// VMs whose deletion has just ended may be among them.
	if _, err := c.everything(); err != nil {
		return err
	}
	used, err = c.store.inPool(pool)
	if err != nil || used < capacity {
		return err
	}
	return status.Error(codes.ResourceExhausted, fmt.Sprintf("pool %s is full: %d of %d VMs exist", pool, used, capacity))
}

// wanted says which VMs a call is about: those of the owner that have the ID or, if there
// is none, that are of the machine.
type wanted struct {
	id, key string
	owner   owner
}

// String names the VM for people.
func (w wanted) String() string {
	if w.id != "" {
		return w.id
	}
	return w.key
}

// find returns the one VM that is wanted.
func (c *Cloud) find(w wanted) (VM, error) {
	var vms []VM
	err := c.locked(func() (err error) {
		vms, err = c.candidates(w)
		return err
	})
	if err != nil {
		return VM{}, err
	}
	if w.id == "" {
		vms = c.visible(vms)
	}
	switch len(vms) {
	case 0:
		return VM{}, status.Error(codes.NotFound, fmt.Sprintf("no VM for %s", w))
	case 1:
		return vms[0], nil
	default:
		return VM{}, status.Error(codes.OutOfRange, fmt.Sprintf("there are %d VMs for %s", len(vms), w))
	}
}

// remove deletes all VMs that are wanted, after a delay if that is not zero, and returns
// them.
func (c *Cloud) remove(w wanted, delay time.Duration) ([]VM, error) {
	var vms []VM
	err := c.locked(func() (err error) {
		vms, err = c.candidates(w)
		for i := 0; i < len(vms) && err == nil; i++ {
			switch v := vms[i]; {
			case delay == 0:
				err = c.unmake(Deleted, v)
			case v.GoneAt.IsZero():
				v.GoneAt = c.clock.Now().Add(delay)
				err = c.store.put(v)
			}
		}
		return err
	})
	return vms, err
}

// list returns the visible VMs that o owns.
func (c *Cloud) list(o owner) ([]VM, error) {
	vms, err := c.VMs()
	return c.visible(o.own(vms)), err
}

// change applies f to a VM and stores it, if the VM still exists.
func (c *Cloud) change(id string, f func(*VM)) (VM, bool, error) {
	var v VM
	var exists bool
	err := c.locked(func() (err error) {
		if v, exists, err = c.get(id); err != nil || !exists {
			return err
		}
		f(&v)
		return c.store.put(v)
	})
	return v, exists, err
}

// vm returns a VM, if it exists.
func (c *Cloud) vm(id string) (v VM, exists bool, err error) {
	err = c.locked(func() (err error) {
		v, exists, err = c.get(id)
		return err
	})
	return v, exists, err
}

// The methods below need the store locked.

func (c *Cloud) candidates(w wanted) ([]VM, error) {
	if w.id == "" {
		vms, err := c.ofMachine(w.key)
		return w.owner.own(vms), err
	}
	v, exists, err := c.get(w.id)
	if err != nil || !exists {
		return nil, err
	}
	return w.owner.own([]VM{v}), nil
}

func (c *Cloud) get(id string) (VM, bool, error) {
	key, _, ok := splitProviderID(id)
	if !ok {
		return VM{}, false, nil
	}
	vms, err := c.ofMachine(key)
	i := slices.IndexFunc(vms, sameID(VM{ProviderID: id}))
	if err != nil || i < 0 {
		return VM{}, false, err
	}
	return vms[i], true, nil
}

func (c *Cloud) ofMachine(key string) ([]VM, error) {
	vms, err := c.store.byMachine(key)
	if err != nil {
		return nil, err
	}
	return c.expire(vms)
}

func (c *Cloud) everything() ([]VM, error) {
	vms, err := c.store.all()
	if err != nil {
		return nil, err
	}
	return c.expire(vms)
}

// expire removes those VMs whose delayed deletion has ended, and returns the others. A
// cloud has no process of its own that would do so.
func (c *Cloud) expire(vms []VM) ([]VM, error) {
	now := c.clock.Now()
	left := vms[:0]
	for _, v := range vms {
		if v.GoneAt.IsZero() || now.Before(v.GoneAt) {
			left = append(left, v)
			continue
		}
		if err := c.unmake(Deleted, v); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// make gives a new VM its provider ID and stores it.
func (c *Cloud) make(effect Effect, v *VM) error {
	number, err := c.store.made(v.key())
	if err != nil {
		return err
	}
	v.ProviderID = newProviderID(c.seed, v.key(), number+1)
	if err := c.record(happened(effect, *v)); err != nil {
		return err
	}
	return c.store.put(*v)
}

func (c *Cloud) unmake(effect Effect, v VM) error {
	if err := c.record(happened(effect, v)); err != nil {
		return err
	}
	return c.store.remove(v)
}

// record needs no lock.
func (c *Cloud) record(e Entry) error {
	e.Time = c.clock.Now()
	return c.store.record(e)
}

func (c *Cloud) visible(vms []VM) []VM {
	now := c.clock.Now()
	var seen []VM
	for _, v := range vms {
		if !now.Before(v.VisibleAt) {
			seen = append(seen, v)
		}
	}
	return seen
}
