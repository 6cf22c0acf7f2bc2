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

// scope is the state of one reconcile pass, which its steps share.
type scope struct {
	// machine is the object with the changes of the steps. stored is the object as the API server has it.
	machine, stored *infrav1.MillwrightMachine
	// owner is the Machine and cluster is the Cluster; nil if they do not exist. Set by findOwners.
	owner   *core.Machine
	cluster *core.Cluster
	// inputs are the inputs of the driver. Set by readInputs.
	inputs inputs.Inputs
	now    time.Time
	// requeue is the time after which the next pass is due at the latest; 0 if no pass is requested.
	requeue time.Duration
	// events are sent after the object has been written.
	events []pendingEvent
	memory *memory
}

type pendingEvent struct{ kind, reason, message string }

// memory is what the controller remembers about a MillwrightMachine between passes. If it is lost, an event may be
// sent twice, or a call to the driver may be late.
type memory struct {
	of    types.UID
	check check
	// sent has the messages of events that are sent only when they change.
	sent events.Last
	// refused reports whether Ready was set to False. code is the driver's error code in that case, or OK if the
	// driver did not fail.
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

// requeueAfter requests another pass after a time; 0 requests none.
func (s *scope) requeueAfter(d time.Duration) {
	s.requeue = flow.Sooner(s.requeue, d)
}

// retry returns the time until the next pass after a failed call. A repaired Secret causes no event, so Secrets are
// read more often than the driver is called.
func (s *scope) retry(after time.Duration) time.Duration {
	if s.inputs.UseSecrets() {
		return min(after, slowRetry)
	}
	return after
}

// neverCreated reports whether the driver cannot have created a VM because it refuses the same spec with which it was
// first called. Without this, such an object could never be deleted, because the driver also refuses to search for
// the VM.
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

// readInputs reads the inputs of the driver. It returns the first missing input, or nil if there are all.
func (c *Controller) readInputs(ctx context.Context, s *scope) (missing *inputs.Error, err error) {
	read, err := c.inputs.Read(ctx, s.machine)
	if errors.As(err, &missing) {
		return missing, nil
	}
	s.inputs = read
	return nil, err
}
