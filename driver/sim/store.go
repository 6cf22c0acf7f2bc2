package sim

import (
	"os"
	"slices"
	"sync"
)

// store holds VMs and the journal. All methods but lock, record, journal and close are
// called while it is locked.
type store interface {
	// lock waits for exclusive access, against other processes too.
	lock() (unlock func(), err error)
	// byMachine returns the VMs of a machine, in order of their creation.
	byMachine(key string) ([]VM, error)
	// all returns all VMs in no particular order.
	all() ([]VM, error)
	// inPool returns the number of VMs of a pool.
	inPool(pool string) (int, error)
	// made returns how many VMs were ever created for a machine.
	made(key string) (int, error)
	// put stores a VM, new or changed.
	put(v VM) error
	// remove drops a VM. made still counts it.
	remove(v VM) error
	// zones returns the names that setZones was last given.
	zones() ([]string, error)
	setZones(names []string) error
	// record appends to the journal. It needs no lock.
	record(e Entry) error
	// journal returns what was recorded.
	journal() ([]Entry, error)
	// close releases open files.
	close() error
}

// journalLimit is the number of entries that a cloud in memory keeps.
const journalLimit = 100_000

// memoryStore is a store that ends with the process.
type memoryStore struct {
	mu       sync.Mutex
	machines map[string][]VM
	counts   map[string]int
	pools    map[string]int
	places   []string

	journalMu sync.Mutex
	entries   []Entry
}

func newMemoryStore() *memoryStore {
	return &memoryStore{machines: map[string][]VM{}, counts: map[string]int{}, pools: map[string]int{}}
}

func (m *memoryStore) lock() (func(), error) {
	m.mu.Lock()
	return m.mu.Unlock, nil
}

func (m *memoryStore) byMachine(key string) ([]VM, error) {
	vms := slices.Clone(m.machines[key])
	for i := range vms {
		vms[i] = vms[i].clone()
	}
	return vms, nil
}

func (m *memoryStore) all() ([]VM, error) {
	var all []VM
	for key := range m.machines {
		vms, err := m.byMachine(key)
		if err != nil {
			return nil, err
		}
		all = append(all, vms...)
	}
	return all, nil
}

func (m *memoryStore) inPool(pool string) (int, error) { return m.pools[pool], nil }

func (m *memoryStore) made(key string) (int, error) { return m.counts[key], nil }

func (m *memoryStore) put(v VM) error {
	v = v.clone()
	vms := m.machines[v.key()]
	if i := slices.IndexFunc(vms, sameID(v)); i >= 0 {
		vms[i] = v
	} else {
		m.machines[v.key()] = append(vms, v)
		m.counts[v.key()]++
		m.pools[v.Pool]++
	}
	return nil
}

func (m *memoryStore) remove(v VM) error {
	vms := m.machines[v.key()]
	i := slices.IndexFunc(vms, sameID(v))
	if i < 0 {
		return nil
	}
	m.pools[v.Pool]--
	m.machines[v.key()] = slices.Delete(vms, i, i+1)
	if len(vms) == 1 {
		delete(m.machines, v.key())
	}
	return nil
}

func (m *memoryStore) zones() ([]string, error) { return slices.Clone(m.places), nil }

func (m *memoryStore) setZones(names []string) error {
	m.places = slices.Clone(names)
	return nil
}

func sameID(v VM) func(VM) bool {
	return func(other VM) bool { return other.ProviderID == v.ProviderID }
}

func (m *memoryStore) record(e Entry) error {
	m.journalMu.Lock()
	defer m.journalMu.Unlock()
	e.PID = os.Getpid()
	if len(m.entries) >= journalLimit {
		m.entries = slices.Delete(m.entries, 0, journalLimit/10)
	}
	m.entries = append(m.entries, e)
	return nil
}

func (m *memoryStore) journal() ([]Entry, error) {
	m.journalMu.Lock()
	defer m.journalMu.Unlock()
	return slices.Clone(m.entries), nil
}

func (m *memoryStore) close() error { return nil }
