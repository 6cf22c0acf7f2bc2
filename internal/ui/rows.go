package ui

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Row is the part of a row that all kinds have. The ID is "kind/namespace/name".
type Row struct {
	Kind      string `json:"kind"`
	ID        string `json:"id"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Created and Deleting are times in seconds since 1970. Deleting is 0 unless the object is being deleted.
	Created  int64 `json:"created,omitempty"`
	Deleting int64 `json:"deleting,omitempty"`
}

func rowOf(kind string, object metav1.Object) Row {
	row := Row{Kind: kind, ID: idOf(kind, keyOf(object)), Namespace: object.GetNamespace(), Name: object.GetName(), Created: seconds(object.GetCreationTimestamp().Time)}
	if at := object.GetDeletionTimestamp(); at != nil {
		row.Deleting = seconds(at.Time)
	}
	return row
}

// idOf returns the ID of the row of an object. key is that of the informers, which has no namespace for nodes.
func idOf(kind, key string) string { return kind + "/" + key }

func keyOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// seconds returns the seconds since 1970, or 0 for the zero time.
func seconds(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.Unix()
}

// MachineRow is the row of a Machine.
type MachineRow struct {
	Row
	// Phase is report.NoPhase for a new Machine, and Terminating for one that is being deleted.
	Phase string `json:"phase"`
	// Since is when the phase began.
	Since      int64  `json:"since,omitempty"`
	Set        string `json:"set,omitempty"`
	Node       string `json:"node,omitempty"`
	Class      string `json:"class,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	// Version is the version of Kubernetes. It is set for Cluster API only.
	Version string `json:"version,omitempty"`
	// Code is the error code of the driver, and Message the description of the last operation. In Cluster API, they are
	// the reason and the message of the condition that the machine waits for.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Failed reports whether the last operation failed.
	Failed bool `json:"failed,omitempty"`
	// Preserved is when the preservation expires, or 0 if the Machine is not preserved.
	Preserved int64 `json:"preserved,omitempty"`
}

// longestMessage limits the texts in rows. The explanation has the whole text.
const longestMessage = 200

func machineRow(m *v1alpha1.Machine) MachineRow {
	status, operation := m.Status.CurrentStatus, m.Status.LastOperation
	row := MachineRow{
		Row: rowOf("machine", m), Phase: cmp.Or(string(status.Phase), report.NoPhase), Since: seconds(status.LastUpdateTime.Time),
		Set: controllerName(m, "MachineSet"), Node: m.NodeName(), Class: m.Spec.Class.Name, ProviderID: m.Spec.ProviderID,
		Code: operation.ErrorCode, Message: messages.Shorten(messages.Line(operation.Description), longestMessage),
		Failed: operation.State == v1alpha1.MachineStateFailed,
	}
	if row.Deleting != 0 {
		row.Phase, row.Since = string(v1alpha1.MachineTerminating), row.Deleting
	}
	if preservation.Active(m, time.Now()) && status.PreserveExpiryTime != nil {
		row.Preserved = seconds(status.PreserveExpiryTime.Time)
	}
	return row
}

func controllerName(object metav1.Object, kind string) string {
	if ref := metav1.GetControllerOfNoCopy(object); ref != nil && ref.Kind == kind {
		return ref.Name
	}
	return ""
}

// SetRow is the row of a MachineSet. The page needs it to find the pool of a Machine.
type SetRow struct {
	Row
	Pool     string `json:"pool,omitempty"`
	Revision string `json:"revision,omitempty"`
	Replicas int32  `json:"replicas"`
}

func setRow(s *v1alpha1.MachineSet) SetRow {
	return SetRow{Row: rowOf("set", s), Pool: controllerName(s, "MachineDeployment"), Revision: s.Annotations[v1alpha1.AnnotationKeyRevision], Replicas: s.Spec.Replicas}
}

// VMRow is the row of a VirtualMachine.
type VMRow struct {
	Row
	Phase     string   `json:"phase"`
	Host      string   `json:"host,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	UUID      string   `json:"uuid,omitempty"`
	Pod       string   `json:"pod,omitempty"`
	CPUs      int32    `json:"cpus,omitempty"`
	Memory    string   `json:"memory,omitempty"`
	// Ready, Migratable and Restart are the conditions of these names.
	Ready      *Condition `json:"ready,omitempty"`
	Migratable *Condition `json:"migratable,omitempty"`
	Restart    *Condition `json:"restart,omitempty"`
	Lease      string     `json:"lease,omitempty"`
	Disks      []string   `json:"disks,omitempty"`
	Migration  *Migration `json:"migration,omitempty"`
}

// Condition is a condition of an object.
type Condition struct {
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Since   int64  `json:"since,omitempty"`
}

func conditionOf(all []metav1.Condition, of string) *Condition {
	found := meta.FindStatusCondition(all, of)
	if found == nil {
		return nil
	}
	return &Condition{string(found.Status), found.Reason, messages.Line(found.Message), seconds(found.LastTransitionTime.Time)}
}

// Migration is the last migration of a VM.
type Migration struct {
	Phase   string `json:"phase"`
	Source  string `json:"source,omitempty"`
	Target  string `json:"target,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Done and Total are bytes. Total is 0 if it is unknown.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	Start int64 `json:"start,omitempty"`
	End   int64 `json:"end,omitempty"`
	// Downtime is in milliseconds.
	Downtime int64 `json:"downtime,omitempty"`
}

func vmRow(vm *vmv1alpha1.VirtualMachine) VMRow {
	status := vm.Status
	row := VMRow{
		Row: rowOf("vm", vm), Phase: cmp.Or(string(status.Phase), "New"), Host: status.NodeName, Addresses: status.Addresses,
		UUID: vm.Spec.UUID, Pod: status.ActivePodName, CPUs: vm.Spec.CPUs,
		Ready:      conditionOf(status.Conditions, vmv1alpha1.ConditionReady),
		Migratable: conditionOf(status.Conditions, vmv1alpha1.ConditionLiveMigratable),
		Restart:    conditionOf(status.Conditions, vmv1alpha1.ConditionRestartNeeded),
	}
	if vm.Spec.Memory != nil {
		row.Memory = vm.Spec.Memory.String()
	}
	if status.Lease != nil {
		row.Lease = string(status.Lease.State)
	}
	if status.VolumeClaimName != "" {
		row.Disks = append(row.Disks, status.VolumeClaimName)
	}
	for _, disk := range status.DataDisks {
		row.Disks = append(row.Disks, disk.Name+": "+disk.VolumeClaimName)
	}
	if record := status.Migration; record != nil {
		row.Migration = migrationOf(record)
	}
	return row
}

func migrationOf(record *vmv1alpha1.VirtualMachineMigration) *Migration {
	migration := &Migration{
		Phase: string(record.Phase), Source: record.SourceNodeName, Target: record.TargetNodeName, Reason: record.Reason,
		Message: messages.Line(record.Message), Done: record.DoneBytes, Total: record.TotalBytes, Start: seconds(record.StartTime.Time),
	}
	if record.EndTime != nil {
		migration.End = seconds(record.EndTime.Time)
	}
	if record.Downtime != nil {
		migration.Downtime = record.Downtime.Milliseconds()
	}
	return migration
}

// HostRow is the row of a Node of a host.
type HostRow struct {
	Row
	Ready bool `json:"ready"`
	// Cordoned reports whether new Pods are not scheduled, as in a drain.
	Cordoned bool   `json:"cordoned,omitempty"`
	Message  string `json:"message,omitempty"`
	CPUs     string `json:"cpus,omitempty"`
	Memory   int64  `json:"memory,omitempty"`
	Pods     string `json:"pods,omitempty"`
}

func hostRow(node *corev1.Node) HostRow {
	row := HostRow{
		Row: rowOf("host", node), Cordoned: node.Spec.Unschedulable, CPUs: node.Status.Allocatable.Cpu().String(),
		Memory: node.Status.Allocatable.Memory().Value(), Pods: node.Status.Allocatable.Pods().String(),
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			row.Ready = condition.Status == corev1.ConditionTrue
			if !row.Ready {
				row.Message = messages.Line(strings.TrimSuffix(condition.Reason+": "+condition.Message, ": "))
			}
		}
	}
	return row
}

// KindRow is the row about a watched kind: whether it can be read. Its namespace is the only one that is watched, or empty
// if all are.
type KindRow struct {
	Row
	Access Access `json:"access"`
	// Message explains AccessForbidden and AccessLost.
	Message string `json:"message,omitempty"`
}
