package balancer

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// start tracks when each object that existed at the start has had a pass. If a process reported readiness before
// that, it would get connections to ports that are not open yet.
type start struct {
	done func()

	mu sync.Mutex
	// passes has the objects that had a pass before await was called. awaited has the objects that still need one.
	passes, awaited map[types.NamespacedName]struct{}
}

// newStart returns the start of a process. done is called once all objects have had a pass.
func newStart(done func()) *start {
	return &start{done: sync.OnceFunc(done), passes: map[types.NamespacedName]struct{}{}}
}

// passed records that an object has had a pass, whatever its result.
func (s *start) passed(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaited == nil {
		s.passes[key] = struct{}{}
		return
	}
	delete(s.awaited, key)
	if len(s.awaited) == 0 {
		s.done()
	}
}

// await sets the objects that existed at the start.
func (s *start) await(keys []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = map[types.NamespacedName]struct{}{}
	for _, key := range keys {
		if _, passed := s.passes[key]; !passed {
			s.awaited[key] = struct{}{}
		}
	}
	s.passes = nil
	if len(s.awaited) == 0 {
		s.done()
	}
}

// begin lists the existing objects once the cache has been filled.
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

// keys returns the MillwrightClusters that request this load balancer.
func (c *Controller) keys(ctx context.Context) ([]types.NamespacedName, error) {
	list := &infrav1.MillwrightClusterList{}
	if err := c.Client.List(ctx, list, client.InNamespace(c.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MillwrightClusters: %w", err)
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if c.selects(&list.Items[i]) {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys, nil
}
