package crash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/pluginserver"
)

// mortal selects which process is killed if the driver is a separate process.
type mortal string

const (
	// theManager is killed at writes to the API and at calls of the driver.
	theManager mortal = "the manager"
	// thePlugIn is killed at calls of the driver, which it makes to the provider.
	thePlugIn mortal = "the plug-in"
)

// plugIns contains scenarios with a driver in a separate process.
var plugIns = slicesOf(
	func(who mortal) scenario {
		return scenario{
			name: "plug-in, create: " + string(who) + " dies", plugIn: who, initialize: true,
			given:  declareClass,
			act:    func(ctx context.Context, r *run) error { return r.declareDeployment(ctx, 1) },
			want:   running(1),
			always: most(1),
		}
	},
	func(who mortal) scenario {
		return scenario{
			name: "plug-in, delete amid creation: " + string(who) + " dies", plugIn: who,
			given: declareClass,
			act:   deleteAmid(declareStandalone),
			want:  nothing,
		}
	},
	func(who mortal) scenario {
		return scenario{
			name: "plug-in, rolling update: " + string(who) + " dies", plugIn: who,
			given:  givenBothClasses(2, rolling(1, 0)),
			act:    func(ctx context.Context, r *run) error { return r.rollTo(ctx, newClass) },
			want:   allOf(2, newClass),
			always: both(most(3), least(2)),
		}
	},
)

// slicesOf returns every scenario for both processes.
func slicesOf(make ...func(mortal) scenario) []scenario {
	var all []scenario
	for _, one := range make {
		all = append(all, one(theManager), one(thePlugIn))
	}
	return all
}

// socketDir creates a directory for the socket of a run's manager. Paths of sockets must be short.
func socketDir(t *testing.T) (string, error) {
	directory, err := os.MkdirTemp("", "crash")
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return filepath.Join(directory, "s"), nil
}

// plug starts a plug-in, which connects to the provider like managers do.
func (r *run) plug() error {
	p, err := newProcess(r.servers)
	if err != nil {
		return err
	}
	r.servers.provider.gate.addCompanion(p, r.scenario.plugIn == thePlugIn)
	r.mu.Lock()
	r.plugIns = append(r.plugIns, p)
	r.mu.Unlock()
	return p.order(orders{PlugIn: true, DriverSocket: r.socket, Broken: r.broken})
}

// reconnect is the maximum time between two attempts of a plug-in to connect to its manager.
const reconnect = 250 * time.Millisecond

// serveDriver runs a plug-in: the driver of a manager that listens on a socket.
func (o orders) serveDriver(ctx context.Context) error {
	return plugin.Serve(ctx, o.Broken.driver(remote{url: o.URL}), plugin.Options{
		Kind: simDriver, Target: "unix://" + o.DriverSocket, Credentials: insecure.NewCredentials(), MaxReconnectDelay: reconnect,
	})
}

// drivers are the drivers of a manager, with their server if they are separate processes.
func (o orders) drivers() (*registry.Registry, []ctrlmanager.Runnable, error) {
	if o.DriverSocket == "" {
		return registry.Only(simDriver, o.Broken.driver(remote{url: o.URL})), nil, nil
	}
	drivers := registry.New(registry.Options{MayGrow: true})
	plugins := pluginserver.New(pluginserver.Options{Add: func(kind string, d *pluginserver.Driver) error {
		_, err := drivers.Register(kind, d)
		return err
	}, Returned: drivers.Announce})
	endpoint, err := pluginserver.Socket(o.DriverSocket)
	if err != nil {
		return nil, nil, fmt.Errorf("serving drivers: %w", err)
	}
	serve := ctrlmanager.RunnableFunc(func(ctx context.Context) error { return plugins.Serve(ctx, endpoint) })
	return drivers, []ctrlmanager.Runnable{serve}, nil
}
