package virtualmachine

import (
	"fmt"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// reasonTokenRevoked is a reason of the condition disksServed.
const reasonTokenRevoked = "TokenRevoked"

// disksServed returns the condition that tells whether the hypervisor of the VM can attach the disks. The report is the
// last one of their server; nil if this process has none.
func disksServed(s *scope, report *vmpb.ReportStateRequest) metav1.Condition {
	away := serverAway(s.served.pod)
	not := func(reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{
			Type: v1alpha1.ConditionDisksServed, Status: metav1.ConditionFalse, Reason: reason, Message: podstate.Truncate(fmt.Sprintf(format, args...) + away),
		}
	}
	switch {
	case s.served.pod == nil:
		return not(v1alpha1.ReasonDiskServerStarting, "The pod that serves the disks is being created.")
	case podstate.Finished(s.served.pod):
		end := podstate.EndOf(s.served.pod)
		return not(end.Reason, "Pod %s, which served the disks, ended: %s", s.served.pod.Name, end.Message)
	case s.served.process == nil:
		return startingServer(s, report, not)
	case s.served.revoking && s.served.asked.Err == nil: // it was asked a moment ago
		return not(v1alpha1.ReasonDiskServerStarting, "Pod %s makes sure that no earlier hypervisor can change the disks.", s.served.pod.Name)
	case s.served.revoking || authority.AccessOf(s.vm) == authority.AccessAwaited:
		return not(v1alpha1.ReasonStorageNotRevoked, "Pod %s has not confirmed that no earlier hypervisor can change the disks%s", s.served.pod.Name, because(s.served.asked.Err))
	case authority.AccessOf(s.vm) == authority.AccessRevoked:
		return not(reasonTokenRevoked, "Pod %s refuses the fencing token of the hypervisor: the virtual machine starts again from its disk.", s.served.pod.Name)
	case s.served.asked.Err == nil && !s.served.asked.Done:
		return not(v1alpha1.ReasonDiskServerStarting, "Pod %s opens the disks to the hypervisor.", s.served.pod.Name)
	case s.served.asked.Err != nil:
		return not(v1alpha1.ReasonDiskServerUnreachable, "Pod %s does not open the disks to the hypervisor%s", s.served.pod.Name, because(s.served.asked.Err))
	case away != "":
		unknown := not(v1alpha1.ReasonHostUnreachable, "Pod %s served the disks.", s.served.pod.Name)
		unknown.Status = metav1.ConditionUnknown
		return unknown
	}
	return metav1.Condition{Type: v1alpha1.ConditionDisksServed, Status: metav1.ConditionTrue, Reason: "Served", Message: "Pod " + s.served.pod.Name + " serves the disks."}
}

// serverAway returns a message if the host of a server is unreachable, and what to do; empty if it is reachable. No other
// server starts before the Pod is gone.
func serverAway(pod *corev1.Pod) string {
	if pod == nil || !podstate.HostUnreachable(pod) {
		return ""
	}
	return fmt.Sprintf(" Host %s does not answer. If it is dead, delete its Node, or mark it out-of-service: then another pod serves the disks.", pod.Spec.NodeName)
}

// because returns the code of a server's last error. The error texts differ from call to call.
func because(err error) string {
	if err == nil {
		return "."
	}
	return fmt.Sprintf("; its last answer is %s.", grpcstatus.Code(err))
}

// startingServer returns the condition of a server that does not serve yet.
func startingServer(s *scope, report *vmpb.ReportStateRequest, not func(reason, format string, args ...any) metav1.Condition) metav1.Condition {
	if message, is := podstate.Unschedulable(s.served.pod); is {
		return not(v1alpha1.ReasonUnschedulable, "Pod %s, which serves the disks: %s", s.served.pod.Name, message)
	}
	if !s.served.pod.DeletionTimestamp.IsZero() {
		return not(v1alpha1.ReasonDiskServerStarting, "Pod %s, which served the disks, is being deleted. Another one follows when it has ended.", s.served.pod.Name)
	}
	if reason, message := podstate.Waiting(s.served.pod); reason != "" {
		return not(reason, "Pod %s, which serves the disks: %s", s.served.pod.Name, message)
	}
	text := "."
	if message := report.GetMessage(); message != "" {
		text = ": " + message
	}
	if progress := written(report.GetDoneBytes(), report.GetTotalBytes()); progress != "" {
		text = ": " + progress
	}
	return not(v1alpha1.ReasonDiskServerStarting, "Pod %s, which is to serve the disks, does not do that yet%s", s.served.pod.Name, text)
}
