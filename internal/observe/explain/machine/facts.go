// Package machine explains a Machine: why it is not Running, why it was deleted, and what its
// deletion waits for. It is pure: facts come in, a report goes out.
package machine

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

// Facts is all that an explanation is made from. Nothing of it is changed.
type Facts struct {
	// Key names the Machine that is asked about.
	Key types.NamespacedName
	// Machine is nil if there is none of that name (any more).
	Machine *v1alpha1.Machine
	// Owners are whose the Machine is, or was.
	Owners Owners
	// Inputs is what a driver needs to create or delete the VM.
	Inputs Inputs
	// Target is what the nodes' cluster says.
	Target Target
	// VM is the VirtualMachine with the Machine's provider ID; nil if none was found.
	VM *vmv1alpha1.VirtualMachine
	// Events are those on all of these objects, in the order of their times.
	Events report.Events
	// Lease is the one that the manager of the Machines holds; nil if there is none, as
	// where no leader is elected.
	Lease *coordinationv1.Lease
	// Flags are those of the manager.
	Flags Flags
	// Unread says what could not be read, and why.
	Unread []string
}

// Owners are the set and the deployment of a Machine. Of a Machine that is gone they are
// found by what they say of it, or by its name.
type Owners struct {
	// Set and Deployment are nil if there are none.
	Set        *v1alpha1.MachineSet
	Deployment *v1alpha1.MachineDeployment
	// Names are those of the Machines in the namespace; filled only if there is none of the
	// name that is asked about.
	Names []string
}

// Inputs is what a driver needs besides the Machine.
type Inputs struct {
	// Class is nil if there is none of the name, or if it could not be read.
	Class *v1alpha1.MachineClass
	// ClassMissing reports whether there is none of the name.
	ClassMissing bool
	// Secrets are those that the class names.
	Secrets []Secret
}

// Secret is what may be known of a Secret; what is in it is none of our business.
type Secret struct {
	Key types.NamespacedName
	// Missing reports whether it does not exist, HasUserData whether it has the key of the
	// user data, Unread whether it could not be read.
	Missing, HasUserData, Unread bool
}

// Target is what is known of the cluster that the nodes join.
type Target struct {
	// None reports whether there is no such cluster.
	None bool
	// Problem says why it does not answer; empty if it does.
	Problem string
	// Unread reports whether the user may not read the node: it may be there all the same.
	Unread bool
	// Node is nil if there is none, or if the Machine names none.
	Node *corev1.Node
	// Copied reports whether all that is known of the node is what the manager copied into
	// the Machine: its conditions, which may be old.
	Copied bool
	// Pods are those on the node; Budgets those of the pods' namespaces; Attachments those
	// of the node. They are read only if the Machine is being deleted.
	Pods        []corev1.Pod
	Budgets     []policyv1.PodDisruptionBudget
	Attachments []storagev1.VolumeAttachment
}

// Flags are the manager's. Nothing in the API says which flags a manager runs with, so whoever
// asks has to say if they are not the defaults. Zero values mean the manager's defaults.
type Flags struct {
	// Creation is --machine-creation-timeout, Health is --machine-health-timeout, Drain is
	// --machine-drain-timeout, ResourceExhausted is --resource-exhausted-retry.
	Creation, Health, Drain, ResourceExhausted time.Duration
	// NodeConditions is --node-conditions: those that make a Machine unhealthy unless they
	// are False. Nil means the manager's default.
	NodeConditions []string
}

// Copied is what a Machine says of its node: the manager copies the conditions into it.
func Copied(machine *v1alpha1.Machine) Target {
	if len(machine.Status.Conditions) == 0 {
		return Target{}
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: machine.Status.Conditions}}
	node.Name, node.CreationTimestamp = machine.Labels[v1alpha1.NodeLabelKey], machine.CreationTimestamp
	return Target{Node: node, Copied: true}
}

// own reports whether an event is on the Machine that is asked about, and not on one that had
// the name before.
func (f *Facts) own(event *corev1.Event) bool {
	about := event.InvolvedObject
	return about.Name == f.Key.Name && (f.Machine == nil || about.UID == "" || about.UID == f.Machine.UID)
}

// about reports whether an event of an owner names the Machine.
func (f *Facts) about(event *corev1.Event) bool { return report.Names(event, f.Key.Name) }
