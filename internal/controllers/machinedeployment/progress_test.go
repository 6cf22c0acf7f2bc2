package machinedeployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestRollout_IgnoresPreservedMachines checks that a rollout completes although its old set retains a
// preserved machine, and remains complete when that machine is deleted.
func TestRollout_IgnoresPreservedMachines(t *testing.T) {
	old, current := fixture.Set("a", 0, fixture.WithUID, fixture.Reports(1, 0), fixture.PreservedFailed(1)), fixture.Set("b", 2, fixture.WithUID)
	held := fixture.Member(old, "held")
	held.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	held.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(time.Hour)}
	held.Finalizers = []string{v1alpha1.FinalizerMCM}
	s := newServer(fixture.Deployment(2, fixture.Rolling("0", "1"), fixture.OfClass("b")), old, current, held)
	over := func(when string) {
		t.Helper()
		s.pass(t)
		s.pass(t)
		if got := s.progress().Reason; got != v1alpha1.DeploymentReasonComplete || nodeWrites(s) > 0 {
			t.Errorf("%s: progress %s, %d nodes marked", when, got, nodeWrites(s))
		}
	}
	over("while the machine is preserved")
	must(s.live.Delete(t.Context(), held)) // like its set after the expiry
	over("while the machine is deleted")
	held.Finalizers = nil
	must(s.live.Patch(t.Context(), held, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
	s.setSet(t, "pool-a", fixture.Reports(0, 0))
	over("gone")
}

// TestRollout_IgnoresHealthyPreservedMachine checks a preserved machine that is healthy and does not
// count.
func TestRollout_IgnoresHealthyPreservedMachine(t *testing.T) {
	old, current := fixture.Set("a", 0, fixture.WithUID, fixture.Reports(1, 1), fixture.OfRevision("1")), fixture.Set("b", 3, fixture.WithUID, fixture.OfRevision("2"))
	held := fixture.Member(old, "held")
	held.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
	held.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(time.Hour)}
	s := newServer(fixture.Deployment(3, fixture.Rolling("1", "1"), fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) {
		d.Spec.RevisionHistoryLimit = ptr.To(int32(0))
	}), old, current, held, fixture.Set("0", 0, fixture.WithUID))
	s.Target = nil
	s.setSet(t, "pool-b", fixture.Reports(3, 2))
	s.pass(t)
	if got := s.progress().Reason; got == v1alpha1.DeploymentReasonComplete || len(s.all()) != 3 {
		t.Errorf("progress %s with %d sets although a new machine is missing", got, len(s.all()))
	}
	s.setSet(t, "pool-b", fixture.Reports(3, 3))
	s.pass(t)
	if got := s.progress().Reason; got != v1alpha1.DeploymentReasonComplete {
		t.Errorf("progress %s", got)
	}
	sets := s.all()
	if set, ok := sets["pool-0"]; ok && set.DeletionTimestamp.IsZero() || sets["pool-a"] == nil {
		t.Errorf("%d sets remain in the history", len(sets))
	}
}

// TestRollout_WaitsForOtherMachines checks that a rollout waits for machines that are not preserved, also next to a
// preserved machine.
func TestRollout_WaitsForOtherMachines(t *testing.T) {
	old, current := fixture.Set("a", 0, fixture.WithUID, fixture.Reports(2, 0), fixture.PreservedFailed(1)), fixture.Set("b", 2, fixture.WithUID)
	held := fixture.Member(old, "held")
	held.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
	s := newServer(fixture.Deployment(2, fixture.Rolling("0", "1"), fixture.OfClass("b")), old, current, held, fixture.Member(old, "other"))
	s.pass(t)
	if got := s.progress().Reason; got == v1alpha1.DeploymentReasonComplete {
		t.Errorf("progress %s although an old machine remains", got)
	}
}

// TestMachineDeployment_Freeze checks that the deployment reports frozen sets, and passes on the annotation to unfreeze them.
func TestMachineDeployment_Freeze(t *testing.T) {
	freeze := func(set *v1alpha1.MachineSet) { set.Labels[v1alpha1.LabelKeyFreeze] = "True" }
	s := newServer(fixture.Deployment(3), fixture.Set("a", 3, fixture.WithUID, freeze))
	s.Target = nil
	frozenCondition := func() v1alpha1.MachineDeploymentCondition {
		for _, c := range s.deployment().Status.Conditions {
			if c.Type == v1alpha1.MachineDeploymentFrozen {
				return c
			}
		}
		return v1alpha1.MachineDeploymentCondition{}
	}
	s.pass(t)
	if c := frozenCondition(); s.deployment().Labels[v1alpha1.LabelKeyFreeze] != "True" || c.Status != "True" || c.Reason != "MachineDeploymentStateSync" {
		t.Errorf("labels %v, condition %+v", s.deployment().Labels, c)
	}
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetFrozen, Status: v1alpha1.ConditionTrue, Reason: "OverShootingReplicaCount"}}
	})
	s.pass(t)
	if c := frozenCondition(); c.Status != "True" || c.Reason != "OverShootingReplicaCount" {
		t.Errorf("condition %+v, want the reason of the set", c)
	}
	s.change(func(d *v1alpha1.MachineDeployment) { d.Annotations[v1alpha1.AnnotationKeyUnfreeze] = "please" })
	s.pass(t)
	if got := s.only(t).Annotations[v1alpha1.AnnotationKeyUnfreeze]; got != "True" {
		t.Errorf("annotation of the set: %q", got)
	}
	if got, ok := s.deployment().Annotations[v1alpha1.AnnotationKeyUnfreeze]; ok {
		t.Errorf("annotation of the deployment: %q", got)
	}
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) {
		delete(set.Labels, v1alpha1.LabelKeyFreeze)
		delete(set.Annotations, v1alpha1.AnnotationKeyUnfreeze)
	})
	s.pass(t)
	if c := frozenCondition(); s.deployment().Labels[v1alpha1.LabelKeyFreeze] != "" || c.Type != "" {
		t.Errorf("labels %v, condition %+v", s.deployment().Labels, c)
	}
}

// TestRollout_DeadlineIsScheduled checks that a pass is scheduled for the deadline.
func TestRollout_DeadlineIsScheduled(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](600) }), fixture.Set("a", 3))
	s.Target = nil
	if after := s.pass(t).RequeueAfter; after < 600*time.Second || after > 602*time.Second {
		t.Errorf("the next pass is due in %s", after)
	}
}

// TestMachineDeployment_UnfreezesAllSets checks that old sets without replicas are also unfrozen, and that the
// deployment is reported as frozen until then.
func TestMachineDeployment_UnfreezesAllSets(t *testing.T) {
	freeze := func(set *v1alpha1.MachineSet) { set.Labels[v1alpha1.LabelKeyFreeze] = isTrue }
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: isTrue}
	}), fixture.Set("a", 0, fixture.WithUID, freeze), fixture.Set("b", 3, fixture.WithUID, freeze), fixture.Set("0", 0, fixture.WithUID))
	s.Target = nil
	s.pass(t)
	for name, want := range map[string]string{"pool-a": isTrue, "pool-b": isTrue, "pool-0": ""} {
		if got := s.all()[name].Annotations[v1alpha1.AnnotationKeyUnfreeze]; got != want {
			t.Errorf("%s: annotation %q, want %q", name, got, want)
		}
	}
	if _, exists := s.deployment().Annotations[v1alpha1.AnnotationKeyUnfreeze]; exists {
		t.Error("the annotation was not removed")
	}
}
