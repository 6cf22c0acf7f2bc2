package hooks

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// apiVersion is the API version of the hooks.
const apiVersion = "hooks.runtime.cluster.x-k8s.io/v1alpha1"

// meta is the type of a message.
type meta struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// outcome has the fields that all responses have in common.
type outcome struct {
	meta    `json:",inline"`
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

// Values of the field status.
const (
	succeeded = "Success"
	failed    = "Failure"
)

// discovery is the response to the discovery hook.
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

// The request types have only the fields of Cluster API's hooks v1alpha1 that the handlers read.

// canUpdateMachineSet is the request whether the machines of a MachineSet can be updated in place.
type canUpdateMachineSet struct {
	Current machineSetObjects `json:"current"`
	Desired machineSetObjects `json:"desired"`
}

type machineSetObjects struct {
	MachineSet                    named                `json:"machineSet"`
	InfrastructureMachineTemplate runtime.RawExtension `json:"infrastructureMachineTemplate"`
}

// canUpdateMachine is the request whether a control plane machine can be updated in place.
type canUpdateMachine struct {
	Current machineObjects `json:"current"`
	Desired machineObjects `json:"desired"`
}

// updateMachine is the request to update a machine, or to report the progress of the update.
type updateMachine struct {
	Desired machineObjects `json:"desired"`
}

type machineObjects struct {
	Machine               core.Machine         `json:"machine"`
	InfrastructureMachine runtime.RawExtension `json:"infrastructureMachine"`
}

// named is an object of which only the name and namespace are read.
type named struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// patch is a change of the current object that an in-place update can make.
type patch struct {
	PatchType string `json:"patchType"`
	Patch     []byte `json:"patch"`
}

type canUpdateMachineSetResponse struct {
	outcome `json:",inline"`
	Patch   *patch `json:"infrastructureMachineTemplatePatch,omitempty"`
}

type canUpdateMachineResponse struct {
	outcome `json:",inline"`
	Patch   *patch `json:"infrastructureMachinePatch,omitempty"`
}

type updateMachineResponse struct {
	outcome `json:",inline"`
	// RetryAfterSeconds is 0 when the update is complete.
	RetryAfterSeconds int32 `json:"retryAfterSeconds"`
}
