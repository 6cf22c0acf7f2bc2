package sim

import (
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// deadlineOnly is what a caller sees of an answer that got lost.
var deadlineOnly = []codes.Code{codes.DeadlineExceeded}

// locked runs f with exclusive access to the store. Its errors have a code: what
// goes wrong below is Internal.
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

// create makes the VM that is wanted, or finds the one that was made before. It
// returns the VM and whether it is new. A capacity of zero is without limit.
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

// adopt returns the one of vms that fits.
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

// wanted says which VMs a call is about: those that the owner may touch and that have
// the ID or, if there is none, that belong to the machine.
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

// remove deletes all VMs that are wanted, delay later if that is not zero, and returns
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

// running returns a VM if it exists and is not being deleted.
func (c *Cloud) running(id string) (VM, bool, error) {
	var v VM
	var exists bool
	err := c.locked(func() (err error) {
		v, exists, err = c.get(id)
		return err
	})
	return v, exists && v.GoneAt.IsZero(), err
}

// What follows is called with the store locked.

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
	v, exists, err := c.store.byID(id)
	if err != nil || !exists {
		return VM{}, false, err
	}
	left, err := c.expire([]VM{v})
	return v, len(left) > 0, err
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

// expire removes those VMs whose delayed deletion has ended, and returns the others.
// Nothing else would: there is no process on the provider's side.
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

// make gives v its provider ID and stores it.
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
