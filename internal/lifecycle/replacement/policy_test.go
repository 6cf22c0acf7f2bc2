package replacement

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// hourly returns a policy that allows this many replacements per hour.
func hourly(most int32) *v1alpha1.ReplacementPolicy {
	return &v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{
		{Max: intstr.FromInt32(most), Within: &metav1.Duration{Duration: time.Hour}},
	}}
}

// granted requests a replacement for the first Machines of a cache and returns how many are allowed.
func granted(t *testing.T, l *Limiter, s *shelf, asking int, req Request) int {
	t.Helper()
	count := 0
	for i := range asking {
		req.Machine = &s.machines[i]
		verdict, err := l.Allow(t.Context(), s, req)
		if err != nil {
			t.Fatal(err)
		}
		if verdict.Allowed() {
			count++
		}
	}
	return count
}

// replace removes the Machines whose replacement was allowed and adds others, which are healthy at first and
// then fail.
func (s *shelf) replace(l *Limiter, from, to int, made time.Time) {
	for i := from; i < to; i++ {
		l.Forget(client.ObjectKeyFromObject(&s.machines[i]))
		s.machines[i] = mate(fmt.Sprintf("new-%d", i), "a", v1alpha1.MachineUnknown)
		s.machines[i].CreationTimestamp = metav1.NewTime(made)
		l.Observe(&s.machines[i])
	}
}

// TestLimiter_RatePerHour checks that the limit per hour includes Machines that are already gone, and that it applies again in
// the next hour.
func TestLimiter_RatePerHour(t *testing.T) {
	s, l := unknowns(6), &Limiter{}
	l.Begin(noon)
	for i := range s.machines {
		s.machines[i].CreationTimestamp = metav1.NewTime(noon.Add(-48 * time.Hour))
	}
	if got := granted(t, l, s, 6, Request{Policy: hourly(2), Now: noon}); got != 2 {
		t.Fatalf("%d may be replaced immediately, want 2", got)
	}
	s.replace(l, 0, 2, noon.Add(time.Minute))
	if got := granted(t, l, s, 6, Request{Policy: hourly(2), Now: noon.Add(59 * time.Minute)}); got != 0 {
		t.Errorf("%d more may be replaced within the hour, want none", got)
	}
	if got := granted(t, l, s, 6, Request{Policy: hourly(2), Now: noon.Add(time.Hour)}); got != 2 {
		t.Errorf("%d may be replaced in the next hour, want 2", got)
	}
}

// TestLimiter_RateAfterRestart checks that earlier replacements, which a new process does not know, are estimated from
// the Machines, rather too high than too low.
func TestLimiter_RateAfterRestart(t *testing.T) {
	old, lately := noon.Add(-48*time.Hour), noon.Add(-30*time.Minute)
	for name, test := range map[string]struct {
		change func(machine *v1alpha1.Machine)
		want   int
	}{
		"no replacement":          {func(*v1alpha1.Machine) {}, 2},
		"one Machine was created": {func(m *v1alpha1.Machine) { m.CreationTimestamp = metav1.NewTime(lately) }, 1},
		"one Machine failed": {func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.Phase, m.Status.CurrentStatus.LastUpdateTime = v1alpha1.MachineFailed, metav1.NewTime(lately)
		}, 1},
		"one Machine failed long ago": {func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.Phase, m.Status.CurrentStatus.LastUpdateTime = v1alpha1.MachineFailed, metav1.NewTime(old)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, l := unknowns(6), &Limiter{}
			l.Begin(noon)
			for i := range s.machines {
				s.machines[i].CreationTimestamp = metav1.NewTime(old)
			}
			test.change(&s.machines[5])
			if got := granted(t, l, s, 5, Request{Policy: hourly(2), Now: noon}); got != test.want {
				t.Errorf("%d may be replaced, want %d", got, test.want)
			}
		})
	}
}

// TestLimiter_ReleasedMachineIsNotCounted checks that another Machine may be replaced if one recovers at the last moment.
func TestLimiter_ReleasedMachineIsNotCounted(t *testing.T) {
	s, l := unknowns(2), &Limiter{}
	l.Begin(noon.Add(time.Hour))
	first := Request{Machine: &s.machines[0], Policy: hourly(1), Now: noon.Add(2 * time.Hour)}
	if verdict, err := l.Allow(t.Context(), s, first); err != nil || !verdict.Allowed() {
		t.Fatal(verdict, err)
	}
	l.Release(types.NamespacedName{Namespace: "shoot", Name: "0"})
	second := first
	second.Machine = &s.machines[1]
	if verdict, err := l.Allow(t.Context(), s, second); err != nil || !verdict.Allowed() {
		t.Errorf("%+v, %v, although the other Machine was released", verdict, err)
	}
}

// TestLimiter_TotalOfAllPools checks the limit for all pools together, which may be unlimited, and that releases count for it.
func TestLimiter_TotalOfAllPools(t *testing.T) {
	for _, most := range []int32{0, 1, 3} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			s, l := &shelf{}, &Limiter{Total: &Limiter{Everywhere: true}}
			for i := range 4 {
				s.machines = append(s.machines, mate(fmt.Sprint(i), fmt.Sprint("pool-", i), v1alpha1.MachineUnknown))
			}
			req := Request{Limit: intstr.FromInt32(1), TotalLimit: intstr.FromInt32(most), Now: noon}
			if got := granted(t, l, s, 4, req); got != int(most) {
				t.Fatalf("%d may be replaced, want %d", got, most)
			}
			if most == 0 {
				return
			}
			l.Release(types.NamespacedName{Namespace: "shoot", Name: "0"})
			req.Machine = &s.machines[3]
			if verdict, err := l.Allow(t.Context(), s, req); err != nil || !verdict.Allowed() {
				t.Errorf("%+v, %v, although one Machine was released", verdict, err)
			}
		})
	}
}
