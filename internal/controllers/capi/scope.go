package capi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// scope is what the steps of one reconcile share.
type scope struct {
	// machine is changed by the steps; stored is the object as the API server has it.
	machine, stored *infrav1.MillwrightMachine
	// owner is the Machine, cluster the Cluster; nil if they do not exist. Set by findOwners.
	owner   *core.Machine
	cluster *core.Cluster
	// inputs of the driver. Set by readInputs.
	inputs inputs.Inputs
	now    time.Time
	// within is when the next reconcile is due at the latest; zero if it is not.
	within time.Duration
	// events are sent once the object is written.
	events []pendingEvent
	memory *memory
}

type pendingEvent struct{ kind, reason, message string }

// memory is what is remembered of a MillwrightMachine between reconciles. Losing it costs an event
// that is sent twice, or a call to the driver that comes late.
type memory struct {
	of    types.UID
	check check
	// sent holds the messages of events that are sent only when they change.
	sent events.Said
	// refused reports that Ready was set to False, and code is the driver's error code then; OK if
	// the driver did not fail.
	refused bool
	code    codes.Code
}

func newScope(machine *infrav1.MillwrightMachine, remembered *memory, now time.Time) *scope {
	if remembered.of != machine.UID {
		*remembered = memory{of: machine.UID}
	}
	return &scope{machine: machine, stored: machine.DeepCopy(), memory: remembered, now: now}
}

func (s *scope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.machine) }

func (s *scope) event(kind, reason, message string) {
	s.events = append(s.events, pendingEvent{kind, reason, message})
}

// wakeWithin requests another reconcile; zero requests none.
func (s *scope) wakeWithin(d time.Duration) {
	s.within = flow.Sooner(s.within, d)
}

// retry returns the time to the next reconcile after a failed call. A repaired Secret brings no event,
// so Secrets are read again more often than the driver is called.
func (s *scope) retry(after time.Duration) time.Duration {
	if s.inputs.UseSecrets() {
		return min(after, slowRetry)
	}
	return after
}

// neverCreated reports whether the driver cannot have created a VM, since it refuses the same spec with
// which it was first called. Such an object could not be deleted otherwise: the driver refuses to look
// for the VM, too.
func (s *scope) neverCreated(failed *instance.Failure) bool {
	first := s.machine.Annotations[infrav1.AnnotationCreationSpec]
	return refusesSpec(failed) && marks.OwnSpecOnly(s.machine) && s.machine.Status.ProviderID == "" &&
		first != "" && first == marks.Digest(s.inputs.Class)
}

func (s *scope) request() instance.Request {
	return instance.Request{Machine: s.inputs.Machine, Class: s.inputs.Class, Secret: s.inputs.Secret}
}

// findOwners reads the Machine and the Cluster, if they exist.
func (c *Controller) findOwners(ctx context.Context, s *scope) flow.Result {
	clusterName := s.machine.Labels[core.LabelCluster]
	if name := core.Owner(s.machine, core.MachineKind); name != "" {
		owner := &core.Machine{}
		err := c.Client.Get(ctx, types.NamespacedName{Namespace: s.machine.Namespace, Name: name}, owner)
		switch {
		case err == nil:
			s.owner, clusterName = owner, cmp.Or(owner.Labels[core.LabelCluster], owner.Spec.ClusterName)
		case client.IgnoreNotFound(err) != nil:
			return flow.Fail(fmt.Errorf("reading Machine %s: %w", name, err))
		}
	}
	cluster, err := core.FindCluster(ctx, c.Client, s.machine.Namespace, clusterName)
	s.cluster = cluster
	return flow.Fail(err)
}

// readInputs reads the inputs of the driver. It returns the first one that is missing; nil if all are
// there.
func (c *Controller) readInputs(ctx context.Context, s *scope) (missing *inputs.Error, err error) {
	read, err := c.inputs.Read(ctx, s.machine)
	if errors.As(err, &missing) {
		return missing, nil
	}
	s.inputs = read
	return nil, err
}
