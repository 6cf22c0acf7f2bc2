package virtualmachine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestEvents_StaleCacheSendsNoDuplicate checks that a pass whose cache does not have the last write repeats no event, and that
// the next Pod, and another VM of the same name, do cause events.
func TestEvents_StaleCacheSendsNoDuplicate(t *testing.T) {
	is := func(reason, message string) *v1alpha1.VirtualMachine {
		vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}}
		vm.Status.NodeName = "host-1"
		vm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: reason, Message: message, ObservedGeneration: 1}}
		return vm
	}
	pod := func(uid types.UID) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
	changed := is(reasonInvalid, "spec.y")
	changed.Status.Conditions[0].ObservedGeneration = 2
	creating := is(reasonCreating, "Creating pod a-1.")
	remembered := &memory{}
	for _, step := range []struct {
		what          string
		before, after *v1alpha1.VirtualMachine
		pod           *corev1.Pod
		memory        *memory
		want          int
	}{
		{"a start", creating, is(reasonRunning, ""), pod("1"), remembered, 1},
		{"the same start", creating, is(reasonRunning, "paused"), pod("1"), remembered, 0},
		{"the next pod", creating, is(reasonRunning, ""), pod("2"), remembered, 1},
		{"another VM", creating, is(reasonRunning, ""), pod("2"), &memory{}, 1},
		{"an invalid spec", creating, is(reasonInvalid, "spec.x"), nil, remembered, 1},
		{"the same invalid spec", is(reasonInvalid, "spec.x"), is(reasonInvalid, "spec.x"), nil, &memory{}, 0},
		{"another invalid spec", is(reasonInvalid, "spec.x"), changed, nil, remembered, 1},
	} {
		events := record.NewFakeRecorder(10)
		w := &statusWriter{cluster: &cluster{events: events}}
		w.announce(step.before, step.after, &scope{active: step.pod, memory: step.memory, now: time.Unix(1, 0)})
		if got := len(events.Events); got != step.want {
			t.Errorf("%s: %d events, want %d", step.what, got, step.want)
		}
	}
}
