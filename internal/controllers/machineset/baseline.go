package machineset

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// askAgain is how long after a failure the API server is not asked again for a namespace. Each of
// its sets would have it list all that there is.
const askAgain = time.Second

// baselines hold, for each namespace, what the API server had when this process first asked.
// Writes of a process before this one are in there, so a cache that is as new shows them.
// It saves a list for each set.
type baselines struct {
	mu         sync.Mutex
	namespaces map[string]*firstLook
}

// firstLook is the baseline of a namespace, or why there is none yet. Its lock is held while the
// API server is asked.
type firstLook struct {
	mu       sync.Mutex
	baseline *baseline
	failure  error
	failed   time.Time
}

// baseline is one list of all sets, and one of all Machines.
type baseline struct {
	// version is that of the list of Machines: whatever is newer was written later.
	version string
	// machines are the versions of Machines by their UIDs, by the UIDs of what controls
	// them.
	machines map[types.UID]map[types.UID]string

	mu sync.Mutex
	// sets are the versions of those sets, by name, of which the cache has not shown as much yet.
	sets map[string]string
}

func (b *baselines) look(namespace string) *firstLook {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.namespaces == nil {
		b.namespaces = map[string]*firstLook{}
	}
	if b.namespaces[namespace] == nil {
		b.namespaces[namespace] = &firstLook{}
	}
	return b.namespaces[namespace]
}

// of returns the baseline of a namespace, which is read if it is not known. Whoever else
// needs it meanwhile waits for the same answer, and soon after a failure gets that.
func (b *baselines) of(namespace string, by clock.PassiveClock, read func() (*baseline, error)) (*baseline, error) {
	look := b.look(namespace)
	look.mu.Lock()
	defer look.mu.Unlock()
	if look.baseline == nil && (look.failure == nil || by.Since(look.failed) >= askAgain) {
		look.baseline, look.failure = read()
		look.failed = by.Now()
	}
	return look.baseline, look.failure
}

// baseline is the baseline of a namespace.
func (c *Controller) baseline(ctx context.Context, namespace string) (*baseline, error) {
	return c.first.of(namespace, c.Clock, func() (*baseline, error) {
		sets, err := c.liveList(ctx, "MachineSet", namespace, labels.Everything())
		if err != nil {
			return nil, err
		}
		machines, err := c.liveList(ctx, "Machine", namespace, labels.Everything())
		if err != nil {
			return nil, err
		}
		return newBaseline(sets, machines), nil
	})
}

// fresh reports whether the cache shows all that was written to a set, by this process and by those
// before it. Machines are kept as the set says, and writing those does not fail when it says
// something else by now.
func (c *Controller) fresh(ctx context.Context, set *v1alpha1.MachineSet) (bool, error) {
	baseline, err := c.baseline(ctx, set.Namespace)
	if err != nil {
		return false, err
	}
	return baseline.shows(set) && c.written.Fresh(set), nil
}

func newBaseline(sets, machines *metav1.PartialObjectMetadataList) *baseline {
	b := &baseline{version: machines.ResourceVersion, machines: map[types.UID]map[types.UID]string{}, sets: map[string]string{}}
	for i := range sets.Items {
		b.sets[sets.Items[i].Name] = sets.Items[i].ResourceVersion
	}
	for i := range machines.Items {
		machine := &machines.Items[i]
		owner := metav1.GetControllerOfNoCopy(machine)
		if owner == nil {
			continue
		}
		if b.machines[owner.UID] == nil {
			b.machines[owner.UID] = map[types.UID]string{}
		}
		b.machines[owner.UID][machine.UID] = machine.ResourceVersion
	}
	return b
}

// shows reports whether a set, as the cache has it, is no older than it was in the baseline. One that
// was not there is.
func (b *baseline) shows(set *v1alpha1.MachineSet) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if older(set.ResourceVersion, b.sets[set.Name]) {
		return false
	}
	delete(b.sets, set.Name)
	return true
}

// judge reports whether the cache, of which owned are the Machines of a set, is as new as the
// baseline. A Machine that the cache lacks may have been deleted since, or be still to come:
// that is doubtful. A cache that is older but shows the same Machines is as good: what came
// and went between is not missed.
func (b *baseline) judge(set types.UID, owned []*v1alpha1.Machine) verdict {
	if _, err := resourceversion.CompareResourceVersion(b.version, b.version); err != nil {
		return doubtful // such versions say nothing about time
	}
	known := b.machines[set]
	found := 0
	result := complete
	for _, machine := range owned {
		least, ok := known[machine.UID]
		if ok {
			found++
		}
		if ok && older(machine.ResourceVersion, least) || !ok && !older(b.version, machine.ResourceVersion) {
			result = behind // it was changed, or it was gone or not the set's
		}
	}
	if result == complete && found < len(known) {
		return doubtful
	}
	return result
}

// older reports whether one resource version came before another. Versions that cannot be
// compared do not.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
