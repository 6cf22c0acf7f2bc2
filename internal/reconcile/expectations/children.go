package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// cacheTimeout is how long the cache may not show a creation or deletion before the API server is
// asked. A Machine may have been deleted before the cache showed it, and a webhook may have
// claimed that one is gone.
const cacheTimeout = 30 * time.Second

// Children remembers which Machines of a set were created and deleted, until the cache shows it.
// The zero value is ready to use, by one goroutine at a time.
type Children struct {
	doubted bool
	// awaited are the writes that the cache does not show yet, by the Machine's name.
	awaited map[string]write
}

// write is a creation or deletion. A deletion has the UID of what was deleted.
type write struct {
	deleted types.UID
	at      time.Time
}

// Created records that a Machine was created.
func (c *Children) Created(machine *v1alpha1.Machine, now time.Time) {
	c.await(machine.Name, write{at: now})
}

// Deleted records that a Machine was deleted.
func (c *Children) Deleted(machine *v1alpha1.Machine, now time.Time) {
	c.await(machine.Name, write{deleted: machine.UID, at: now})
}

func (c *Children) await(name string, w write) {
	if c.awaited == nil {
		c.awaited = map[string]write{}
	}
	c.awaited[name] = w
}

// Doubt records that a creation or deletion may or may not have happened.
func (c *Children) Doubt() { c.doubted = true }

// State is how the cache compares with what was written.
type State int

const (
	// Current: the cache shows all that was written.
	Current State = iota
	// Behind: the cache lacks a write, and an event will bring it.
	Behind
	// Unknown: only the API server knows what was written.
	Unknown
)

// Check compares the cached Machines of the set with what was written.
func (c *Children) Check(cached []*v1alpha1.Machine, now time.Time) State {
	state := Current
	if c.doubted {
		state = Unknown
	}
	if len(c.awaited) == 0 {
		return state
	}
	c.drop(cached)
	for _, w := range c.awaited {
		state = max(state, Behind)
		if now.Sub(w.at) > cacheTimeout {
			state = Unknown
		}
	}
	return state
}

// drop forgets the writes that the cache shows.
func (c *Children) drop(cached []*v1alpha1.Machine) {
	seen := make(map[string]*v1alpha1.Machine, len(cached))
	for _, machine := range cached {
		seen[machine.Name] = machine
	}
	for name, w := range c.awaited {
		machine, exists := seen[name]
		gone := !exists || machine.UID != w.deleted || machine.DeletionTimestamp != nil
		if w.deleted == "" && exists || w.deleted != "" && gone {
			delete(c.awaited, name)
		}
	}
}

// Settle compares the cached Machines with those that the API server has. It reports whether both agree
// on which there are and which of them are being deleted. If so, no earlier write is awaited any more.
func (c *Children) Settle(cached []*v1alpha1.Machine, live []metav1.PartialObjectMetadata) bool {
	if len(live) != len(cached) {
		return false
	}
	active := make(map[types.UID]bool, len(cached))
	for _, machine := range cached {
		active[machine.UID] = machine.DeletionTimestamp == nil
	}
	for i := range live {
		if was, ok := active[live[i].UID]; !ok || was != (live[i].DeletionTimestamp == nil) {
			return false
		}
	}
	*c = Children{}
	return true
}
