package budget

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// in returns a Machine in a zone and a phase.
func in(zone string, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
	m := &v1alpha1.Machine{}
	m.Spec.NodeTemplateSpec.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	m.Status.CurrentStatus.Phase = phase
	return m
}

// inDriverZone returns a Machine whose zone only the driver has reported.
func inDriverZone(zone string, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
	m := in("", phase)
	m.Annotations = map[string]string{v1alpha1.AnnotationKeyFailureDomain: zone}
	return m
}

// pool returns a pool of Machines. The first one is the Machine to decide about.
func pool(machines ...*v1alpha1.Machine) Pool {
	p := Pool{Now: now}
	for i, machine := range machines {
		machine.UID = types.UID(fmt.Sprint(i))
		p.Members = append(p.Members, Member{Machine: machine, Role: RoleOf(machine)})
	}
	return p
}

// ago records that the Machines became Failed some time ago.
func (p Pool) ago(ago time.Duration, machines ...*v1alpha1.Machine) Pool {
	for i, machine := range machines {
		machine.UID = types.UID(fmt.Sprintf("past-%d", i))
		p.Past = append(p.Past, Past{Machine: machine, At: now.Add(-ago)})
	}
	return p
}

// guess records that another process may have replaced a Machine with the given one.
func (p Pool) guess(machine *v1alpha1.Machine) Pool {
	machine.UID, machine.CreationTimestamp = "new", metav1.NewTime(now.Add(-time.Minute))
	p.Past = append(p.Past, Guess(Member{Machine: machine}, now)...)
	return p
}

func number(max int32) v1alpha1.ReplacementBudget {
	return v1alpha1.ReplacementBudget{Max: intstr.FromInt32(max)}
}

func percentage(max string) v1alpha1.ReplacementBudget {
	return v1alpha1.ReplacementBudget{Max: intstr.FromString(max)}
}

func perZone(budget v1alpha1.ReplacementBudget) v1alpha1.ReplacementBudget {
	budget.Per = corev1.LabelTopologyZone
	return budget
}

func within(budget v1alpha1.ReplacementBudget, d time.Duration) v1alpha1.ReplacementBudget {
	budget.Within = &metav1.Duration{Duration: d}
	return budget
}

const (
	running = v1alpha1.MachineRunning
	unknown = v1alpha1.MachineUnknown
	failed  = v1alpha1.MachineFailed
)

// TestDecide tests the verdict about the first Machine of a pool, for each kind of budget and each outage
// policy.
func TestDecide(t *testing.T) {
	outage := func() Pool {
		return pool(in("a", unknown), in("a", unknown), in("a", failed), in("b", running), in("b", running))
	}
	const delayed, out = v1alpha1.CauseReplacementDelayed, v1alpha1.CauseZoneOutage
	wait, replace := v1alpha1.ZoneOutageWait, v1alpha1.ZoneOutageReplace
	for name, test := range map[string]struct {
		pool    Pool
		outage  v1alpha1.ZoneOutagePolicy
		budgets []v1alpha1.ReplacementBudget
		cause   string
		reason  string
	}{
		"no budget, none is replaced":     {pool: pool(in("a", unknown), in("a", running))},
		"no budget, one is replaced":      {pool: pool(in("a", unknown), in("a", failed)), cause: delayed},
		"a number, one fewer is replaced": {pool: pool(in("a", unknown), in("a", failed)), budgets: []v1alpha1.ReplacementBudget{number(2)}},
		"a number, as many are replaced": {
			pool: pool(in("a", unknown), in("a", failed), in("b", failed)), budgets: []v1alpha1.ReplacementBudget{number(2)},
			cause: delayed, reason: "no more than 2 may be replaced at the same time",
		},
		"successors that come count": {
			pool: pool(in("a", unknown), in("a", v1alpha1.MachinePending)), budgets: []v1alpha1.ReplacementBudget{number(1)},
			cause: delayed, reason: "no more than 1 may be replaced at the same time",
		},
		"a percentage of 4 is 2": {pool: pool(in("a", unknown), in("a", failed), in("a", running), in("a", running)), budgets: []v1alpha1.ReplacementBudget{percentage("50%")}},
		"a percentage is at least 1": {
			pool: pool(in("a", unknown), in("a", running)), budgets: []v1alpha1.ReplacementBudget{percentage("1%")},
		},
		"0":                       {pool: pool(in("a", unknown)), budgets: []v1alpha1.ReplacementBudget{number(0)}, cause: delayed, reason: "a budget of 0 does not allow replacing machines"},
		"0%":                      {pool: pool(in("a", unknown)), budgets: []v1alpha1.ReplacementBudget{percentage("0%")}, cause: delayed, reason: "a budget of 0% does not allow replacing machines"},
		"nonsense forbids":        {pool: pool(in("a", unknown)), budgets: []v1alpha1.ReplacementBudget{percentage("many")}, cause: delayed, reason: "a budget of many does not allow replacing machines"},
		"per zone, another zone":  {pool: pool(in("a", unknown), in("a", running), in("b", failed)), budgets: []v1alpha1.ReplacementBudget{perZone(number(1))}},
		"per zone, the same zone": {pool: pool(in("a", unknown), in("a", failed)), budgets: []v1alpha1.ReplacementBudget{perZone(number(1))}, cause: delayed, reason: "no more than 1 may be replaced at the same time with topology.kubernetes.io/zone a"},
		"all budgets must allow it": {
			pool: pool(in("a", unknown), in("b", failed)), budgets: []v1alpha1.ReplacementBudget{perZone(number(1)), number(1)},
			cause: delayed, reason: "no more than 1 may be replaced at the same time",
		},
		"an incoming machine does not replace one that is not deleted yet": {
			pool: pool(in("a", unknown), in("a", v1alpha1.MachinePending), in("a", failed)), budgets: []v1alpha1.ReplacementBudget{number(2)},
			cause: delayed, reason: "no more than 2 may be replaced at the same time",
		},
		"a percentage ignores machines that are being deleted": {
			pool:    pool(in("a", unknown), in("a", v1alpha1.MachinePending), deleted(in("a", failed), false), deleted(in("a", failed), false)),
			budgets: []v1alpha1.ReplacementBudget{percentage("75%")}, cause: delayed, reason: "no more than 75% may be replaced at the same time",
		},
		"below zero is none": {pool: pool(in("a", unknown)), budgets: []v1alpha1.ReplacementBudget{number(-1)}, cause: delayed, reason: "a budget of -1 does not allow replacing machines"},
		"0 % is none":        {pool: pool(in("a", unknown)), budgets: []v1alpha1.ReplacementBudget{percentage("0%")}, cause: delayed, reason: "a budget of 0% does not allow replacing machines"},
		"1000 % is all":      {pool: pool(in("a", unknown), in("a", failed), in("a", failed)), budgets: []v1alpha1.ReplacementBudget{percentage("1000%")}},
		"a rate, long ago":   {pool: pool(in("a", unknown)).ago(time.Hour, in("a", failed)), budgets: []v1alpha1.ReplacementBudget{within(number(1), time.Hour)}},
		"a rate, lately": {
			pool: pool(in("a", unknown)).ago(59*time.Minute, in("a", failed)), budgets: []v1alpha1.ReplacementBudget{within(number(1), time.Hour)},
			cause: delayed, reason: "no more than 1 may be replaced within 60m",
		},
		"a rate, assumed": {
			pool: pool(in("a", unknown)).guess(in("a", running)), budgets: []v1alpha1.ReplacementBudget{within(number(1), time.Hour)},
			cause: delayed, reason: "no more than 1 may be replaced within 60m, and recently created machines may be replacements from before the manager started",
		},
		"a rate per zone, lately elsewhere":       {pool: pool(in("a", unknown)).ago(time.Minute, in("b", failed)), budgets: []v1alpha1.ReplacementBudget{perZone(within(number(1), time.Hour))}},
		"a rate ignores replacements in progress": {pool: pool(in("a", unknown), in("a", failed)), budgets: []v1alpha1.ReplacementBudget{within(number(1), time.Hour)}},
		"an outage, zones do not matter":          {pool: outage(), cause: delayed},
		"an outage is waited for":                 {pool: outage(), outage: wait, budgets: []v1alpha1.ReplacementBudget{number(9)}, cause: out, reason: "all machines in zone a are unhealthy; waiting for the zone to recover"},
		"an outage, replaced immediately":         {pool: outage(), outage: replace},
		"an outage, replaced in a budget": {
			pool: outage(), outage: replace, budgets: []v1alpha1.ReplacementBudget{number(1)},
			cause: delayed, reason: "no more than 1 may be replaced at the same time",
		},
		"not an outage with a healthy machine": {pool: pool(in("a", unknown), in("a", unknown), in("a", running)), outage: wait},
		"not an outage of a single machine":    {pool: pool(in("a", unknown), in("b", running)), outage: wait},
		"a joining machine is not healthy":     {pool: pool(in("a", unknown), in("a", unknown), in("a", v1alpha1.MachinePending)), outage: wait, cause: out, reason: "all machines in zone a are unhealthy; waiting for the zone to recover"},
		"zone from the driver":                 {pool: pool(inDriverZone("a", unknown), inDriverZone("a", unknown)), outage: wait, cause: out, reason: "all machines in zone a are unhealthy; waiting for the zone to recover"},
		"no outage without a zone":             {pool: pool(in("", unknown), in("", unknown)), outage: wait},
		"a whole pool of one zone is out":      {pool: pool(in("a", unknown), in("a", unknown)), outage: wait, cause: out, reason: "all machines in zone a are unhealthy; waiting for the zone to recover"},
		"the others of its zone are deleted":   {pool: pool(in("a", unknown), deleted(in("a", failed), false)), outage: wait, cause: delayed},
	} {
		t.Run(name, func(t *testing.T) {
			test.pool.Limit = intstr.FromInt32(1)
			got := test.pool.Decide(&v1alpha1.ReplacementPolicy{Budgets: test.budgets, ZoneOutage: test.outage}, test.pool.Members[0].Machine)
			if want := (Verdict{test.cause, test.reason}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// deleted marks a Machine as being deleted. Ready is the last known state of its node.
func deleted(machine *v1alpha1.Machine, ready bool) *v1alpha1.Machine {
	machine.DeletionTimestamp = &metav1.Time{Time: now}
	status := corev1.ConditionUnknown
	if ready {
		status = corev1.ConditionTrue
	}
	machine.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return machine
}

// TestBudget_IsNeverExceeded checks that random requests for replacements never exceed a budget.
func TestBudget_IsNeverExceeded(t *testing.T) {
	phases := []v1alpha1.MachinePhase{running, unknown, unknown, unknown}
	tier.Check(t, func(t *rapid.T) {
		var machines []*v1alpha1.Machine
		for range rapid.IntRange(1, 12).Draw(t, "machines") {
			machines = append(machines, in(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "zone"), rapid.SampledFrom(phases).Draw(t, "phase")))
		}
		together, inZone, rate := rapid.Int32Range(0, 4).Draw(t, "together"), rapid.Int32Range(0, 4).Draw(t, "in a zone"), rapid.Int32Range(0, 4).Draw(t, "an hour")
		policy := &v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{number(together), perZone(number(inZone)), within(number(rate), time.Hour)}}
		p := pool(machines...)
		granted := map[string]int32{}
		for i := range p.Members {
			if machine := p.Members[i].Machine; MayTimeOut(machine.Status.CurrentStatus.Phase) && p.Decide(policy, machine).Allowed() {
				p.Members[i].Role = Outgoing
				p.Past = append(p.Past, Past{Machine: machine, At: now})
				granted[p.zone(machine)]++
			}
		}
		all := int32(0)
		for zone, count := range granted {
			if all += count; count > inZone {
				t.Fatalf("%d replaced in zone %s, at most %d allowed", count, zone, inZone)
			}
		}
		if all > min(together, rate) {
			t.Fatalf("%d replaced, at most %d at the same time and %d within an hour allowed", all, together, rate)
		}
	})
}

func TestShare(t *testing.T) {
	for name, test := range map[string]struct {
		limit intstr.IntOrString
		size  int
		want  int
	}{
		"nothing":             {intstr.IntOrString{}, 100, 0},
		"number":              {intstr.FromInt32(7), 100, 7},
		"negative":            {intstr.FromInt32(-3), 100, 0},
		"percentage":          {intstr.FromString("20%"), 50, 10},
		"percentage, rounded": {intstr.FromString("20%"), 14, 2},
		"percentage of a few": {intstr.FromString("20%"), 3, 1},
		"no percent":          {intstr.FromString("0%"), 3, 0},
		"nonsense":            {intstr.FromString("many"), 50, 0},
	} {
		if got := Share(test.limit, test.size); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestPolicy_IsCopiedToMachineSet checks that a policy is copied from a deployment to its sets, from the field or the
// annotation, and removed with it.
func TestPolicy_IsCopiedToMachineSet(t *testing.T) {
	const text = `{"budgets":[{"max":"10%","per":"topology.kubernetes.io/zone"},{"max":5,"within":"1h"}],"zoneOutage":"Wait"}`
	deployment, set := &v1alpha1.MachineDeployment{}, &v1alpha1.MachineSet{}
	check := func(what string, want int) {
		t.Helper()
		Assign(set, deployment)
		policy := Of(set)
		if got := policy != nil; got != (want > 0) || got && len(policy.Budgets) != want {
			t.Errorf("%s: the set has %+v, want %d budgets", what, policy, want)
		}
	}
	check("none", 0)
	deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyReplacement: text}
	check("an annotation", 2)
	deployment.Spec.Replacement = &v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{within(number(3), time.Minute)}}
	check("a field, which outranks", 1)
	if got := Of(set).Budgets[0].Within.Duration; got != time.Minute || Given(deployment).Budgets[0].Max.IntValue() != 3 {
		t.Errorf("the policy of the set differs: within %v", got)
	}
	deployment.Spec.Replacement, deployment.Annotations = nil, nil
	check("taken back", 0)
	if len(set.Annotations) > 0 {
		t.Errorf("the set keeps %v", set.Annotations)
	}
}

// TestParse checks that invalid policies are refused. An unknown field may be a limit.
func TestParse(t *testing.T) {
	for _, text := range []string{
		`ten`, `{"budgets":[{"maximum":3}]}`, `{"budgets":[{"max":{}}]}`, `{"budgets":[{"max":1,"within":"soon"}]}`,
		`{} {}`, `[]`, `{"zoneOutage":3}`,
	} {
		if policy, err := Parse(text); err == nil {
			t.Errorf("%s is read as %+v", text, policy)
		}
		set := &v1alpha1.MachineSet{}
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyReplacement: text}
		if policy := Of(set); policy != nil {
			t.Errorf("a set with %s has the policy %+v", text, policy)
		}
	}
}

// TestDecide_ExtremePolicies checks that a policy in a set's annotation is either within the limits for deployments or
// ignored with one short error message.
func TestDecide_ExtremePolicies(t *testing.T) {
	many := func(budgets int) string {
		return `{"budgets":[` + strings.TrimSuffix(strings.Repeat(`{"max":1,"within":"1h"},`, budgets), ",") + `]}`
	}
	for text, wrong := range map[string]bool{
		``: false, `{}`: false, `null`: false, many(8): false,
		`{"budgets":[{"max":0}]}`: false, `{"budgets":[{"max":"100%","per":"a/b"}]}`: false, `{"budgets":[{"max":2147483647}]}`: false,
		many(9): true, many(10_000): true, strings.Repeat(" ", longestText) + "{}": true,
		`{"budgets":[{"max":-1}]}`: true, `{"budgets":[{"max":"-1%"}]}`: true, `{"budgets":[{"max":"101%"}]}`: true, `{"budgets":[{"max":"1000%"}]}`: true,
		`{"budgets":[{"max":"9223372036854775807%"}]}`: true, `{"budgets":[{"max":99999999999}]}`: true, `{"budgets":[{"max":1e99}]}`: true,
		`{"budgets":[{"max":"NaN"}]}`: true, `{"budgets":[{"max":"NaN%"}]}`: true, `{"budgets":[{"max":"Inf%"}]}`: true, `{"budgets":[{"max":"1.5"}]}`: true,
		`{"budgets":[{"max":1,"within":"-1h"}]}`: true, `{"budgets":[{"max":1,"within":"0s"}]}`: true, `{"budgets":[{"max":1,"within":"2540400h"}]}`: true,
		`{"budgets":[{"max":1,"within":"9999999999h"}]}`: true, `{"budgets":[{"max":1,"per":"a b"}]}`: true, `{"zoneOutage":"Never"}`: true,
	} {
		set := &v1alpha1.MachineSet{}
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyReplacement: text}
		why, policy := Wrong(set), Of(set)
		if got := why != ""; got != wrong || wrong && policy != nil || len(why) > 500 {
			t.Errorf("%.100s: %q and %+v, want wrong: %v", text, why, policy, wrong)
		}
		deployment := &v1alpha1.MachineDeployment{}
		if json.Unmarshal([]byte(text), &deployment.Spec.Replacement) == nil && deployment.Spec.Replacement != nil && (Given(deployment) == nil) != wrong && len(text) < longestText {
			t.Errorf("%.100s is not the same in a field", text)
		}
	}
}
