package conditions

import (
	"fmt"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// ReasonTokenRevoked is a reason of the condition DisksServed.
const ReasonTokenRevoked = "TokenRevoked"

// Server is what a pass observed of the server of a VM's disks.
type Server struct {
	Pod    *corev1.Pod              // nil if there is none
	Report *vmpb.ReportStateRequest // the last one of its process; nil if this process has none
	Serves bool                     // it can be asked
	Asked  disks.State              // the answer
	Next   bool                     // no hypervisor has the disks, and the next one waits for them
}

// DisksServed returns whether who has the VM can attach the disks.
func DisksServed(vm *v1alpha1.VirtualMachine, o Server) metav1.Condition {
	away := serverAway(o.Pod)
	not := func(reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{
			Type: v1alpha1.ConditionDisksServed, Status: metav1.ConditionFalse, Reason: reason, Message: podstate.Truncate(fmt.Sprintf(format, args...) + away),
		}
	}
	switch {
	case o.Pod == nil:
		return not(v1alpha1.ReasonDiskServerStarting, "The pod that serves the disks is being created.")
	case podstate.Finished(o.Pod):
		end := podstate.EndOf(o.Pod)
		return not(end.Reason, "Pod %s, which served the disks, ended: %s", o.Pod.Name, end.Message)
	case !o.Serves:
		return startingServer(o, not)
	case o.Next && o.Asked.Err == nil: // it was asked a moment ago
		return not(v1alpha1.ReasonDiskServerStarting, "Pod %s makes sure that no earlier hypervisor can change the disks.", o.Pod.Name)
	case o.Next || authority.AccessOf(vm) == authority.AccessAwaited:
		return not(v1alpha1.ReasonStorageNotRevoked, "Pod %s has not confirmed that no earlier hypervisor can change the disks%s", o.Pod.Name, because(o.Asked.Err))
	case authority.AccessOf(vm) == authority.AccessRevoked:
		return not(ReasonTokenRevoked, "Pod %s refuses the fencing token of the hypervisor: the virtual machine starts again from its disk.", o.Pod.Name)
	case o.Asked.Err == nil && !o.Asked.Done:
		return not(v1alpha1.ReasonDiskServerStarting, "Pod %s opens the disks to the hypervisor.", o.Pod.Name)
	case o.Asked.Err != nil:
		return not(v1alpha1.ReasonDiskServerUnreachable, "Pod %s does not open the disks to the hypervisor%s", o.Pod.Name, because(o.Asked.Err))
	case away != "":
		unknown := not(v1alpha1.ReasonHostUnreachable, "Pod %s served the disks.", o.Pod.Name)
		unknown.Status = metav1.ConditionUnknown
		return unknown
	}
	return metav1.Condition{Type: v1alpha1.ConditionDisksServed, Status: metav1.ConditionTrue, Reason: "Served", Message: "Pod " + o.Pod.Name + " serves the disks."}
}

// serverAway says that the host of a server has stopped reporting, and who can change that; empty if it has not. No other server
// begins before the Pod is gone.
func serverAway(pod *corev1.Pod) string {
	if pod == nil || !podstate.HostUnreachable(pod) {
		return ""
	}
	return fmt.Sprintf(" Host %s does not answer. If it is dead, delete its Node, or mark it out-of-service: then another pod serves the disks.", pod.Spec.NodeName)
}

// because says what a server answered. Texts differ from call to call.
func because(err error) string {
	if err == nil {
		return "."
	}
	return fmt.Sprintf("; its last answer is %s.", grpcstatus.Code(err))
}

// startingServer says what keeps a server from serving.
func startingServer(o Server, not func(reason, format string, args ...any) metav1.Condition) metav1.Condition {
	if message, is := podstate.Unschedulable(o.Pod); is {
		return not(v1alpha1.ReasonUnschedulable, "Pod %s, which serves the disks: %s", o.Pod.Name, message)
	}
	if !o.Pod.DeletionTimestamp.IsZero() {
		return not(v1alpha1.ReasonDiskServerStarting, "Pod %s, which served the disks, is being deleted. Another one follows when it has ended.", o.Pod.Name)
	}
	if reason, message := podstate.Waiting(o.Pod); reason != "" {
		return not(reason, "Pod %s, which serves the disks: %s", o.Pod.Name, message)
	}
	text := "."
	if message := o.Report.GetMessage(); message != "" {
		text = ": " + message
	}
	if progress := written(o.Report.GetDoneBytes(), o.Report.GetTotalBytes()); progress != "" {
		text = ": " + progress
	}
	return not(v1alpha1.ReasonDiskServerStarting, "Pod %s, which is to serve the disks, does not do that yet%s", o.Pod.Name, text)
}
