package machineset

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

func readySince(at time.Time) change {
	return func(m *v1alpha1.Machine) {
		m.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
	}
}

func phaseSince(at time.Time) change {
	return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.LastUpdateTime = metav1.NewTime(at) }
}

func TestMachineSet_MinReadySeconds(t *testing.T) {
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	for reason, test := range map[string]struct {
		machine   *v1alpha1.Machine
		enforced  bool
		available int32
		look      time.Duration
	}{
		"not enforced":                        {machine("a", readySince(noon)), false, 1, 0},
		"not long enough":                     {machine("a", readySince(ago(20*time.Second))), true, 0, 40 * time.Second},
		"exactly long enough":                 {machine("a", readySince(ago(time.Minute))), true, 1, 0},
		"the node's time, not the phase's":    {machine("a", readySince(ago(time.Hour)), phaseSince(noon)), true, 1, 0},
		"the node's clock is an hour ahead":   {machine("a", readySince(noon.Add(time.Hour)), phaseSince(ago(50*time.Second))), true, 0, 10 * time.Second},
		"the node's clock was an hour ahead":  {machine("a", readySince(noon), phaseSince(ago(time.Hour))), true, 1, 0},
		"no node: time of the phase":          {machine("a", phase(v1alpha1.MachineAvailable), phaseSince(ago(50*time.Second))), true, 0, 10 * time.Second},
		"only Running machines are available": {machine("a", phase(v1alpha1.MachinePending), readySince(ago(time.Second))), true, 0, 0},
	} {
		t.Run(reason, func(t *testing.T) {
			set := newSet(1, func(set *v1alpha1.MachineSet) { set.Spec.MinReadySeconds = 60 })
			f := scale.Facts{Set: set, Owned: []*v1alpha1.Machine{test.machine}, Now: noon, EnforceMinReady: test.enforced}
			status := statusOf(f)
			if status.AvailableReplicas != test.available {
				t.Errorf("%d available, want %d", status.AvailableReplicas, test.available)
			}
			if phase := test.machine.Status.CurrentStatus.Phase; (phase == v1alpha1.MachineRunning) != (status.ReadyReplicas == 1) {
				t.Errorf("%d ready", status.ReadyReplicas)
			}
			if got := scale.RequeueAfter(f, f.NotBefore); got != test.look {
				t.Errorf("next pass in %s, want %s", got, test.look)
			}
		})
	}
}

// TestMachineSet_MinReadySecondsWithClockStep checks clocks that are behind: of this process after a step, or compared with a previous
// process. A Machine that became ready in the future waits no longer than one that became ready just now.
func TestMachineSet_MinReadySecondsWithClockStep(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{0: 0, 60: time.Minute} {
		set := newSet(1, func(set *v1alpha1.MachineSet) { set.Spec.MinReadySeconds = seconds })
		later := machine("a", readySince(noon.Add(time.Hour)), phaseSince(noon.Add(time.Hour)))
		f := scale.Facts{Set: set, Owned: []*v1alpha1.Machine{later}, Now: noon, EnforceMinReady: true}
		if got, available := scale.RequeueAfter(f, f.NotBefore), statusOf(f).AvailableReplicas; got != want || (available == 1) != (want == 0) {
			t.Errorf("minReadySeconds %d: %d available, next pass in %s, want %s", seconds, available, got, want)
		}
	}
}

func TestRequeueAfter_IsEarliestDeadline(t *testing.T) {
	failed := phase(v1alpha1.MachineFailed)
	f := scale.Facts{
		Set: newSet(3, func(set *v1alpha1.MachineSet) { set.Spec.MinReadySeconds = 60 }), Now: noon, EnforceMinReady: true,
		Owned: []*v1alpha1.Machine{
			machine("a", readySince(noon.Add(-20*time.Second))), machine("b", failed, preservedUntil(noon.Add(30*time.Second))),
			machine("c", failed, preservedUntil(noon.Add(-time.Hour))), machine("d", deleting, readySince(noon)),
		},
	}
	if got := scale.RequeueAfter(f, f.NotBefore); got != 30*time.Second {
		t.Errorf("got %s, want the end of the preservation", got)
	}
	f.NotBefore = noon.Add(5 * time.Second)
	if got := scale.RequeueAfter(f, f.NotBefore); got != 5*time.Second {
		t.Errorf("got %s, want the end of the delay", got)
	}
}

func TestMachineSet_EmptySelectorAdoptsNothing(t *testing.T) {
	s := newServer(newSet(0, func(set *v1alpha1.MachineSet) { set.Spec.Selector = &metav1.LabelSelector{} }), machine("theirs", ownerless))
	c := s.newController()
	pass(t, c)
	if m := s.all()["theirs"]; len(m.OwnerReferences) > 0 || !m.DeletionTimestamp.IsZero() {
		t.Errorf("the other owner's machine was changed: %+v", m.ObjectMeta)
	}
	conditions := s.set().Status.Conditions
	if len(conditions) != 1 || conditions[0].Reason != "InvalidSpec" || conditions[0].Message[:14] != "spec.selector:" {
		t.Errorf("conditions: %+v", conditions)
	}
}
