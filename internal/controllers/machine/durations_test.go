package machine

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestMachineStatus_FormatsDurations checks that whole minutes are formatted as in MCM, and other durations in a short
// form.
func TestMachineStatus_FormatsDurations(t *testing.T) {
	for timeout, want := range map[time.Duration]string{
		4 * time.Second:  "Machine m1 failed to join the cluster in 4s.",
		90 * time.Second: "Machine m1 failed to join the cluster in 1m30s.",
		time.Hour:        "Machine m1 failed to join the cluster in 60 minutes.",
	} {
		h := newHarness(t)
		h.declare(func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: timeout}}
		})
		h.Settle()
		h.SettleAfter(timeout)
		if got := h.machine().Status.LastOperation.Description; got != want {
			t.Errorf("after %v: %q, want %q", timeout, got, want)
		}
	}
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.Clock.Step(2337045191)
	h.join(ready)
	h.Settle()
	if got, want := h.machine().Status.LastOperation.Description, "Machine m1 successfully joined the cluster in 2.3s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMachine_JoinDurationIsRecordedOnce checks that the join duration is written once, for all Machines or only for those whose timeout
// a program chose, and that it causes no other writes.
func TestMachine_JoinDurationIsRecordedOnce(t *testing.T) {
	chosen := func(m *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, "30m")
	}
	earlier := func(m *v1alpha1.Machine) {
		chosen(m)
		m.Annotations[v1alpha1.AnnotationKeyMachineJoinDuration] = "7s"
	}
	for name, tc := range map[string]struct {
		all        bool
		given      func(*v1alpha1.Machine)
		want       string
		wantWrites int // in addition to the status update
	}{
		"no timeout was chosen": {false, func(*v1alpha1.Machine) {}, "", 0},
		"of all":                {true, func(*v1alpha1.Machine) {}, "2.337045191s", 1},
		"a timeout was chosen":  {false, chosen, "2.337045191s", 1},
		"it was written before": {true, earlier, "7s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.controller.RecordJoins = tc.all
			h.declare(tc.given)
			h.Settle()
			h.Clock.Step(2337045191)
			h.Writes = nil
			h.join(ready)
			h.Settle()
			writes := 0
			for _, made := range h.Writes {
				if strings.HasPrefix(made.What, "patch Machine") {
					writes++
				}
			}
			if got := h.machine().Annotations[v1alpha1.AnnotationKeyMachineJoinDuration]; got != tc.want || writes != tc.wantWrites {
				t.Errorf("%q in %d writes, want %q in %d:\n%s", got, writes, tc.want, tc.wantWrites, h.LastWrites())
			}
			h.join(notReady)
			h.Settle()
			h.Clock.Step(time.Minute)
			h.join(ready)
			h.Settle()
			if got := h.machine().Annotations[v1alpha1.AnnotationKeyMachineJoinDuration]; got != tc.want {
				t.Errorf("%q after the node recovered, want %q", got, tc.want)
			}
		})
	}
}
