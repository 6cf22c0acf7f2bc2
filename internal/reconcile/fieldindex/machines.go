package fieldindex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Machines finds Machines, which are the cache's and must not be changed.
type Machines interface {
	// ControlledBy returns the Machines of a namespace by the UID of their controller, or
	// Orphan, unordered.
	ControlledBy(ctx context.Context, namespace, controller string) ([]*v1alpha1.Machine, error)
}

// Listed finds Machines with a reader that has the indexes. It makes a shallow copy of each Machine.
func Listed(reader client.Reader) Machines { return listed{reader} }

type listed struct{ client.Reader }

func (l listed) ControlledBy(ctx context.Context, namespace, controller string) ([]*v1alpha1.Machine, error) {
	list := &v1alpha1.MachineList{}
	err := l.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{ByController: controller}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing machines: %w", err)
	}
	machines := make([]*v1alpha1.Machine, len(list.Items))
	for i := range list.Items {
		machines[i] = &list.Items[i]
	}
	return machines, nil
}

// Informers finds Machines in the informers of a cache that is made with NewInformer, without copies,
// which would be most of the allocations of passes over large sets.
type Informers struct {
	mu       sync.Mutex
	machines []toolscache.SharedIndexInformer
}

// NewInformer is an option of cache.Options.
func (i *Informers) NewInformer(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	informer := toolscache.NewSharedIndexInformer(from, object, resync, indexers)
	if _, ok := object.(*v1alpha1.Machine); ok {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.machines = append(i.machines, informer) // one for each namespace that the cache is for
	}
	return informer
}

var errNotSynced = errors.New("the cache of machines is not complete yet")

// ControlledBy implements Machines, if ByController was added to the cache.
func (i *Informers) ControlledBy(_ context.Context, namespace, controller string) ([]*v1alpha1.Machine, error) {
	i.mu.Lock()
	informers := slices.Clone(i.machines)
	i.mu.Unlock()
	if len(informers) == 0 {
		return nil, errNotSynced
	}
	var machines []*v1alpha1.Machine
	for _, informer := range informers {
		if !informer.HasSynced() {
			return nil, errNotSynced
		}
		// controller-runtime names the index of a field and its values so.
		found, err := informer.GetIndexer().ByIndex("field:"+ByController, namespace+"/"+controller)
		if err != nil {
			return nil, fmt.Errorf("looking up machines: %w", err)
		}
		machines = slices.Grow(machines, len(found))
		for _, object := range found {
			machines = append(machines, object.(*v1alpha1.Machine))
		}
	}
	return machines, nil
}
