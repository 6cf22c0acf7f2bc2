package vm

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// placement is the condition that a VM has a host, or that none has room.
type placement struct {
	options Options
	key     client.ObjectKey
	uid     types.UID
	// timer runs while the scheduler finds no room.
	timer clock.Timer
	// refused is true if the scheduler found no room for long enough.
	refused bool
	// message is what was last said about the VM's place.
	message string
}

// observe is done when the VM has a host, or was refused for long enough.
func (p *placement) observe(vm *vmv1alpha1.VirtualMachine) (bool, error) {
	if vm == nil || vm.UID != p.uid || !vm.DeletionTimestamp.IsZero() {
		return false, status.Error(codes.Aborted, fmt.Sprintf("VM %s was deleted before it had a host", p.key))
	}
	scheduled := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionScheduled)
	if scheduled != nil {
		p.message = scheduled.Message
	}
	switch {
	case hasRun(vm), scheduled != nil && scheduled.Status == metav1.ConditionTrue:
		p.reset()
		return true, nil
	case scheduled == nil || scheduled.Status != metav1.ConditionFalse || scheduled.Reason != vmv1alpha1.ReasonUnschedulable:
		p.reset()
	case p.timer == nil:
		p.timer = p.options.Clock.NewTimer(p.options.Settle)
	}
	return p.refused, nil
}

// hasRun reports whether the VM has or had a host, whatever the scheduler says of its
// present Pod. Such a VM is never taken away again.
func hasRun(vm *vmv1alpha1.VirtualMachine) bool {
	return vm.Status.ImagePrepared || vm.Status.ActiveRunID != "" ||
		meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionReady)
}

// expiry tells when the scheduler has found no room for long enough.
func (p *placement) expiry() <-chan time.Time {
	if p.timer == nil || p.refused {
		return nil
	}
	return p.timer.C()
}

func (p *placement) expired() { p.refused = true }

// reset stops the timer: the VM is not unschedulable.
func (p *placement) reset() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.timer, p.refused = nil, false
}

// unfinished returns the error when the time of the call has ended.
func (p *placement) unfinished(cause error) error {
	said := p.message
	if said == "" {
		said = "nothing is known about it; does the VM controller run?"
	}
	return status.WrapError(contextCode(cause), fmt.Sprintf("waiting for a host of VM %s: %s", p.key, said), cause)
}
