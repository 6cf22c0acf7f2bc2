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
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// MachineFacts is the input of an explanation of a Machine. It is not modified.
type MachineFacts struct {
	// Key is the name of the Machine.
	Key types.NamespacedName
	// Machine is nil if it does not exist.
	Machine *v1alpha1.Machine
	// Set and Deployment own the Machine, and are nil if there are none. If the Machine no longer exists, they are
	// found by their events or by its name.
	Set        *v1alpha1.MachineSet
	Deployment *v1alpha1.MachineDeployment
	// Names are the names of the Machines in the namespace if the explained Machine does not exist.
	Names []string
	// Class is nil if it does not exist, in which case ClassMissing is set, or if it could not be read.
	Class        *v1alpha1.MachineClass
	ClassMissing bool
	// Secrets are the secrets that the class refers to.
	Secrets []Secret
	Target  Target
	// VM is the VirtualMachine with the Machine's provider ID. It is nil if there is none.
	VM *vmv1alpha1.VirtualMachine
	// Console is the latest output of that VM's console, unless the node is known to be healthy. The guest controls
	// the content, so it is not trusted. It is nil if it was not read, and empty if the guest wrote nothing.
	Console []byte
	// Events are the events on all of these objects, sorted by time.
	Events report.Events
	// Lease is the lease of the manager of the Machines. It is nil if there is none, for example if leader election
	// is disabled.
	Lease *coordinationv1.Lease
	Flags Flags
	// Unread lists what could not be read, and why.
	Unread []string
}

// Secret describes a Secret without its content: whether it exists, could be read, and has user data.
type Secret struct {
	Key                          types.NamespacedName
	Missing, HasUserData, Unread bool
}

// Target is the cluster that the nodes join.
type Target struct {
	// None reports whether no target cluster is configured.
	None bool
	// Problem is the reason why the cluster does not respond. It is empty if it responds.
	Problem string
	// Unread reports whether the user is not permitted to read the node.
	Unread bool
	// Node is nil if it does not exist, or if the Machine has no node name.
	Node *corev1.Node
	// Copied reports whether the node is known only from the conditions in the Machine's status.
	Copied bool
	// Pods, Budgets and Attachments are relevant for the drain of the node. They are read only if it is being
	// drained.
	Pods        []corev1.Pod
	Budgets     []policyv1.PodDisruptionBudget
	Attachments []storagev1.VolumeAttachment
}

// Flags are the manager's flags, which are not visible in the API. For zero values, the manager's defaults are
// used.
type Flags struct {
	// Creation is --machine-creation-timeout, Health is --machine-health-timeout, Drain is --machine-drain-timeout,
	// and ResourceExhausted is --resource-exhausted-retry.
	Creation, Health, Drain, ResourceExhausted time.Duration
	// NodeConditions is --node-conditions.
	NodeConditions []string
}

// Copied returns a Target with the node's conditions from the Machine's status. It has no node if the Machine has only
// conditions of other programs.
func Copied(machine *v1alpha1.Machine) Target {
	if !noderef.Reported(machine.Status.Conditions) {
		return Target{}
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: machine.Status.Conditions}}
	node.Name, node.CreationTimestamp = machine.NodeName(), machine.CreationTimestamp
	return Target{Node: node, Copied: true}
}

// Kinds of explained objects.
const (
	KindMachine    = "Machine"
	KindSet        = "MachineSet"
	KindDeployment = "MachineDeployment"
)
