package fleet

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/manager"
)

// serve runs the manager of a namespace until ctx is canceled or it fails.
func (f *fleet) serve(ctx context.Context, of member, progress func(manager.State)) error {
	name := of.namespace.Name
	leases, err := f.seed.Leases()
	if err != nil {
		return err
	}
	target := rest.CopyConfig(of.target)
	target.QPS, target.Burst, target.UserAgent = of.settings.QPS, of.settings.Burst, f.Seed.UserAgent
	warn := func(found *problem) { f.event(of.namespace, corev1.EventTypeWarning, found.reason, found.text) }
	identity, target, err := newIdentity(name, f.seedUID, target, leases, warn)
	if err != nil {
		return err
	}
	if err := identity.first(ctx); err != nil {
		return err
	}
	registry, closed := f.registries.open(name)
	defer closed()
	control := rest.CopyConfig(f.Seed)
	control.QPS, control.Burst = of.settings.QPS, of.settings.Burst
	config := manager.Config{
		Settings: of.settings.Settings, Control: control, Target: target, Seed: f.seed, Metrics: registry, Log: f.Log.WithValues("cluster", name),
		Progress: func(state manager.State) {
			progress(state)
			f.recovered(name, state)
		},
	}
	config.Namespace, config.APIs, config.Half = name, nil, ""
	config.Election.Enabled, config.Election.Namespace = true, ""
	config.Pages, config.Webhooks = manager.Pages{}, manager.Webhooks{}
	closeDrivers, err := of.settings.Open(ctx, &config)
	if err != nil {
		return err
	}
	defer closeDrivers()
	return runIdentified(ctx, config, identity)
}

// recovered forgets the last problem of a namespace when its manager serves, so that the next one is reported.
func (f *fleet) recovered(name string, state manager.State) {
	if state != manager.StateServing {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.problems, name)
}

// runIdentified runs a manager, and stops it if its target turns out to be another cluster.
func runIdentified(ctx context.Context, config manager.Config, target *identity) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if err := target.await(ctx); err != nil {
			stop(err)
		}
	}()
	err := manager.Run(ctx, config)
	if refused, ok := errors.AsType[*problem](context.Cause(ctx)); ok {
		return refused
	}
	return err
}
