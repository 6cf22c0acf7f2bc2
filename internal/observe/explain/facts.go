package explain

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// Facts is all that an explanation is made from. Nothing of it is changed.
type Facts struct {
	// Key names the Machine that is asked about.
	Key types.NamespacedName
	// Machine is nil if there is none of that name (any more).
	Machine *v1alpha1.Machine
	// Owners are whose the Machine is, or was.
	Owners Owners
	// Material is what a driver needs to create or delete the VM.
	Material Material
	// Target is what the nodes' cluster says.
	Target Target
	// VM is the VirtualMachine with the Machine's provider ID; nil if none was found.
	VM *vmv1alpha1.VirtualMachine
	// Events are those on all of these objects, in the order of their times.
	Events []corev1.Event
	// Lease is the one that the manager of the Machines holds; nil if there is none, as
	// where no leader is elected.
	Lease *coordinationv1.Lease
	// Timeouts are those of the manager's flags.
	Timeouts Timeouts
	// Unread says what could not be read, and why.
	Unread []string
}

// Owners are the set and the deployment of a Machine. Of a Machine that is gone they are
// found by what they say of it, or by its name.
type Owners struct {
	// Set and Deployment are nil if there are none.
	Set        *v1alpha1.MachineSet
	Deployment *v1alpha1.MachineDeployment
	// Names are those of the Machines that there are in the namespace.
	Names []string
}

// Material is what a driver needs besides the Machine.
type Material struct {
	// Class is nil if there is none of the name, or if it could not be read.
	Class *v1alpha1.MachineClass
	// ClassMissing tells that there is none of the name.
	ClassMissing bool
	// Secrets are those that the class names.
	Secrets []Secret
}

// Secret tells of a Secret that it is there. What is in it is none of our business.
type Secret struct {
	Key types.NamespacedName
	// Missing tells that it does not exist; HasUserData that it has the key of the user
	// data..
	Missing, HasUserData bool
	// Unread tells that it could not be read.
	Unread bool
}

// Target is what is known of the cluster that the nodes join.
type Target struct {
	// None tells that there is no such cluster.
	None bool
	// Problem says why it does not answer; empty if it does.
	Problem string
	// Unread tells that whoever asks may not read the node: it may be there all the same.
	Unread bool
	// Node is nil if there is none, or if the Machine names none.
	Node *corev1.Node
	// Copied tells that all that is known of the node is what the manager copied into the
	// Machine: its conditions, which may be old.
	Copied bool
	// Pods are those on the node; Budgets those of the pods' namespaces; Attachments those
	// of the node. They are read only if the Machine is being deleted.
	Pods        []corev1.Pod
	Budgets     []policyv1.PodDisruptionBudget
	Attachments []storagev1.VolumeAttachment
}

// Timeouts are the manager's. Nothing in the API says which flags a manager runs with, so
// whoever asks has to say if they are not the defaults.
type Timeouts struct {
	// Creation is --machine-creation-timeout; zero means 20 minutes.
	Creation time.Duration
	// Health is --machine-health-timeout; zero means 10 minutes.
	Health time.Duration
	// Drain is --machine-drain-timeout; zero means 2 hours.
	Drain time.Duration
	// ResourceExhausted is --resource-exhausted-retry; zero means 10 minutes.
	ResourceExhausted time.Duration
	// NodeConditions is --node-conditions: those that make a Machine unhealthy unless they
	// are False. Nil means the manager's default.
	NodeConditions []string
}

// The defaults of the manager's flags, which are those of MCM.
const (
	DefaultCreationTimeout = 20 * time.Minute
	DefaultHealthTimeout   = 10 * time.Minute
	DefaultDrainTimeout    = 2 * time.Hour
	// DefaultResourceExhaustedRetry is ours: MCM has no such flag.
	DefaultResourceExhaustedRetry = 10 * time.Minute
)

var defaultNodeConditions = []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"}

// timeOf is when an event last happened. There are three ways to write that.
func timeOf(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil && !event.Series.LastObservedTime.IsZero():
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	default:
		return event.CreationTimestamp.Time
	}
}

// last is the newest event of a kind of object with one of the reasons that fits; nil if
// there is none.
func (f *Facts) last(kind string, reasons []string, fits func(*corev1.Event) bool) *corev1.Event {
	for i := len(f.Events) - 1; i >= 0; i-- {
		event := &f.Events[i]
		if event.InvolvedObject.Kind == kind && slices.Contains(reasons, event.Reason) && fits(event) {
			return event
		}
	}
	return nil
}

// mine reports whether an event is on the Machine asked about, and not on one that had the
// name before.
func (f *Facts) mine(event *corev1.Event) bool {
	about := event.InvolvedObject
	return about.Name == f.Key.Name && (f.Machine == nil || about.UID == "" || about.UID == f.Machine.UID)
}

// names reports whether a text names something. Names are often prefixes of others.
func names(text, name string) bool {
	for rest := text; ; {
		before, after, found := strings.Cut(rest, name)
		if !found {
			return false
		}
		if !endsInName(before) && !beginsWithName(after) {
			return true
		}
		rest = after
	}
}

func endsInName(text string) bool { return text != "" && inName(text[len(text)-1]) }

func beginsWithName(text string) bool {
	if text == "" {
		return false
	}
	if text[0] == '.' { // a full stop, unless the name goes on after it
		return len(text) > 1 && inName(text[1])
	}
	return inName(text[0])
}

func inName(c byte) bool {
	return c == '-' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z'
}
