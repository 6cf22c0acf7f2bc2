package noderef_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

func condition(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: "Because"}
}

func TestHealthy(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	conditions := func(list ...corev1.NodeCondition) []corev1.NodeCondition { return list }
	ready := condition(corev1.NodeReady, yes)
	bad := []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"}
	cases := map[string]struct {
		reason     string
		conditions []corev1.NodeCondition
		want       bool
	}{
		"none":                     {"a node that has not reported yet is unusable", nil, false},
		"ready":                    {"", conditions(ready), true},
		"not ready":                {"", conditions(condition(corev1.NodeReady, no)), false},
		"silent":                   {"an unknown Ready is not True", conditions(condition(corev1.NodeReady, unknown)), false},
		"no Ready at all":          {"missing conditions do not count", conditions(condition(corev1.NodeDiskPressure, no)), true},
		"disk full":                {"", conditions(ready, condition(corev1.NodeDiskPressure, yes)), false},
		"disk unknown":             {"an unknown bad condition is not a good sign", conditions(ready, condition(corev1.NodeDiskPressure, unknown)), false},
		"disk fine":                {"", conditions(ready, condition(corev1.NodeDiskPressure, no)), true},
		"network away":             {"", conditions(ready, condition(corev1.NodeNetworkUnavailable, yes)), false},
		"a condition of detectors": {"conditions are known by name", conditions(ready, condition("KernelDeadlock", yes)), false},
		"not among the bad":        {"memory pressure passes, and is not in the list", conditions(ready, condition(corev1.NodeMemoryPressure, yes)), true},
		"not ready, rest fine":     {"one bad sign is enough, whatever comes after it", conditions(condition(corev1.NodeReady, no), condition(corev1.NodeDiskPressure, no)), false},
		"our own conditions":       {"the termination condition does not affect health", conditions(ready, condition(v1alpha1.NodeTerminationCondition, yes)), true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := noderef.Healthy(tc.conditions, bad); got != tc.want {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestParseConditions(t *testing.T) {
	for list, want := range map[string][]string{
		"Ready":          {"Ready"},
		"A,B":            {"A", "B"},
		"A, B ,\tC\n":    {"A", "B", "C"},
		",,no such one,": {"", "", "no such one", ""},
	} {
		if got := noderef.ParseConditions(list); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
	machine := &v1alpha1.Machine{}
	machine.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{NodeConditions: ptr.To("A, B")}
	if got := noderef.BadConditions(machine, []string{"C"}); !slices.Equal(got, []string{"A", "B"}) {
		t.Errorf("of a machine: %q", got)
	}
}

func TestConditionsDiffer(t *testing.T) {
	was := []corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionTrue), condition(corev1.NodeDiskPressure, corev1.ConditionFalse)}
	cases := map[string]struct {
		reason string
		change func([]corev1.NodeCondition) []corev1.NodeCondition
		want   bool
	}{
		"nothing": {"", func(c []corev1.NodeCondition) []corev1.NodeCondition { return c }, false},
		"order":   {"the order does not matter", func(c []corev1.NodeCondition) []corev1.NodeCondition { c[0], c[1] = c[1], c[0]; return c }, false},
		"heartbeat": {"or every machine would be written every few minutes", func(c []corev1.NodeCondition) []corev1.NodeCondition {
			c[0].LastHeartbeatTime = metav1.NewTime(time.Unix(1, 0))
			return c
		}, false},
		"message": {"messages contain changing numbers", func(c []corev1.NodeCondition) []corev1.NodeCondition { c[0].Message = "1 byte left"; return c }, false},
		"status": {"", func(c []corev1.NodeCondition) []corev1.NodeCondition {
			c[0].Status = corev1.ConditionUnknown
			return c
		}, true},
		"reason": {"it distinguishes KubeletNotReady and NodeStatusUnknown", func(c []corev1.NodeCondition) []corev1.NodeCondition { c[1].Reason = "Other"; return c }, true},
		"came": {"", func(c []corev1.NodeCondition) []corev1.NodeCondition {
			return append(c, condition("KernelDeadlock", corev1.ConditionFalse))
		}, true},
		"went":        {"", func(c []corev1.NodeCondition) []corev1.NodeCondition { return c[:1] }, true},
		"replaced":    {"equal numbers are not enough", func(c []corev1.NodeCondition) []corev1.NodeCondition { c[1].Type = "KernelDeadlock"; return c }, true},
		"all removed": {"", func([]corev1.NodeCondition) []corev1.NodeCondition { return nil }, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			is := tc.change(append([]corev1.NodeCondition(nil), was...))
			if got := noderef.ConditionsDiffer(was, is); got != tc.want {
				t.Errorf("%s: %v, want %v", tc.reason, got, tc.want)
			}
			if got := noderef.ConditionsDiffer(is, was); got != tc.want {
				t.Errorf("reversed, %s: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestCriticalComponentsReady(t *testing.T) {
	for name, tc := range map[string]struct {
		taints []corev1.Taint
		want   bool
	}{
		"no taints":     {nil, true},
		"another taint": {[]corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}, true},
		"the taint":     {[]corev1.Taint{{Key: "dedicated"}, {Key: "node.gardener.cloud/critical-components-not-ready", Effect: corev1.TaintEffectNoSchedule}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := noderef.CriticalComponentsReady(&corev1.Node{Spec: corev1.NodeSpec{Taints: tc.taints}}); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// TestHealthy_EachConditionInEachState tests the conditions that MCM lists by default, and MemoryPressure, which it
// does not list.
func TestHealthy_EachConditionInEachState(t *testing.T) {
	listed := []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"}
	type states map[corev1.ConditionStatus]bool
	onlyFalse := states{corev1.ConditionTrue: false, corev1.ConditionFalse: true, corev1.ConditionUnknown: false}
	for kind, want := range map[corev1.NodeConditionType]states{
		corev1.NodeReady:              {corev1.ConditionTrue: true, corev1.ConditionFalse: false, corev1.ConditionUnknown: false},
		corev1.NodeDiskPressure:       onlyFalse,
		corev1.NodeNetworkUnavailable: onlyFalse,
		"KernelDeadlock":              onlyFalse,
		"ReadonlyFilesystem":          onlyFalse,
		corev1.NodeMemoryPressure:     {corev1.ConditionTrue: true, corev1.ConditionFalse: true, corev1.ConditionUnknown: true},
		corev1.NodePIDPressure:        {corev1.ConditionTrue: true, corev1.ConditionFalse: true, corev1.ConditionUnknown: true},
	} {
		for state, healthy := range want {
			conditions := []corev1.NodeCondition{{Type: kind, Status: state}}
			if kind != corev1.NodeReady {
				conditions = append(conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
			}
			if got := noderef.Healthy(conditions, listed); got != healthy {
				t.Errorf("%s=%s: healthy %v, want %v", kind, state, got, healthy)
			}
		}
	}
}
