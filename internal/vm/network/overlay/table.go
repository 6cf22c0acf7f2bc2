package overlay

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Member is the location of another VM.
type Member struct {
	// VM is the namespace and name of the VM.
	VM string
	// Key is the public key of its hypervisor.
	Key Key
	// Endpoint is the UDP address of its hypervisor. No other member has the same one.
	Endpoint netip.AddrPort
	// Addresses are the IP addresses of the guest. No other member has one of them.
	Addresses []netip.Addr
}

// Update is a change of the locations of VMs.
type Update struct {
	// Snapshot reports whether VMs that are in none of the lists are gone.
	Snapshot bool
	// Present are the VMs with new locations.
	Present []Member
	// Absent are VMs that are nowhere.
	Absent []string
	// Unchanged are VMs whose locations the controller does not know at the moment. They stay what they are.
	Unchanged []string
}

// member is a Member with its state. The state does not survive a change of the Member.
type member struct {
	Member
	// configured reports whether WireGuard has the peer.
	configured atomic.Bool
	// usedAt is when a packet was last sent to the VM or received from it, and heardAt when its hypervisor last sent a
	// datagram, in nanoseconds since the epoch. The sender of the datagram is not verified.
	usedAt, heardAt atomic.Int64
	// pending is the number of packets sent since heardAt, while that is long ago.
	pending atomic.Int32
	// attempts is the number of handshakes started since heardAt.
	attempts atomic.Int32
}

// maxAttempts is the number of handshakes without a response after which a hypervisor counts as silent. WireGuard
// starts one every five seconds while there are packets.
const maxAttempts = 3

// silent reports whether the hypervisor does not respond to handshakes.
func (m *member) silent() bool { return m.attempts.Load() >= maxAttempts }

func (m *member) heard(now time.Time) {
	m.heardAt.Store(now.UnixNano())
	m.pending.Store(0)
	m.attempts.Store(0)
}

func (m *member) use(now time.Time) { m.usedAt.Store(now.UnixNano()) }

// responds reports whether the hypervisor has sent a datagram while its last session may have been valid.
func (m *member) responds(now time.Time) bool {
	return now.UnixNano()-m.heardAt.Load() < int64(sessionTime)
}

// idle reports whether the last packet was sent or received before a time.
func (m *member) idle(since time.Time) bool { return m.usedAt.Load() < since.UnixNano() }

// table has the locations of VMs.
type table struct {
	byVM       map[string]*member
	byAddress  map[netip.Addr]*member
	byEndpoint map[netip.AddrPort]*member
	byKey      map[Key]*member
}

func newTable() table {
	return table{byVM: map[string]*member{}, byAddress: map[netip.Addr]*member{}, byEndpoint: map[netip.AddrPort]*member{}, byKey: map[Key]*member{}}
}

// apply applies an update. It returns the members that are not valid any more, and those that are new.
func (t *table) apply(update Update) (gone, added []*member) {
	for _, vm := range t.replaced(update) {
		gone = append(gone, t.remove(vm)...)
	}
	for _, next := range update.Present {
		if has := t.byVM[next.VM]; has != nil && has.equal(next) {
			continue
		}
		gone = append(gone, t.remove(next.VM)...)
		// A process has one key, and a VM that has the key of another one would replace its peer. The VM controller refuses
		// that, but after a restart it may not know the key of the other one yet.
		if t.byKey[next.Key] != nil {
			continue
		}
		// The VM controller gives no address and no endpoint to two VMs. An update that does so is outdated.
		for _, address := range next.Addresses {
			if other := t.byAddress[address]; other != nil {
				gone = append(gone, t.remove(other.VM)...)
			}
		}
		if other := t.byEndpoint[next.Endpoint]; other != nil {
			gone = append(gone, t.remove(other.VM)...)
		}
		m := &member{Member: next}
		t.byVM[m.VM], t.byEndpoint[m.Endpoint], t.byKey[m.Key] = m, m, m
		for _, address := range m.Addresses {
			t.byAddress[address] = m
		}
		added = append(added, m)
	}
	return gone, slices.DeleteFunc(added, func(m *member) bool { return t.byVM[m.VM] != m })
}

// replaced returns the VMs that an update removes.
func (t *table) replaced(update Update) []string {
	if !update.Snapshot {
		return update.Absent
	}
	kept := map[string]bool{}
	for _, vm := range update.Unchanged {
		kept[vm] = true
	}
	for _, m := range update.Present {
		kept[m.VM] = true
	}
	var vms []string
	for vm := range t.byVM {
		if !kept[vm] {
			vms = append(vms, vm)
		}
	}
	return vms
}

// remove removes a VM and returns its member, if it has one.
func (t *table) remove(vm string) []*member {
	m := t.byVM[vm]
	if m == nil {
		return nil
	}
	delete(t.byVM, vm)
	delete(t.byEndpoint, m.Endpoint)
	delete(t.byKey, m.Key)
	for _, address := range m.Addresses {
		delete(t.byAddress, address)
	}
	return []*member{m}
}

func (m *member) equal(other Member) bool {
	return m.Key == other.Key && m.Endpoint == other.Endpoint && slices.Equal(m.Addresses, other.Addresses)
}
