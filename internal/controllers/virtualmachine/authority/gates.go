package authority

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// gates let one call of each VM's hypervisors at a time to the API server. The others wait here, and not in the queue
// of the client, in which those of all VMs would wait behind them: a lease must be renewed in time, also while others
// ask for theirs without end. The zero value is ready.
type gates struct {
	mu   sync.Mutex
	open map[types.NamespacedName]*gate
}

// gate has room for one.
type gate struct {
	inside chan struct{}
	users  int
}

// enter waits for the gate of a VM, or for the end of the context.
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
