package ui

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	// pace is the minimum time between two updates of rows.
	pace = 200 * time.Millisecond
	// poolPace is the minimum time between two computations of the rows of pools.
	poolPace = time.Second
	// poolBeat is the time after which they are computed without a change, because they depend on the time and on the
	// leases of managers.
	poolBeat = 5 * time.Second
	// leaseTimeout limits how long the leases are read, and maxLeaseReads of how many namespaces at a time.
	leaseTimeout  = 3 * time.Second
	maxLeaseReads = 16
)

// model keeps the rows current.
type model struct {
	hub     *hub
	sources map[string]*source
	control client.Reader

	mu sync.Mutex
	// dirty are the keys of changed objects by kind. The key "" means all.
	dirty map[string]map[string]bool
	wake  chan struct{}

	// The following fields are used by one goroutine only.

	// shown are the rows of each kind, by key.
	shown map[string]map[string]bool
	// pools are the namespaces whose pools changed, computed is when they were last computed, and all is when the pools
	// of all namespaces were.
	pools         map[string]bool
	computed, all time.Time
	// held are the leases of each namespace.
	held map[string]heldLeases
}

type heldLeases struct {
	leases
	read time.Time
}

func newModel(control client.WithWatch, namespace, fallback string) *model {
	m := &model{
		hub: newHub(), sources: map[string]*source{}, control: control, dirty: map[string]map[string]bool{}, wake: make(chan struct{}, 1),
		shown: map[string]map[string]bool{}, pools: map[string]bool{}, held: map[string]heldLeases{},
	}
	for _, kind := range kinds() {
		s := &source{kind: kind, client: control, namespace: namespace, fallback: fallback}
		s.notify = func(key string) { m.mark(s.name, key) }
		m.sources[kind.name] = s
	}
	return m
}

// mark remembers that an object changed.
func (m *model) mark(kind, key string) {
	m.mu.Lock()
	if m.dirty[kind] == nil {
		m.dirty[kind] = map[string]bool{}
	}
	m.dirty[kind][key] = true
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run watches all kinds and updates the rows until ctx is done.
func (m *model) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, source := range m.sources {
		running.Go(func() { source.run(ctx) })
	}
	defer running.Wait()
	beat := time.NewTicker(poolPace)
	defer beat.Stop()
	for {
		m.update()
		m.updatePools(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pace):
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-beat.C:
		}
	}
}

// update recomputes the rows of changed objects.
func (m *model) update() {
	m.mu.Lock()
	dirty := m.dirty
	m.dirty = map[string]map[string]bool{}
	m.mu.Unlock()
	for kind, keys := range dirty {
		source := m.sources[kind]
		state, objects := source.get()
		if keys[""] {
			delete(keys, "")
			m.hub.set("kind/"+kind, KindRow{Row{Kind: "kind", ID: "kind/" + kind, Namespace: state.Namespace, Name: kind}, state.Access, state.Message})
			maps.Copy(keys, m.shown[kind])
			if objects != nil {
				for _, key := range objects.ListKeys() {
					keys[key] = true
				}
			}
		}
		m.updateRows(kind, source, keys)
	}
}

func (m *model) updateRows(kind string, source *source, keys map[string]bool) {
	if m.shown[kind] == nil {
		m.shown[kind] = map[string]bool{}
	}
	for key := range keys {
		if namespace, _, err := toolscache.SplitMetaNamespaceKey(key); err == nil && kind != "Node" {
			m.pools[namespace] = true
		}
		prefix, row := rowFor(kind, source, key)
		if prefix == "" {
			continue // its row is computed with others
		}
		m.hub.set(idOf(prefix, key), row)
		if row != nil {
			m.shown[kind][key] = true
		} else {
			delete(m.shown[kind], key)
		}
	}
}

// rowFor returns the row of an object and its kind. The row is nil if the object does not exist, and the kind is empty
// for objects that do not have a row of their own.
func rowFor(kind string, s *source, key string) (prefix string, row any) {
	switch kind {
	case "Machine":
		if object := objectOf[*v1alpha1.Machine](s, key); object != nil {
			row = machineRow(object)
		}
		return "machine", row
	case "MachineSet":
		if object := objectOf[*v1alpha1.MachineSet](s, key); object != nil {
			row = setRow(object)
		}
		return "set", row
	case "VirtualMachine":
		if object := objectOf[*vmv1alpha1.VirtualMachine](s, key); object != nil {
			row = vmRow(object)
		}
		return "vm", row
	case "Node":
		if object := objectOf[*corev1.Node](s, key); object != nil {
			row = hostRow(object)
		}
		return "host", row
	}
	return capiRowFor(kind, s, key)
}

// updatePools recomputes the rows of pools.
func (m *model) updatePools(ctx context.Context, now time.Time) {
	if now.Sub(m.computed) < poolPace {
		return
	}
	if now.Sub(m.all) >= poolBeat {
		m.all = now
		for _, d := range objectsOf[*v1alpha1.MachineDeployment](m.sources["MachineDeployment"], "") {
			m.pools[d.Namespace] = true
		}
	}
	m.computed = now
	m.readLeases(ctx, now)
	for _, namespace := range slices.Sorted(maps.Keys(m.pools)) {
		m.updatePoolsOf(namespace, now)
	}
	clear(m.pools)
}

func (m *model) updatePoolsOf(namespace string, now time.Time) {
	deployments := objectsOf[*v1alpha1.MachineDeployment](m.sources["MachineDeployment"], namespace)
	m.showPools("MachineDeployment", "pool", namespace, m.poolFacts(namespace, deployments).rows(now))
	m.showPools(capiDeployments, capiPoolRow, namespace, m.capiFacts(namespace).rows())
}

// showPools replaces the rows of a kind of deployments in a namespace. prefix is the kind of the rows.
func (m *model) showPools(kind, prefix, namespace string, rows []PoolRow) {
	gone := map[string]bool{}
	for key := range m.shown[kind] {
		if of, _, _ := toolscache.SplitMetaNamespaceKey(key); of == namespace {
			gone[key] = true
		}
	}
	if m.shown[kind] == nil {
		m.shown[kind] = map[string]bool{}
	}
	for _, row := range rows {
		key := row.Namespace + "/" + row.Name
		m.hub.set(row.ID, row)
		m.shown[kind][key] = true
		delete(gone, key)
	}
	for key := range gone {
		m.hub.set(idOf(prefix, key), nil)
		delete(m.shown[kind], key)
	}
}

// poolFacts returns the objects of a namespace from the caches.
func (m *model) poolFacts(namespace string, deployments []*v1alpha1.MachineDeployment) poolFacts {
	facts := poolFacts{
		deployments: deployments,
		sets:        objectsOf[*v1alpha1.MachineSet](m.sources["MachineSet"], namespace),
		machines:    objectsOf[*v1alpha1.Machine](m.sources["Machine"], namespace),
		events:      objectsOf[*corev1.Event](m.sources["Event"], namespace),
	}
	unread := func(kind string) bool {
		state, objects := m.sources[kind].get()
		if state.Access == AccessLost {
			facts.problem = state.Message
		}
		return objects == nil
	}
	unread("MachineDeployment")
	facts.setsUnread, facts.machinesUnread = unread("MachineSet"), unread("Machine")
	if len(deployments) == 0 {
		return facts
	}
	facts.leases = m.held[namespace].leases
	return facts
}

// readLeases reads the leases in the namespaces whose pools are computed next, unless they were read recently or the API
// server does not respond. It reads several at a time, because all rows wait for it.
func (m *model) readLeases(ctx context.Context, now time.Time) {
	var due []string
	for namespace := range m.pools {
		pools := objectsOf[*v1alpha1.MachineDeployment](m.sources["MachineDeployment"], namespace)
		if len(pools) > 0 && now.Sub(m.held[namespace].read) >= poolBeat {
			due = append(due, namespace)
		}
	}
	for _, kind := range []string{"MachineDeployment", "MachineSet", "Machine"} {
		if state, _ := m.sources[kind].get(); state.Access == AccessLost {
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	read := make([]leases, len(due))
	var reading errgroup.Group
	reading.SetLimit(maxLeaseReads)
	for i, namespace := range due {
		reading.Go(func() error {
			read[i] = m.leases(ctx, namespace)
			return nil
		})
	}
	_ = reading.Wait() // always nil
	for i, namespace := range due {
		m.held[namespace] = heldLeases{read[i], now}
	}
}

// leases reads the leases of the managers. They are not watched, because a namespace can have many other leases, which
// are renewed every few seconds.
func (m *model) leases(ctx context.Context, namespace string) leases {
	read := func(name string) *coordinationv1.Lease {
		lease := &coordinationv1.Lease{}
		if m.control.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease) != nil {
			return nil // the row then does not report whether a manager runs
		}
		return lease
	}
	return leases{read(v1alpha1.LeaseMachineControllerManager), read(v1alpha1.LeaseMachineController)}
}
