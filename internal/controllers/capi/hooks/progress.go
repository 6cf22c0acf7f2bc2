package hooks

import (
	"context"
	"encoding/json"
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
)

// Times until Cluster API asks again, in seconds.
const (
	// soon is while the update goes on.
	soon = 2
	// later is while it waits for the driver or a user.
	later = 15
)

// updateMachine answers how far the update of a machine is. The controller makes it.
func (h *Handler) updateMachine(ctx context.Context, request updateMachine) (updateMachineAnswer, error) {
	answer := updateMachineAnswer{outcome: outcome{meta: meta{apiVersion, "UpdateMachineResponse"}, Status: succeeded}}
	machine := &infrav1.MillwrightMachine{}
	if err := h.read(ctx, request.Desired.Machine.Namespace, request.Desired.InfrastructureMachine, infrav1.MillwrightMachineKind, machine); err != nil {
		return answer, err
	}
	answer.RetryAfterSeconds, answer.Message = progress(machine, request.Desired.InfrastructureMachine.Raw)
	return answer, nil
}

// progress returns when to ask again, and what keeps the update from its end. Zero: it is done.
func progress(machine *infrav1.MillwrightMachine, desired []byte) (int32, string) {
	if !core.Updating(machine) || !sameSpec(machine, desired) {
		return soon, "The change of MillwrightMachine " + machine.Name + " is not seen yet"
	}
	condition := apimeta.FindStatusCondition(machine.Status.Conditions, infrav1.ConditionUpToDate)
	switch {
	case condition == nil || condition.ObservedGeneration != machine.Generation:
		return soon, "The update of the VM begins"
	case condition.Status == metav1.ConditionTrue:
		return 0, fmt.Sprintf("VM %s is as the spec says", machine.Spec.ProviderID)
	case condition.Reason == infrav1.ReasonUpdating:
		return soon, condition.Message
	}
	return later, condition.Message
}

// sameSpec reports whether the spec of a machine is the one of a request.
func sameSpec(machine *infrav1.MillwrightMachine, desired []byte) bool {
	object := &infrav1.MillwrightMachine{}
	return json.Unmarshal(desired, object) == nil && marks.SameJSON(machine.Spec, object.Spec)
}
