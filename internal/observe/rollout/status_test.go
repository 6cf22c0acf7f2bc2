package rollout

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/golden"
)

var (
	running    = v1alpha1.MachineRunning
	pending    = v1alpha1.MachinePending
	crashes    = v1alpha1.MachineCrashLoopBackOff
	leaving    = v1alpha1.MachineTerminating
	failed     = v1alpha1.MachineStateFailed
	processing = v1alpha1.MachineStateProcessing
)

func all(changes ...change) change {
	return func(g *given) {
		for _, change := range changes {
			change(g)
		}
	}
}

func isPaused(d *v1alpha1.MachineDeployment) { d.Spec.Paused = true }

const noCapacity = "Cloud provider message - machine codes error: code = [ResourceExhausted] message = [zone-1 has no m5.large left]"

// situations are states that a user may see.
var situations = map[string]struct {
	given change
	want  Outcome
}{
	"rolled-out":      {func(*given) {}, Complete},
	"none-wanted":     {all(declared(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 0 }), counts(0, 0, 0), func(g *given) { g.machines, g.set("a").Spec.Replicas, g.set("a").Status.AvailableReplicas = nil, 0, 0 }), Complete},
	"in-the-middle":   {all(rolls, has("b", 1, pending), due(600)), Progressing},
	"deadline-passed": {all(rolls, has("b", 1, pending), due(60)), Progressing},
	"not-seen":        {declared(func(d *v1alpha1.MachineDeployment) { d.Generation = 3 }), Progressing},
	"no-set-yet": {declared(func(d *v1alpha1.MachineDeployment) {
		d.Spec.Template.Spec.Class.Name = "b"
		d.Status.UpdatedReplicas = 0
	}), Progressing},
	"paused":             {all(rolls, has("b", 1, running), declared(isPaused)), Progressing},
	"paused-and-done":    {declared(isPaused), Complete},
	"rollback-requested": {all(rolls, declared(func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1} })), Progressing},
	"rollback-before":    {declared(func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{} }), Progressing},
	"being-deleted":      {declared(func(d *v1alpha1.MachineDeployment) { d.DeletionTimestamp = ptr.To(before(time.Minute)) }), Progressing},
	"being-deleted-held": {all(declared(func(d *v1alpha1.MachineDeployment) { d.DeletionTimestamp = ptr.To(before(time.Minute)) }), func(g *given) { g.machines = nil },
		has("a", 1, leaving, leaves(time.Minute), lastOperation(time.Minute, failed, "InvalidArgument", "Cloud provider message - machine codes error: code = [InvalidArgument] message = [providerSpec.zone: must not be empty] Initiate VM deletion")),
		has("a", 1, running)), Progressing},
	"new-one-leaves":    {all(rolls, has("b", 1, leaving, leaves(time.Minute))), Progressing},
	"old-one-just-gone": {counts(3, 3, 4), Progressing},
	"old-set-backs-off": {all(rolls, has("b", 1, crashes, lastOperation(time.Minute, failed, "ResourceExhausted", noCapacity)), func(g *given) {
		g.around.Events = []corev1.Event{backOff("pool-a", 5, 10*time.Second, "")}
	}), Progressing},
	"never-joins": {all(rolls, func(g *given) {
		g.machines, g.set("b").Status = g.machines[:2], v1alpha1.MachineSetStatus{}
		g.around.Events = []corev1.Event{backOff("pool-b", 5, 10*time.Second, "pool-b-9")}
	}), Progressing},
	"no-image": {all(rolls, has("b", 1, crashes, lastOperation(time.Minute, failed, "Unknown", "Cloud provider message - image https://images.example.com/"+strings.Repeat("very-long-", 20)+"name.qcow2: the server returned 404 Not Found"))), Progressing},
	"no-room": {all(rolls, has("b", 1, crashes, lastOperation(2*time.Minute, failed, "Internal", "Cloud provider message - machine codes error: code = [Internal] message = [try later]")),
		has("b", 1, crashes, lastOperation(time.Minute, failed, "ResourceExhausted", noCapacity))), Progressing},
	"unhealthy": {all(rolls, has("b", 1, v1alpha1.MachineUnknown, lastOperation(time.Minute, processing, "", "Machine pool-b-3 is unhealthy - changing MachineState to Unknown."))), Progressing},
	"draining": {all(rolls,
		has("a", 1, leaving, leaves(10*time.Minute), lastOperation(time.Minute, processing, "", "Draining, waiting for pod disruption budget shop/db to allow the eviction of pod db-0. Initiate node drain")),
		has("a", 1, running, leaves(time.Second)),
		has("a", 3, leaving, leaves(time.Minute), lastOperation(time.Minute, processing, "", "Initiate VM deletion"), named), drained("pool-a-5", "pool-a-6", "pool-a-7")), Progressing},
	"provider-keeps": {all(rolls,
		has("a", 1, leaving, leaves(10*time.Minute), lastOperation(10*time.Second, processing, "", "Initiate VM deletion"), named),
		has("a", 2, leaving, leaves(time.Minute), lastOperation(10*time.Second, processing, "", "The provider still has the VM. Initiate VM deletion"), named),
		drained("pool-a-3", "pool-a-4", "pool-a-5"), at(v1alpha1.StepDeleteInstance, v1alpha1.CauseInstanceExists, "pool-a-4", "pool-a-5")), Progressing},
	"not-begun":   {all(rolls, has("a", 1, running, lastOperation(time.Minute, v1alpha1.MachineStateSuccessful, "", "Machine pool-a-3 successfully joined the cluster in 2.8s"), leaves(time.Second))), Progressing},
	"drain-fails": {all(rolls, has("a", 1, leaving, leaves(10*time.Minute), lastOperation(time.Minute, failed, "", "Drain failed due to - error while evicting pod \"db-0\". Initiate node drain"))), Progressing},
	"late": {all(rolls, has("b", 1, crashes, lastOperation(time.Minute, failed, "ResourceExhausted", noCapacity)), due(60), func(g *given) {
		g.deployment.Status.Conditions[0].Status = v1alpha1.ConditionFalse
		g.deployment.Status.Conditions[0].Reason = v1alpha1.DeploymentReasonTimedOut
	}), Late},
	"late-before":   {all(due(60), progress(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonTimedOut, "x"), declared(func(d *v1alpha1.MachineDeployment) { d.Generation = 3 })), Progressing},
	"late-but-done": {all(due(60), progress(v1alpha1.ConditionFalse, v1alpha1.DeploymentReasonTimedOut, "x")), Complete},
	"frozen": {all(rolls, hasCondition(v1alpha1.MachineDeploymentFrozen, v1alpha1.ConditionTrue, "MachineDeploymentStateSync", "MachineSet \"pool-a\" is frozen: more machines exist than it should have."),
		hasCondition("SelectorOverlap", v1alpha1.ConditionTrue, "SelectorOverlap", "spec.selector: the same machines are selected by other."),
		hasCondition(v1alpha1.MachineDeploymentAvailable, v1alpha1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")), Progressing},
	"invalid": {all(progress(v1alpha1.ConditionFalse, "InvalidSpec", "spec.replicas: must not be negative"), declared(func(d *v1alpha1.MachineDeployment) { d.Generation = 3 })), Progressing},
	"invalid-template": {all(progress(v1alpha1.ConditionFalse, "InvalidSpec", "spec.strategy.inPlaceUpdate: Required value"), declared(func(d *v1alpha1.MachineDeployment) {
		d.Generation, d.Spec.Template.Spec.Class.Name = 3, "b"
	})), Progressing},
	"no-manager":       {all(rolls, has("b", 1, ""), func(g *given) { g.around.MachineLease = lease(89 * time.Second) }), Progressing},
	"manager-is-there": {all(rolls, has("b", 1, ""), func(g *given) { g.around.MachineLease = lease(10 * time.Second) }), Progressing},
	"backs-off": {all(rolls, func(g *given) {
		g.machines, g.set("b").Status = g.machines[:2], v1alpha1.MachineSetStatus{}
		g.around.Events = []corev1.Event{backOff("pool-b", 5, 10*time.Second, ""), backOff("pool-b", 4, time.Minute, "")}
	}), Progressing},
	"min-ready": {all(rolls, func(g *given) {
		g.set("b").Spec.MinReadySeconds, g.set("b").Status.ReadyReplicas, g.set("b").Status.AvailableReplicas = 600, 1, 0
		g.machines[2].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: before(time.Minute)}}
	}), Progressing},
	"not-joined":     {all(rolls, has("b", 2, pending, onNode())), Progressing},
	"not-ready":      {all(rolls, has("b", 1, pending, onNode(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "cni plugin not initialized", LastTransitionTime: before(2 * time.Minute)}))), Progressing},
	"not-useful-yet": {all(rolls, has("b", 1, pending, onNode(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: before(2 * time.Minute)}), lastOperation(time.Minute, processing, "", "Creating machine on cloud provider"))), Progressing},
	"late-not-joined": {all(rolls, has("b", 1, pending, onNode()), due(60), func(g *given) {
		g.deployment.Status.Conditions[0].Status = v1alpha1.ConditionFalse
		g.deployment.Status.Conditions[0].Reason = v1alpha1.DeploymentReasonTimedOut
	}), Late},
	"class-refused": {all(rolls, has("a", 1, leaving, leaves(time.Hour), lastOperation(time.Hour, failed, "InvalidArgument", "Cloud provider message - machine codes error: code = [InvalidArgument] message = [providerSpec.zone: must not be empty] Initiate VM deletion"))), Progressing},
	"not-marked":    {all(rolls, hasCondition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "MarkError", "marking node n: forbidden.")), Progressing},
	"blocked": {all(rolls, hasCondition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "FailedCreate", "creating machines: exceeded quota"), func(g *given) {
		g.set("b").Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: "FailedCreate", Message: "creating machines: exceeded quota", LastTransitionTime: before(time.Minute)}}
	}), Progressing},
	"updating": {all(rolls, inPlace, has("a", 1, v1alpha1.MachineInPlaceUpdating, updates(v1alpha1.ReadyForUpdate)), has("a", 1, running, updates(v1alpha1.SelectedForUpdate))), Progressing},
	"update-blocked": {all(rolls, inPlace, has("a", 1, v1alpha1.MachineInPlaceUpdateFailed, updates(v1alpha1.UpdateFailed)), func(g *given) {
		g.deployment.Status.Conditions[0].Reason = v1alpha1.DeploymentReasonUpdateBlocked
		g.deployment.Status.Conditions[0].Message = `MachineSet "pool-b" is progressing, but: machine pool-a-3: the update of its node failed: no space left on device.`
	}), Progressing},
	"away-and-done": {func(g *given) { g.problem = "127.0.0.1:16443: dial: connection refused" }, Progressing},
	"away":          {all(rolls, has("b", 1, pending), func(g *given) { g.problem = "127.0.0.1:16443: dial: connection refused" }), Progressing},
	"preserved": {all(counts(3, 3, 4), func(g *given) { hasSet("old", 0, 0, 0)(g); g.set("old").Status.Replicas = 1 }, has("old", 1, v1alpha1.MachineFailed, func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.PreserveExpiryTime = ptr.To(metav1.NewTime(noon.Add(time.Hour)))
	})), Complete},
	"old-one-left": {all(counts(3, 3, 4), func(g *given) { hasSet("old", 0, 0, 0)(g); g.set("old").Status.Replicas = 1 }, has("old", 1, leaving, leaves(time.Minute))), Progressing},
	"old-ones-do-not-count": {func(g *given) {
		hasSet("old", 0, 0, 1)(g)
		g.set("old").Status.Replicas, g.set("a").Status.AvailableReplicas = 1, 2
		has("old", 1, running, func(m *v1alpha1.Machine) { m.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"} })(g)
		counts(3, 3, 4)(g)
	}, Progressing},
	"scaled-down":  {all(declared(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 2 }), func(g *given) { g.set("a").Spec.Replicas = 2 }, counts(3, 3, 3)), Progressing},
	"letters-only": {all(rolls, has("b", 1, crashes, lastOperation(time.Minute, failed, "", "\x1b[2Jred\nalert\a"))), Progressing},
}

// onNode assigns a node to a machine and copies its conditions.
func onNode(conditions ...corev1.NodeCondition) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Labels, m.Spec.ProviderID, m.Status.Conditions = map[string]string{v1alpha1.NodeLabelKey: "node-of-" + m.Name}, "cloud:///"+m.Name, conditions
	}
}

// lease returns a lease that a manager renewed the given time ago.
func lease(ago time.Duration) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(noon.Add(-ago))
	made := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("manager"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &renewed}}
	made.Namespace, made.Name = "default", v1alpha1.LeaseMachineController
	return made
}

func TestStatus_MatchesGoldenFiles(t *testing.T) {
	for name, tc := range situations {
		t.Run(name, func(t *testing.T) {
			facts := give(tc.given).facts()
			status := StatusOf(facts, noon)
			if status.Outcome != tc.want {
				t.Errorf("outcome %s, want %s", status.Outcome, tc.want)
			}
			text := strings.Join(View(status, noon, 90*time.Second), "\n") + "\n\n" + Line(status) + "\n\n" + Brief(status) + "\n"
			golden.Compare(t, "testdata/"+name+".txt", text)
			for _, r := range strings.ReplaceAll(text, "\n", "") {
				if r < ' ' {
					t.Errorf("character %q reaches the terminal", r)
				}
			}
			if later := Line(StatusOf(facts, noon.Add(time.Second))); later != Line(status) {
				t.Errorf("the line changes although only time has passed:\n%s\n%s", Line(status), later)
			}
		})
	}
}

// TestStatus_EveryGoldenFileIsUsed checks that every golden file belongs to a situation or the history.
func TestStatus_EveryGoldenFileIsUsed(t *testing.T) {
	golden.Only(t, "testdata/*", func(name string) bool {
		name = strings.TrimSuffix(name, ".txt")
		_, used := situations[name]
		return used || name == "history" || name == "revision"
	})
}
