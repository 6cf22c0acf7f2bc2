package machine

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// writeStatus stores the status, if it changed and the Machine is not gone, and then sends the events.
func (c *Controller) writeStatus(ctx context.Context, s *scope, gone bool) error {
	if !gone && !equality.Semantic.DeepEqual(&s.stored.Status, &s.machine.Status) {
		// The lean objects contain only the status, since the patch is computed from their difference.
		before, after := &v1alpha1.Machine{Status: s.stored.Status}, &v1alpha1.Machine{Status: s.machine.Status}
		for _, lean := range []*v1alpha1.Machine{before, after} {
			lean.Namespace, lean.Name, lean.ResourceVersion = s.machine.Namespace, s.machine.Name, s.stored.ResourceVersion
		}
		if err := c.written.PatchStatus(ctx, c.Client, after, before); err != nil {
			return apierror.IgnoreGone(err)
		}
		s.machine = after
	}
	s.events.send(s.machine, c.Events, c.NodeEvents)
	return nil
}

// maxDescription is the maximum length of a description in bytes, since messages from drivers may be longer.
const maxDescription = 4096

// setOperation sets the last operation, and reports whether it changed.
func (s *scope) setOperation(kind v1alpha1.MachineOperationType, state v1alpha1.MachineState, description, errorCode string) bool {
	last := &s.machine.Status.LastOperation
	next := v1alpha1.LastOperation{
		Type: kind, State: state, Description: messages.Shorten(description, maxDescription), ErrorCode: errorCode,
		LastUpdateTime: last.LastUpdateTime,
	}
	if next == *last {
		return false
	}
	*last, last.LastUpdateTime = next, metav1.NewTime(s.now)
	return true
}

// setPhase sets the phase. It keeps the expiry of a preservation unless the new phase is Terminating.
func (s *scope) setPhase(phase v1alpha1.MachinePhase) {
	current := &s.machine.Status.CurrentStatus
	if current.Phase == phase {
		return
	}
	*current = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: metav1.NewTime(s.now), PreserveExpiryTime: current.PreserveExpiryTime}
	if phase == v1alpha1.MachineTerminating {
		current.PreserveExpiryTime = nil
	}
}

// maxClockSkew is the tolerated difference between the clocks of two hosts.
const maxClockSkew = time.Minute

// phaseBegan returns when the phase began. It replaces a time in the future with the current time, since a timeout
// that begins in the future might never expire. A user or another host's clock may have set such a time.
func (s *scope) phaseBegan() time.Time {
	current := &s.machine.Status.CurrentStatus
	if current.LastUpdateTime.After(s.now.Add(maxClockSkew)) {
		current.LastUpdateTime = metav1.NewTime(s.now)
	}
	return current.LastUpdateTime.Time
}

// maxAddresses is how many addresses a Machine may have before its previous addresses are dropped, since a driver
// may report other addresses each time.
const maxAddresses = 128

func mergeAddresses(known []corev1.NodeAddress, found instance.Instance) []corev1.NodeAddress {
	if len(known)+len(found.Addresses) > maxAddresses {
		known = nil
	}
	all := slices.Concat(known, found.Addresses)
	if found.NodeName != "" {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: found.NodeName})
	}
	slices.SortFunc(all, func(a, b corev1.NodeAddress) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Address, b.Address))
	})
	return slices.Compact(all)
}
