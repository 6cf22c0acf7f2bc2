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

// Times until Cluster API calls the hook again, in seconds.
const (
	// retrySoon is used while the update makes progress.
	retrySoon = 2
	// retryLater is used while the update waits for the driver or a user.
	retryLater = 15
)

// updateMachine responds with the progress of a machine's update, which the controller makes.
func (h *Handler) updateMachine(ctx context.Context, request updateMachine) (updateMachineResponse, error) {
	response := updateMachineResponse{outcome: outcome{meta: meta{apiVersion, "UpdateMachineResponse"}, Status: succeeded}}
	machine := &infrav1.MillwrightMachine{}
	if err := h.read(ctx, request.Desired.Machine.Namespace, request.Desired.InfrastructureMachine, infrav1.MillwrightMachineKind, machine); err != nil {
		return response, err
	}
	response.RetryAfterSeconds, response.Message = progress(machine, request.Desired.InfrastructureMachine.Raw)
	return response, nil
}

// progress returns when Cluster API should call the hook again, and a message with the state of the update. If the
// time is 0, the update is complete.
func progress(machine *infrav1.MillwrightMachine, desired []byte) (int32, string) {
	if !core.Updating(machine) || !sameSpec(machine, desired) {
		return retrySoon, "The change of MillwrightMachine " + machine.Name + " has not been observed yet"
	}
	condition := apimeta.FindStatusCondition(machine.Status.Conditions, infrav1.ConditionUpToDate)
	switch {
	case condition == nil || condition.ObservedGeneration != machine.Generation:
		return retrySoon, "The update of the VM is starting"
	case condition.Status == metav1.ConditionTrue:
		return 0, fmt.Sprintf("VM %s matches the spec", machine.Spec.ProviderID)
	case condition.Reason == infrav1.ReasonUpdating:
		return retrySoon, condition.Message
	}
	return retryLater, condition.Message
}

// sameSpec reports whether a machine has the spec of the object in a request.
func sameSpec(machine *infrav1.MillwrightMachine, desired []byte) bool {
	object := &infrav1.MillwrightMachine{}
	return json.Unmarshal(desired, object) == nil && marks.SameJSON(machine.Spec, object.Spec)
}
