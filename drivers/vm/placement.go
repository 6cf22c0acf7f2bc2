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

// placement judges whether a VM has a host. It is an observer.
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

// look is done when the VM has a host, or was refused for long enough.
func (p *placement) look(vm *vmv1alpha1.VirtualMachine) (bool, error) {
	if vm == nil || vm.UID != p.uid || !vm.DeletionTimestamp.IsZero() {
		return false, status.Error(codes.Aborted, fmt.Sprintf("VM %s was deleted before it had a host", p.key))
	}
	scheduled := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionScheduled)
	if scheduled != nil {
		p.message = scheduled.Message
	}
	switch {
	case hasRun(vm), scheduled != nil && scheduled.Status == metav1.ConditionTrue:
		p.steady()
		return true, nil
	case scheduled == nil || scheduled.Status != metav1.ConditionFalse || scheduled.Reason != vmv1alpha1.ReasonUnschedulable:
		p.steady()
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

// tick tells when the scheduler has found no room for long enough.
func (p *placement) tick() <-chan time.Time {
	if p.timer == nil || p.refused {
		return nil
	}
	return p.timer.C()
}

func (p *placement) ticked() { p.refused = true }

// steady ends the wait for the scheduler's second thoughts.
func (p *placement) steady() {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.timer, p.refused = nil, false
}

// unfinished is the answer when time was over.
func (p *placement) unfinished(cause error) error {
	said := p.message
	if said == "" {
		said = "nothing is known about it; does the VM controller run?"
	}
	return status.WrapError(contextCode(cause), fmt.Sprintf("waiting for a host of VM %s: %s", p.key, said), cause)
}
