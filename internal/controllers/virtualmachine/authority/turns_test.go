package authority

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestBusy: who counts as leaving or entering a host.
func TestBusy(t *testing.T) {
	migrating := func(phase v1alpha1.MigrationPhase, from, to string) v1alpha1.VirtualMachine {
		vm := v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}}
		vm.Status.ActivePodName = "a-1"
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
			Phase: phase, SourcePodName: "a-1", SourceNodeName: from, TargetPodName: "a-2", TargetNodeName: to,
		}
		return vm
	}
	deleted := migrating(v1alpha1.MigrationCopying, "host-1", "")
	deleted.DeletionTimestamp = &metav1.Time{}
	deleted.DeletionTimestamp.Time = metav1.Now().Time
	idle := v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}}
	a, b := types.NamespacedName{Namespace: "shop", Name: "a"}, types.NamespacedName{Namespace: "shop", Name: "b"}
	now := time.Now()
	cases := map[string]struct {
		vm    v1alpha1.VirtualMachine
		given map[types.NamespacedName]turn
		but   types.NamespacedName
		want  int
		left  int // reservations
	}{
		"it leaves":                    {vm: migrating(v1alpha1.MigrationCopying, "host-1", "host-2"), but: b, want: 1},
		"it enters":                    {vm: migrating(v1alpha1.MigrationCopying, "host-2", "host-1"), but: b, want: 1},
		"it is about to leave":         {vm: migrating(v1alpha1.MigrationPreparing, "host-1", ""), but: b, want: 1},
		"it is the one that asks":      {vm: migrating(v1alpha1.MigrationCopying, "host-1", ""), but: a},
		"it is elsewhere":              {vm: migrating(v1alpha1.MigrationCopying, "host-2", "host-3"), but: b},
		"it has left":                  {vm: migrating(v1alpha1.MigrationSucceeded, "host-1", "host-2"), but: b},
		"it failed":                    {vm: migrating(v1alpha1.MigrationFailed, "host-1", "host-2"), but: b},
		"it is being deleted":          {vm: deleted, but: b},
		"its target is reserved":       {vm: idle, given: map[types.NamespacedName]turn{a: {"host-1", "a-2", now}}, but: b, want: 1, left: 1},
		"it is reserved from another":  {vm: idle, given: map[types.NamespacedName]turn{a: {"host-2", "a-2", now}}, but: b, left: 1},
		"a reservation that is stored": {vm: migrating(v1alpha1.MigrationFailed, "host-1", ""), given: map[types.NamespacedName]turn{a: {"host-1", "a-2", now}}, but: b},
		"an earlier record is stored":  {vm: migrating(v1alpha1.MigrationFailed, "host-1", ""), given: map[types.NamespacedName]turn{a: {"host-1", "a-3", now}}, but: b, want: 1, left: 1},
		"one that was never shown":     {vm: idle, given: map[types.NamespacedName]turn{a: {"host-1", "a-2", now.Add(-time.Hour)}}, but: b},
		"a reservation of one gone":    {vm: idle, given: map[types.NamespacedName]turn{b: {"host-1", "b-2", now}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			given := &turns{given: c.given}
			if got := given.busy([]v1alpha1.VirtualMachine{c.vm}, "host-1", c.but, now); got != c.want || len(given.given) != c.left {
				t.Errorf("%d are busy, and %v left; want %d", got, given.given, c.want)
			}
		})
	}
}
