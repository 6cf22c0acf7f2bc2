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
	vmMoves     = newStatement(report.VirtualMachineMigrating, "its VM is migrating from host {from} to {to}{progress}; the guest keeps running", "")
	vmMovesSlow = newStatement(report.VirtualMachineMigrating, "its VM is still migrating from host {from} to {to}{progress}; the guest keeps running",
		"To cancel the migration: millwright vm migrate -n {vm namespace} {vm} --cancel")
	vmMovesNever = newStatement(report.VirtualMachineMigrating, "its VM is migrating from host {from} to {to}{progress}, but the guest writes memory faster than it is copied",
		"If this continues, spec.migration.completionTimeoutPolicy of the VM applies: Pause stops the guest for the last part of the copy, Cancel leaves it on its host. A higher spec.migration.bandwidth or downtimeLimitMilliseconds helps the next migration: kubectl -n {vm namespace} edit {virtualmachines} {vm}")
	vmMovesForced = newStatement(report.VirtualMachineMigrating, "its VM is migrating from host {from} to {to}{progress}, and the guest will be stopped for the last part of the copy because the time for it is running out", "")
	vmTargetSlow  = newStatement(report.VirtualMachineMigrating, "its VM is to leave host {from}, and the target hypervisor has not reported yet",
		"Check the target pod: kubectl -n {vm namespace} describe pod {pod}")
	vmMovesNext = newStatement(report.VirtualMachineMigrating, "its VM is to leave host {from}, and is waiting for its turn or for the VM controller",
		"The number of concurrent migrations per host is limited (--vm-migrations-per-host). To see other VMs: millwright vm list -A -o wide")
	vmStays = newStatement(report.VirtualMachineMigrating, "its VM stays on host {from} because its last migration failed ({reason}): {text}", "")
)

// adviceOnMigration is the advice for a failed migration, by its reason.
var adviceOnMigration = map[string]string{
	vmv1alpha1.ReasonUnschedulable: "Free capacity on another host, or uncordon one: kubectl get nodes -l " + vmv1alpha1.HostKey,
	"TargetEnded":                  "Check the events of the VM: kubectl -n {vm namespace} describe {virtualmachines} {vm}",
	"TargetNotReady":               "Check that pods start on other hosts and can reach the VM controller",
	"Refused":                      "Change the field of the VM that the message names: kubectl -n {vm namespace} edit {virtualmachines} {vm}",
	"TimedOut":                     "Change spec.migration of the VM as the message suggests, and retry: kubectl -n {vm namespace} edit {virtualmachines} {vm}",
	"CopyFailed":                   "Check that the hosts can reach each other, and that the target's volume has free space",
}

const (
	// A target is slow if it takes longer than targetSlow to report. Most copies take less than copySlow.
	targetSlow = time.Minute
	copySlow   = 10 * time.Minute
	// Failed migrations are reported for failedLately.
	failedLately = time.Hour

	restartNeeded = "Changes to the VirtualMachine take effect at its next start ({reason}): {text}"
	coldLeave     = "When it leaves its host, its guest is shut down and restarted, because it cannot be migrated live ({reason}): {text}"
)

// migration adds the state of the VM's migration, why the last one failed, and whether the VM can be migrated live.
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
	case record.Convergence == vmv1alpha1.MigrationForced:
		e.ofMigration(vmMovesForced, begun)
	case record.Convergence == vmv1alpha1.MigrationNotConverging:
		e.ofMigration(vmMovesNever, begun)
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
