package ui

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// capiRowFor returns the row of a MachineSet or Machine of Cluster API; nil if the object does not exist or another
// provider provides its infrastructure.
func capiRowFor(kind string, s *source, key string) (prefix string, row any) {
	switch kind {
	case capiMachines:
		if object := objectOf[*capiMachine](s, key); object != nil && object.Spec.InfrastructureRef.isOurs() {
			row = capiMachineRowOf(object)
		}
		return capiMachineRow, row
	case capiSets:
		if object := objectOf[*capiSet](s, key); object != nil && object.Spec.Template.Spec.InfrastructureRef.isOurs() {
			row = SetRow{
				Row: rowOf(capiSetRow, object), Pool: controllerName(object, "MachineDeployment"),
				Revision: object.Annotations[capiRevision], Replicas: ptr.Deref(object.Spec.Replicas, 1),
			}
		}
		return capiSetRow, row
	}
	return "", nil
}

// Conditions of a Machine of Cluster API.
const (
	capiInfrastructureReady = "InfrastructureReady"
	capiReady               = "Ready"
	capiDeleting            = "Deleting"
)

// capiFailures are the reasons of InfrastructureReady that are failures, and not just steps of the creation.
var capiFailures = []string{infrav1.ReasonCreationFailed, infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidSpec, infrav1.ReasonInstanceLost}

func capiMachineRowOf(m *capiMachine) MachineRow {
	row := MachineRow{
		Row: rowOf(capiMachineRow, m), Phase: cmp.Or(m.Status.Phase, report.NoPhase), Since: seconds(m.Status.LastUpdated.Time),
		Set: controllerName(m, "MachineSet"), Node: m.Status.NodeRef.Name, Version: m.Spec.Version, ProviderID: m.Spec.ProviderID,
		Failed: m.Status.Phase == "Failed",
	}
	if row.Deleting != 0 {
		row.Phase, row.Since = "Deleting", row.Deleting
	}
	conditions := m.Status.all()
	infrastructure := meta.FindStatusCondition(conditions, capiInfrastructureReady)
	switch {
	case row.Deleting != 0:
		row.describe(meta.FindStatusCondition(conditions, capiDeleting))
	case infrastructure != nil && infrastructure.Status != metav1.ConditionTrue:
		row.describe(infrastructure)
		row.Failed = row.Failed || slices.Contains(capiFailures, infrastructure.Reason)
	default:
		if ready := meta.FindStatusCondition(conditions, capiReady); ready != nil && ready.Status != metav1.ConditionTrue {
			row.describe(ready)
		}
	}
	return row
}

// describe shows a condition as the message of the machine. It may be nil.
func (r *MachineRow) describe(condition *metav1.Condition) {
	if condition != nil {
		r.Code, r.Message = condition.Reason, messages.Shorten(messages.Line(condition.Message), longestMessage)
	}
}

// capiFacts are the objects of a namespace. They are not modified.
type capiFacts struct {
	deployments []*capiDeployment
	sets        []*capiSet
	machines    []*capiMachine
	// machinesUnread reports whether the user may not read them.
	machinesUnread bool
}

// capiFacts returns the objects of a namespace from the caches.
func (m *model) capiFacts(namespace string) capiFacts {
	_, machines := m.sources[capiMachines].get()
	return capiFacts{
		deployments:    objectsOf[*capiDeployment](m.sources[capiDeployments], namespace),
		sets:           objectsOf[*capiSet](m.sources[capiSets], namespace),
		machines:       objectsOf[*capiMachine](m.sources[capiMachines], namespace),
		machinesUnread: machines == nil,
	}
}

// rows returns the rows of the deployments whose infrastructure Millwright provides.
func (f capiFacts) rows() []PoolRow {
	var rows []PoolRow
	sets, machines := byController(f.sets), byController(f.machines)
	for _, deployment := range f.deployments {
		if deployment.Spec.Template.Spec.InfrastructureRef.isOurs() {
			rows = append(rows, f.row(deployment, sets[deployment.UID], machines))
		}
	}
	return rows
}

func (f capiFacts) row(d *capiDeployment, sets []*capiSet, machines map[types.UID][]*capiMachine) PoolRow {
	desired, status := ptr.Deref(d.Spec.Replicas, 1), d.Status
	sets = byCAPIRevision(sets)
	pool := report.Pool{
		Counts:  report.Counts{Desired: desired, Ready: status.ReadyReplicas, Available: status.AvailableReplicas},
		Updated: max(status.UpdatedReplicas, status.UpToDateReplicas), Sets: capiParts(sets, machines),
	}
	for _, part := range pool.Sets {
		pool.Exist += part.Exist
		pool.Leaving += part.Leaving
	}
	if f.machinesUnread {
		pool.Exist = status.Replicas
	}
	strategy, surge, unavailable := capiBounds(d, desired)
	row := PoolRow{
		Row: rowOf(capiPoolRow, d), Cluster: d.Spec.ClusterName, Class: d.Spec.Template.Spec.InfrastructureRef.Name, Strategy: strategy,
		Version: d.Spec.Template.Spec.Version, Paused: d.Spec.Paused, Managed: metav1.HasLabel(d.ObjectMeta, capiTopologyOwned), Replicas: desired,
		Observed: status.ObservedGeneration >= d.Generation, Outcome: rollout.Progressing,
		Pool: pool, Most: desired + surge, Least: max(0, desired-unavailable),
	}
	if len(sets) > 0 {
		row.Revision = capiRevisionOf(sets[len(sets)-1])
	}
	if row.Observed && status.Replicas == desired && pool.Updated == desired && pool.Available == desired {
		row.Outcome = rollout.Complete
		return row
	}
	waits := problems("", status.all())
	for i := range waits {
		waits[i].Text = messages.Shorten(waits[i].Text, longestMessage)
	}
	row.Waits = waits[:min(len(waits), maxWaits)]
	return row
}

// byCAPIRevision returns the sets of a deployment, the oldest first. The last one has the latest template: Cluster API
// gives it a higher revision than all others, also after a rollback.
func byCAPIRevision(sets []*capiSet) []*capiSet {
	return slices.SortedFunc(slices.Values(sets), func(a, b *capiSet) int {
		return cmp.Or(cmp.Compare(capiRevisionOf(a), capiRevisionOf(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
}

// capiRevisionOf returns the revision of a set, or 0 if it has none yet.
func capiRevisionOf(set *capiSet) int64 {
	revision, _ := strconv.ParseInt(set.Annotations[capiRevision], 10, 64) // 0 if it is invalid
	return revision
}

// capiParts returns the set with the latest template, and those that have machines or desired replicas.
func capiParts(sets []*capiSet, machines map[types.UID][]*capiMachine) []report.Part {
	var parts []report.Part
	for i, set := range sets {
		part := report.Part{
			Name: set.Name, Revision: set.Annotations[capiRevision], Current: i == len(sets)-1, Phases: map[string]int32{},
			Counts: report.Counts{Desired: ptr.Deref(set.Spec.Replicas, 1), Ready: set.Status.ReadyReplicas, Available: set.Status.AvailableReplicas},
		}
		for _, machine := range machines[set.UID] {
			part.Phases[capiMachineRowOf(machine).Phase]++
			if report.IsDeleting(machine) {
				part.Leaving++
			} else {
				part.Exist++
			}
		}
		if part.Current || !part.Empty() || part.Leaving > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// capiBounds returns the strategy of a deployment, how many machines may exist in excess of the desired number, and how
// many of these may be unavailable, with Cluster API's defaults of 1 and 0. Without a rolling update, Cluster API does not
// guarantee that any machine is available.
func capiBounds(d *capiDeployment, desired int32) (strategy string, surge, unavailable int32) {
	of := d.Spec.Strategy
	if of.Type == "" {
		of = d.Spec.Rollout.Strategy
	}
	strategy = cmp.Or(of.Type, "RollingUpdate")
	if strategy != "RollingUpdate" {
		return strategy, 0, desired
	}
	scaled := func(value *intstr.IntOrString, otherwise int, up bool) int32 {
		n, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(ptr.Deref(value, intstr.FromInt(otherwise))), int(desired), up)
		if err != nil {
			return int32(otherwise) // the webhook of Cluster API rejects such a value
		}
		return int32(n)
	}
	surge, unavailable = scaled(of.RollingUpdate.MaxSurge, 1, true), scaled(of.RollingUpdate.MaxUnavailable, 0, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1 // as Cluster API does, because a rollout could not progress otherwise
	}
	return strategy, surge, unavailable
}
