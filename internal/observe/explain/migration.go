package explain

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// Statements about the live migration of a VM.
var (
	vmMoves     = say(report.VirtualMachineMigrating, "its VM moves from host {from} to {to}{progress}; its guest runs meanwhile", "")
	vmMovesSlow = say(report.VirtualMachineMigrating, "its VM is still moving from host {from} to {to}{progress}; its guest runs meanwhile",
		"A guest that writes faster than the network carries does not arrive: raise --vm-migration-bandwidth if it is set, or end the migration: millwright vm migrate -n {vm namespace} {vm} --cancel")
	vmTargetSlow = say(report.VirtualMachineMigrating, "its VM is to leave host {from}, and the hypervisor to which it goes has not reported yet",
		"Look at the pod to which it goes: kubectl -n {vm namespace} describe pod {pod}")
	vmMovesNext = say(report.VirtualMachineMigrating, "its VM is to leave host {from}, and waits for its turn or for the VM controller",
		"Of each host few VMs leave at a time (--vm-migrations-per-host). See what others do: millwright vm list -A -o wide")
	vmStays = say(report.VirtualMachineMigrating, "its VM stays on host {from}: its last migration failed ({reason}): {text}", "")
)

// adviceOnMigration is by the reason of a failure.
var adviceOnMigration = map[string]string{
	vmv1alpha1.ReasonUnschedulable: "Make room on another host, or uncordon one: kubectl get nodes -l " + vmv1alpha1.HostKey,
	"TargetEnded":                  "Look at the events of the VM: kubectl -n {vm namespace} describe {virtualmachines} {vm}",
	"TargetNotReady":               "Look whether hosts start pods, and whether they reach the VM controller",
	"CopyFailed":                   "Look whether the hosts reach each other, and whether the target's volume has room",
}

const (
	// targetSlow is how long a target needs at most when all is well, and copySlow is how long most copies take.
	targetSlow = time.Minute
	copySlow   = 10 * time.Minute
	// failedLately is how long a failed migration is worth a sentence.
	failedLately = time.Hour

	restartNeeded = "What changed in the VirtualMachine waits for its next start ({reason}): {text}"
	coldLeave     = "When it leaves its host, its guest is shut down and started again, as it cannot be migrated live ({reason}): {text}"
)

// migration says what the VM's migration does, or why the last one failed, and whether there could be one.
func (e *explainer) migration() {
	vm := e.VM
	record := vm.Status.Migration
	ordered, _, _ := strings.Cut(vm.Annotations[vmv1alpha1.AnnotationMigrate], "/")
	switch {
	case record != nil && record.SourcePodName == vm.Status.ActivePodName && record.Phase != vmv1alpha1.MigrationSucceeded:
		e.lastMigration(record)
	case ordered != "" && ordered == vm.Status.ActivePodName:
		e.ofMigration(vmMovesNext, time.Time{})
	}
	can := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionLiveMigratable)
	if can != nil && can.Status == metav1.ConditionFalse {
		e.Next(time.Time{}, coldLeave, "{reason}", can.Reason, "{text}", can.Message)
	}
}

func (e *explainer) lastMigration(record *vmv1alpha1.VirtualMachineMigration) {
	begun := record.StartTime.Time
	took := e.now.Sub(begun)
	switch {
	case record.Phase == vmv1alpha1.MigrationFailed:
		if record.Reason == "Cancelled" || record.EndTime == nil || e.now.Sub(record.EndTime.Time) > failedLately {
			return
		}
		e.ofMigration(vmStays, record.EndTime.Time, "{reason}", record.Reason, "{text}", record.Message)
		e.Advise(adviceOnMigration[record.Reason], "{vm namespace}", e.VM.Namespace, "{vm}", e.VM.Name)
	case record.Phase == vmv1alpha1.MigrationPreparing && took >= targetSlow:
		e.ofMigration(vmTargetSlow, begun)
	case took >= copySlow:
		e.ofMigration(vmMovesSlow, begun)
	default:
		e.ofMigration(vmMoves, begun)
	}
}

// ofMigration adds a statement about the VM's migration.
func (e *explainer) ofMigration(s report.Statement, since time.Time, values ...string) {
	vm, record := e.VM, &vmv1alpha1.VirtualMachineMigration{}
	if vm.Status.Migration != nil {
		record = vm.Status.Migration
	}
	progress := ""
	if record.TotalBytes > 0 {
		progress = fmt.Sprintf(" (%d of %d MiB copied)", record.DoneBytes>>20, record.TotalBytes>>20)
	}
	to := "another host"
	if record.TargetNodeName != "" {
		to = "host " + record.TargetNodeName
	}
	values = append(values, "{from}", cmp.Or(vm.Status.NodeName, "?"), "{to}", to, "{progress}", progress, "{pod}", record.TargetPodName,
		"{vm namespace}", vm.Namespace, "{vm}", vm.Name)
	e.Why(s, "VirtualMachine "+vm.Namespace+"/"+vm.Name, since, values...)
}
