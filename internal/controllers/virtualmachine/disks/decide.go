// Package disks manages the disk servers of VMs. It decides the next step for a server's Pod, and makes the calls
// that open the disks to a hypervisor and revoke fencing tokens.
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

// Facts are the facts about the disk server Pods of a VM.
type Facts struct {
	// Stored is the disk server in the status; nil if there was none.
	Stored *v1alpha1.DiskServerStatus
	// Pod is the stored Pod, as the API server has it; nil if it does not exist.
	Pod *corev1.Pod
	// Others are all other disk server Pods of the VM.
	Others []*corev1.Pod
}

// Step is the next step for a disk server Pod.
type Step string

const (
	// Keep means to keep the Pod, which serves the disks or is starting.
	Keep Step = "keep"
	// Reserve means to reserve the name of the next Pod.
	Reserve Step = "reserve"
	// Create means to create the Pod whose name is reserved.
	Create Step = "create"
	// Record means to record the UID of the Pod that was created.
	Record Step = "record"
	// Await means to wait until other servers have terminated. They still have the volumes and the locks of the
	// disks.
	Await Step = "await"
)

// Next returns the next step for a disk server Pod. Another Pod is reserved only when the last one has terminated.
func Next(f Facts) Step {
	step := f.next()
	if (step == Reserve || step == Create) && slices.ContainsFunc(f.Others, podstate.Alive) {
		return Await
	}
	return step
}

// next returns the next step without regard to other servers.
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
		return Reserve // another Pod has the name
	}
	return Keep
}

// Served returns the Pod that serves the disks; nil if none may serve them.
func (f Facts) Served() *corev1.Pod {
	if Next(f) != Keep || !f.Pod.DeletionTimestamp.IsZero() {
		return nil
	}
	return f.Pod
}

// Desired is what a server should do: first revoke tokens, then open the disks.
type Desired struct {
	// Revoke is the token up to which all tokens are revoked; 0 to revoke none.
	Revoke storage.Token
	// Open are the hypervisors that may attach the disks.
	Open []Holder
}

func (d Desired) empty() bool { return d.Revoke == 0 && len(d.Open) == 0 }

// Holder is a hypervisor that may attach the disks with a token.
type Holder struct {
	// Token is the token of the lease, or the one with which the target of a migration starts.
	Token storage.Token
	// Pod is the name of the hypervisor's Pod.
	Pod string
}

// DesiredFor returns what the server should do according to the status of a VM: revoke the tokens of earlier holders,
// then open the disks to the holder of the lease and to the target of a running migration. The disks are never opened
// for a revoked token.
func DesiredFor(vm *v1alpha1.VirtualMachine) Desired {
	var desired Desired
	status, lease := &vm.Status, vm.Status.Lease
	access := authority.AccessOf(vm)
	if lease == nil || access == authority.AccessDirect || access == authority.AccessRevoked {
		return desired
	}
	if access == authority.AccessAwaited {
		desired.Revoke = token(lease.FencingToken - 1)
	}
	if lease.State == v1alpha1.LeaseOpen || lease.State == v1alpha1.LeaseSuspected {
		desired.Open = append(desired.Open, Holder{Token: token(lease.FencingToken), Pod: status.ActivePodName})
	}
	if migration.UnderWay(status) && status.Migration.TargetFencingToken > lease.FencingToken {
		desired.Open = append(desired.Open, Holder{Token: token(status.Migration.TargetFencingToken), Pod: status.Migration.TargetPodName})
	}
	return desired
}

// Confirmed returns the token up to which a server has revoked all tokens. If the server refuses the token of the
// lease, that token is included: it was revoked by something other than the VM controller, such as a crash of the
// host.
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
