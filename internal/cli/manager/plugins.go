package manager

import (
	"context"
	"errors"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/plugins"
	"github.com/millwright-dev/millwright/internal/pluginserver"
)

// pluginServer accepts drivers of other processes. Only the leader runs it. A driver that connects to a manager that is
// not the leader retries until it reaches the leader.
type pluginServer struct {
	flags  plugins.Flags
	server *pluginserver.Server
}

func newPlugins(flags plugins.Flags, drivers *registry.Registry, log logr.Logger) *pluginServer {
	return &pluginServer{flags: flags, server: pluginserver.New(pluginserver.Options{
		Add: func(kind string, d *pluginserver.Driver) error {
			_, err := drivers.Register(kind, d)
			if errors.Is(err, registry.ErrTaken) {
				return errors.New("the manager has a built-in driver with this name")
			}
			return err
		},
		Returned: drivers.Announce, Version: flags.Version,
		Log: log.WithName("drivers"), Registerer: metrics.Registry,
	})}
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
