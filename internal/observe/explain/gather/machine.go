package gather

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

type machineReading struct {
	reading
	facts explain.MachineFacts
}

// Machine reads the facts about a Machine.
func (x Reader) Machine(ctx context.Context, key types.NamespacedName) (explain.MachineFacts, error) {
	r := &machineReading{reading{Reader: x, namespace: key.Namespace}, explain.MachineFacts{Key: key, Flags: x.Flags}}
	found := &v1alpha1.Machine{}
	exists, err := r.exists(ctx, "machine", key, found)
	if err != nil {
		return explain.MachineFacts{}, err
	}
	r.facts.Lease = r.lease(ctx, v1alpha1.LeaseMachineController)
	if exists {
		r.facts.Machine = found
		r.surroundings(ctx, found)
	} else {
		r.traces(ctx)
	}
	r.facts.Events, r.facts.Unread = r.events, r.unread
	r.facts.Events.Sort()
	return r.facts, nil
}

func (r *machineReading) surroundings(ctx context.Context, found *v1alpha1.Machine) {
	r.owners(ctx, owner(ctx, &r.reading, found, &v1alpha1.MachineSet{}, explain.KindSet))
	r.inputs(ctx, found)
	r.target(ctx, found)
	r.virtualMachine(ctx, found)
	r.console(ctx, found)
	r.eventsOf(ctx, r.Control, r.namespace, explain.KindMachine, named(found.Name))
	if set := r.facts.Set; set != nil {
		r.eventsOf(ctx, r.Control, r.namespace, explain.KindSet, set)
	}
	if deployment := r.facts.Deployment; deployment != nil {
		r.eventsOf(ctx, r.Control, r.namespace, explain.KindDeployment, deployment)
	}
}

func (r *machineReading) owners(ctx context.Context, set *v1alpha1.MachineSet) {
	if set != nil {
		r.facts.Set = set
		r.facts.Deployment = owner(ctx, &r.reading, set, &v1alpha1.MachineDeployment{}, explain.KindDeployment)
	}
}

// traces reads what is known about a Machine that no longer exists. Its set is the one whose events mention it;
// otherwise, the set is derived from the Machine's name.
func (r *machineReading) traces(ctx context.Context) {
	name, setName := r.facts.Key.Name, ""
	r.facts.Names = r.names(ctx, explain.KindMachine)
	r.eventsOf(ctx, r.Control, r.namespace, explain.KindMachine, named(name))
	r.eventsOf(ctx, r.Control, r.namespace, explain.KindSet)
	r.eventsOf(ctx, r.Control, r.namespace, explain.KindDeployment)
	sets := &v1alpha1.MachineSetList{}
	if !r.list(ctx, r.Control, sets, client.InNamespace(r.namespace)) {
		return
	}
	if at := strings.LastIndexByte(name, '-'); at > 0 {
		setName = name[:at]
	}
	for i := range r.events {
		if event := &r.events[i]; event.InvolvedObject.Kind == explain.KindSet && report.Names(event, name) {
			setName = event.InvolvedObject.Name
		}
	}
	for i := range sets.Items {
		if sets.Items[i].Name == setName {
			r.owners(ctx, &sets.Items[i])
		}
	}
}

func (r *machineReading) inputs(ctx context.Context, of *v1alpha1.Machine) {
	ref := of.Spec.Class
	if ref.Kind != v1alpha1.MachineClassKind || ref.Name == "" {
		return // the manager reports this
	}
	class, found := &v1alpha1.MachineClass{}, false
	if found, r.facts.ClassMissing = r.get(ctx, r.in(ref.Name), class); !found {
		return
	}
	r.facts.Class = class
	r.eventsOf(ctx, r.Control, r.namespace, v1alpha1.MachineClassKind, class)
	for _, key := range fieldindex.SecretsOf(class) {
		secret := &corev1.Secret{}
		found, missing := r.get(ctx, key, secret)
		_, hasUserData := secret.Data[bootstrap.UserDataKey]
		r.facts.Secrets = append(r.facts.Secrets, explain.Secret{Key: key, Missing: missing, HasUserData: hasUserData, Unread: !found && !missing})
	}
}

// virtualMachineID is the prefix of the provider IDs of VirtualMachines. The namespace and the UUID follow.
const virtualMachineID = "millwright:///"

// virtualMachine finds the Machine's VirtualMachine if it is in the control cluster.
func (r *machineReading) virtualMachine(ctx context.Context, of *v1alpha1.Machine) {
	id, ok := strings.CutPrefix(of.Spec.ProviderID, virtualMachineID)
	namespace, uuid, complete := strings.Cut(id, "/")
	vms := &vmv1alpha1.VirtualMachineList{}
	if !ok || !complete || !r.list(ctx, r.Control, vms, client.InNamespace(namespace)) {
		return
	}
	for i := range vms.Items {
		if vm := &vms.Items[i]; vm.Spec.UUID == uuid {
			r.facts.VM = vm
			r.eventsOf(ctx, r.Control, vm.Namespace, "VirtualMachine", named(vm.Name))
		}
	}
}

// console reads the console of a Machine that has not joined or is no longer healthy.
func (r *machineReading) console(ctx context.Context, of *v1alpha1.Machine) {
	vm := r.facts.VM
	if vm == nil || r.Console == nil || !of.DeletionTimestamp.IsZero() || !waitsForGuest[of.Status.CurrentStatus.Phase] {
		return
	}
	key := client.ObjectKeyFromObject(vm)
	output, err := r.Console(ctx, key)
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // the VM is not running, or no longer exists
		r.note("Console of VirtualMachine %s: %v", key, err)
	}
	r.facts.Console = output
}

// waitsForGuest contains the phases of Machines that have a VM, but no healthy node.
var waitsForGuest = map[v1alpha1.MachinePhase]bool{
	v1alpha1.MachinePending: true, v1alpha1.MachineUnknown: true, v1alpha1.MachineFailed: true,
	v1alpha1.MachineInPlaceUpdating: true, v1alpha1.MachineInPlaceUpdateFailed: true,
}

// target reads the node and, if it is being drained, its pods and volumes.
func (r *machineReading) target(ctx context.Context, of *v1alpha1.Machine) {
	found, name := &r.facts.Target, of.NodeName()
	found.None = r.Target == nil
	if found.None || name == "" {
		return
	}
	node := &corev1.Node{}
	switch err := r.Target.Get(ctx, types.NamespacedName{Name: name}, node); {
	case apierrors.IsForbidden(err):
		r.note("Node %s: %v", name, err)
		found.Unread = true
		return
	case err == nil:
		found.Node = node
	case !apierrors.IsNotFound(err):
		found.Problem = err.Error()
		return
	}
	// Nodes have no namespace. The events on them are in this one.
	r.eventsOf(ctx, r.Target, metav1.NamespaceDefault, "Node", named(name))
	if found.Node != nil && drained(of, found.Node) {
		r.load(ctx, found, name)
	}
}

// drained reports whether the Machine's node is being drained: for a deletion, for an in-place update, or because
// the Machine failed and is preserved.
func drained(of *v1alpha1.Machine, node *corev1.Node) bool {
	update := noderef.Condition(node.Status.Conditions, v1alpha1.NodeInPlaceUpdate)
	return !of.DeletionTimestamp.IsZero() || update != nil && update.Reason == v1alpha1.SelectedForUpdate ||
		preservation.MayDrain(of) && !preservation.Drained(node)
}

func (r *machineReading) load(ctx context.Context, found *explain.Target, node string) {
	pods := &corev1.PodList{}
	if r.list(ctx, r.Target, pods, client.MatchingFields{"spec.nodeName": node}) {
		found.Pods = pods.Items
	}
	seen := map[string]bool{}
	for i := range pods.Items {
		namespace := pods.Items[i].Namespace
		if seen[namespace] || !drain.MustLeave(&pods.Items[i]) {
			continue
		}
		seen[namespace] = true
		budgets := &policyv1.PodDisruptionBudgetList{}
		if r.list(ctx, r.Target, budgets, client.InNamespace(namespace)) {
			found.Budgets = append(found.Budgets, budgets.Items...)
		}
	}
	attachments := &storagev1.VolumeAttachmentList{}
	r.list(ctx, r.Target, attachments)
	for i := range attachments.Items {
		if attachments.Items[i].Spec.NodeName == node {
			found.Attachments = append(found.Attachments, attachments.Items[i])
		}
	}
}
