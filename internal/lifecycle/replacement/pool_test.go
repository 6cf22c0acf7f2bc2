package replacement

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// shelf is a cache of one pool that counts the Machines read from it.
type shelf struct {
	client.Reader
	machines []v1alpha1.Machine
	read     int
}

func (s *shelf) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.read += len(s.machines)
	list.(*v1alpha1.MachineList).Items = slices.Clone(s.machines)
	return nil
}

// unknowns returns a cache of a pool whose nodes have all failed.
func unknowns(size int) *shelf {
	s := &shelf{}
	for i := range size {
		s.machines = append(s.machines, mate(fmt.Sprint(i), "a", v1alpha1.MachineUnknown))
	}
	return s
}

// massFailure requests a replacement several times for every Machine of a pool and returns how many Machines
// were read.
func massFailure(tb testing.TB, size int, limit intstr.IntOrString) int {
	s, l := unknowns(size), &Limiter{}
	for range 5 {
		for i := range s.machines {
			if _, err := l.Allow(tb.Context(), s, Request{Machine: &s.machines[i], Limit: limit}); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return s.read
}

// TestLimiter_MassFailureCostIsLinear checks that twice as many failed Machines cost at most twice as many reads.
func TestLimiter_MassFailureCostIsLinear(t *testing.T) {
	for name, limit := range map[string]intstr.IntOrString{"one": intstr.FromInt32(1), "some": intstr.FromString("20%"), "all": intstr.FromString("100%")} {
		t.Run(name, func(t *testing.T) {
			once, twice := massFailure(t, 500, limit), massFailure(t, 1000, limit)
			t.Logf("%d Machines were read for 500, %d for 1000", once, twice)
			if twice > 2*once {
				t.Errorf("%d Machines were read for 500 that fail, %d for 1000", once, twice)
			}
		})
	}
}

func BenchmarkLimiter_MassFailure(b *testing.B) {
	for _, size := range []int{1250, 2500, 5000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				massFailure(b, size, intstr.FromInt32(1))
			}
		})
	}
}

// TestLimiter_CountsMatchPool checks that, whatever happens to the Machines of a pool in whatever order, the
// counts match the Machines as last seen.
func TestLimiter_CountsMatchPool(t *testing.T) {
	phases := []v1alpha1.MachinePhase{
		"", v1alpha1.MachinePending, v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineFailed,
		v1alpha1.MachineTerminating, v1alpha1.MachineCrashLoopBackOff,
	}
	random := rand.New(rand.NewPCG(1, 0))
	s, l := unknowns(20), &Limiter{}
	limit := intstr.FromInt32(5)
	for step := range 5000 {
		i := random.IntN(len(s.machines))
		machine := &s.machines[i]
		switch random.IntN(6) {
		case 0: // it is replaced by another Machine with that name
			l.Forget(client.ObjectKeyFromObject(machine))
			was := machine.UID
			*machine = mate(machine.Name, "a", "")
			machine.UID = was + "+"
			l.Observe(machine)
		case 1:
			now := metav1.Now()
			machine.DeletionTimestamp = &now
			l.Observe(machine)
		case 2:
			l.Release(client.ObjectKeyFromObject(machine))
		case 3:
			if !machine.DeletionTimestamp.IsZero() || !budget.MayTimeOut(machine.Status.CurrentStatus.Phase) {
				break
			}
			want := busyNow(l, s.machines, machine) < 5
			if got, err := l.Allow(t.Context(), s, Request{Machine: machine, Limit: limit}); err != nil || got.Allowed() != want {
				t.Fatalf("step %d: %+v, want allowed %v, err %v", step, got, want, err)
			}
		default:
			machine.Status.CurrentStatus.Phase = phases[random.IntN(len(phases))]
			l.Observe(machine)
		}
	}
	if s.read != len(s.machines) {
		t.Errorf("%d Machines were read, want %d: a pool must be listed once", s.read, len(s.machines))
	}
}

// busyNow counts the replacements of the other Machines in a pool one by one.
func busyNow(l *Limiter, machines []v1alpha1.Machine, asking *v1alpha1.Machine) int {
	counts := map[budget.Role]int{}
	for i := range machines {
		machine := &machines[i]
		known := l.machines[client.ObjectKeyFromObject(machine)]
		switch {
		case machine.UID == asking.UID:
		case known != nil && known.granted && budget.MayTimeOut(machine.Status.CurrentStatus.Phase):
			counts[budget.Outgoing]++
		default:
			counts[budget.RoleOf(machine)]++
		}
	}
	return max(counts[budget.Outgoing], counts[budget.Incoming])
}
