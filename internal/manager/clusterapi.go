package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/go-logr/logr"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi"
	"github.com/millwright-dev/millwright/internal/controllers/capi/cluster"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/finalizers"
	"github.com/millwright-dev/millwright/internal/controllers/capi/template"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// API is an API whose machines the manager serves.
type API string

const (
	// APIMCM is the API of Machines, MachineSets and MachineDeployments in machine.sapcloud.io.
	APIMCM API = "mcm"
	// APICAPI is the API of MillwrightMachines, for Cluster API.
	APICAPI API = "capi"
)

// ClusterAPI configures APICAPI.
type ClusterAPI struct {
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter that objects must have. If empty, all
	// objects are reconciled.
	WatchFilter string
}

// has reports whether the manager serves an API. The default is only APIMCM.
func (c Config) has(api API) bool {
	if len(c.APIs) == 0 {
		return api == APIMCM
	}
	return slices.Contains(c.APIs, api)
}

// leases returns the names of the leases that a leader must hold.
func (c Config) leases() []string {
	var names []string
	for _, half := range []Half{HalfMachines, HalfSets} {
		if c.runs(half) {
			names = append(names, string(half))
		}
	}
	if c.has(APICAPI) {
		names = append(names, cmp.Or(c.Election.ClusterAPILease, infrav1.Lease))
	}
	return names
}

// leaseNamespace returns the namespace of these leases.
func (c Config) leaseNamespace() string { return cmp.Or(c.Election.Namespace, c.Namespace) }

// kindsOfClusterAPI are the Millwright resources that APICAPI requires.
var kindsOfClusterAPI = []string{"millwrightmachines", "millwrightmachinetemplates", "millwrightclusters", "millwrightclustertemplates"}

// discoverClusterAPI returns the version of Cluster API's kinds. It checks that the control cluster serves all
// required kinds.
func discoverClusterAPI(ctx context.Context, log logr.Logger, config *rest.Config) (version schema.GroupVersion, err error) {
	client, err := discoverer(config)
	if err != nil {
		return schema.GroupVersion{}, err
	}
	wait := waiting{log: log, server: config.Host}
	err = wait.until(ctx, func() (err error) {
		version, err = core.Discover(client)
		return err
	})
	switch {
	case errors.Is(err, core.ErrNotServed):
		return version, fmt.Errorf("control cluster at %s: %w; install the core of Cluster API first (clusterctl init), or start without --apis=capi", config.Host, err)
	case err != nil:
		return version, fmt.Errorf("control cluster at %s: %w", config.Host, err)
	}
	err = wait.until(ctx, func() error { return core.Serves(client, infrav1.SchemeGroupVersion, kindsOfClusterAPI...) })
	switch {
	case errors.Is(err, core.ErrNotServed):
		return version, fmt.Errorf("control cluster at %s: %w; install the CRDs (kubectl apply -f config/crd)", config.Host, err)
	case err != nil:
		return version, fmt.Errorf("control cluster at %s: %w", config.Host, err)
	}
	return version, nil
}

// clusterAPIControllers returns the controllers of APICAPI.
func (a *assembly) clusterAPIControllers() []controller {
	waker, asked := &tasks.Waker{}, &tasks.Waker{}
	engine := instance.New(a.Drivers, instance.Options{
		Run: a.runner.Go, Wake: waker.Wake, Clock: clock.RealClock{},
		Policy:      timeouts.Policy{ResourceExhausted: a.ResourceExhaustedRetry, CreationTimeout: a.CreationTimeout},
		CallTimeout: a.DriverTimeout, OutOfRange: a.outOfRange,
	})
	machines := capi.Options{
		Client: a.mgr.GetClient(), Live: a.mgr.GetAPIReader(), Engine: engine, TaskEvents: waker,
		Events: a.events.recorder("millwrightmachine-controller"), Clock: clock.RealClock{}, Concurrency: a.ConcurrentSyncs,
		Drivers: a.Drivers, Installation: a.Installation, WatchFilter: a.ClusterAPI.WatchFilter, JoinTimeout: max(0, a.CreationTimeout),
	}
	if a.has(APIMCM) {
		machines.OtherOwners = ownership.Machines(a.mgr.GetClient())
	}
	ofMachines := capi.New(machines)
	return []controller{
		ofMachines,
		ofMachines.Secrets,
		cluster.New(cluster.Options{
			Client: a.mgr.GetClient(), Live: a.mgr.GetAPIReader(), Events: a.events.recorder("millwrightcluster-controller"), Clock: clock.RealClock{}, Concurrency: a.ConcurrentSyncs,
			WatchFilter: a.ClusterAPI.WatchFilter, DomainsAsMap: !a.mgr.GetScheme().IsVersionRegistered(core.V1Beta2),
			Drivers: a.Drivers, Run: a.runner.Go, Wake: asked.Wake, TaskEvents: asked,
		}),
		template.New(template.Options{
			Client: a.mgr.GetClient(), Events: a.events.recorder("millwrightmachinetemplate-controller"), WatchFilter: a.ClusterAPI.WatchFilter,
		}),
		finalizers.NewForClasses(a.mgr.GetClient(), a.events.recorder("millwrightmachine-controller")),
	}
}
