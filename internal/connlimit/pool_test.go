package connlimit

import (
	"net"
	"slices"
	"testing"
)

// of returns the origin with a number.
func of(number byte) Origin { return OriginOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, number)}) }

// members are the names of the connections in a pool, in the order in which they were added.
type members struct {
	pool  *Pool
	names []string
}

func (m *members) add(from byte, name string) (leave func()) {
	m.names = append(m.names, name)
	out := m.pool.Add(of(from), func() { m.drop(name) })
	return func() {
		out()
		m.drop(name)
	}
}

func (m *members) drop(name string) {
	m.names = slices.DeleteFunc(m.names, func(other string) bool { return other == name })
}

func (m *members) are(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(m.names, want) {
		t.Errorf("the pool has %q, want %q", m.names, want)
	}
}

// TestPool_ClosesOldestOfLargestOrigin checks which connections of a full pool are closed in favor of others.
func TestPool_ClosesOldestOfLargestOrigin(t *testing.T) {
	m := members{pool: NewPool(4)}
	m.add(1, "honest")
	m.add(2, "a1")
	m.add(2, "a2")
	leave := m.add(3, "b1")
	m.are(t, "honest", "a1", "a2", "b1")
	m.add(2, "a3") // even if it is of that origin itself
	m.are(t, "honest", "a2", "b1", "a3")
	m.add(4, "c1")
	m.are(t, "honest", "b1", "a3", "c1")
	leave()
	leave() // may be repeated
	m.add(5, "d1")
	m.are(t, "honest", "a3", "c1", "d1")
	m.add(6, "e1") // all origins have one: the oldest is closed
	m.are(t, "a3", "c1", "d1", "e1")
}

// TestPool_DisplaceIsFair checks that a client displaces only those with more connections.
func TestPool_DisplaceIsFair(t *testing.T) {
	m := members{pool: NewUnlimitedPool()}
	if m.pool.Displace(of(1)) {
		t.Error("an empty pool closed a connection")
	}
	m.add(1, "a1")
	m.add(1, "a2")
	m.add(1, "a3")
	m.add(2, "b1")
	for range 2 { // as often as it leaves the first origin with at least as many
		if !m.pool.Displace(of(2)) {
			break
		}
	}
	m.are(t, "a2", "a3", "b1")
	if !m.pool.Displace(of(3)) || m.pool.Displace(of(3)) {
		t.Error("a new client did not displace exactly one connection")
	}
	m.are(t, "a3", "b1")
}

// TestPool_RenewedFlowIsNewest checks that a full pool closes the flow that was renewed the longest ago, of the origin with
// the most flows, and that renewing a flow that has left has no effect.
func TestPool_RenewedFlowIsNewest(t *testing.T) {
	m := members{pool: NewPool(3)}
	add := func(from byte, name string) (renew, leave func()) {
		m.names = append(m.names, name)
		return m.pool.AddFlow(of(from), func() { m.drop(name) })
	}
	renew, _ := add(1, "a1")
	add(1, "a2")
	add(2, "b1")
	renew()
	add(3, "c1")
	m.are(t, "a1", "b1", "c1")
	renew()
	add(4, "d1") // all origins have one
	m.are(t, "a1", "c1", "d1")
	add(5, "e1")
	m.are(t, "a1", "d1", "e1")
	renewE, leaveE := add(5, "e2")
	m.are(t, "d1", "e1", "e2")
	renew() // has left
	leaveE()
	renewE()
	m.drop("e2")
	add(6, "f1")
	m.are(t, "d1", "e1", "f1")
}
