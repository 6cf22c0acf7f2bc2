// Package disks manages the server of a VM's disks: the next step with its Pod, and the calls that open the disks to a
// hypervisor and revoke fencing tokens.
package disks

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// Facts are what is known of the Pods that serve the disks of a VM.
type Facts struct {
	// Stored is what the status has; nil if there was no server.
	Stored *v1alpha1.DiskServerStatus
	// Pod is the stored one, as the API server has it; nil if it does not exist.
	Pod *corev1.Pod
	// Others are all other Pods of servers of the VM.
	Others []*corev1.Pod
}

// Step is what to do next with the Pod of a server.
type Step string

// Steps.
const (
	// Keep the Pod: it serves, or will.
	Keep Step = "keep"
	// Reserve the name of the next Pod.
	Reserve Step = "reserve"
	// Create the Pod whose name is reserved.
	Create Step = "create"
	// Record the UID of the Pod that was created.
	Record Step = "record"
	// Await the termination of other servers, which have the volumes and the locks of the disks.
	Await Step = "await"
)

// Next decides what to do with the Pod of a server. There is a next Pod only when the last one has terminated.
func Next(f Facts) Step {
	step := f.next()
	if (step == Reserve || step == Create) && slices.ContainsFunc(f.Others, podstate.Alive) {
		return Await
	}
	return step
}

// next is the step if there is no other server.
func (f Facts) next() Step {
	switch {
	case f.Stored == nil || f.Stored.PodName == "":
		return Reserve
	case f.Pod == nil && f.Stored.PodUID == "":
		return Create
	case f.Pod == nil || podstate.Finished(f.Pod):
		return Reserve
	case f.Stored.PodUID == "":
		return Record
	case f.Stored.PodUID != f.Pod.UID:
		return Reserve // the name is another's
	}
	return Keep
}

// Served returns the Pod that serves the disks; nil if none may.
func (f Facts) Served() *corev1.Pod {
	if Next(f) != Keep || !f.Pod.DeletionTimestamp.IsZero() {
		return nil
	}
	return f.Pod
}

// Want is what a server should do: first revoke, then open.
type Want struct {
	// Revoke is the token up to which all are revoked; 0 to revoke none.
	Revoke storage.Token
	// Open are the hypervisors that may attach the disks.
	Open []Holder
}

func (w Want) empty() bool { return w.Revoke == 0 && len(w.Open) == 0 }

// Holder is a hypervisor that may attach the disks with a token.
type Holder struct {
	// Token is that of the lease, or that with which the target of a migration starts.
	Token storage.Token
	// Pod is that of the hypervisor.
	Pod string
}

// Wanted returns what the server should do according to a status: first revoke the tokens of earlier holders, then open the
// disks to the holder of the lease and to the target of a migration under way. It never opens a revoked token.
func Wanted(vm *v1alpha1.VirtualMachine) Want {
	var want Want
	status, lease := &vm.Status, vm.Status.Lease
	access := authority.AccessOf(vm)
	if lease == nil || access == authority.AccessDirect || access == authority.AccessRevoked {
		return want
	}
	if access == authority.AccessAwaited {
		want.Revoke = token(lease.FencingToken - 1)
	}
	if lease.State == v1alpha1.LeaseOpen || lease.State == v1alpha1.LeaseSuspected {
		want.Open = append(want.Open, Holder{Token: token(lease.FencingToken), Pod: status.ActivePodName})
	}
	if migration.UnderWay(status) && status.Migration.TargetFencingToken > lease.FencingToken {
		want.Open = append(want.Open, Holder{Token: token(status.Migration.TargetFencingToken), Pod: status.Migration.TargetPodName})
	}
	return want
}

// Confirmed returns up to which token a server has revoked. It includes the token of the lease if the server refuses that,
// because it was revoked without the VM controller, such as by a crash of the host.
func Confirmed(vm *v1alpha1.VirtualMachine, state State) int64 {
	upTo := int64(state.Revoked)
	if lease := vm.Status.Lease; lease != nil {
		holder := Holder{Token: token(lease.FencingToken), Pod: vm.Status.ActivePodName}
		if slices.Contains(state.Refused, holder) {
			upTo = max(upTo, lease.FencingToken)
		}
	}
	return upTo
}

func token(number int64) storage.Token { return storage.Token(max(0, number)) }
