package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// controllerManager is the process machine-controller-manager.
type controllerManager struct{ *Process }

// NewControllerManager returns MCM's machine-controller-manager for the MachineSets and MachineDeployments of a
// namespace.
func NewControllerManager(c client.Client, namespace string) *Process {
	m := &controllerManager{&Process{client: c, namespace: namespace, name: "machine-controller-manager", made: map[string]bool{}}}
	m.Process.pass = m.reconcile
	return m.Process
}

func (c *controllerManager) reconcile(ctx context.Context, all *objects) error {
	for i := range all.deployments {
		if err := c.deployment(ctx, all, &all.deployments[i]); err != nil {
			return fmt.Errorf("%s: %w", all.deployments[i].Name, err)
		}
	}
	for i := range all.sets {
		if err := c.set(ctx, all, &all.sets[i]); err != nil {
			return fmt.Errorf("%s: %w", all.sets[i].Name, err)
		}
	}
	return nil
}

// set creates and deletes the Machines of a MachineSet, and writes its status.
func (c *controllerManager) set(ctx context.Context, all *objects, set *v1alpha1.MachineSet) error {
	members := all.members(set)
	if set.DeletionTimestamp != nil {
		if len(members) == 0 {
			_, err := c.update(ctx, set, func() { hold(set, v1alpha1.FinalizerMCM, false) })
			return err
		}
		return c.deleteMachines(ctx, members)
	}
	if wrote, err := c.update(ctx, set, func() { hold(set, v1alpha1.FinalizerMCM, true) }); wrote || err != nil {
		return err
	}
	active := slices.DeleteFunc(slices.Clone(members), func(m *v1alpha1.Machine) bool {
		return m.Status.CurrentStatus.Phase == v1alpha1.MachineTerminating || m.DeletionTimestamp != nil
	})
	_, createsNone := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	if missing := int(set.Spec.Replicas) - len(active); missing > 0 {
		for range missing {
			if createsNone {
				break
			}
			if err := c.create(ctx, newMachine(set)); err != nil {
				return err
			}
		}
	} else if err := c.deleteMachines(ctx, unwanted(set, active, -missing)); err != nil {
		return err
	}
	return c.setStatus(ctx, set, members)
}

func newMachine(set *v1alpha1.MachineSet) *v1alpha1.Machine {
	template := set.Spec.Template.DeepCopy()
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, GenerateName: set.Name + "-", Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))},
		},
		Spec: template.Spec,
	}
}

// ranks contains the phases by deletion order.
var ranks = map[v1alpha1.MachinePhase]int{
	v1alpha1.MachineFailed: 1, v1alpha1.MachineCrashLoopBackOff: 2, v1alpha1.MachineUnknown: 3, v1alpha1.MachinePending: 4,
	v1alpha1.MachineAvailable: 5, v1alpha1.MachineRunning: 6,
}

func priority(machine *v1alpha1.Machine) int {
	if number, err := strconv.Atoi(machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]); err == nil {
		return number
	}
	return 3
}

// preserved reports whether a Machine has a preservation expiry, or is Failed and will get one.
func preserved(machine *v1alpha1.Machine) bool {
	value := cmp.Or(machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve], machine.Annotations[v1alpha1.AnnotationKeyPreserve])
	return machine.Status.CurrentStatus.PreserveExpiryTime != nil || value == "now" || value == "when-failed"
}

// unwanted returns the Machines that a MachineSet deletes: surplus, marked and Failed Machines.
func unwanted(set *v1alpha1.MachineSet, active []*v1alpha1.Machine, surplus int) []*v1alpha1.Machine {
	there := len(active)
	active = slices.DeleteFunc(active, isMoved) // the replicas do not include them yet
	surplus -= there - len(active)
	slices.SortFunc(active, func(a, b *v1alpha1.Machine) int {
		kept := func(m *v1alpha1.Machine) int {
			return map[bool]int{true: 1}[m.Status.CurrentStatus.PreserveExpiryTime != nil]
		}
		return cmp.Or(
			cmp.Compare(kept(a), kept(b)), cmp.Compare(priority(a), priority(b)),
			cmp.Compare(ranks[a.Status.CurrentStatus.Phase], ranks[b.Status.CurrentStatus.Phase]),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		)
	})
	changed := set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]
	var going []*v1alpha1.Machine
	for i, machine := range active {
		marked := machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
		named := priority(machine) == 1 && marked != "" && marked <= changed
		failed := machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed && !preserved(machine)
		if i < surplus || named || failed {
			going = append(going, machine)
		}
	}
	return going
}

// deleteMachines deletes Machines, and records that in their status.
func (c *controllerManager) deleteMachines(ctx context.Context, machines []*v1alpha1.Machine) error {
	for _, machine := range machines {
		if machine.DeletionTimestamp != nil {
			continue
		}
		if err := c.remove(ctx, machine); err != nil {
			return err
		}
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
			return client.IgnoreNotFound(err)
		}
		_, err := c.updateStatus(ctx, machine, func() {
			setState(machine, v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, "Deleting machine from cloud provider")
			machine.Status.CurrentStatus.PreserveExpiryTime = nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *controllerManager) setStatus(ctx context.Context, set *v1alpha1.MachineSet, members []*v1alpha1.Machine) error {
	next := v1alpha1.MachineSetStatus{Replicas: int32(len(members)), FullyLabeledReplicas: int32(len(members)), ObservedGeneration: set.Generation}
	var failed []v1alpha1.MachineSummary
	for _, m := range members {
		phase, keep := m.Status.CurrentStatus.Phase, m.Status.CurrentStatus.PreserveExpiryTime != nil
		if phase == v1alpha1.MachineRunning {
			next.ReadyReplicas++
		}
		if phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable {
			next.AvailableReplicas++
		}
		if phase == v1alpha1.MachineFailed && keep {
			next.PreservedFailedReplicas++
		} else if m.Status.LastOperation.State == v1alpha1.MachineStateFailed {
			failed = append(failed, v1alpha1.MachineSummary{Name: m.Name, ProviderID: m.Spec.ProviderID, LastOperation: m.Status.LastOperation, OwnerRef: set.Name})
		}
	}
	_, err := c.updateStatus(ctx, set, func() {
		next.Conditions, next.LastOperation, next.AutoPreserveFailedMachineCount = set.Status.Conditions, set.Status.LastOperation, set.Status.AutoPreserveFailedMachineCount
		if len(failed) > 0 {
			next.FailedMachines = &failed
		}
		set.Status = next
	})
	return err
}

// deployment creates and scales the MachineSets of a MachineDeployment, and writes its status.
func (c *controllerManager) deployment(ctx context.Context, all *objects, d *v1alpha1.MachineDeployment) error {
	sets := all.setsOf(d)
	if d.DeletionTimestamp != nil {
		return c.deleteSets(ctx, d, sets)
	}
	if wrote, err := c.update(ctx, d, func() { hold(d, v1alpha1.FinalizerMCM, true) }); wrote || err != nil {
		return err
	}
	if wrote, err := c.named(ctx, all, d, sets); wrote || err != nil {
		return err
	}
	current := currentSet(d, sets)
	wrote, err := false, error(nil)
	switch {
	case d.Spec.Paused:
	case current == nil:
		wrote, err = true, c.create(ctx, newSet(d, sets))
	case d.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && len(sets) > 1:
		wrote, err = c.inPlace(ctx, all, d, current)
	default:
		wrote, err = c.roll(ctx, all, d, sets, current)
	}
	if wrote || err != nil {
		return err
	}
	return c.deploymentStatus(ctx, d, sets, current)
}

func (c *controllerManager) deleteSets(ctx context.Context, d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	for _, set := range sets {
		if set.DeletionTimestamp != nil {
			continue
		}
		if err := c.remove(ctx, set); err != nil {
			return err
		}
	}
	if len(sets) > 0 {
		return nil
	}
	_, err := c.update(ctx, d, func() { hold(d, v1alpha1.FinalizerMCM, false) })
	return err
}

// named marks the Machines in the autoscaler's annotation, and removes those that are being deleted from it.
func (c *controllerManager) named(ctx context.Context, all *objects, d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (bool, error) {
	var entries []string
	for entry := range strings.SplitSeq(d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion], ",") {
		name, at, _ := strings.Cut(entry, "~")
		index := slices.IndexFunc(all.machines, func(m v1alpha1.Machine) bool {
			return m.Name == name && m.DeletionTimestamp == nil && slices.ContainsFunc(sets, func(s *v1alpha1.MachineSet) bool { return metav1.IsControlledBy(&m, s) })
		})
		if index < 0 {
			continue
		}
		entries = append(entries, entry)
		machine := &all.machines[index]
		wrote, err := c.update(ctx, machine, func() {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, "1")
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMarkedForDeletionTime, at)
		})
		if wrote || err != nil {
			return wrote, err
		}
	}
	if len(entries) > 0 {
		return false, nil
	}
	return c.update(ctx, d, func() { delete(d.Annotations, v1alpha1.AnnotationKeyTriggerDeletion) })
}

// withoutHash returns the part of a template that MCM compares.
func withoutHash(template *v1alpha1.MachineTemplateSpec) string {
	same := template.DeepCopy()
	delete(same.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	same.Spec = v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Name: same.Spec.Class.Name, APIGroup: same.Spec.Class.APIGroup}, ProviderID: same.Spec.ProviderID}
	text, err := json.Marshal(same)
	if err != nil {
		panic(err) // a template read from JSON can be encoded
	}
	return string(text)
}

func currentSet(d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) *v1alpha1.MachineSet {
	for _, set := range sets {
		if withoutHash(&set.Spec.Template) == withoutHash(&d.Spec.Template) {
			return set
		}
	}
	return nil
}

func revisionOf(set *v1alpha1.MachineSet) int {
	number, _ := strconv.Atoi(set.Annotations[v1alpha1.AnnotationKeyRevision]) // 0 if missing or invalid
	return number
}

func lastRevision(sets []*v1alpha1.MachineSet) int {
	last := 0
	for _, set := range sets {
		last = max(last, revisionOf(set))
	}
	return last
}

// sizes returns the annotations that record the size of the MachineDeployment when a MachineSet was scaled.
func sizes(d *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) {
	surge, _ := bounds(d)
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyDesiredReplicas, strconv.Itoa(int(d.Spec.Replicas)))
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyMaxReplicas, strconv.Itoa(int(d.Spec.Replicas+surge)))
}

// bounds returns the surge and the maximum of unavailable Machines of an update.
func bounds(d *v1alpha1.MachineDeployment) (surge, unavailable int32) {
	config := v1alpha1.UpdateConfiguration{}
	switch strategy := d.Spec.Strategy; {
	case strategy.RollingUpdate != nil:
		config = strategy.RollingUpdate.UpdateConfiguration
	case strategy.InPlaceUpdate != nil:
		config = strategy.InPlaceUpdate.UpdateConfiguration
	}
	if config.MaxSurge == nil || config.MaxUnavailable == nil {
		return 0, 0
	}
	return config.MaxSurge.IntVal, config.MaxUnavailable.IntVal
}

// newSet returns the MachineSet of the current template, with as many replicas as permitted.
func newSet(d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) *v1alpha1.MachineSet {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(withoutHash(&d.Spec.Template))) // never fails
	labels := maps.Clone(d.Spec.Template.Labels)
	labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey] = strconv.FormatUint(uint64(sum.Sum32()), 10)
	set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: d.Namespace, Name: fmt.Sprintf("%s-%.5s", d.Name, fmt.Sprintf("%08x", sum.Sum32())), Labels: labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))},
	}}
	set.Spec = v1alpha1.MachineSetSpec{
		Replicas: capacity(d, sets), MinReadySeconds: d.Spec.MinReadySeconds, Template: *d.Spec.Template.DeepCopy(),
		Selector: &metav1.LabelSelector{MatchLabels: maps.Clone(labels)},
	}
	set.Spec.Template.Labels = maps.Clone(labels)
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevision, strconv.Itoa(lastRevision(sets)+1))
	sizes(d, set)
	return set
}

// capacity returns how many additional Machines are permitted, counting those that are being deleted.
func capacity(d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) int32 {
	surge, _ := bounds(d)
	there := int32(0)
	for _, set := range sets {
		there += max(set.Status.Replicas, set.Spec.Replicas)
	}
	return max(0, min(d.Spec.Replicas, d.Spec.Replicas+surge-there))
}

func (c *controllerManager) deploymentStatus(ctx context.Context, d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, current *v1alpha1.MachineSet) error {
	next := v1alpha1.MachineDeploymentStatus{ObservedGeneration: d.Generation, Conditions: d.Status.Conditions, CollisionCount: d.Status.CollisionCount}
	desired := int32(0)
	for _, set := range sets {
		desired += set.Spec.Replicas
		next.Replicas += set.Status.Replicas
		next.ReadyReplicas += set.Status.ReadyReplicas
		next.AvailableReplicas += set.Status.AvailableReplicas
		next.PreservedFailedReplicas += set.Status.PreservedFailedReplicas
		for _, failed := range ptr.Deref(set.Status.FailedMachines, nil) {
			next.FailedMachines = append(next.FailedMachines, &failed)
		}
	}
	if current != nil {
		next.UpdatedReplicas = current.Status.Replicas
	}
	next.UnavailableReplicas = max(0, desired-next.AvailableReplicas)
	_, err := c.updateStatus(ctx, d, func() {
		next.Conditions = conditionsOf(d, next)
		d.Status = next
	})
	return err
}

// conditionsOf returns the conditions Available and Progressing.
func conditionsOf(d *v1alpha1.MachineDeployment, next v1alpha1.MachineDeploymentStatus) []v1alpha1.MachineDeploymentCondition {
	_, unavailable := bounds(d)
	available := v1alpha1.MachineDeploymentCondition{Type: v1alpha1.MachineDeploymentAvailable, Status: v1alpha1.ConditionFalse, Reason: "MinimumReplicasUnavailable"}
	if next.AvailableReplicas >= d.Spec.Replicas-unavailable-next.PreservedFailedReplicas {
		available.Status, available.Reason = v1alpha1.ConditionTrue, "MinimumReplicasAvailable"
	}
	progressing := v1alpha1.MachineDeploymentCondition{Type: v1alpha1.MachineDeploymentProgressing, Status: v1alpha1.ConditionTrue, Reason: "MachineSetUpdated"}
	switch complete := next.UpdatedReplicas == d.Spec.Replicas && next.Replicas == d.Spec.Replicas && next.AvailableReplicas == d.Spec.Replicas; {
	case d.Spec.Paused:
		progressing.Status, progressing.Reason = v1alpha1.ConditionUnknown, "DeploymentPaused"
	case complete:
		progressing.Reason = "NewMachineSetAvailable"
	}
	now := metav1.Now()
	for _, c := range []*v1alpha1.MachineDeploymentCondition{&available, &progressing} {
		c.LastTransitionTime, c.LastUpdateTime = now, now
	}
	others := slices.DeleteFunc(slices.Clone(d.Status.Conditions), func(c v1alpha1.MachineDeploymentCondition) bool {
		return c.Type == available.Type || c.Type == progressing.Type
	})
	return append(others, available, progressing)
}
