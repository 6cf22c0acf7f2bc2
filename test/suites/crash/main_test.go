package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
)

// asManager makes this test binary run as a manager, which reads its orders from standard input and exits when
// that is closed.
const asManager = "MILLWRIGHT_TEST_AS_MANAGER"

func TestMain(m *testing.M) {
	if os.Getenv(asManager) != "" {
		if err := manage(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	env.AtATime(2 * pairsOfClusters()) // one for each lane
	env.Main(m)
}

// orders configure a manager.
type orders struct {
	// URL is the address of the control cluster and the provider. TargetURL is the address of the target cluster,
	// or empty if there is none.
	URL, TargetURL string
	NoTarget       bool
	// Namespace is the namespace of its Machines.
	Namespace string
	// OrphanPeriod is the period of the check for orphans. If zero, there is no check.
	OrphanPeriod time.Duration
	// HealthTimeout is how long a node may be unhealthy. If zero, the program's default is used.
	HealthTimeout time.Duration
	// DrainTimeout is how long a drain may take. If zero, the program's default is used.
	DrainTimeout time.Duration
	// OutageTimeout is how long an API server must be unreachable for an outage, and the period of the checks. If
	// zero, the program's defaults are used.
	OutageTimeout time.Duration
	// Port is the port of its metrics and profiles on 127.0.0.1. If zero, it serves none.
	Port int
	// ClusterAPI makes it serve Cluster API instead of MCM's kinds.
	ClusterAPI bool
	// Overshoot specifies when MachineSets are frozen. If nil, the program's default is used.
	Overshoot *machineset.Overshoot
	// DriverSocket is the socket where drivers of other processes register. If empty, the driver is built in.
	DriverSocket string
	// PlugIn makes the process a driver that registers there, instead of a manager.
	PlugIn bool
	// Broken is the bug of this build. If empty, it has none.
	Broken fault
}

// manage runs a manager: everything except the flags and the driver.
func manage() error {
	var o orders
	decoder := json.NewDecoder(os.Stdin)
	if err := decoder.Decode(&o); err != nil {
		return fmt.Errorf("reading the orders: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // only the end of the input matters
		stop()
	}()
	log := logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-4)}))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	if o.PlugIn {
		return o.serveDriver(ctx)
	}
	drivers, runnables, err := o.drivers()
	if err != nil {
		return err
	}
	config := &rest.Config{Host: o.URL, QPS: 100, Burst: 200, UserAgent: "millwright-manager"}
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json" // so that names can be read from requests
	o.Broken.spoil(config)
	var target *rest.Config
	if o.TargetURL != "" {
		target = rest.CopyConfig(config)
		target.Host = o.TargetURL
	}
	if o.Overshoot == nil {
		o.Overshoot = &machineset.Overshoot{Up: 2, Down: 1}
	}
	api := manager.APIMCM
	if o.ClusterAPI {
		api = manager.APICAPI
	}
	return manager.Run(ctx, manager.Config{
		Control:   config,
		Target:    target,
		Drivers:   drivers,
		Runnables: runnables,
		Log:       log,
		Settings: manager.Settings{
			Namespace:       o.Namespace,
			APIs:            []manager.API{api},
			ConcurrentSyncs: 10,
			// No other process competes with it; another suite tests the takeover of leases.
			Election: manager.Election{Enabled: false},
			Pages:    manager.Pages{Address: "127.0.0.1", Port: o.Port, Profiling: manager.Profiling{Enabled: o.Port != 0}},
			MachineSettings: manager.MachineSettings{
				CreationTimeout: 20 * time.Minute, ResourceExhaustedRetry: time.Minute,
				Health: machine.Health{
					Timeout: o.HealthTimeout, MaxReplacements: o.Broken.replacements(), OutageTimeout: o.OutageTimeout, OutagePeriod: o.OutageTimeout,
				},
				Drain:   manager.Drain{Strategy: drain.Serial, Timeout: o.DrainTimeout},
				Orphans: manager.Orphans{Period: o.OrphanPeriod},
			},
			SetSettings: manager.SetSettings{Overshoot: *o.Overshoot, ProtectNodes: true, EnforceMinReadySeconds: true},
		},
	})
}
