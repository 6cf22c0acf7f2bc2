package budget

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestGiven_ReadsAnnotationWithoutField(t *testing.T) {
	deployment := &v1alpha1.MachineDeployment{}
	if got := Given(deployment); got != nil {
		t.Errorf("without a policy: %+v", got)
	}
	deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyReplacement: `{"zoneOutage":"Wait"}`}
	if got := Given(deployment); got == nil || got.ZoneOutage != v1alpha1.ZoneOutageWait {
		t.Errorf("the policy in the annotation: %+v", got)
	}
}

func TestCheck_LimitsPeriod(t *testing.T) {
	for period, valid := range map[time.Duration]bool{
		-time.Second: false, 0: false, time.Nanosecond: true, Longest: true, Longest + 1: false,
	} {
		policy := &v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{within(number(1), period)}}
		if errs := Check(nil, policy); (len(errs) == 0) != valid {
			t.Errorf("%v: %v, want valid: %t", period, errs, valid)
		}
	}
}

func TestMayTimeOut_DependsOnPhase(t *testing.T) {
	for phase, want := range map[v1alpha1.MachinePhase]bool{
		v1alpha1.MachineUnknown: true, v1alpha1.MachineInPlaceUpdateFailed: true,
		"": false, v1alpha1.MachinePending: false, v1alpha1.MachineRunning: false, v1alpha1.MachineFailed: false, v1alpha1.MachineInPlaceUpdating: false,
	} {
		if got := MayTimeOut(phase); got != want {
			t.Errorf("phase %q: %t, want %t", phase, got, want)
		}
	}
}

func TestOutagesOf_IgnoresInvalidAnnotation(t *testing.T) {
	const zone = `{"a":"2026-05-01T12:00:00Z"}`
	for name, test := range map[string]struct {
		text  string
		valid bool
	}{
		"one zone":           {zone, true},
		"none":               {"", false},
		"as long as allowed": {zone + strings.Repeat(" ", longestText-len(zone)), true},
		"too long":           {zone + strings.Repeat(" ", longestText-len(zone)+1), false},
		"partly valid":       {`{"a":"2026-05-01T12:00:00Z","b":1}`, false},
	} {
		set := &v1alpha1.MachineSet{}
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyZonesOut: test.text}
		if got := OutagesOf(set); (got != nil) != test.valid {
			t.Errorf("%s: %v, want valid: %t", name, got, test.valid)
		}
	}
}

func TestOutages_IgnoresTimeInFuture(t *testing.T) {
	const memory = 10 * time.Minute
	for ahead, known := range map[time.Duration]bool{memory - time.Second: true, memory: false} {
		seen := Outages{"a": metav1.NewTime(now.Add(ahead))}
		if got := pool().Outages([]string{"a"}, seen, memory); (len(got) > 0) != known {
			t.Errorf("%v ahead: %v, want known: %t", ahead, got, known)
		}
	}
}

func TestOutages_SeeKnownOutageAgainAfterHalfOfMemory(t *testing.T) {
	const memory = 10 * time.Minute
	for age, again := range map[time.Duration]bool{memory/2 - time.Second: false, memory / 2: true} {
		seen := Outages{"a": metav1.NewTime(now.Add(-age))}
		got := pool(deleted(in("a", failed), false)).Outages([]string{"a"}, seen, memory)
		if updated := got.Equal(Outages{"a": metav1.NewTime(now)}); updated != again {
			t.Errorf("seen %v ago: %v, want updated: %t", age, got, again)
		}
	}
}

func TestOutages_AnnotateSetWithoutAnnotations(t *testing.T) {
	set := &v1alpha1.MachineSet{}
	outages := Outages{"a": metav1.NewTime(now)}
	outages.Annotate(set)
	if got := OutagesOf(set); !got.Equal(outages) {
		t.Errorf("got %v, want %v", got, outages)
	}
}
