package budget

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestGuess_UsesTimesBeforeRecords(t *testing.T) {
	for name, test := range map[string]struct {
		role             Role
		created, updated time.Duration
		want             bool
		at               time.Duration
	}{
		"created before":                {Staying, -time.Hour, time.Hour, true, -time.Hour},
		"created at that time":          {Incoming, 0, -time.Hour, false, 0},
		"outgoing before":               {Outgoing, time.Hour, -time.Minute, true, -time.Minute},
		"outgoing at that time":         {Outgoing, -time.Hour, 0, false, 0},
		"created after, and staying":    {Staying, time.Second, -time.Hour, false, 0},
		"outgoing, created long before": {Outgoing, -time.Hour, -time.Second, true, -time.Second},
	} {
		m := in("a", running)
		m.CreationTimestamp, m.Status.CurrentStatus.LastUpdateTime = metav1.NewTime(now.Add(test.created)), metav1.NewTime(now.Add(test.updated))
		got := Guess(Member{Machine: m, Role: test.role}, now)
		if (len(got) == 1) != test.want || test.want && (!got[0].Guessed || !got[0].At.Equal(now.Add(test.at))) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestPool_MachineDoesNotCountForItself(t *testing.T) {
	for name, policy := range map[string]*v1alpha1.ReplacementPolicy{
		"no policy": nil, "no budgets": {}, "a number": {Budgets: []v1alpha1.ReplacementBudget{number(1)}},
		"a rate": {Budgets: []v1alpha1.ReplacementBudget{within(number(1), time.Hour)}},
	} {
		p := pool(in("a", failed))
		p.Past = []Past{{Machine: p.Members[0].Machine, At: now}}
		if got := p.Decide(policy, p.Members[0].Machine); !got.Allowed() {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A successor of a Machine that is being deleted is part of the same replacement.
func TestPool_SuccessorOfDeletedMachineCountsOnce(t *testing.T) {
	p := pool(in("a", unknown), deleted(in("a", failed), false), in("a", v1alpha1.MachinePending))
	if got := p.Decide(&v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{number(2)}}, p.Members[0].Machine); !got.Allowed() {
		t.Errorf("one replacement of two: %+v", got)
	}
}

func TestPool_BudgetPerLabel(t *testing.T) {
	const rack = "example.com/rack"
	inRack := func(machine *v1alpha1.Machine, own, ofNode string) *v1alpha1.Machine {
		machine.Labels, machine.Spec.NodeTemplateSpec.Labels[rack] = map[string]string{rack: own}, ofNode
		return machine
	}
	perRack := number(1)
	perRack.Per = rack
	for name, test := range map[string]struct {
		other *v1alpha1.Machine
		want  bool
	}{
		"same rack, another zone":          {inRack(in("b", failed), "1", ""), false},
		"same rack in the node's template": {inRack(in("b", failed), "", "1"), false},
		"another rack in the same zone":    {inRack(in("a", failed), "2", "1"), true},
	} {
		p := pool(inRack(in("a", unknown), "1", "3"), test.other)
		if got := p.Decide(&v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{perRack}}, p.Members[0].Machine); got.Allowed() != test.want {
			t.Errorf("%s: %+v, want allowed: %t", name, got, test.want)
		}
	}
}

// Node templates are not validated, so that they may have a label with an empty name.
func TestPool_BudgetWithoutLabelCountsAllMachines(t *testing.T) {
	a, b := in("a", unknown), in("b", failed)
	a.Spec.NodeTemplateSpec.Labels[""], b.Spec.NodeTemplateSpec.Labels[""] = "a", "b"
	p := pool(a, b)
	if got := p.Decide(&v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{number(1)}}, a); got.Allowed() {
		t.Error("a second machine may be replaced")
	}
}

func TestPool_ZoneOfMachineWithoutLabel(t *testing.T) {
	located, other, unlabeled := in("a", unknown), in("b", failed), in("", unknown)
	for name, test := range map[string]struct {
		zone func(*v1alpha1.Machine) string
		of   *v1alpha1.Machine
		want string
	}{
		"label":                    {func(*v1alpha1.Machine) string { return "c" }, located, "a"},
		"unknown":                  {nil, unlabeled, ""},
		"found by another package": {func(*v1alpha1.Machine) string { return "c" }, unlabeled, "c"},
		"driver":                   {func(*v1alpha1.Machine) string { return "c" }, inDriverZone("d", unknown), "d"},
	} {
		p := pool(test.of)
		p.Zone = test.zone
		if got := p.zone(test.of); got != test.want {
			t.Errorf("%s: zone %q, want %q", name, got, test.want)
		}
	}
	p := pool(unlabeled, other)
	p.Zone = func(*v1alpha1.Machine) string { return "b" }
	if got := p.Decide(&v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{perZone(number(1))}}, unlabeled); got.Allowed() {
		t.Error("a budget per zone ignores the zone of a machine without a label")
	}
}

func TestShare_OfNumbersIgnoresSize(t *testing.T) {
	for limit, want := range map[int32]int{-1: 0, 0: 0, 1: 1, 5: 5} {
		if got := Share(intstr.FromInt32(limit), 3); got != want {
			t.Errorf("%d: %d, want %d", limit, got, want)
		}
	}
}

func TestPool_OutagesByMachines(t *testing.T) {
	readyAnd := func(machine *v1alpha1.Machine) *v1alpha1.Machine {
		machine.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		return machine
	}
	neverJoined := deleted(in("a", failed), false)
	neverJoined.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.ConditionMachineJoined, Status: corev1.ConditionFalse, Reason: v1alpha1.FailedJoin}}
	for name, p := range map[string]Pool{
		"machines that never joined":                 pool(neverJoined, in("a", failed)),
		"a healthy machine is being deleted":         pool(in("a", unknown), in("a", failed), deleted(in("a", running), true)),
		"unhealthy machines with healthy conditions": pool(readyAnd(in("a", failed)), readyAnd(in("a", unknown))),
	} {
		if got := p.Outages([]string{"a"}, nil, time.Hour); len(got) != 1 {
			t.Errorf("%s: no outage", name)
		}
	}
}

func TestParse_LimitsLength(t *testing.T) {
	const policy = `{"zoneOutage":"Wait"}`
	if _, err := Parse(policy + strings.Repeat(" ", longestText-len(policy))); err != nil {
		t.Errorf("the longest policy: %v", err)
	}
	if _, err := Parse(policy + strings.Repeat(" ", longestText-len(policy)+1)); err == nil {
		t.Error("a longer policy is accepted")
	}
}

func TestRoleOf_PrecedenceOfStates(t *testing.T) {
	preserved := func(machine *v1alpha1.Machine) *v1alpha1.Machine {
		machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: now}
		return machine
	}
	for name, test := range map[string]struct {
		machine *v1alpha1.Machine
		want    Role
	}{
		"running": {in("a", running), Staying}, "failed": {in("a", failed), Outgoing}, "pending": {in("a", v1alpha1.MachinePending), Incoming},
		"deleted": {deleted(in("a", running), true), Outgoing}, "failed, preserved": {preserved(in("a", failed)), Staying},
		"deleted, preserved": {preserved(deleted(in("a", running), true)), Staying}, "deleted, pending": {deleted(in("a", v1alpha1.MachinePending), false), Outgoing},
	} {
		if got := RoleOf(test.machine); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
