package replacement

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

const rack = "example.com/rack"

// policies returns policies of all kinds.
func policies() []*v1alpha1.ReplacementPolicy {
	hour := &metav1.Duration{Duration: time.Hour}
	return []*v1alpha1.ReplacementPolicy{
		{ZoneOutage: v1alpha1.ZoneOutageWait},
		{ZoneOutage: v1alpha1.ZoneOutageReplace, Budgets: []v1alpha1.ReplacementBudget{{Max: intstr.FromString("30%")}}},
		{Budgets: []v1alpha1.ReplacementBudget{{Max: intstr.FromInt32(2), Per: corev1.LabelTopologyZone}, {Max: intstr.FromInt32(6)}}},
		{Budgets: []v1alpha1.ReplacementBudget{{Max: intstr.FromString("50%"), Per: rack}, {Max: intstr.FromInt32(3), Per: corev1.LabelTopologyZone, Within: hour}}},
		{Budgets: []v1alpha1.ReplacementBudget{{Max: intstr.FromInt32(5), Within: hour}}},
	}
}

// listed returns the state of a pool from a list of all its Machines.
func listed(l *Limiter, m *member, req Request) budget.Pool {
	made := budget.Pool{Zone: req.Zone, Limit: req.Limit, Now: req.Now}
	known := l.past.pools[m.pool.name]
	for _, past := range known {
		made.Past = append(made.Past, past)
	}
	for other := range m.pool.members {
		made.Members = append(made.Members, other.budgeted())
		if _, ours := known[other.uid]; !ours {
			made.Past = append(made.Past, budget.Guess(budget.Member{Machine: other.machine, Role: other.role}, l.past.began)...)
		}
	}
	return made
}

// TestLimiter_VerdictsMatchPool changes the Machines of a pool and the zones of their classes in random order, and checks that
// the verdicts are the same as with a list of all Machines.
func TestLimiter_VerdictsMatchPool(t *testing.T) {
	phases := []v1alpha1.MachinePhase{
		"", v1alpha1.MachinePending, v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineUnknown, v1alpha1.MachineFailed,
		v1alpha1.MachineTerminating, v1alpha1.MachineCrashLoopBackOff,
	}
	random := rand.New(rand.NewPCG(2, 0))
	s, l, now := unknowns(20), &Limiter{}, noon
	l.Begin(noon)
	zones := map[string]string{"class-0": "a", "class-1": "b"}
	zoneOf := func(of *v1alpha1.Machine) string { return zones[of.Spec.Class.Name] }
	change := []func(machine *v1alpha1.Machine){
		func(machine *v1alpha1.Machine) { // it is replaced by another Machine with that name
			l.Forget(client.ObjectKeyFromObject(machine))
			was := machine.UID
			*machine = mate(machine.Name, "a", "")
			machine.UID, machine.CreationTimestamp = was+"+", metav1.NewTime(now)
		},
		func(machine *v1alpha1.Machine) {
			machine.DeletionTimestamp = &metav1.Time{Time: now}
		},
		func(machine *v1alpha1.Machine) { l.Release(client.ObjectKeyFromObject(machine)) },
		func(machine *v1alpha1.Machine) { machine.Spec.Class.Name = fmt.Sprint("class-", random.IntN(3)) },
		func(machine *v1alpha1.Machine) {
			machine.Labels = map[string]string{v1alpha1.LabelKeyName: "a", rack: fmt.Sprint(random.IntN(3))}
		},
		func(machine *v1alpha1.Machine) {
			machine.Labels[corev1.LabelTopologyZone] = string(rune('a' + random.IntN(2)))
		},
		func(machine *v1alpha1.Machine) {
			machine.CreationTimestamp = metav1.NewTime(noon.Add(-time.Duration(random.IntN(90)) * time.Minute))
		},
		func(*v1alpha1.Machine) {
			zones[fmt.Sprint("class-", random.IntN(3))] = string(rune('a' + random.IntN(3)))
		},
		func(*v1alpha1.Machine) { now = now.Add(time.Duration(random.IntN(10)) * time.Minute) },
	}
	verdicts := map[budget.Verdict]int{}
	for step := range 20000 {
		machine := s.machines[random.IntN(len(s.machines))].DeepCopy() // the limiter keeps references to Machines
		if kind := random.IntN(2 * len(change)); kind < len(change) {
			change[kind](machine)
		} else {
			machine.Status.CurrentStatus.Phase = phases[random.IntN(len(phases))]
			machine.Status.CurrentStatus.LastUpdateTime = metav1.NewTime(now)
		}
		for i := range s.machines {
			if s.machines[i].Name == machine.Name {
				s.machines[i] = *machine
			}
		}
		l.Observe(machine)
		if !machine.DeletionTimestamp.IsZero() || !budget.MayTimeOut(machine.Status.CurrentStatus.Phase) {
			continue
		}
		policy := policies()[step/500%5]
		req := Request{Machine: machine, Policy: policy, Limit: intstr.FromInt32(4), Now: now, Zone: zoneOf}
		asking, err := l.memberOf(t.Context(), s, machine)
		if err != nil {
			t.Fatal(err)
		}
		want := listed(l, asking, req).Decide(policy, machine)
		got, err := l.Allow(t.Context(), s, req)
		if err != nil || got != want {
			t.Fatalf("step %d: %+v, want %+v, err %v", step, got, want, err)
		}
		verdicts[got]++
	}
	t.Logf("%d different verdicts: %v", len(verdicts), verdicts)
	if len(verdicts) < 10 {
		t.Errorf("only %d different verdicts: %v", len(verdicts), verdicts)
	}
}

// zonesRead requests a replacement for each Machine of a pool with a policy. It returns how many zones were read, and how many
// members and past replacements the last decision considered.
func zonesRead(t *testing.T, size int, policy *v1alpha1.ReplacementPolicy) (read, members int) {
	t.Helper()
	s, l := unknowns(size), &Limiter{}
	for i := range s.machines {
		s.machines[i].Labels["node"] = fmt.Sprint("node-", i)
		s.machines[i].Labels[rack] = fmt.Sprint(i % 4)
		s.machines[i].Spec.Class.Name = fmt.Sprint("class-", i%3)
		s.machines[i].CreationTimestamp = metav1.NewTime(noon.Add(-72 * time.Hour))
	}
	l.Begin(noon)
	zone := func(of *v1alpha1.Machine) string { read++; return of.Spec.Class.Name }
	var req Request
	for i := range s.machines {
		req = Request{Machine: &s.machines[i], Policy: policy, Limit: intstr.FromInt32(4), Now: noon, Zone: zone}
		if _, err := l.Allow(t.Context(), s, req); err != nil {
			t.Fatal(err)
		}
	}
	made := l.poolFor(l.machines[client.ObjectKeyFromObject(req.Machine)], req)
	return read, len(made.Members) + len(made.Past)
}

// TestLimiter_PolicyCostIsLinear checks that a decision does not read all Machines, so that ten times as many failed Machines
// cost ten times as much.
func TestLimiter_PolicyCostIsLinear(t *testing.T) {
	for i, policy := range policies() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			few, _ := zonesRead(t, 500, policy)
			many, members := zonesRead(t, 5000, policy)
			t.Logf("%d zones were read for 500 Machines, %d for 5000; a decision has %d members", few, many, members)
			if many > 12*few || members > 200 {
				t.Errorf("%d zones were read for 500 Machines that fail, %d for 5000; a decision has %d members", few, many, members)
			}
		})
	}
}
