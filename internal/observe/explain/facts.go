package explain

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
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
	// Console is the last output of the console of that VM, if its guest is not known to do its work. The guest
	// writes what it likes there.
	Console []byte
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
	// Pods, Budgets and Attachments are those of the node, and are read if it is drained.
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

// Copied returns what a Machine's status says of its node.
func Copied(machine *v1alpha1.Machine) Target {
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
