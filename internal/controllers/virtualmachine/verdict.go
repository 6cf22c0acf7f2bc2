package virtualmachine

import (
	"strconv"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// verdict is what a VM's object says of a process that wants to run it.
type verdict int

const (
	// verdictTerminate: it must not run.
	verdictTerminate verdict = iota
	// verdictOK: it is authoritative.
	verdictOK
	// verdictAdopt: it is a new process in the authoritative Pod, and may take over
	// from the last one there. That one is gone, or has not the disk's lock.
	verdictAdopt
	// verdictNone: nobody is authoritative. Who that will be is yet to be found out.
	verdictNone
)

// judge says what holds for a process. A nil vm is one that is gone.
func judge(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) verdict {
	switch {
	case vm == nil || !vm.DeletionTimestamp.IsZero():
		return verdictTerminate
	case vm.Status.ActivePodName == "":
		return verdictNone
	case vm.Status.ActivePodName != who.GetPodName():
		return verdictTerminate
	case holds(vm, who):
		return verdictOK
	}
	last, err := strconv.ParseUint(vm.Status.ActiveRunID, 10, 64)
	if vm.Status.ActiveRunID == "" || err == nil && last < who.GetRunId() {
		return verdictAdopt
	}
	return verdictTerminate
}

// swapAnswer is what a VM's object says of a switchover.
type swapAnswer int

const (
	swapRefused swapAnswer = iota
	// swapDone: the caller is authoritative already. An earlier answer may have been
	// lost.
	swapDone
	swapGranted
)

// judgeSwap says whether us may take the VM from them.
func judgeSwap(vm *v1alpha1.VirtualMachine, us, them *vmpb.HypervisorID) swapAnswer {
	switch {
	case vm == nil:
		return swapRefused
	case holds(vm, us):
		return swapDone
	case vm.DeletionTimestamp.IsZero() && holds(vm, them):
		return swapGranted
	}
	return swapRefused
}
