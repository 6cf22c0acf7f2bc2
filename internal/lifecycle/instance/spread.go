package instance

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// fingerprint reports whether a request changed in anything that could make a failed
// call succeed. Our own writes of status and metadata do not change it.
type fingerprint struct {
	machine, class                     types.UID
	machineGeneration, classGeneration int64
	// force is the label by which a user urges a deletion on.
	force  string
	secret [sha256.Size]byte
}

// sameButSecret reports whether the two differ in nothing but the secret.
func (f fingerprint) sameButSecret(other fingerprint) bool {
	other.secret = f.secret
	return f == other
}

func fingerprintOf(req Request) fingerprint {
	return fingerprint{
		machine:           req.Machine.UID,
		machineGeneration: req.Machine.Generation,
		class:             req.Class.UID,
		classGeneration:   req.Class.Generation,
		force:             req.Machine.Labels[v1alpha1.LabelKeyForceDeletion],
		secret:            hashSecret(req.Secret),
	}
}

func hashSecret(secret *corev1.Secret) [sha256.Size]byte {
	hash := sha256.New()
	part := func(b []byte) {
		_ = binary.Write(hash, binary.BigEndian, uint64(len(b))) // a hash never fails
		hash.Write(b)
	}
	if secret != nil {
		for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
			part([]byte(key))
			part(secret.Data[key])
		}
	}
	return [sha256.Size]byte(hash.Sum(nil))
}

// Many failing calls can come due at the same moment: when a process takes over with
// no memory of their back-off, and when a Secret changes that many machines share. The
// first few of them are made at once, so that a small installation waits for nothing
// and a repaired Secret is tried at once; the rest is spread over some time.
const (
	// spreadWindow is the time over which calls are spread, and after which another
	// few are made at once.
	spreadWindow = 30 * time.Second
	// spreadPrompt is how many calls are made at once.
	spreadPrompt = 10
	// spreadTakeover is how long a process that begins to work counts as having taken
	// over.
	spreadTakeover = time.Minute
)

// spread holds back first calls. The zero value is ready to use.
type spread struct {
	// begun is when the first request came, which is when this process began to lead.
	begun time.Time
	// since is when calls of the present window began to be counted.
	since time.Time
	count int
}

// change is an entry that is about to take the place of another one, or of none.
type change struct {
	before, next *entry
	machine      *v1alpha1.Machine
}

// delay is how long the first call for the next entry is held back.
func (c *spread) delay(now time.Time, change change) time.Duration {
	if c.begun.IsZero() {
		c.begun = now
	}
	if !c.takenOver(now, change) && !change.ofSecret() {
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

// takenOver reports whether the call is likely to be one that failed for the process
// before this one. It reads the Machine's status, and may: it only delays.
func (c *spread) takenOver(now time.Time, change change) bool {
	if change.before != nil || now.Sub(c.begun) >= spreadTakeover {
		return false
	}
	switch change.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineCrashLoopBackOff:
		return true
	case v1alpha1.MachineTerminating:
		return change.machine.Status.LastOperation.State == v1alpha1.MachineStateFailed
	}
	return false
}

// ofSecret reports whether a failed call is to be tried again for nothing but a new
// Secret.
func (c change) ofSecret() bool {
	return c.before != nil && c.before.answer != nil && c.before.answer.retried() &&
		c.before.goal == c.next.goal && c.before.fingerprint.sameButSecret(c.next.fingerprint)
}
