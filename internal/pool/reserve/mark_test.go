package reserve_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestRank_DeletesReserveFirst(t *testing.T) {
	t.Parallel()
	set := setWith("a", 2, 1)
	for mark, want := range map[reserve.Mark]int{reserve.None: 1, reserve.NoSchedule: 0, reserve.NoExecute: 0} {
		if got := reserve.Rank(machine(set, "m", 0, mark)); got != want {
			t.Errorf("mark %q: rank %d, want %d", mark, got, want)
		}
	}
}

func TestMembers_MarkFor(t *testing.T) {
	t.Parallel()
	evicting := fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyExcessNoExecute: "true"}
	})
	leaves := func(m *v1alpha1.Machine) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }
	fails := func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed }
	stays := func(*v1alpha1.Machine) {}
	for reason, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		member     bool
		is         reserve.Mark
		change     func(*v1alpha1.Machine)
		want       reserve.Mark
	}{
		"a member":                            {fixture.Deployment(3), true, reserve.None, stays, reserve.NoSchedule},
		"a member whose Pods are evicted":     {evicting, true, reserve.NoSchedule, stays, reserve.NoExecute},
		"not a member":                        {evicting, false, reserve.NoExecute, stays, reserve.None},
		"a member that failed keeps its mark": {evicting, true, reserve.NoSchedule, fails, reserve.NoSchedule},
		"a deleted member keeps its mark":     {evicting, true, reserve.None, leaves, reserve.None},
		"another deleted one keeps its mark":  {evicting, false, reserve.NoSchedule, leaves, reserve.NoSchedule},
		"another value does not request evicting": {fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) {
			d.Annotations = map[string]string{v1alpha1.AnnotationKeyExcessNoExecute: "yes"}
		}), true, reserve.None, stays, reserve.NoSchedule},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			set := fixture.Set("a", 3)
			reserve.Assign(set, test.deployment, 1)
			m := machine(set, "m", 0, test.is)
			test.change(m)
			if got := (reserve.Members{m.UID: test.member}).MarkFor(set, m); got != test.want {
				t.Errorf("mark %q, want %q", got, test.want)
			}
		})
	}
}

func TestAssign_RemovesAnnotationsWithoutExcess(t *testing.T) {
	t.Parallel()
	evicting := fixture.Deployment(3)
	evicting.Annotations = map[string]string{v1alpha1.AnnotationKeyExcessNoExecute: "true"}
	keys := func(set *v1alpha1.MachineSet) (excess, evicts bool) {
		_, excess = set.Annotations[v1alpha1.AnnotationKeyExcessReplicas]
		_, evicts = set.Annotations[v1alpha1.AnnotationKeyExcessNoExecute]
		return excess, evicts
	}
	set := fixture.Set("a", 3)
	for _, step := range []struct {
		deployment     *v1alpha1.MachineDeployment
		number         int32
		excess, evicts bool
	}{
		{evicting, 0, false, false}, {evicting, 1, true, true}, {fixture.Deployment(3), 2, true, false}, {evicting, 2, true, true}, {evicting, 0, false, false},
	} {
		reserve.Assign(set, step.deployment, step.number)
		if excess, evicts := keys(set); excess != step.excess || evicts != step.evicts || reserve.OfSet(set) != step.number {
			t.Errorf("%d excess replicas: the set has %v", step.number, set.Annotations)
		}
	}
}
