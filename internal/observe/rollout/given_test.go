package rollout

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
)

// noon is the time of the tests.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(ago time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-ago)) }

// given is the state of a deployment of three machines at noon. Initially it has one set of class
// a, revision 1, whose machines are Running.
type given struct {
	deployment *v1alpha1.MachineDeployment
	sets       []*v1alpha1.MachineSet
	machines   []*v1alpha1.Machine
	around     pool.Facts
	problem    string
}

type change func(*given)

func give(changes ...change) *given {
	labels := map[string]string{"name": "pool"}
	g := &given{deployment: &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pool", UID: "pool", Generation: 2},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: 3,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "a"}},
			},
		},
		Status: v1alpha1.MachineDeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3},
	}}
	hasSet("a", 1, 3, 3)(g)
	has("a", 3, v1alpha1.MachineRunning)(g)
	for _, change := range changes {
		change(g)
	}
	return g
}

func (g *given) facts() Facts {
	f := FactsOf(g.deployment, values(g.sets), values(g.machines))
	f.Lease, f.MachineLease, f.Events, f.Problem = g.around.Lease, g.around.MachineLease, g.around.Events, g.problem
	return f
}

func values[T any](pointers []*T) []T {
	all := make([]T, len(pointers))
	for i, pointer := range pointers {
		all[i] = *pointer
	}
	return all
}

// hasSet adds the set of a class. Its age depends on its revision.
func hasSet(class string, revision int64, asked, available int32) change {
	return func(g *given) {
		template := *g.deployment.Spec.Template.DeepCopy()
		template.Spec.Class.Name = class
		template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey] = "hash-of-" + class
		g.sets = append(g.sets, &v1alpha1.MachineSet{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "pool-" + class, UID: types.UID("pool-" + class),
				CreationTimestamp: before(time.Duration(10-revision) * time.Hour),
				Annotations:       map[string]string{v1alpha1.AnnotationKeyRevision: strconv.FormatInt(revision, 10)},
				OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(g.deployment, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))},
			},
			Spec:   v1alpha1.MachineSetSpec{Replicas: asked, Template: template},
			Status: v1alpha1.MachineSetStatus{Replicas: asked, AvailableReplicas: available},
		})
	}
}

func (g *given) set(class string) *v1alpha1.MachineSet {
	for _, set := range g.sets {
		if set.Name == "pool-"+class {
			return set
		}
	}
	panic("no set of class " + class)
}

// has adds machines to the set of a class.
func has(class string, n int, phase v1alpha1.MachinePhase, changes ...func(*v1alpha1.Machine)) change {
	return func(g *given) {
		for range n {
			machine := &v1alpha1.Machine{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: fmt.Sprintf("pool-%s-%d", class, len(g.machines)),
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g.set(class), v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))},
				},
				Spec:   v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}},
				Status: v1alpha1.MachineStatus{CurrentStatus: v1alpha1.CurrentStatus{Phase: phase}},
			}
			for _, change := range changes {
				change(machine)
			}
			g.machines = append(g.machines, machine)
		}
	}
}

// lastOperation sets the last operation of a machine. It is a deletion if the machine is being deleted.
func lastOperation(ago time.Duration, state v1alpha1.MachineState, code, description string) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Status.LastOperation = v1alpha1.LastOperation{State: state, ErrorCode: code, Description: description, LastUpdateTime: before(ago), Type: v1alpha1.MachineOperationCreate}
		if m.DeletionTimestamp != nil {
			m.Status.LastOperation.Type = v1alpha1.MachineOperationDelete
		}
	}
}

func leaves(ago time.Duration) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.DeletionTimestamp, m.Finalizers = ptr.To(before(ago)), []string{v1alpha1.FinalizerMCM}
	}
}

// rolls changes the class to b and stops in the middle of the rollout: one new machine is being
// created and one old machine is being deleted.
func rolls(g *given) {
	g.deployment.Spec.Template.Spec.Class.Name = "b"
	g.set("a").Spec.Replicas, g.set("a").Status = 2, v1alpha1.MachineSetStatus{Replicas: 3, AvailableReplicas: 2}
	g.machines = g.machines[:2]
	hasSet("b", 2, 2, 1)(g)
	has("b", 1, v1alpha1.MachineRunning)(g)
	counts(2, 3, 5)(g)
	progress(v1alpha1.ConditionTrue, "MachineSetUpdated", `MachineSet "pool-b" is progressing.`)(g)
}

// inPlace selects the strategy that updates nodes in place.
func inPlace(g *given) {
	none := intstr.FromInt32(0)
	g.deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: &none}, OrchestrationType: v1alpha1.OrchestrationTypeAuto,
		},
	}
	g.set("a").Labels = map[string]string{v1alpha1.LabelKeyMachineSetScaleUpDisabled: "true"}
}

// updates sets the progress of the update of a machine's node.
func updates(reason string) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: before(time.Minute)},
		}
	}
}

func counts(updated, available, exist int32) change {
	return func(g *given) {
		s := &g.deployment.Status
		s.UpdatedReplicas, s.AvailableReplicas, s.Replicas = updated, available, exist
	}
}

func progress(status v1alpha1.ConditionStatus, reason, message string) change {
	return hasCondition(v1alpha1.MachineDeploymentProgressing, status, reason, message)
}

func hasCondition(kind v1alpha1.MachineDeploymentConditionType, status v1alpha1.ConditionStatus, reason, message string) change {
	return func(g *given) {
		g.deployment.Status.Conditions = append(g.deployment.Status.Conditions, v1alpha1.MachineDeploymentCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
			LastUpdateTime: before(4 * time.Minute), LastTransitionTime: before(5 * time.Minute),
		})
	}
}

func due(seconds int32) change {
	return func(g *given) { g.deployment.Spec.ProgressDeadlineSeconds = &seconds }
}

func declared(do func(*v1alpha1.MachineDeployment)) change {
	return func(g *given) { do(g.deployment) }
}

// named sets the provider ID of a machine.
func named(m *v1alpha1.Machine) { m.Spec.ProviderID = "cloud:///" + m.Name }

// backOff is the event of a set that waits because its machines fail.
func backOff(set string, times int, ago time.Duration, last string) corev1.Event {
	event := corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "MachineSet", Name: set}, Reason: "BackOff", LastTimestamp: before(ago),
		Message: fmt.Sprintf("Machines failed before they joined, %d times in a row: the next are created in 40s at the earliest", times),
	}
	event.Annotations = map[string]string{v1alpha1.EventAnnotationUntil: noon.Add(40*time.Second - ago).Format(time.RFC3339)}
	if last != "" {
		event.Annotations[v1alpha1.EventAnnotationObjects] = last
		event.Message += fmt.Sprintf(". The last to fail was %s: Machine %s failed to join the cluster in 20 minutes.", last, last)
	}
	return event
}

// drained makes the nodes of machines empty.
func drained(machines ...string) change { return at(v1alpha1.StepDeleteInstance, "", machines...) }

// at sets the step that the deletion of machines has reached, with a cause.
func at(step, cause string, machines ...string) change {
	return func(g *given) {
		for _, name := range machines {
			event := corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Machine", Name: name}, LastTimestamp: before(10 * time.Second)}
			event.Annotations = map[string]string{v1alpha1.EventAnnotationStep: step}
			if cause != "" {
				event.Annotations[v1alpha1.EventAnnotationCause] = cause
			}
			g.around.Events = append(g.around.Events, event)
		}
	}
}
