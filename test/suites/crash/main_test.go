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

// asManager makes this test binary be a manager, which reads its orders from its standard
// input and ends with it.
const asManager = "MILLWRIGHT_TEST_AS_MANAGER"

func TestMain(m *testing.M) {
	if os.Getenv(asManager) != "" {
		if err := manage(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	env.AtATime(2 * pairsOfClusters()) // as many as there are lanes
	env.Main(m)
}

// orders are what a manager is told.
type orders struct {
	// URL is where it finds the control cluster and the provider, TargetURL where it finds
	// the target: empty if there is none.
	URL, TargetURL string
	NoTarget       bool
	// Namespace of its Machines.
	Namespace string
	// OrphanPeriod is the time between two looks for orphans. Zero: nobody looks.
	OrphanPeriod time.Duration
	// HealthTimeout is how long a node may be unhealthy. Zero is the program's default.
	HealthTimeout time.Duration
	// DrainTimeout is how long a drain may take. Zero is the program's default.
	DrainTimeout time.Duration
	// OutageTimeout is how long an API server has to be away for an outage, and how often it is asked
	// meanwhile. Zero is the program's default of both.
	OutageTimeout time.Duration
	// Port of its metrics and profiles on 127.0.0.1. Zero serves none.
	Port int
	// ClusterAPI has it serve Cluster API, and not MCM's kinds.
	ClusterAPI bool
	// Overshoot is when sets are frozen; nil is the program's default.
	Overshoot *machineset.Overshoot
	// DriverSocket is where drivers of other processes register. Empty: the driver is the manager's own.
	DriverSocket string
	// PlugIn has the process be a driver that registers there, and no manager.
	PlugIn bool
	// Broken names what is wrong with this build; empty if nothing is.
	Broken fault
}

// manage is a manager: all of it but the flags and the driver.
func manage() error {
	var o orders
	decoder := json.NewDecoder(os.Stdin)
	if err := decoder.Decode(&o); err != nil {
		return fmt.Errorf("reading the orders: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is what matters
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
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json" // so that names can be read on the way
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
