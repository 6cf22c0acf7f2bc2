package authority

import (
	"strconv"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// authorization is what a VM's object says of a process that wants to run it.
type authorization int

const (
	// denied: it must not run the VM.
	denied authorization = iota
	// granted: it is authoritative.
	granted
	// adoptable: it is a new process in the authoritative Pod, and may replace the last
	// one there. That one has ended, or does not hold the disk's lock.
	adoptable
	// undecided: nobody is authoritative yet.
	undecided
)

// authorize returns what holds for a process. A nil vm does not exist.
func authorize(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) authorization {
	switch {
	case vm == nil || !vm.DeletionTimestamp.IsZero():
		return denied
	case vm.Status.ActivePodName == "":
		return undecided
	case vm.Status.ActivePodName != who.GetPodName():
		return denied
	case Holds(vm, who):
		return granted
	}
	last, err := strconv.ParseUint(vm.Status.ActiveRunID, 10, 64)
	if vm.Status.ActiveRunID == "" || err == nil && last < who.GetRunId() {
		return adoptable
	}
	return denied
}

// Holds reports whether a process is the authoritative one.
func Holds(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) bool {
	return vm.Status.ActivePodName != "" && vm.Status.ActivePodName == who.GetPodName() &&
		vm.Status.ActiveRunID == runID(who)
}

// runID is how the status names the run of a process.
func runID(who *vmpb.HypervisorID) string { return strconv.FormatUint(who.GetRunId(), 10) }
