package explain

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// MachineFacts are what the explanation of a Machine is made from. Nothing of them is changed.
type MachineFacts struct {
	// Key names the Machine.
	Key types.NamespacedName
	// Machine is nil if there is none of that name.
	Machine *v1alpha1.Machine
	// Set and Deployment own the Machine; nil if there are none. Those of a Machine that is gone are
	// found by their events or its name.
	Set        *v1alpha1.MachineSet
	Deployment *v1alpha1.MachineDeployment
	// Names are those of the Machines in the namespace, if the explained one does not exist.
	Names []string
	// Class is nil if it does not exist, which ClassMissing reports, or could not be read.
	Class        *v1alpha1.MachineClass
	ClassMissing bool
	// Secrets are those that the class names.
	Secrets []Secret
	Target  Target
	// VM is the VirtualMachine with the Machine's provider ID; nil if there is none.
	VM *vmv1alpha1.VirtualMachine
	// Events are those on all of these objects, in the order of their times.
	Events report.Events
	// Lease is that of the manager of the Machines; nil if there is none, as without leader
	// election.
	Lease *coordinationv1.Lease
	Flags Flags
	// Unread says what could not be read, and why.
	Unread []string
}

// Secret reports whether a Secret exists, could be read and has user data, and nothing of its
// content.
type Secret struct {
	Key                          types.NamespacedName
	Missing, HasUserData, Unread bool
}

// Target is the cluster that the nodes join.
type Target struct {
	// None reports whether there is no such cluster.
	None bool
	// Problem says why the cluster does not answer; empty if it does.
	Problem string
	// Unread reports whether the user may not read the node.
	Unread bool
	// Node is nil if it does not exist, or if the Machine names none.
	Node *corev1.Node
	// Copied reports whether the node is only known from the conditions in the Machine's status.
	Copied bool
	// Pods, Budgets and Attachments are those of the node, and are read if the Machine is being
	// deleted.
	Pods        []corev1.Pod
	Budgets     []policyv1.PodDisruptionBudget
	Attachments []storagev1.VolumeAttachment
}

// Flags are those of the manager, which no API shows. Zero values are the manager's defaults.
type Flags struct {
	// Creation is --machine-creation-timeout, Health is --machine-health-timeout, Drain is
	// --machine-drain-timeout, ResourceExhausted is --resource-exhausted-retry.
	Creation, Health, Drain, ResourceExhausted time.Duration
	// NodeConditions is --node-conditions.
	NodeConditions []string
}

// copied returns what a Machine's status says of its node.
func copied(machine *v1alpha1.Machine) Target {
	if len(machine.Status.Conditions) == 0 {
		return Target{}
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: machine.Status.Conditions}}
	node.Name, node.CreationTimestamp = machine.Labels[v1alpha1.NodeLabelKey], machine.CreationTimestamp
	return Target{Node: node, Copied: true}
}

// Kinds of explained objects.
const (
	KindMachine    = "Machine"
	KindSet        = "MachineSet"
	KindDeployment = "MachineDeployment"
)

// PoolFacts are what the explanation of a set or deployment is made from. Nothing of them is changed.
type PoolFacts struct {
	// Kind is KindSet or KindDeployment, and Key names the object.
	Kind string
	Key  types.NamespacedName
	// Deployment is the explained one, or that of the explained set; nil if there is none.
	Deployment *v1alpha1.MachineDeployment
	// Sets are the explained one, or those of the deployment, the oldest first.
	Sets []*v1alpha1.MachineSet
	// Machines are those of the sets.
	Machines []*v1alpha1.Machine
	// SetsUnread and MachinesUnread report whether they could not be listed.
	SetsUnread, MachinesUnread bool
	// Examples are the facts of some Machines that are not well, by name.
	Examples map[string]MachineFacts
	// Names are those of the kind in the namespace, if the explained object does not exist.
	Names []string
	// Events are those on the deployment, its sets and Machines, in the order of their times.
	Events report.Events
	// Lease is that of the manager of sets and deployments, MachineLease that of the manager of
	// their Machines; nil if there is none.
	Lease, MachineLease *coordinationv1.Lease
	// Unread says what could not be read, and why.
	Unread []string
}

// Exists reports whether the explained object exists.
func (f *PoolFacts) Exists() bool {
	return f.Kind == KindDeployment && f.Deployment != nil || f.Kind == KindSet && len(f.Sets) > 0
}

// Own takes over the sets that the deployment controls, the oldest first.
func (f *PoolFacts) Own(sets []v1alpha1.MachineSet) {
	for i := range sets {
		if metav1.IsControlledBy(&sets[i], f.Deployment) {
			f.Sets = append(f.Sets, &sets[i])
		}
	}
	slices.SortFunc(f.Sets, revision.Older)
}

// OwnMachines takes over the machines that the sets control.
func (f *PoolFacts) OwnMachines(machines []v1alpha1.Machine) {
	for i := range machines {
		machine := &machines[i]
		if slices.ContainsFunc(f.Sets, func(set *v1alpha1.MachineSet) bool { return metav1.IsControlledBy(machine, set) }) {
			f.Machines = append(f.Machines, machine)
		}
	}
}

// Current returns the set of the newest template; nil if there is none.
func (f *PoolFacts) Current() *v1alpha1.MachineSet {
	if f.Kind == KindSet {
		return f.Sets[0]
	}
	return revision.Current(f.Sets, &f.Deployment.Spec.Template)
}

// Of returns the machines of a set.
func (f *PoolFacts) Of(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	return slices.DeleteFunc(slices.Clone(f.Machines), func(machine *v1alpha1.Machine) bool { return !metav1.IsControlledBy(machine, set) })
}

// AnyLeaves reports whether a machine is being deleted.
func (f *PoolFacts) AnyLeaves() bool {
	return slices.ContainsFunc(f.Machines, func(machine *v1alpha1.Machine) bool { return leaving(machine) })
}
