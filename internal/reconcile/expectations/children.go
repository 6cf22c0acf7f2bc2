package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// cacheTimeout is how long the cache may fail to show a creation or deletion before the API server is queried.
// The Machine may have been deleted before the cache showed it, or a webhook may have reported wrongly that a
// Machine is gone.
const cacheTimeout = 30 * time.Second

// Children remembers which Machines of a set were created and deleted until the cache shows it. The zero value
// is ready to use. It is not safe for concurrent use.
type Children struct {
	uncertain bool
	// awaited are the writes that the cache does not show yet, by Machine name.
	awaited map[string]write
}

// write is a creation or deletion. A deletion has the UID of the deleted Machine.
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

// Uncertain records that it is unknown whether a creation or deletion happened.
func (c *Children) Uncertain() { c.uncertain = true }

// State is how the cache compares with the writes.
type State int

const (
	// Current means that the cache shows all writes.
	Current State = iota
	// Behind means that the cache lacks a write. An event will follow when it shows the write.
	Behind
	// Unknown means that only the API server knows which writes happened.
	Unknown
)

// Check compares the cached Machines of the set with the writes.
func (c *Children) Check(cached []*v1alpha1.Machine, now time.Time) State {
	state := Current
	if c.uncertain {
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

// Settle compares the cached Machines with those of the API server. It reports whether both have the same
// Machines, and the same ones are being deleted. If so, earlier writes are no longer awaited.
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
