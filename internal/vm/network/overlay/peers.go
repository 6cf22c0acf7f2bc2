package overlay

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

const (
	// sessionTime is how long a session of WireGuard is valid without packets.
	sessionTime = device.RejectAfterTime
	// idleTime is how long a peer without packets is kept. When it has passed, the session has expired on both sides.
	// Otherwise the other side would send packets that this side cannot decrypt any more.
	idleTime = sessionTime + time.Minute
	// silentTime is how long a peer that does not respond is kept. Then the next packet adds it again.
	silentTime = 30 * time.Second
	// pruneInterval is how often idle peers are removed. Without peers, nothing runs.
	pruneInterval = 30 * time.Second
	// maxPeers is the maximum number of peers, and maxSilent that of peers that do not respond. Each of the latter may
	// have up to maxPending packets that wait for it, with 64 KiB of memory each.
	maxPeers, maxSilent, maxPending = 512, 32, 16
)

// configure adds the WireGuard peer of a member, if it has none. It returns false if the member is not valid any more.
func (e *Endpoint) configure(m *member) bool {
	if m.configured.Load() {
		return true
	}
	e.configuring.Lock()
	defer e.configuring.Unlock()
	return m.configured.Load() || e.isCurrent(m) && e.add(m, "")
}

// greet adds the WireGuard peer of a member and starts a handshake.
func (e *Endpoint) greet(m *member) {
	e.configuring.Lock()
	defer e.configuring.Unlock()
	if !e.isCurrent(m) || !e.add(m, "persistent_keepalive_interval=60\n") {
		return
	}
	// WireGuard sends a message immediately if it gets an interval. Without the interval, it sends no more of them.
	e.set(m, "persistent_keepalive_interval=0\n")
}

// isCurrent reports whether a member is still in the table.
func (e *Endpoint) isCurrent(m *member) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.table.byVM[m.VM] == m
}

// add adds a peer. The caller must hold configuring.
func (e *Endpoint) add(m *member, options string) bool {
	now := time.Now()
	if other := e.peers[m.Key]; other != nil && other != m { // the hypervisor has another endpoint or guest now
		e.drop(other)
	}
	e.makeSpace(now)
	settings := "replace_allowed_ips=true\nendpoint=" + m.Endpoint.String() + "\n"
	for _, address := range m.Addresses {
		settings += fmt.Sprintf("allowed_ip=%s/%d\n", address, address.BitLen())
	}
	m.use(now)
	m.pending.Store(0)
	if !e.set(m, settings+options) {
		return false
	}
	e.peers[m.Key] = m
	m.configured.Store(true)
	if e.pruning == nil {
		e.pruning = time.AfterFunc(pruneInterval, e.prune)
	}
	return true
}

// set changes the peer of a member. WireGuard refuses no valid settings unless it is closed.
func (e *Endpoint) set(m *member, settings string) bool {
	err := e.wireguard.IpcSet("public_key=" + hex.EncodeToString(m.Key[:]) + "\n" + settings)
	return err == nil
}

// remove removes the peer of a member and returns whether it was in use. No packets are sent to it or accepted from it
// after that.
func (e *Endpoint) remove(m *member) (inUse bool) {
	e.configuring.Lock()
	defer e.configuring.Unlock()
	return e.drop(m)
}

// drop removes the peer of a member. The caller must hold configuring.
func (e *Endpoint) drop(m *member) (had bool) {
	if had = e.peers[m.Key] == m; had {
		m.configured.Store(false)
		e.set(m, "remove=true\n")
		delete(e.peers, m.Key)
	}
	return had
}

// makeSpace removes a peer if there are too many. The caller must hold configuring.
func (e *Endpoint) makeSpace(now time.Time) {
	var silent, all []*member
	for _, m := range e.peers {
		all = append(all, m)
		if !m.responds(now) {
			silent = append(silent, m)
		}
	}
	switch {
	case len(silent) >= maxSilent:
		e.drop(leastRecent(silent))
	case len(all) >= maxPeers:
		e.drop(leastRecent(all))
	}
}

func leastRecent(members []*member) *member {
	return slices.MinFunc(members, func(a, b *member) int { return cmp.Compare(a.usedAt.Load(), b.usedAt.Load()) })
}

// prune removes idle peers.
func (e *Endpoint) prune() {
	e.configuring.Lock()
	defer e.configuring.Unlock()
	e.checkSilent()
	e.pruneAt(time.Now())
	if len(e.peers) == 0 {
		e.pruning = nil
		return
	}
	e.pruning.Reset(pruneInterval)
}

// checkSilent logs which hypervisors do not respond, and announces a change to Follow. The caller must hold configuring.
func (e *Endpoint) checkSilent() {
	var silent []string
	for _, m := range e.Silent() {
		silent = append(silent, m.VM)
		if !slices.Contains(e.silent, m.VM) {
			e.config.Log.Warn("the hypervisor of another VM does not respond; check that network policies allow UDP between the two addresses",
				"other", m.VM, "from", e.address, "to", m.Endpoint)
		}
	}
	if slices.Equal(silent, e.silent) {
		return
	}
	e.silent = silent
	select {
	case e.silentChanged <- struct{}{}:
	default:
	}
}

// pruneAt removes the peers that are idle at a time. The caller must hold configuring.
func (e *Endpoint) pruneAt(now time.Time) {
	for _, m := range e.peers {
		if m.idle(now.Add(-idleTime)) || !m.responds(now) && m.idle(now.Add(-silentTime)) {
			e.drop(m)
		}
	}
}

// Silent returns the other VMs whose hypervisors have not responded to several handshakes, sorted by VM. Either they
// are gone, or something blocks UDP between the two endpoints.
func (e *Endpoint) Silent() []Member {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var silent []Member
	for _, m := range e.table.byVM {
		if m.silent() {
			silent = append(silent, m.Member)
		}
	}
	slices.SortFunc(silent, func(a, b Member) int { return strings.Compare(a.VM, b.VM) })
	return silent
}
