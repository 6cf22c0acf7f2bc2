package podstate

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestTruncate(t *testing.T) {
	for extra := range 4 {
		text := strings.Repeat("x", extra) + strings.Repeat("\u00e4", maxMessage)
		got := Truncate(text)
		if len(got) > maxMessage || len(got) < maxMessage-4 || !strings.Contains(got, messages.Cut) || !utf8.ValidString(got) {
			t.Errorf("%d bytes of %d: %q", len(got), len(text), got)
		}
	}
	if got := Truncate("a\x1b[2J\r\u202eb"); got != "a [2J  b" {
		t.Errorf("control characters are left in %q", got)
	}
	if got := Truncate("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("invalid text becomes %q", got)
	}
}

// TestFinished checks that only the hypervisor's container counts, and only if it is not restarted.
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
		"both run":                                       {states(runs, runs), false},
		"the other has terminated":                       {states(runs, ended), false},
		"the hypervisor has terminated":                  {states(ended, runs), true},
		"terminated before the other's image was pulled": {both(states(ended, corev1.ContainerState{}), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }), true},
		"nothing has started":                            {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending }, false},
		"the Pod has terminated":                         {func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }, true},
		"the Pod is restarted":                           {both(states(ended, runs), func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }), false},
		"the hypervisor is restarted":                    {both(states(ended, runs), func(pod *corev1.Pod) { pod.Spec.Containers[1].RestartPolicy = &always }), false},
		"the other is restarted":                         {both(states(ended, runs), func(pod *corev1.Pod) { pod.Spec.Containers[0].RestartPolicy = &always }), true},
		"a rule of the other may restart all": {both(states(ended, runs), func(pod *corev1.Pod) {
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

// TestEndOf checks that what a process or a host reports about the end of a hypervisor becomes a valid, short reason.
func TestEndOf(t *testing.T) {
	const ours = podspec.ContainerName
	long := strings.Repeat("x", 1<<20)
	for name, test := range map[string]struct {
		container, reason, message string
		want                       End
	}{
		"of the hypervisor":   {ours, "Error", `{"reason":"GuestShutdown","message":"off"}`, End{"GuestShutdown", "off"}},
		"of the kubelet":      {ours, "OOMKilled", "", End{"OOMKilled", defaultMessage("OOMKilled")}},
		"of another":          {"other", "Error", `{"reason":"GuestShutdown","message":"off"}`, End{vmpb.EndInternal, defaultMessage("")}},
		"not a reason":        {ours, "Error", `{"reason":"\u001b[2J","message":"\u001b[2Joff"}`, End{vmpb.EndInternal, " [2Joff"}},
		"a long reason":       {ours, "Error", `{"reason":"` + long + `","message":"off"}`, End{vmpb.EndInternal, "off"}},
		"a reason of a host":  {ours, "two words", "", End{vmpb.EndInternal, defaultMessage("")}},
		"a message of a host": {ours, "Error", "a\x1b[2Jb", End{"Error", "a [2Jb"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: test.container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: test.reason, Message: test.message}},
			}}}}
			if got := EndOf(pod); got != test.want {
				t.Errorf("got %.200q, want %q", got, test.want)
			}
		})
	}
	pod := &corev1.Pod{Status: corev1.PodStatus{Reason: "Evicted", Message: long}}
	if got := EndOf(pod); got.Reason != "Evicted" || len(got.Message) > maxMessage {
		t.Errorf("the status of a Pod gives the reason %q and a message of %d bytes", got.Reason, len(got.Message))
	}
}
