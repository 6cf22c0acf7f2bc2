package lease

// HolderState is what a hypervisor may do.
type HolderState int8

// The states of a holder.
const (
	// Waiting means that the holder does not have a lease yet.
	Waiting HolderState = iota
	// Holding means that the guest may run until Lease.Stop.
	Holding
	// Ended means that the guest must never run again.
	Ended
)

// Holder is a hypervisor that runs its guest only with a lease. The zero value has no lease.
type Holder struct {
	state HolderState
	lease Lease
}

// State returns the state at the given time.
func (h *Holder) State(now Instant) HolderState {
	if h.state == Holding && now >= h.lease.Stop() {
		h.state = Ended
	}
	return h.state
}

// Lease returns the last lease, or the zero value if there was none.
func (h *Holder) Lease() Lease { return h.lease }

// Granted applies a response, which may be old. It ignores a response that arrives too late, and every response
// once the holder has ended: the guest has been or is being killed.
func (h *Holder) Granted(lease Lease, now Instant) {
	if h.State(now) == Ended || now >= lease.Stop() {
		return
	}
	if h.state == Waiting || lease.Stop() > h.lease.Stop() {
		h.lease = lease
	}
	h.state = Holding
}

// Refused applies a refusal: this holder must never run the guest again.
func (h *Holder) Refused() { h.state = Ended }
