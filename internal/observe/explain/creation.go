package explain

import (
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// living explains a Machine that is not being deleted.
func (e *explainer) living() {
	switch phase := e.Machine.Status.CurrentStatus.Phase; phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable:
		e.well()
		return
	case "", v1alpha1.MachineCrashLoopBackOff:
		e.creating()
	case v1alpha1.MachinePending:
		e.joining()
	case v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateFailed:
		e.unhealthy()
	case v1alpha1.MachineFailed:
		e.failed()
	default:
		e.updating()
	}
	e.nodeTemplate()
	e.answer(NotRunning, "is not Running", e.report.Why)
}

// creating explains a Machine without a VM, or with one whose creation is not complete.
func (e *explainer) creating() {
	last := e.Machine.Status.LastOperation
	missing := e.missing()
	failed, isFailure := failureOf(last)
	switch {
	case isFailure:
		e.driverFailed(failed)
		e.virtualMachine()
	case strings.HasPrefix(last.Description, messages.NoAnswer):
		e.why(NotLookedAt, "", last.LastUpdateTime.Time, "%s", last.Description)
		e.advise("Look whether the driver works, and whether it reaches its provider")
	case last.State == v1alpha1.MachineStateFailed && missing == "":
		e.why(MissingMaterial, "", last.LastUpdateTime.Time, "%s", last.Description)
		e.advise("Change what the sentence names. It is tried again at once when the machine, its class or its secret changes")
	case last.State == v1alpha1.MachineStateFailed:
		e.why(MissingMaterial, "", last.LastUpdateTime.Time, "%s", missing)
		if sentence("%s", last.Description) != missing {
			e.why(Other, "", last.LastUpdateTime.Time, "the last attempt said: %s", last.Description)
		}
	case missing != "":
		e.why(MissingMaterial, "", time.Time{}, "%s", missing)
	case e.Machine.Status.CurrentStatus.Phase == "":
		e.why(NotLookedAt, "", e.Machine.CreationTimestamp.Time, "the driver has not answered yet about a VM for it")
	default:
		e.why(Other, "", last.LastUpdateTime.Time, "%s", last.Description)
	}
	t := e.creationTimeout()
	e.givenUp(e.due(e.Machine.CreationTimestamp.Time, t), t, "it is created and joins before")
}

// missing says what a creation or deletion lacks, as it is now; empty if nothing is.
func (e *explainer) missing() string {
	class := e.className()
	if e.Material.ClassMissing {
		e.advise("Create MachineClass %s in namespace %s. It is tried at once then", class, e.Key.Namespace)
		return sentence("MachineClass %q not found in namespace %q", class, e.Key.Namespace)
	}
	hasUserData, unread := false, false
	for _, secret := range e.Material.Secrets {
		switch {
		case secret.Missing:
			e.advise("Create the secret, or correct the reference in MachineClass %s. It is tried at once then", class)
			return sentence("Secret %q of MachineClass %q not found", secret.Key, class)
		case secret.Key.Namespace != e.Key.Namespace:
			e.advise("Correct the reference in MachineClass %s", class)
			return sentence("Secret %q of MachineClass %q must be in namespace %q, as the class is", secret.Key, class, e.Key.Namespace)
		case secret.Unread:
			unread = true
		}
		hasUserData = hasUserData || secret.HasUserData
	}
	if e.Material.Class == nil || hasUserData || unread {
		return ""
	}
	e.advise("Add the key to a secret of MachineClass %s. It is tried at once then", class)
	return sentence("No Secret of MachineClass %q has the key %q", class, bootstrap.UserDataKey)
}

// joining explains a Machine whose node is awaited.
func (e *explainer) joining() {
	switch n := e.Target.Node; {
	case e.Target.Problem != "":
		e.targetAway()
		return
	case e.Target.Unread:
		e.virtualMachine()
		e.undecided()
	case n == nil:
		e.virtualMachine()
		e.why(NotJoined, "", e.since(), "node %q has not joined", e.nodeName())
		e.lookAt("it cannot reach the API server, its user data is wrong, or it is slow")
	default:
		e.nodeConditions()
		if !noderef.CriticalComponentsReady(n) {
			e.why(CriticalComponents, "Node "+n.Name, n.CreationTimestamp.Time, "critical components on the node are not ready: it still has the taint %s", v1alpha1.TaintKeyCriticalComponentsNotReady)
			e.advise("Look at the pods of node %s, above all at those of its network and storage: kubectl get pods -A --field-selector spec.nodeName=%s", n.Name, n.Name)
		}
		if e.undecided() {
			return
		}
	}
	t := e.creationTimeout()
	e.givenUp(e.due(e.Machine.CreationTimestamp.Time, t), t, "its node is ready before")
}

func (e *explainer) since() time.Time { return e.Machine.Status.CurrentStatus.LastUpdateTime.Time }

// nodeName is that of the Machine's node, or a guess.
func (e *explainer) nodeName() string {
	if name := e.Machine.Labels[v1alpha1.NodeLabelKey]; name != "" {
		return name
	}
	return e.Machine.Name
}

// targetAway says that the nodes' cluster does not answer. The manager may see it
// otherwise.
func (e *explainer) targetAway() {
	e.why(TargetAway, "", time.Time{}, "the target cluster does not answer: %s", e.Target.Problem)
	e.next(time.Time{}, "Timeouts stand still as long as the manager gets no answer either, and begin anew then")
	e.advise("Bring the API server of the target cluster back, if it is not only out of reach from here")
}
