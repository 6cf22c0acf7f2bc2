package scale

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/restore"
)

// TestPlan_RestoredSetWaitsForItsMachines checks that a set that waits adopts Machines, but neither creates nor deletes
// any until all exist and their VMs were looked up.
func TestPlan_RestoredSetWaitsForItsMachines(t *testing.T) {
	restored := func(m *v1alpha1.Machine) { m.Status, m.Spec.ProviderID = v1alpha1.MachineStatus{}, "sim:///"+m.Name }
	const over = "end restore"
	for name, tc := range map[string]struct {
		desired        int32
		waits          time.Duration
		unobserved     bool
		owned, orphans []*v1alpha1.Machine
		want           []string
		missing        int
	}{
		"no machine yet":                       {3, time.Minute, false, nil, nil, nil, 0},
		"some machines":                        {3, time.Minute, false, machines(1), machines(1, ownerless), []string{"adopt m0"}, 0},
		"the last machine":                     {2, time.Minute, false, machines(1), []*v1alpha1.Machine{machine("z", ownerless)}, []string{"adopt z", over}, 0},
		"all machines":                         {2, time.Minute, false, machines(2), nil, []string{over}, 0},
		"all machines, no status yet":          {2, time.Minute, true, machines(2), nil, nil, 0},
		"not all VMs were looked up":           {2, time.Minute, false, []*v1alpha1.Machine{machine("a"), machine("b", restored)}, nil, nil, 0},
		"surplus machines":                     {1, time.Minute, false, []*v1alpha1.Machine{machine("a"), machine("b", restored)}, nil, nil, 0},
		"a failed machine":                     {2, time.Minute, false, machines(1, phase(v1alpha1.MachineFailed)), nil, nil, 0},
		"a machine without a VM":               {1, time.Minute, false, machines(1, phase("")), nil, []string{over}, 0},
		"no replicas":                          {0, time.Minute, false, nil, nil, []string{over}, 0},
		"the time is over":                     {3, 0, false, machines(2), nil, []string{over}, 1},
		"the time is over, no status yet":      {3, 0, true, machines(2), nil, nil, 0},
		"the time is over, VMs are unknown":    {1, 0, false, machines(1, restored), nil, []string{over}, 1},
		"one of its machines is being deleted": {2, time.Minute, false, []*v1alpha1.Machine{machine("a"), machine("b", deleting)}, nil, nil, 0},
	} {
		set := newSet(tc.desired, func(set *v1alpha1.MachineSet) {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyAwaitsRestoreUntil, noon.Add(tc.waits).Format(time.RFC3339))
			if !tc.unobserved {
				set.Status.ObservedGeneration = 1
			}
		})
		f := Facts{Set: set, Owned: tc.owned, Unowned: tc.orphans, Current: true, Now: noon, Overshoot: &Overshoot{}}
		plan := Plan(f)
		var got []string
		missing := 0
		for _, op := range plan {
			if op.Action == EndRestore {
				got, missing = append(got, over), op.Count
			} else {
				got = append(got, brief(t, []Operation{op})...)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || missing != tc.missing {
			t.Errorf("%s: %d missing, want %d; want - got +\n%s", name, missing, tc.missing, diff)
		}
		if after := RequeueAfter(f, time.Time{}); tc.waits > 0 && after != tc.waits {
			t.Errorf("%s: the next pass is in %s", name, after)
		}
		restore.End(set)
		for _, op := range Plan(Facts{Set: set, Current: true, Now: noon}) {
			if op.Action != Create {
				t.Errorf("%s: %s after the wait", name, op.Action)
			}
		}
	}
}
