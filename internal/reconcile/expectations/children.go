package expectations

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long the cache may not show a creation or deletion before the API server is
// asked. An object may have been deleted before the cache showed it, and a webhook may have
// claimed that one is gone.
const patience = 30 * time.Second

// Children remembers which objects of an owner were created and deleted, until the cache shows it.
// The zero value is ready to use, by one goroutine at a time.
type Children[T client.Object] struct {
	doubted bool
	created map[string]time.Time
	deleted map[string]deletion
}

// deletion is which object was deleted, and when.
type deletion struct {
	uid types.UID
	at  time.Time
}

// Created records that a child was created.
func (c *Children[T]) Created(child T, now time.Time) {
	if c.created == nil {
		c.created = map[string]time.Time{}
	}
	c.created[child.GetName()] = now
}

// Deleted records that a child was deleted.
func (c *Children[T]) Deleted(child T, now time.Time) {
	if c.deleted == nil {
		c.deleted = map[string]deletion{}
	}
	c.deleted[child.GetName()] = deletion{child.GetUID(), now}
}

// Doubt records that a creation or deletion may or may not have happened.
func (c *Children[T]) Doubt() { c.doubted = true }

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

// Check compares the children that the cache has with what was written.
func (c *Children[T]) Check(cached []T, now time.Time) State {
	c.drop(cached)
	overdue := c.doubted
	for _, at := range c.created {
		overdue = overdue || now.Sub(at) > patience
	}
	for _, deleted := range c.deleted {
		overdue = overdue || now.Sub(deleted.at) > patience
	}
	switch {
	case overdue:
		return Unknown
	case len(c.created)+len(c.deleted) > 0:
		return Behind
	default:
		return Current
	}
}

// drop forgets the writes that the cache shows.
func (c *Children[T]) drop(cached []T) {
	if len(c.created)+len(c.deleted) == 0 {
		return
	}
	seen := make(map[string]T, len(cached))
	for _, child := range cached {
		seen[child.GetName()] = child
	}
	for name := range c.created {
		if _, ok := seen[name]; ok {
			delete(c.created, name)
		}
	}
	for name, deleted := range c.deleted {
		if child, ok := seen[name]; !ok || child.GetUID() != deleted.uid || child.GetDeletionTimestamp() != nil {
			delete(c.deleted, name)
		}
	}
}

// Settle compares the cached children with those that the API server has. It reports whether both
// agree on which there are and which of them are being deleted. If so, no earlier write is
// awaited any more.
func (c *Children[T]) Settle(cached []T, live []metav1.PartialObjectMetadata) bool {
	deleting := make(map[types.UID]bool, len(cached))
	for _, child := range cached {
		deleting[child.GetUID()] = child.GetDeletionTimestamp() != nil
	}
	if len(live) != len(cached) {
		return false
	}
	for i := range live {
		if was, ok := deleting[live[i].UID]; !ok || was != (live[i].DeletionTimestamp != nil) {
			return false
		}
	}
	*c = Children[T]{}
	return true
}
