package instance

import (
	"crypto/sha256"
	"encoding/json"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// fingerprint identifies everything in a request whose change could make a failed call succeed.
type fingerprint struct {
	machine, class                     types.UID
	machineGeneration, classGeneration int64
	force, location, others            string
	secret                             [sha256.Size]byte
}

func (f fingerprint) sameButSecret(other fingerprint) bool {
	other.secret = f.secret
	return f == other
}

func fingerprintOf(req Request) fingerprint {
	var data []byte
	if req.Secret != nil {
		data, _ = json.Marshal(req.Secret.Data) // cannot fail: bytes under sorted keys
	}
	return fingerprint{
		machine:           req.Machine.UID,
		machineGeneration: req.Machine.Generation,
		class:             req.Class.UID,
		classGeneration:   req.Class.Generation,
		force:             req.Machine.Labels[v1alpha1.LabelKeyForceDeletion],
		location:          driver.Location(req.Machine),
		others:            req.Others,
		secret:            sha256.Sum256(data),
	}
}

// Many failing calls can become due at the same moment: when a process takes over without the back-off of its
// predecessor, and when a Secret changes that many machines share. The first few are made immediately, and the
// others are spread over the window.
const (
	spreadWindow = 30 * time.Second
	// spreadPrompt is how many calls per window are made immediately.
	spreadPrompt = 10
	// spreadTakeover is how long a process counts as having just taken over.
	spreadTakeover = time.Minute
)

// spread holds back first calls. The zero value is ready to use.
type spread struct {
	// begun is when this process became the leader, measured at its first request.
	begun time.Time
	// since is the beginning of the window, and count the number of its calls.
	since time.Time
	count int
}

// delay returns how long the first call for the next entry is delayed. The next entry replaces the one before,
// which may be nil.
func (c *spread) delay(now time.Time, before, next *entry, machine *v1alpha1.Machine) time.Duration {
	if c.begun.IsZero() {
		c.begun = now
	}
	takenOver := before == nil && now.Sub(c.begun) < spreadTakeover && hasFailed(machine)
	if !takenOver && !retriedForSecret(before, next) {
		return 0
	}
	if now.Sub(c.since) >= spreadWindow {
		c.since, c.count = now, 0
	}
	c.count++
	if c.count <= spreadPrompt {
		return 0
	}
	return rand.N(spreadWindow)
}

// hasFailed reports whether the Machine's last call failed, according to its status. The status may be out of
// date, which is harmless because it only causes a delay.
func hasFailed(machine *v1alpha1.Machine) bool {
	switch machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineCrashLoopBackOff:
		return true
	case v1alpha1.MachineTerminating:
		return machine.Status.LastOperation.State == v1alpha1.MachineStateFailed
	}
	return false
}

func retriedForSecret(before, next *entry) bool {
	return before != nil && retried(before.result) &&
		before.goal == next.goal && before.fingerprint.sameButSecret(next.fingerprint)
}
