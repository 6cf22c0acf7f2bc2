package explain

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// deleting explains what a deletion waits for. The last operation says which step is next.
func (e *explainer) deleting() {
	e.report.Since = e.Machine.DeletionTimestamp.Time
	e.replaced()
	switch last := e.Machine.Status.LastOperation; {
	case !ours(e.Machine.Finalizers):
		e.held("", e.Machine, e.Machine.DeletionTimestamp.Time)
	case strings.Contains(last.Description, messages.AlsoThatOf):
		e.why(ClaimedTwice, "", last.LastUpdateTime.Time, "%s", strings.TrimSuffix(last.Description, messages.Terminating))
		e.advise("Find out at the provider whose VM it is, and clear spec.providerID of the other machine: kubectl -n %s edit %s NAME", e.Key.Namespace, machineResource)
	case last.Type != v1alpha1.MachineOperationDelete:
		e.why(NotLookedAt, "", e.report.Since, "the manager has not begun with it")
	case strings.Contains(last.Description, messages.DeleteVM):
		e.deletingVM(last)
	case strings.Contains(last.Description, messages.DeleteAttachments):
		e.detaching(last)
	case strings.Contains(last.Description, messages.DeleteNode):
		e.deletingNode(last)
	case strings.Contains(last.Description, messages.Drain):
		e.draining(last)
	default:
		e.preparing(last)
	}
	e.answer(Deleting, "is being deleted", e.report.Why)
	if first := e.report.Replaced[0]; first.Cause != Untold {
		e.report.Answer += " Why it was deleted: " + inShort(first.String()) + "."
	}
}

func ours(finalizers []string) bool {
	return slices.Contains(finalizers, v1alpha1.FinalizerMCM) || slices.Contains(finalizers, v1alpha1.FinalizerLegacy)
}

// preparing explains a deletion that has just begun, or that cannot find out about its VM.
func (e *explainer) preparing(last v1alpha1.LastOperation) {
	if f, ok := failureOf(last); ok {
		f.text = strings.TrimSpace(strings.TrimSuffix(f.text, messages.Terminating))
		e.driverFailed(f)
		e.wayOut(f)
		return
	}
	e.why(Other, "", last.LastUpdateTime.Time, "%s", last.Description)
}

// draining explains why the node is not empty yet.
func (e *explainer) draining(last v1alpha1.LastOperation) {
	said := strings.TrimSpace(strings.TrimSuffix(last.Description, messages.Drain))
	if e.Target.Problem != "" {
		e.targetAway()
	} else {
		if e.Target.Node != nil {
			e.nodeConditions()
		}
		if !e.pods() {
			e.attachments()
		}
	}
	e.why(Drain, "", last.LastUpdateTime.Time, "the manager says: %s", said)
	e.force()
}

// detaching explains why volumes of a node that was emptied by force are still attached.
func (e *explainer) detaching(last v1alpha1.LastOperation) {
	e.attachments()
	e.why(Drain, "", last.LastUpdateTime.Time, "the manager says: %s", strings.TrimSpace(strings.TrimSuffix(last.Description, messages.DeleteAttachments)))
	e.next(time.Time{}, "The VM is deleted when its volumes are detached")
}

// deletingVM explains why the VM is still there.
func (e *explainer) deletingVM(last v1alpha1.LastOperation) {
	said := strings.TrimSpace(strings.TrimSuffix(last.Description, messages.DeleteVM))
	failed, isFailure := failureOf(last)
	switch missing := e.missing(); {
	case isFailure && missing == "":
		e.driverFailed(failed)
		e.wayOut(failed)
	case missing != "" && e.Machine.Spec.ProviderID != "":
		e.why(MissingMaterial, "", last.LastUpdateTime.Time, "VM %s cannot be deleted: %s", e.Machine.Spec.ProviderID, missing)
		e.advise("If the VM is gone already, clear spec.providerID; do not remove the finalizer by hand, or the VM is left behind")
	case strings.HasPrefix(said, messages.NoAnswer):
		e.why(VMRemains, "", last.LastUpdateTime.Time, "%s", said)
		e.advise("Look whether the driver works, and whether it reaches its provider")
	case last.State == v1alpha1.MachineStateFailed:
		e.why(MissingMaterial, "", last.LastUpdateTime.Time, "%s", said)
	case strings.Contains(said, messages.StillThere):
		e.why(VMRemains, "", last.LastUpdateTime.Time, "the provider was asked to delete VM %s, and still has it", e.Machine.Spec.ProviderID)
		e.next(time.Time{}, "The provider is asked at least every minute whether it is gone")
	default:
		e.why(VMRemains, "", last.LastUpdateTime.Time, "the provider is deleting VM %s", e.Machine.Spec.ProviderID)
	}
	if vm := e.VM; vm != nil {
		e.virtualMachine()
		if !vm.DeletionTimestamp.IsZero() {
			e.held("VirtualMachine "+vm.Namespace+"/"+vm.Name, vm, vm.DeletionTimestamp.Time)
		}
	}
}

// deletingNode explains why the Node object is still there.
func (e *explainer) deletingNode(last v1alpha1.LastOperation) {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
		e.next(time.Time{}, "The VM is gone. The node object is deleted when the target cluster answers")
	case n != nil && !n.DeletionTimestamp.IsZero():
		e.held("Node "+n.Name, n, n.DeletionTimestamp.Time)
	default:
		e.why(Other, "", last.LastUpdateTime.Time, "%s", strings.TrimSpace(strings.TrimSuffix(last.Description, messages.DeleteNode)))
	}
}

// knownHolders says whose well-known finalizers are, and what they wait for.
var knownHolders = map[string]string{
	metav1.FinalizerDeleteDependents:          "Kubernetes' garbage collector, which waits for what the object owns",
	metav1.FinalizerOrphanDependents:          "Kubernetes' garbage collector",
	"machine.sapcloud.io/machine-controller":  "an old version of MCM",
	"vm.metropolis.monogon.dev/vm-controller": "the VM controller, which waits for the hypervisor to end",
	v1alpha1.FinalizerNode:                    "the manager, which waits for the VM to be gone",
	v1alpha1.FinalizerMCM:                     "the manager",
	"machine.cluster.x-k8s.io":                "Cluster API",
	"kubernetes.io/pv-protection":             "Kubernetes, which waits for the volume to be unused",
	"kubernetes.io/pvc-protection":            "Kubernetes, which waits for the claim to be unused",
	"batch.kubernetes.io/job-tracking":        "Kubernetes' job controller, which has to count the pod",
}

// held says whose finalizers hold an object: the Machine itself if it has no name.
func (e *explainer) held(object string, held metav1.Object, since time.Time) {
	what := object
	if what == "" {
		what = "the machine"
	}
	e.heldBy(held.GetFinalizers(), object, what, held, since)
}

// heldBy says whose some finalizers of an object are.
func (e *writer) heldBy(finalizers []string, object, what string, held metav1.Object, since time.Time) {
	for _, finalizer := range finalizers {
		of, known := knownHolders[finalizer]
		if !known {
			of = "nobody known here"
		}
		if who := setBy(held, finalizer); who != "" {
			of += "; it was set by " + who
		}
		e.why(Finalizer, object, since, "finalizer %s holds %s. It is that of %s", finalizer, what, of)
		if !known {
			e.advise("Ask whoever owns finalizer %s. Remove it by hand only if that program is gone for good", finalizer)
		}
	}
}

// setBy names the program that set a finalizer, as the API server recorded it; empty if it
// did not.
func setBy(object metav1.Object, finalizer string) string {
	for _, entry := range object.GetManagedFields() {
		if entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"v:\"`+finalizer+`\""`) {
			return entry.Manager
		}
	}
	return ""
}
