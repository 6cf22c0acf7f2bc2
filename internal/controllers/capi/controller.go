// Package capi reconciles MillwrightMachines. It calls the driver to create the VM of a Cluster API Machine, reports
// the VM in the status, and calls the driver to delete it.
//
// Each reconcile pass runs the steps of lifecycle.go, or those of termination.go if the MillwrightMachine is being
// deleted. Their order follows Cluster API's contract for infrastructure machines.
package capi

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/finalizers"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance/steps"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Its scheme must have Cluster API's kinds; see core.AddToScheme. Required.
	Client client.Client
	// Live reads Secrets from the API server. Each Secret is read only a few times, and a cache would need permission
	// to list all Secrets. Required.
	Live client.Reader
	// Engine creates and deletes instances; it must serve no other API. Required.
	Engine *instance.Engine
	// TaskEvents is the source of the events that the engine's Wake triggers.
	TaskEvents source.Source
	// Events records events for users. Required.
	Events record.EventRecorder
	// Clock is required.
	Clock clock.PassiveClock
	// Concurrency is the number of objects that are reconciled at the same time.
	Concurrency int
	// Drivers are the drivers of the engine, keyed by the values of spec.driver. Required.
	Drivers *registry.Registry
	// Installation is the name with which drivers distinguish the VMs of this installation from those of others. If
	// empty, it has no name.
	Installation string
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have. If empty, all objects are
	// reconciled.
	WatchFilter string
	// JoinTimeout is the time that a VM has to become a node before the condition NodeJoined gets the reason
	// JoinTimeout. If 0, it is 20 minutes.
	JoinTimeout time.Duration
	// OtherOwners finds the objects of MCM's API that refer to a VM. If nil, that API is not served.
	OtherOwners ownership.Finder
}

// Controller reconciles MillwrightMachines. Create one with New.
type Controller struct {
	Options
	// Secrets is the controller of the Secrets of MillwrightMachines.
	Secrets *finalizers.Secrets

	// startedAt is when the controller was created. Timeouts do not begin before it.
	startedAt time.Time
	edge      edge.Reconciler[*infrav1.MillwrightMachine]
	written   expectations.Writes
	memory    expectations.Memory[memory]
	inputs    inputs.Reader
	// instances runs the steps that both APIs have in common.
	instances steps.Steps
}

// New returns a Controller.
func New(opts Options) *Controller {
	opts.JoinTimeout = cmp.Or(opts.JoinTimeout, 20*time.Minute)
	c := &Controller{
		Options: opts, startedAt: opts.Clock.Now(),
		inputs:    inputs.Reader{Cache: opts.Client, Live: opts.Live, Placer: opts.Drivers},
		instances: steps.Steps{Engine: opts.Engine, Owners: ownership.Index{ownership.MillwrightMachines(opts.Client), opts.OtherOwners}},
	}
	c.Secrets = finalizers.NewForSecrets(opts.Client, opts.Live, func(machine *infrav1.MillwrightMachine) bool {
		return c.watched(machine) && c.Drivers.Has(machine.Spec.Driver)
	}, opts.Events)
	c.edge = edge.Reconciler[*infrav1.MillwrightMachine]{
		Reader: c.Client, Kind: &infrav1.MillwrightMachine{}, Written: &c.written, Pass: c.pass, Forget: c.forget, Events: c.Events,
	}
	return c
}

func (c *Controller) watched(object client.Object) bool { return core.Watched(c.WatchFilter, object) }

// Reconcile runs the steps of a MillwrightMachine.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, machine *infrav1.MillwrightMachine) (time.Duration, error) {
	if !c.watched(machine) {
		return 0, nil
	}
	s := newScope(machine, c.memory.Of(client.ObjectKeyFromObject(machine)), c.Clock.Now())
	outcome := flow.Run(ctx, s, c.steps(machine))
	if err := c.persist(ctx, s, outcome.Gone); err != nil && outcome.Err == nil {
		outcome.Err = err
	}
	if !outcome.Gone {
		outcome.After = flow.Sooner(outcome.After, s.requeue)
	}
	return edge.Result(ctx, outcome)
}

func (c *Controller) forget(key client.ObjectKey) {
	c.Engine.Forget(key)
	c.memory.Forget(key)
	c.Secrets.Forget(key)
}

// persist writes the changes of the steps, and then sends the events. It writes the provider ID before the status
// reports to Cluster API that the VM exists.
func (c *Controller) persist(ctx context.Context, s *scope, gone bool) error {
	if !gone {
		if err := c.persistSpec(ctx, s); err != nil {
			return apierror.IgnoreGone(err)
		}
		if err := c.persistStatus(ctx, s); err != nil {
			return apierror.IgnoreGone(err)
		}
	}
	for _, e := range s.events {
		c.Events.Event(s.machine, e.kind, e.reason, e.message)
	}
	return nil
}

// persistSpec writes the metadata and the spec if they changed.
func (c *Controller) persistSpec(ctx context.Context, s *scope) error {
	changed := s.stored.DeepCopy()
	changed.ObjectMeta, changed.Spec = *s.machine.ObjectMeta.DeepCopy(), *s.machine.Spec.DeepCopy()
	if equality.Semantic.DeepEqual(s.stored, changed) {
		return nil
	}
	if err := c.written.Patch(ctx, c.Client, changed, s.stored); err != nil {
		return fmt.Errorf("patching MillwrightMachine %s: %w", s.machine.Name, err)
	}
	s.machine.ObjectMeta, s.machine.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
	s.stored = changed
	return nil
}

func (c *Controller) persistStatus(ctx context.Context, s *scope) error {
	if equality.Semantic.DeepEqual(s.stored.Status, s.machine.Status) {
		return nil
	}
	changed := s.stored.DeepCopy()
	changed.Status = *s.machine.Status.DeepCopy()
	if err := c.written.PatchStatus(ctx, c.Client, changed, s.stored); err != nil {
		return fmt.Errorf("patching the status of MillwrightMachine %s: %w", s.machine.Name, err)
	}
	s.stored = changed
	return nil
}
