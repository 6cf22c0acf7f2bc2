package ui

import (
	"cmp"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	rules "github.com/millwright-dev/millwright/internal/pool/rollout"
)

// PoolRow is the row of a MachineDeployment.
type PoolRow struct {
	Row
	// Class is the MachineClass, or the template of the infrastructure in Cluster API.
	Class    string `json:"class,omitempty"`
	Strategy string `json:"strategy"`
	Paused   bool   `json:"paused,omitempty"`
	// Replicas are those of the spec.
	Replicas int32 `json:"replicas"`
	// Outcome and the following fields are the status of the rollout, as in "millwright rollout status".
	Outcome  rollout.Outcome `json:"outcome"`
	Observed bool            `json:"observed"`
	Revision int64           `json:"revision"`
	Pool     report.Pool     `json:"pool"`
	// Most and Least are how many machines may exist, and how many must be available, during a rollout.
	Most  int32 `json:"most"`
	Least int32 `json:"least"`
	// Deadline is when the progress deadline expires, or 0.
	Deadline int64            `json:"deadline,omitempty"`
	Waits    []report.Finding `json:"waits,omitempty"`
	Classes  []string         `json:"classes,omitempty"`

	// Cluster, Version and Managed are set for Cluster API only.

	Cluster string `json:"cluster,omitempty"`
	// Version is the version of Kubernetes.
	Version string `json:"version,omitempty"`
	// Managed reports whether the Cluster's topology determines the spec, so that changes belong there.
	Managed bool `json:"managed,omitempty"`
}

// maxWaits limits the findings in a row. The explanation has all.
const maxWaits = 5

// leases are the leases of the managers of a namespace. They are nil if there are none.
type leases struct{ sets, machines *coordinationv1.Lease }

// poolFacts are the objects of a namespace. They are not modified.
type poolFacts struct {
	deployments []*v1alpha1.MachineDeployment
	sets        []*v1alpha1.MachineSet
	machines    []*v1alpha1.Machine
	events      []*corev1.Event
	leases      leases
	// setsUnread and machinesUnread report whether the user may not read them, and problem is why objects may be out of
	// date.
	setsUnread, machinesUnread bool
	problem                    string
}

// rows returns the rows of all deployments. Objects are grouped once, because a namespace can have many deployments.
func (f poolFacts) rows(now time.Time) []PoolRow {
	setsOf, machinesOf := byController(f.sets), byController(f.machines)
	events := map[string]report.Events{}
	for _, event := range f.events {
		events[event.InvolvedObject.Name] = append(events[event.InvolvedObject.Name], *event)
	}
	rows := make([]PoolRow, 0, len(f.deployments))
	for _, deployment := range f.deployments {
		facts := pool.Facts{
			Kind: explain.KindDeployment, Key: types.NamespacedName{Namespace: deployment.Namespace, Name: deployment.Name},
			Deployment: deployment, Sets: setsOf[deployment.UID], Lease: f.leases.sets, MachineLease: f.leases.machines,
			SetsUnread: f.setsUnread, MachinesUnread: f.machinesUnread, Events: events[deployment.Name],
		}
		slices.SortFunc(facts.Sets, revision.Older)
		for _, set := range facts.Sets {
			facts.Machines = append(facts.Machines, machinesOf[set.UID]...)
			facts.Events = append(facts.Events, events[set.Name]...)
		}
		slices.SortFunc(facts.Machines, func(a, b *v1alpha1.Machine) int { return strings.Compare(a.Name, b.Name) })
		for _, machine := range facts.Machines {
			if report.IsDeleting(machine) {
				facts.Events = append(facts.Events, events[machine.Name]...)
			}
		}
		facts.Events = slices.Clone(facts.Events) // sorting must not change the group
		facts.Events.Sort()
		rows = append(rows, poolRow(rollout.Facts{Facts: facts, Problem: f.problem}, now))
	}
	return rows
}

func byController[T metav1.Object](objects []T) map[types.UID][]T {
	found := map[types.UID][]T{}
	for _, object := range objects {
		if ref := metav1.GetControllerOfNoCopy(object); ref != nil {
			found[ref.UID] = append(found[ref.UID], object)
		}
	}
	return found
}

func poolRow(facts rollout.Facts, now time.Time) PoolRow {
	d, status := facts.Deployment, rollout.StatusOf(facts, now)
	surge, unavailable := rules.Bounds(d)
	desired := status.Desired
	row := PoolRow{
		Row: rowOf("pool", d), Class: d.Spec.Template.Spec.Class.Name,
		Strategy: cmp.Or(string(d.Spec.Strategy.Type), string(v1alpha1.RollingUpdateMachineDeploymentStrategyType)),
		Paused:   d.Spec.Paused, Replicas: d.Spec.Replicas, Outcome: status.Outcome, Observed: status.Observed, Revision: status.Revision,
		Pool: status.Pool, Most: desired + surge, Least: max(0, desired-unavailable), Deadline: seconds(status.Deadline),
		Waits: status.Waits[:min(len(status.Waits), maxWaits)], Classes: status.Classes,
	}
	if status.Outcome == rollout.Complete {
		row.Deadline = 0
	}
	return row
}
