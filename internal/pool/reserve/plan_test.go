package reserve_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestPlan_IsNilWithoutReserve(t *testing.T) {
	t.Parallel()
	s := reserve.Sets{Deployment: deployment(3, ""), Current: setWith("b", 3, 0), Old: []*v1alpha1.MachineSet{setWith("a", 1, 0)}}
	if got := reserve.Plan(s); got != nil {
		t.Errorf("got %v, want nil", got)
	}
}

// A deployment that no longer requests a reserve leaves that of an old set alone as long as the set has the replicas.
func TestPlan_OldSetKeepsReserveThatIsNoLongerRequested(t *testing.T) {
	t.Parallel()
	old, current := setWith("a", 3, 2), setWith("b", 2, 0)
	shares := reserve.Plan(reserve.Sets{Deployment: deployment(3, ""), Current: current, Old: []*v1alpha1.MachineSet{old}})
	if shares[old] != 2 || shares[current] != 0 {
		t.Errorf("the old set has %d and the current one %d, want 2 and 0", shares[old], shares[current])
	}
}

func TestPlan_WithoutCurrentSet(t *testing.T) {
	t.Parallel()
	old := setWith("a", 5, 2)
	shares := reserve.Plan(reserve.Sets{Deployment: deployment(3, "2"), Old: []*v1alpha1.MachineSet{old}})
	if shares[old] != 2 || shares[nil] != 0 {
		t.Errorf("the old set has %d and a new one %d, want 2 and 0", shares[old], shares[nil])
	}
}

// If Machines move between sets, an old set keeps as many members of its reserve as it has.
func TestPlan_InPlaceUpdateCountsMembersThatExist(t *testing.T) {
	t.Parallel()
	old, current := setWith("a", 5, 2), setWith("b", 3, 0)
	leaving := machine(old, "leaving", 3, reserve.NoSchedule)
	leaving.DeletionTimestamp = &metav1.Time{Time: fixture.Noon}
	shares := reserve.Plan(reserve.Sets{
		Deployment: deployment(3, "2"), Current: current, Old: []*v1alpha1.MachineSet{old},
		Machines: map[string][]*v1alpha1.Machine{old.Name: {
			machine(old, "a", 1, reserve.None), machine(old, "b", 2, reserve.NoSchedule), leaving,
		}},
	})
	if shares[old] != 1 || shares[current] != 2 {
		t.Errorf("the old set has %d and the current one %d, want 1 and 2", shares[old], shares[current])
	}
}

// An old set loses members of its reserve first, except when a Machine of its own that serves Pods was named.
func TestPlan_NamedMachineReplacesMemberThatOldSetLoses(t *testing.T) {
	t.Parallel()
	old, current := setWith("a", 5, 2), setWith("b", 1, 1)
	for reason, test := range map[string]struct {
		named *v1alpha1.Machine
		want  int32
	}{
		"a Machine that serves Pods": {machine(old, "m", 0, reserve.None), 2},
		"a member of the reserve":    {machine(old, "m", 0, reserve.NoSchedule), 1},
		"a Machine of another set":   {machine(current, "m", 0, reserve.None), 1},
	} {
		shares := reserve.Plan(reserve.Sets{
			Deployment: deployment(2, "2"), Current: current, Old: []*v1alpha1.MachineSet{old},
			Planned: map[*v1alpha1.MachineSet]int32{old: 4}, Named: []*v1alpha1.Machine{test.named},
		})
		if shares[old] != test.want || shares[current] != 1 {
			t.Errorf("%s: the old set has %d and the current one %d, want %d and 1", reason, shares[old], shares[current], test.want)
		}
	}
}

func TestOf_IsNilWithoutReserve(t *testing.T) {
	t.Parallel()
	set := setWith("a", 1, 0)
	members := reserve.Of(set, []*v1alpha1.Machine{machine(set, "a", 0, reserve.None)}, func(*v1alpha1.Machine) bool { return true })
	if members != nil {
		t.Errorf("got %v, want nil", members)
	}
}

func TestMembers_NewMembersIgnoresFailedMachines(t *testing.T) {
	t.Parallel()
	set := setWith("a", 5, 2)
	machines := []*v1alpha1.Machine{machine(set, "a", 0, reserve.None), machine(set, "b", 1, reserve.None)}
	for _, name := range []string{"c", "d"} {
		failed := machine(set, name, 2, reserve.None)
		failed.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
		machines = append(machines, failed)
	}
	if got := (reserve.Members{}).NewMembers(set, machines, 2); got != 1 {
		t.Errorf("of 2 new machines, %d are created as members, want 1", got)
	}
}
