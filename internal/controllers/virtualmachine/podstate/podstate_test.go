package podstate

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
)

func TestTruncate(t *testing.T) {
	for extra := range 4 {
		text := strings.Repeat("x", extra) + strings.Repeat("\u00e4", maxMessage)
		got := Truncate(text)
		if len(got) > maxMessage || len(got) < maxMessage-1 || !strings.HasPrefix(text, got) || !utf8.ValidString(got) {
			t.Errorf("%d bytes of %d: %q", len(got), len(text), got)
		}
	}
	if got := Truncate("a\x1b[2J\r\u202eb"); got != "a [2J  b" {
		t.Errorf("what controls a terminal is left in %q", got)
	}
	if got := Truncate("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("garbled text becomes %q", got)
	}
}

// TestFinished: the hypervisor counts, whatever containers of others do, and only if nothing starts it again.
func TestFinished(t *testing.T) {
	ended, runs := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	states := func(hypervisor, other corev1.ContainerState) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "other", State: other}, {Name: podspec.ContainerName, State: hypervisor}}
		}
	}
	both := func(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for _, change := range changes {
				change(pod)
			}
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	for name, tc := range map[string]struct {
		given func(*corev1.Pod)
		want  bool
	}{
		"both run":                      {states(runs, runs), false},
		"the other has ended":           {states(runs, ended), false},
		"it has ended":                  {states(ended, runs), true},
		"before the other's image came": {both(states(ended, corev1.ContainerState{}), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }), true},
		"nothing has started":           {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }, false},
		"the Pod has ended":             {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }, true},
		"the Pod is restarted":          {both(states(ended, runs), func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }), false},
		"it is restarted":               {both(states(ended, runs), func(pod *corev1.Pod) { pod.Spec.Containers[1].RestartPolicy = &always }), false},
		"the other is restarted":        {both(states(ended, runs), func(pod *corev1.Pod) { pod.Spec.Containers[0].RestartPolicy = &always }), true},
		"a rule of the other may be all": {both(states(ended, runs), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].RestartPolicyRules = make([]corev1.ContainerRestartRule, 1)
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "other"}, {Name: podspec.ContainerName}},
			}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			tc.given(pod)
			if got := Finished(pod); got != tc.want {
				t.Errorf("finished: %v", got)
			}
		})
	}
}
