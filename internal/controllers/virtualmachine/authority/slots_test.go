package authority

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestSlots_InUse checks which VMs count as leaving or entering a host.
func TestSlots_InUse(t *testing.T) {
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
		vm       v1alpha1.VirtualMachine
		reserved map[types.NamespacedName]slot
		except   types.NamespacedName
		want     int
		left     int // remaining reservations
	}{
		"it leaves":              {vm: migrating(v1alpha1.MigrationCopying, "host-1", "host-2"), except: b, want: 1},
		"it enters":              {vm: migrating(v1alpha1.MigrationCopying, "host-2", "host-1"), except: b, want: 1},
		"it is about to leave":   {vm: migrating(v1alpha1.MigrationPreparing, "host-1", ""), except: b, want: 1},
		"it is excluded":         {vm: migrating(v1alpha1.MigrationCopying, "host-1", ""), except: a},
		"it uses other hosts":    {vm: migrating(v1alpha1.MigrationCopying, "host-2", "host-3"), except: b},
		"it has left":            {vm: migrating(v1alpha1.MigrationSucceeded, "host-1", "host-2"), except: b},
		"it failed":              {vm: migrating(v1alpha1.MigrationFailed, "host-1", "host-2"), except: b},
		"it is being deleted":    {vm: deleted, except: b},
		"its target is reserved": {vm: idle, reserved: map[types.NamespacedName]slot{a: {"host-1", "a-2", now}}, except: b, want: 1, left: 1},
		"its target is reserved from another host": {vm: idle, reserved: map[types.NamespacedName]slot{a: {"host-2", "a-2", now}}, except: b, left: 1},
		"a reservation that is stored":             {vm: migrating(v1alpha1.MigrationFailed, "host-1", ""), reserved: map[types.NamespacedName]slot{a: {"host-1", "a-2", now}}, except: b},
		"an earlier record is stored":              {vm: migrating(v1alpha1.MigrationFailed, "host-1", ""), reserved: map[types.NamespacedName]slot{a: {"host-1", "a-3", now}}, except: b, want: 1, left: 1},
		"an expired reservation":                   {vm: idle, reserved: map[types.NamespacedName]slot{a: {"host-1", "a-2", now.Add(-time.Hour)}}, except: b},
		"a reservation that expires now":           {vm: idle, reserved: map[types.NamespacedName]slot{a: {"host-1", "a-2", now.Add(-unseenTimeout)}}, except: b},
		"a reservation of a deleted VM":            {vm: idle, reserved: map[types.NamespacedName]slot{b: {"host-1", "b-2", now}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			slots := &slots{reserved: c.reserved}
			if got := slots.inUse([]v1alpha1.VirtualMachine{c.vm}, "host-1", c.except, now); got != c.want || len(slots.reserved) != c.left {
				t.Errorf("%d slots in use and %v left, want %d in use", got, slots.reserved, c.want)
			}
		})
	}
}
