package manager

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/plugins"
	"github.com/millwright-dev/millwright/internal/pluginserver"
)

// pluginServer accepts drivers of other processes and adds them to the registries of all managers that use it.
//
// Only the leader of a manager runs it: a driver that connects to a manager that is not the leader retries until it reaches
// the leader. In a fleet, each replica runs one for all of its clusters.
type pluginServer struct {
	flags  plugins.Flags
	server *pluginserver.Server
	// builtIn are the drivers whose names are taken.
	builtIn registry.Kinds

	mu      sync.Mutex
	drivers map[string]*pluginserver.Driver // by kind
	users   map[*registry.Registry]struct{}
}

func newPlugins(flags plugins.Flags, builtIn registry.Kinds, log logr.Logger) *pluginServer {
	p := &pluginServer{
		flags: flags, builtIn: builtIn,
		drivers: map[string]*pluginserver.Driver{}, users: map[*registry.Registry]struct{}{},
	}
	p.server = pluginserver.New(pluginserver.Options{
		Add: p.add, Returned: p.returned, Version: flags.Version, Log: log.WithName("drivers"), Registerer: metrics.Registry,
	})
	return p
}

// use adds all drivers to the registry of a manager, also those that register later, until stop is called.
func (p *pluginServer) use(drivers *registry.Registry) (stop func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(p.drivers)) {
		if _, err := drivers.Register(kind, p.drivers[kind]); err != nil {
			return nil, err
		}
	}
	p.users[drivers] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.users, drivers)
	}, nil
}

// add adds a driver that has registered for the first time to all registries.
func (p *pluginServer) add(kind string, d *pluginserver.Driver) error {
	if _, taken := p.builtIn.Find(kind); taken {
		return errors.New("the manager has a built-in driver with this name")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for drivers := range p.users {
		if _, err := drivers.Register(kind, d); err != nil {
			return err
		}
	}
	p.drivers[kind] = d
	return nil
}

// returned announces to all registries that a driver is available again.
func (p *pluginServer) returned(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for drivers := range p.users {
		drivers.Announce(kind)
	}
}

// Start implements manager.Runnable.
func (p *pluginServer) Start(ctx context.Context) error {
	endpoints, err := p.flags.Open()
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, endpoint := range endpoints {
		all.Go(func() error { return p.server.Serve(ctx, endpoint) })
	}
	return all.Wait()
}
