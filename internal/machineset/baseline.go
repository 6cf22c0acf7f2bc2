package machineset

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// baselines hold, for each namespace, what the API server had when this process first asked.
// Writes of a process before this one are in there, so a cache that is as new shows them.
// It saves a list for each set.
type baselines struct {
	mu         sync.Mutex
	namespaces map[string]*baseline
}

// baseline is one list of all Machines.
type baseline struct {
	// version is that of the list: whatever is newer was written later.
	version string
	// machines are the versions of Machines by their UIDs, by the UIDs of what controls
	// them.
	machines map[types.UID]map[types.UID]string
}

// of returns the baseline of a namespace, which is read if it is not known. Whoever else
// needs it meanwhile waits for the same list.
func (b *baselines) of(namespace string, read func() (*metav1.PartialObjectMetadataList, error)) (*baseline, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.namespaces[namespace]; known != nil {
		return known, nil
	}
	list, err := read()
	if err != nil {
		return nil, err
	}
	if b.namespaces == nil {
		b.namespaces = map[string]*baseline{}
	}
	b.namespaces[namespace] = newBaseline(list)
	return b.namespaces[namespace], nil
}

func newBaseline(list *metav1.PartialObjectMetadataList) *baseline {
	b := &baseline{version: list.ResourceVersion, machines: map[types.UID]map[types.UID]string{}}
	for i := range list.Items {
		machine := &list.Items[i]
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

// judge tells whether the cache, of which owned are the Machines of a set, is as new as the
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

// older tells whether one resource version came before another. Versions that cannot be
// compared do not.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
