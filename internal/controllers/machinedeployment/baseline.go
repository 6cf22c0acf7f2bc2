package machinedeployment

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// baselines hold, for each namespace, what the API server had when this process first asked.
//
// A process before this one may have scaled sets for a size of the deployment that the cache
// does not show yet, or the other way round: caches of different kinds are not in step. A write
// would not fail by that, since it is locked by the version of the set only, and not by those of
// what its size was counted from.
type baselines struct {
	mu sync.Mutex
	// sets are the names of the sets of deployments that were not looked at yet, by the
	// deployments' UIDs and by namespace.
	sets map[string]map[types.UID][]string
}

// caughtUp reports whether the cache shows all of a deployment's sets that existed when this
// process first asked. Which versions it has to show of them, and of the deployment, is in the
// ledgers from then on.
func (c *Controller) caughtUp(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (bool, error) {
	if c.Live == nil {
		return true, nil
	}
	c.first.mu.Lock() // whoever else needs it meanwhile waits for the same answer
	defer c.first.mu.Unlock()
	known, asked := c.first.sets[deployment.Namespace]
	if !asked {
		var err error
		if known, err = c.ask(ctx, deployment.Namespace); err != nil {
			return false, err
		}
		if c.first.sets == nil {
			c.first.sets = map[string]map[types.UID][]string{}
		}
		c.first.sets[deployment.Namespace] = known
	}
	for _, name := range known[deployment.UID] {
		if !slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool { return set.Name == name }) {
			delete(c.first.sets, deployment.Namespace) // it may be gone by now, so the next pass asks again
			return false, nil
		}
	}
	delete(known, deployment.UID)
	return true, nil
}

// ask asks the API server for the deployments and sets of a namespace, with a quorum, and puts
// their versions into the ledgers. It returns the names of the sets by what controls them.
func (c *Controller) ask(ctx context.Context, namespace string) (map[types.UID][]string, error) {
	list := func(kind string) ([]metav1.PartialObjectMetadata, error) {
		found := &metav1.PartialObjectMetadataList{}
		found.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := c.Live.List(ctx, found, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("reading every %s of namespace %s: %w", kind, namespace, err)
		}
		return found.Items, nil
	}
	sets, err := list("MachineSet")
	if err != nil {
		return nil, err
	}
	deployments, err := list("MachineDeployment")
	if err != nil {
		return nil, err
	}
	for i := range deployments {
		c.memory.Of(client.ObjectKeyFromObject(&deployments[i])).deployment.Wrote(&deployments[i])
	}
	known := map[types.UID][]string{}
	for i := range sets {
		if owner := metav1.GetControllerOfNoCopy(&sets[i]); owner != nil {
			c.memory.Of(client.ObjectKey{Namespace: namespace, Name: owner.Name}).sets.Wrote(&sets[i])
			known[owner.UID] = append(known[owner.UID], sets[i].Name)
		}
	}
	return known, nil
}
