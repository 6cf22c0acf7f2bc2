package authority

import (
	"context"
	"time"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Access describes whether the holder of a VM's lease has exclusive access to the disks.
type Access int

const (
	// AccessDirect means that the disks are not served, or that the VM has no lease.
	AccessDirect Access = iota
	// AccessAwaited means that a hypervisor with an earlier token may still change the disks, so the holder is
	// granted no lease.
	AccessAwaited
	// AccessOpen means that all earlier tokens are revoked and the holder's token is not.
	AccessOpen
	// AccessRevoked means that the holder's token is revoked, too. The holder never gets access to the disks again.
	AccessRevoked
)

// AccessOf returns the access of the holder of a VM's lease according to the status.
func AccessOf(vm *v1alpha1.VirtualMachine) Access {
	if !podspec.Served(vm) || vm.Status.Lease == nil {
		return AccessDirect
	}
	switch revoked, before := revokedToken(&vm.Status), vm.Status.Lease.FencingToken-1; {
	case revoked < before:
		return AccessAwaited
	case revoked == before:
		return AccessOpen
	default:
		return AccessRevoked
	}
}

func revokedToken(status *v1alpha1.VirtualMachineStatus) int64 {
	if status.DiskServer == nil {
		return 0
	}
	return status.DiskServer.RevokedToken
}

// HighestToken returns the highest token in the status with which a hypervisor may have attached the disks; 0 if
// there is none.
func HighestToken(status *v1alpha1.VirtualMachineStatus) int64 {
	var highest int64
	if status.Lease != nil {
		highest = status.Lease.FencingToken
	}
	if status.Migration != nil {
		highest = max(highest, status.Migration.TargetFencingToken)
	}
	return highest
}

// nextToken returns a token that is higher than all earlier ones. Tokens are Unix times in milliseconds. They are
// therefore also higher than tokens that were lost with the status, because no two hypervisors of a VM start within
// one millisecond. If all earlier tokens are revoked, the next token is the next number, so that the holder need not
// wait for another revocation.
func nextToken(status *v1alpha1.VirtualMachineStatus, now time.Time) int64 {
	highest, revoked := HighestToken(status), revokedToken(status)
	if revoked > 0 && revoked >= highest {
		return revoked + 1
	}
	return max(now.UnixMilli(), highest+1)
}

// ConfirmServer reports whether a process is in the disk server Pod of its VM.
func (r *Registry) ConfirmServer(ctx context.Context, us *vmpb.HypervisorID) (is bool, err error) {
	err = r.evaluate(ctx, us, false, func(vm *v1alpha1.VirtualMachine, live bool) (bool, error) {
		switch {
		case vm == nil || !podspec.Served(vm), // diskAccess is immutable
			us.GetPodName() == vm.Status.ActivePodName, migration.IsTarget(&vm.Status, us.GetPodName()):
			return true, nil
		}
		is = IsServer(&vm.Status, us.GetPodName())
		return is || live, nil
	})
	return is, err
}

// IsServer reports whether a Pod is the disk server of a VM according to its status.
func IsServer(status *v1alpha1.VirtualMachineStatus, pod string) bool {
	return status.DiskServer != nil && status.DiskServer.PodName != "" && status.DiskServer.PodName == pod
}
