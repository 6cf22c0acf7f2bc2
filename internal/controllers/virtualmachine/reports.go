package virtualmachine

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// reports holds the last report of each VM's hypervisor. It is lost with the process;
// until the next report the status stays as it was.
type reports struct {
	mu   sync.Mutex
	last map[types.NamespacedName]*vmpb.ReportStateRequest
}

func newReports() *reports {
	return &reports{last: map[types.NamespacedName]*vmpb.ReportStateRequest{}}
}

// put keeps a report, and reports whether it says anything new.
func (r *reports) put(vm types.NamespacedName, report *vmpb.ReportStateRequest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if proto.Equal(r.last[vm], report) {
		return false
	}
	r.last[vm] = report
	return true
}

// of is the last report of the authoritative hypervisor; nil if there is none.
func (r *reports) of(vm *v1alpha1.VirtualMachine) *vmpb.ReportStateRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.last[types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}]
	if report == nil || !holds(vm, report.GetUs()) {
		return nil
	}
	return report
}

func (r *reports) forget(vm types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, vm)
}

// holds reports whether a process is the authoritative one.
func holds(vm *v1alpha1.VirtualMachine, who *vmpb.HypervisorID) bool {
	return vm.Status.ActivePodName != "" && vm.Status.ActivePodName == who.GetPodName() &&
		vm.Status.ActiveRunID == runID(who)
}

// runID is how a run is written in the status.
func runID(who *vmpb.HypervisorID) string { return strconv.FormatUint(who.GetRunId(), 10) }
