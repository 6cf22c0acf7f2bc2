package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// TestAutoPreserve checks that a set preserves the newest of its failed Machines up to its maximum, and that no
// other Machine is created or deleted as a result.
func TestAutoPreserve(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	made := 0
	is := func(name string, phase v1alpha1.MachinePhase, changes ...func(*v1alpha1.Machine)) *v1alpha1.Machine {
		made++
		m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), Labels: map[string]string{"pool": "a"},
			CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(made) * time.Minute)),
		}}
		m.Status.CurrentStatus.Phase = phase
		for _, change := range changes {
			change(m)
		}
		return m
	}
	with := func(key, value string) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value) }
	}
	const running, failed, own, last = v1alpha1.MachineRunning, v1alpha1.MachineFailed, v1alpha1.AnnotationKeyPreserve, v1alpha1.AnnotationKeyLastAppliedPreserve
	auto := with(own, preservation.AutoPreserved)
	expired := func(m *v1alpha1.Machine) { m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon} }
	until := func(hours time.Duration) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(hours * time.Hour)}
		}
	}
	for name, test := range map[string]struct {
		machines []*v1alpha1.Machine
		max      int32
		replicas int32
		stale    bool
		want     []string
	}{
		"none desired":                 {[]*v1alpha1.Machine{is("a", running), is("b", failed)}, 0, 2, false, []string{"delete b"}},
		"one place, the newest":        {[]*v1alpha1.Machine{is("a", failed), is("b", failed), is("c", running)}, 1, 3, false, []string{"delete a", "preserve b"}},
		"places for all":               {[]*v1alpha1.Machine{is("a", failed), is("b", failed)}, 5, 2, false, []string{"preserve a", "preserve b"}},
		"one place, taken":             {[]*v1alpha1.Machine{is("a", failed, auto), is("b", failed)}, 1, 2, false, []string{"delete b"}},
		"fewer places":                 {[]*v1alpha1.Machine{is("a", failed, auto), is("b", failed, auto)}, 1, 2, false, []string{"give up a"}},
		"the first to expire":          {[]*v1alpha1.Machine{is("a", failed, auto, until(4)), is("b", failed, auto, until(3)), is("c", failed, auto)}, 2, 3, false, []string{"give up b"}},
		"no places any more":           {[]*v1alpha1.Machine{is("a", failed, auto), is("b", failed, auto)}, 0, 2, false, []string{"give up a", "give up b"}},
		"a negative number is none":    {[]*v1alpha1.Machine{is("a", failed)}, -1, 1, false, []string{"delete a"}},
		"a user's takes no place":      {[]*v1alpha1.Machine{is("a", failed, with(own, "now")), is("b", failed)}, 1, 2, false, []string{"preserve b"}},
		"a user forbids it":            {[]*v1alpha1.Machine{is("a", failed, with(own, "false"))}, 1, 1, false, []string{"delete a"}},
		"a user forbids it for a node": {[]*v1alpha1.Machine{is("a", failed, with(last, "false"))}, 1, 1, false, []string{"delete a"}},
		"an invalid annotation":        {[]*v1alpha1.Machine{is("a", failed, with(own, "yes"))}, 1, 1, false, []string{"preserve a"}},
		"preserved before, expired":    {[]*v1alpha1.Machine{is("a", failed, expired)}, 1, 1, false, []string{"delete a"}},
		"not failed":                   {[]*v1alpha1.Machine{is("a", v1alpha1.MachineUnknown), is("b", v1alpha1.MachineCrashLoopBackOff)}, 2, 2, false, nil},
		"scaled down":                  {[]*v1alpha1.Machine{is("a", failed), is("b", running)}, 1, 1, false, []string{"delete a"}},
		"too few: nothing is deleted":  {[]*v1alpha1.Machine{is("a", failed)}, 1, 2, false, []string{"create 1", "preserve a"}},
		"the cache is old":             {[]*v1alpha1.Machine{is("a", failed), is("b", failed, auto)}, 2, 2, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			set := &v1alpha1.MachineSet{}
			set.Spec.Replicas, set.Spec.AutoPreserveFailedMachineMax = test.replicas, test.max
			set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}}
			var got []string
			for _, op := range Plan(Facts{Set: set, Owned: test.machines, Current: true, PreservationsCurrent: !test.stale, Now: noon.Add(time.Hour)}) {
				switch op.Action {
				case Create:
					got = append(got, "create 1")
				default:
					got = append(got, string(op.Action)+" "+op.Machine.Name)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}
