package authority

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// gates admit one call of each VM's hypervisors at a time to the API server. The others wait here, and not in the queue of
// the client, where they would delay the calls of all VMs: a lease must be renewed in time, even while other hypervisors
// flood the controller. The zero value is ready to use.
type gates struct {
	mu   sync.Mutex
	open map[types.NamespacedName]*gate
}

// gate admits one call at a time.
type gate struct {
	inside chan struct{}
	users  int
}

// enter waits for the gate of a VM. It returns the error of the context if that is canceled first.
func (g *gates) enter(ctx context.Context, vm types.NamespacedName) (leave func(), err error) {
	own := g.join(vm)
	select {
	case own.inside <- struct{}{}:
		return func() {
			<-own.inside
			g.part(vm)
		}, nil
	case <-ctx.Done():
		g.part(vm)
		return nil, ctx.Err()
	}
}

func (g *gates) join(vm types.NamespacedName) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = map[types.NamespacedName]*gate{}
	}
	if g.open[vm] == nil {
		g.open[vm] = &gate{inside: make(chan struct{}, 1)}
	}
	g.open[vm].users++
	return g.open[vm]
}

func (g *gates) part(vm types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[vm].users--; g.open[vm].users == 0 {
		delete(g.open, vm)
	}
}
