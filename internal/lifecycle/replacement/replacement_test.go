package replacement

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// mate returns a Machine of a pool in a phase.
func mate(name, pool string, phase v1alpha1.MachinePhase) v1alpha1.Machine {
	m := v1alpha1.Machine{}
	m.Namespace, m.Name, m.UID = "shoot", name, types.UID(name)
	if pool != "" {
		m.Labels = map[string]string{v1alpha1.LabelKeyName: pool}
	}
	m.Status.CurrentStatus.Phase = phase
	return m
}

// counted returns how many replacements a Limiter counts in a pool in addition to that of one Machine.
func counted(t *testing.T, pool []v1alpha1.Machine, asking *v1alpha1.Machine) int {
	t.Helper()
	m, err := (&Limiter{}).memberOf(t.Context(), &shelf{machines: pool}, asking)
	if err != nil {
		t.Fatal(err)
	}
	return m.pool.busyExcept(m)
}

// TestLimiter_MachinesBeingReplaced checks which Machines count as being replaced.
func TestLimiter_MachinesBeingReplaced(t *testing.T) {
	const (
		running = v1alpha1.MachineRunning
		unknown = v1alpha1.MachineUnknown
		failed  = v1alpha1.MachineFailed
		pending = v1alpha1.MachinePending
		ending  = v1alpha1.MachineTerminating
		looping = v1alpha1.MachineCrashLoopBackOff
	)
	cases := map[string]struct {
		phases []v1alpha1.MachinePhase
		want   int
	}{
		"alone":                              {nil, 0},
		"all Running":                        {[]v1alpha1.MachinePhase{running, running}, 0},
		"all Unknown":                        {[]v1alpha1.MachinePhase{unknown, unknown}, 0},
		"one Failed":                         {[]v1alpha1.MachinePhase{failed, running}, 1},
		"one Terminating":                    {[]v1alpha1.MachinePhase{ending}, 1},
		"one Pending":                        {[]v1alpha1.MachinePhase{pending}, 1},
		"one new":                            {[]v1alpha1.MachinePhase{""}, 1},
		"one that cannot be created":         {[]v1alpha1.MachinePhase{looping, looping}, 0},
		"one Available":                      {[]v1alpha1.MachinePhase{v1alpha1.MachineAvailable}, 0},
		"one being updated in place":         {[]v1alpha1.MachinePhase{v1alpha1.MachineInPlaceUpdating}, 1},
		"one Terminating, one Pending":       {[]v1alpha1.MachinePhase{ending, pending}, 1},
		"two leaving, one Pending":           {[]v1alpha1.MachinePhase{ending, failed, pending}, 2},
		"one Terminating, two being created": {[]v1alpha1.MachinePhase{ending, pending, ""}, 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			asking := mate("asking", "a", unknown)
			pool := []v1alpha1.Machine{asking}
			for i, phase := range tc.phases {
				pool = append(pool, mate(fmt.Sprint(i), "a", phase))
			}
			if got := counted(t, pool, &asking); got != tc.want {
				t.Errorf("%d replacements, want %d", got, tc.want)
			}
		})
	}
	kept, doomed, asking := mate("kept", "a", failed), mate("doomed", "a", running), mate("asking", "a", unknown)
	now := metav1.Now()
	kept.Status.CurrentStatus.PreserveExpiryTime, doomed.DeletionTimestamp = &now, &now
	if got := counted(t, []v1alpha1.Machine{kept, asking}, &asking); got != 0 {
		t.Error("a preserved Machine counts")
	}
	if got := counted(t, []v1alpha1.Machine{doomed, asking}, &asking); got != 1 {
		t.Error("a Machine that is being deleted does not count")
	}
}
