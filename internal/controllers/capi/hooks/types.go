package hooks

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// apiVersion is that of the hooks.
const apiVersion = "hooks.runtime.cluster.x-k8s.io/v1alpha1"

// meta is the type of a message.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// outcome is the part that all answers have.
type outcome struct {
	meta    `json:",inline"`
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

// The values of status.
const (
	succeeded = "Success"
	failed    = "Failure"
)

// discovery is the answer that says which hooks there are.
type discovery struct {
	outcome  `json:",inline"`
	Handlers []handler `json:"handlers"`
}

// handler describes one hook.
type handler struct {
	Name           string      `json:"name"`
	RequestHook    requestHook `json:"requestHook"`
	TimeoutSeconds int32       `json:"timeoutSeconds"`
	FailurePolicy  string      `json:"failurePolicy"`
}

type requestHook struct {
	APIVersion string `json:"apiVersion"`
	Hook       string `json:"hook"`
}

// Requests hold the fields that are read, which are those of Cluster API's hooks v1alpha1.

// canUpdateMachineSet asks whether the machines of a MachineSet can be updated in place.
type canUpdateMachineSet struct {
	Current machineSetObjects `json:"current"`
	Desired machineSetObjects `json:"desired"`
}

type machineSetObjects struct {
	MachineSet                    named                `json:"machineSet"`
	InfrastructureMachineTemplate runtime.RawExtension `json:"infrastructureMachineTemplate"`
}

// canUpdateMachine asks whether a machine of a control plane can be updated in place.
type canUpdateMachine struct {
	Current machineObjects `json:"current"`
	Desired machineObjects `json:"desired"`
}

// updateMachine asks for the update of a machine.
type updateMachine struct {
	Desired machineObjects `json:"desired"`
}

type machineObjects struct {
	Machine               core.Machine         `json:"machine"`
	InfrastructureMachine runtime.RawExtension `json:"infrastructureMachine"`
}

// named is an object of which only the name matters.
type named struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// patch says what of a difference can be updated: what it makes of the current object.
type patch struct {
	PatchType string `json:"patchType"`
	Patch     []byte `json:"patch"`
}

type canUpdateMachineSetAnswer struct {
	outcome `json:",inline"`
	Patch   *patch `json:"infrastructureMachineTemplatePatch,omitempty"`
}

type canUpdateMachineAnswer struct {
	outcome `json:",inline"`
	Patch   *patch `json:"infrastructureMachinePatch,omitempty"`
}

type updateMachineAnswer struct {
	outcome `json:",inline"`
	// RetryAfterSeconds is zero when the update is done.
	RetryAfterSeconds int32 `json:"retryAfterSeconds"`
}
