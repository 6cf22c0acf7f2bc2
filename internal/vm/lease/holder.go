package lease

// HolderState is what a hypervisor may do.
type HolderState int8

// States of a holder.
const (
	// Waiting means that there is no lease yet.
	Waiting HolderState = iota
	// Holding means that the guest may run until Lease.Stop.
	Holding
	// Ended means that the guest must not run any more, for ever.
	Ended
)

// Holder is a hypervisor that runs its guest only with a lease. The zero value has none.
type Holder struct {
	state HolderState
	lease Lease
}

// State returns the state at a time.
func (h *Holder) State(now Instant) HolderState {
	if h.state == Holding && now >= h.lease.Stop() {
		h.state = Ended
	}
	return h.state
}

// Lease returns the lease; zero if there was none.
func (h *Holder) Lease() Lease { return h.lease }

// Granted applies an answer, which may be old. One that comes too late is void, and so is one after the end: the
// guest is dead, or being killed.
func (h *Holder) Granted(lease Lease, now Instant) {
	if h.State(now) == Ended || now >= lease.Stop() {
		return
	}
	if h.state == Waiting || lease.Stop() > h.lease.Stop() {
		h.lease = lease
	}
	h.state = Holding
}

// Refused applies an answer that ends this holder.
func (h *Holder) Refused() { h.state = Ended }
