package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// bounds limit the Machines of a pool at every moment of a phase.
type bounds struct {
	// most is the maximum number of Machines, including those that are being deleted.
	most int
	// least is the minimum number of available Machines. They are usable and are not being deleted.
	least int
	// leaving is the maximum number of Machines that are being deleted.
	leaving int
}

// census counts the Machines of a pool.
type census struct{ existing, leaving, available int }

// violation returns an error if the Machines of a pool are not within the bounds.
func (b bounds) violation(c census) error {
	switch {
	case c.existing > b.most:
		return fmt.Errorf("%d Machines exist, at most %d are allowed", c.existing, b.most)
	case c.available < b.least:
		return fmt.Errorf("%d Machines are available, at least %d are required", c.available, b.least)
	case c.leaving > b.leaving:
		return fmt.Errorf("%d Machines are being deleted, at most %d are allowed", c.leaving, b.leaving)
	}
	return nil
}

// tracker follows all Machines by watch. It sees each of their states in the order in which they were written.
type tracker struct {
	// stateOf returns the state of a Machine, and false for other objects.
	stateOf func(client.Object) (machineState, bool)
	// fail is called with the first violation.
	fail func(error)
	// changed has an element if a Machine changed since the last check of await.
	changed chan struct{}

	mu       sync.Mutex
	machines map[client.ObjectKey]machineState
	pools    map[client.ObjectKey]census
	// bounds of each pool. A pool without bounds is not checked.
	bounds map[client.ObjectKey]bounds
	// phase is the name of the phase that the bounds belong to.
	phase string
	// deleted is the number of Machines that were deleted since the phase began.
	deleted int
}

// machineState is the part of a Machine that bounds depend on.
type machineState struct {
	pool               client.ObjectKey
	node               string
	leaving, available bool
}

func newTracker(stateOf func(client.Object) (machineState, bool), fail func(error)) *tracker {
	return &tracker{
		stateOf: stateOf, fail: fail, changed: make(chan struct{}, 1),
		machines: map[client.ObjectKey]machineState{}, pools: map[client.ObjectKey]census{},
	}
}

// add adds a Machine to the census, or removes it if n is -1.
func (c *census) add(s machineState, n int) {
	c.existing += n
	if s.leaving {
		c.leaving += n
	}
	if s.available {
		c.available += n
	}
}

// observe records an event of the watch.
func (t *tracker) observe(event watch.Event) error {
	switch event.Type {
	case watch.Bookmark:
		return nil
	case watch.Error:
		return fmt.Errorf("the watch of all Machines failed: %w", apierrors.FromObject(event.Object))
	}
	machine, ok := event.Object.(client.Object)
	if !ok {
		return fmt.Errorf("the watch of all Machines returned a %T", event.Object)
	}
	is, ok := t.stateOf(machine)
	if !ok {
		return fmt.Errorf("the watch of all Machines returned a %T", event.Object)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := client.ObjectKeyFromObject(machine)
	if was, known := t.machines[key]; known {
		t.count(was, -1)
		delete(t.machines, key)
	}
	if event.Type == watch.Deleted {
		t.deleted++
	} else {
		t.machines[key] = is
		t.count(is, 1)
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
	return t.check(is.pool)
}

func (t *tracker) count(s machineState, n int) {
	c := t.pools[s.pool]
	c.add(s, n)
	t.pools[s.pool] = c
}

// check returns an error if a pool is not within its bounds.
func (t *tracker) check(pool client.ObjectKey) error {
	b, bounded := t.bounds[pool]
	if !bounded {
		return nil
	}
	if err := b.violation(t.pools[pool]); err != nil {
		return fmt.Errorf("%s: MachineDeployment %s: %w", t.phase, pool, err)
	}
	return nil
}

// expect sets the bounds of a phase and checks them immediately. Nil removes them.
func (t *tracker) expect(phase string, all map[client.ObjectKey]bounds) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase, t.bounds, t.deleted = phase, all, 0
	var problems []error
	for pool := range all {
		problems = append(problems, t.check(pool))
	}
	return errors.Join(problems...)
}

// census returns the numbers of Machines of a pool.
func (t *tracker) census(p pool) census {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pools[p.ObjectKey]
}

// gone returns the number of Machines that were deleted since the phase began.
func (t *tracker) gone() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.deleted
}

// nodes returns the nodes of all Machines of a pool by the name of the Machine.
func (t *tracker) nodes() map[client.ObjectKey]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := make(map[client.ObjectKey]string, len(t.machines))
	for key, machine := range t.machines {
		names[key] = machine.node
	}
	return names
}

// keys returns the names of all Machines.
func (t *tracker) keys() map[client.ObjectKey]bool {
	keys := map[client.ObjectKey]bool{}
	for key := range maps.Keys(t.nodes()) {
		keys[key] = true
	}
	return keys
}

// await waits until the condition is true. Only one goroutine may wait at a time.
func (t *tracker) await(ctx context.Context, condition func() bool) error {
	for !condition() {
		select {
		case <-t.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// run observes events until ctx is done. It returns at the first violation.
func (t *tracker) run(ctx context.Context, events watch.Interface) {
	defer events.Stop()
	for {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				t.fail(errors.New("the watch of all Machines ended"))
				return
			}
			if err := t.observe(event); err != nil {
				t.fail(err)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// machineWatcher watches the Machines of all namespaces.
type machineWatcher struct {
	client client.WithWatch
	// empty returns an empty list of Machines.
	empty func() client.ObjectList
}

// WatchWithContext implements cache.WatcherWithContext.
func (w machineWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return w.client.Watch(ctx, w.empty(), &client.ListOptions{Raw: &options})
}

// track follows all Machines from now on. A violation cancels ctx by means of fail.
func (w *setup) track(ctx context.Context, fail func(error)) error {
	list := w.api.machines()
	if err := w.client.List(ctx, list); err != nil {
		return fmt.Errorf("cannot list all Machines: %w", err)
	}
	events, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), machineWatcher{w.client, w.api.machines})
	if err != nil {
		return fmt.Errorf("cannot watch all Machines: %w", err)
	}
	w.tracker = newTracker(w.api.stateOf, fail)
	err = meta.EachListItem(list, func(machine runtime.Object) error {
		return w.tracker.observe(watch.Event{Type: watch.Added, Object: machine})
	})
	if err != nil {
		return err
	}
	go w.tracker.run(ctx, events)
	return nil
}
