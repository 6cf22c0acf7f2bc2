package hypervisor

import (
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
)

// recovery continues a guest whose storage failed, until the storage works again.
type recovery struct {
	// at is when to continue the guest, or when a continued guest counts as recovered. It is zero while the
	// storage works.
	at time.Time
	// trying is true after the guest was continued.
	trying bool
}

// due reports whether to continue the guest now.
func (r *recovery) due(status qemu.Status, pause time.Duration) bool {
	now := time.Now()
	failed := status == qemu.StorageFailed
	switch {
	case failed && (r.at.IsZero() || r.trying):
		*r = recovery{at: now.Add(pause)}
	case !failed && !(r.trying && now.Before(r.at)):
		*r = recovery{}
	}
	return failed && !now.Before(r.at)
}

func (r *recovery) continued(settle time.Duration) {
	*r = recovery{at: time.Now().Add(settle), trying: true}
}

// pending reports whether it is too early to report that a continued guest runs.
func (r *recovery) pending(status qemu.Status) bool {
	return r.trying && (status == qemu.Running || status == qemu.StorageFailed)
}

// timer returns a channel that receives a value when the result of due may change. It may be nil.
func (r *recovery) timer() <-chan time.Time {
	if r.at.IsZero() {
		return nil
	}
	return time.After(time.Until(r.at))
}
