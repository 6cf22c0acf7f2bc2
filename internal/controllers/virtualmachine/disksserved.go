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

// reasonTokenRevoked is a reason of the condition DisksServed.
const reasonTokenRevoked = "TokenRevoked"

// disksServed returns the condition DisksServed, which reports whether the VM's hypervisor can attach the disks. The
// report is the last one of the disk server; nil if this process has none.
func disksServed(s *scope, report *vmpb.ReportStateRequest) metav1.Condition {
	away := serverAway(s.served.pod)
	notServed := func(reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{
			Type: v1alpha1.ConditionDisksServed, Status: metav1.ConditionFalse, Reason: reason, Message: podstate.Truncate(fmt.Sprintf(format, args...) + away),
		}
	}
	switch {
	case s.served.refused != nil:
		return notServed(s.served.refused.Reason, "%s", s.served.refused.Message)
	case s.served.pod == nil:
		return notServed(v1alpha1.ReasonDiskServerStarting, "The disk server pod is being created.")
	case podstate.Finished(s.served.pod):
		end := podstate.EndOf(s.served.pod)
		return notServed(end.Reason, "Disk server pod %s terminated: %s", s.served.pod.Name, end.Message)
	case s.served.process == nil:
		return startingServer(s, report, notServed)
	case s.served.revoking && s.served.state.Err == nil: // the request was just sent
		return notServed(v1alpha1.ReasonDiskServerStarting, "Disk server pod %s is revoking the access of earlier hypervisors to the disks.", s.served.pod.Name)
	case s.served.revoking || authority.AccessOf(s.vm) == authority.AccessAwaited:
		return notServed(v1alpha1.ReasonStorageNotRevoked, "Disk server pod %s has not confirmed that earlier hypervisors have lost access to the disks%s", s.served.pod.Name, because(s.served.state.Err))
	case authority.AccessOf(s.vm) == authority.AccessRevoked:
		return notServed(reasonTokenRevoked, "Disk server pod %s has revoked the fencing token of the hypervisor; the virtual machine will restart from its disk.", s.served.pod.Name)
	case s.served.state.Err == nil && !s.served.state.Done:
		return notServed(v1alpha1.ReasonDiskServerStarting, "Disk server pod %s is opening the disks to the hypervisor.", s.served.pod.Name)
	case s.served.state.Err != nil:
		return notServed(v1alpha1.ReasonDiskServerUnreachable, "Disk server pod %s has not opened the disks to the hypervisor%s", s.served.pod.Name, because(s.served.state.Err))
	case away != "":
		unknown := notServed(v1alpha1.ReasonHostUnreachable, "Disk server pod %s may no longer serve the disks.", s.served.pod.Name)
		unknown.Status = metav1.ConditionUnknown
		return unknown
	}
	return metav1.Condition{Type: v1alpha1.ConditionDisksServed, Status: metav1.ConditionTrue, Reason: "Served", Message: "Disk server pod " + s.served.pod.Name + " serves the disks."}
}

// serverAway returns a message for users if the host of a disk server is unreachable, or "" if it is reachable. No
// other disk server starts before the Pod is gone.
func serverAway(pod *corev1.Pod) string {
	if pod == nil || !podstate.HostUnreachable(pod) {
		return ""
	}
	return fmt.Sprintf(" Host %s is unreachable. If it has failed, delete its Node or taint it as out-of-service; another pod then serves the disks.", pod.Spec.NodeName)
}

// because returns the end of a message with the gRPC code of the disk server's last error. It omits the error text,
// which differs from call to call.
func because(err error) string {
	if err == nil {
		return "."
	}
	return fmt.Sprintf("; its last response was %s.", grpcstatus.Code(err))
}

// startingServer returns the condition for a disk server that is not serving yet.
func startingServer(s *scope, report *vmpb.ReportStateRequest, notServed func(reason, format string, args ...any) metav1.Condition) metav1.Condition {
	if message, is := podstate.Unschedulable(s.served.pod); is {
		return notServed(v1alpha1.ReasonUnschedulable, "Disk server pod %s: %s", s.served.pod.Name, message)
	}
	if !s.served.pod.DeletionTimestamp.IsZero() {
		return notServed(v1alpha1.ReasonDiskServerStarting, "Disk server pod %s is being deleted; another one starts when it has terminated.", s.served.pod.Name)
	}
	if reason, message := podstate.Waiting(s.served.pod); reason != "" {
		return notServed(reason, "Disk server pod %s: %s", s.served.pod.Name, message)
	}
	text := "."
	if message := report.GetMessage(); message != "" {
		text = ": " + message
	}
	if progress := written(report.GetDoneBytes(), report.GetTotalBytes()); progress != "" {
		text = ": " + progress
	}
	return notServed(v1alpha1.ReasonDiskServerStarting, "Disk server pod %s is not serving yet%s", s.served.pod.Name, text)
}
