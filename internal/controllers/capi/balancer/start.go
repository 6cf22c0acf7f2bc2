package balancer

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// start finds out when each object of the beginning has had a pass. A process that is ready before that is led clients to
// whose ports are not open yet.
type start struct {
	over func()

	mu sync.Mutex
	// had are those that have had a pass, until it is known which are awaited.
	had, awaited map[types.NamespacedName]struct{}
}

// newStart returns the start of a process; over is called once, at its end.
func newStart(over func()) *start {
	return &start{over: sync.OnceFunc(over), had: map[types.NamespacedName]struct{}{}}
}

// passed notes that an object has had a pass, whatever came out of it.
func (s *start) passed(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaited == nil {
		s.had[key] = struct{}{}
		return
	}
	delete(s.awaited, key)
	if len(s.awaited) == 0 {
		s.over()
	}
}

// await says which objects there are in the beginning.
func (s *start) await(keys []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = map[types.NamespacedName]struct{}{}
	for _, key := range keys {
		if _, had := s.had[key]; !had {
			s.awaited[key] = struct{}{}
		}
	}
	s.had = nil
	if len(s.awaited) == 0 {
		s.over()
	}
}

// begin reads which objects there are once the cache has been filled.
func (c *Controller) begin(ctx context.Context) error {
	keys, err := c.keys(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	c.start.await(keys)
	return nil
}

// keys returns the MillwrightClusters that ask for this load balancer.
func (c *Controller) keys(ctx context.Context) ([]types.NamespacedName, error) {
	list := &infrav1.MillwrightClusterList{}
	if err := c.Client.List(ctx, list, client.InNamespace(c.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MillwrightClusters: %w", err)
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if c.asked(&list.Items[i]) {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys, nil
}
