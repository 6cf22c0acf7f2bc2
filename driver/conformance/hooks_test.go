package conformance_test

import (
	"context"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/driver"
)

// onCreate replaces CreateMachine. The function gets the original method.
func onCreate(change func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error)) func(*world, *patched) {
	return func(_ *world, p *patched) {
		next := p.create
		p.create = func(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return change(ctx, req, next)
		}
	}
}

// onRemove replaces DeleteMachine.
func onRemove(change func(ctx context.Context, w *world, req *driver.DeleteMachineRequest, next remove) (*driver.DeleteMachineResponse, error)) func(*world, *patched) {
	return func(w *world, p *patched) {
		next := p.remove
		p.remove = func(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			return change(ctx, w, req, next)
		}
	}
}

// onFind replaces GetMachineStatus.
func onFind(change func(ctx context.Context, w *world, req *driver.GetMachineStatusRequest, next find) (*driver.GetMachineStatusResponse, error)) func(*world, *patched) {
	return func(w *world, p *patched) {
		next := p.find
		p.find = func(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			return change(ctx, w, req, next)
		}
	}
}

// onList replaces ListMachines.
func onList(change func(ctx context.Context, w *world, req *driver.ListMachinesRequest, next list) (*driver.ListMachinesResponse, error)) func(*world, *patched) {
	return func(w *world, p *patched) {
		next := p.list
		p.list = func(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
			return change(ctx, w, req, next)
		}
	}
}

// counter counts calls by name.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) next(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
	return c.n[name]
}

func (c *counter) get(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

// gate holds the first of several concurrent calls until the second one has started.
type gate struct {
	mu     sync.Mutex
	flying int
	first  *driver.CreateMachineRequest
	second chan struct{}
}

// enter returns the number of running calls and the request of the first one.
func (g *gate) enter(req *driver.CreateMachineRequest) (int, *driver.CreateMachineRequest) {
	n, first, wait := g.begin(req)
	if wait != nil {
		select {
		case <-wait:
		case <-time.After(time.Millisecond): // on the fake clock, this means that no other call starts
		}
	}
	return n, first
}

// begin counts a call. If several calls run, the first one gets a channel to wait on.
func (g *gate) begin(req *driver.CreateMachineRequest) (n int, first *driver.CreateMachineRequest, wait <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying++
	if g.flying == 1 {
		g.first, g.second = req, make(chan struct{})
		return 1, req, g.second
	}
	if g.second != nil {
		close(g.second)
		g.second = nil
	}
	return g.flying, g.first, nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying--
}
