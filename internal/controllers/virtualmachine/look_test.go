package virtualmachine

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func podWith(phase corev1.PodPhase, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a-x", UID: "1"}, Status: corev1.PodStatus{Phase: phase}}
	pod.Spec.NodeName = "host-1"
	if change != nil {
		change(pod)
	}
	return pod
}

func ended(message string) *corev1.Pod {
	return podWith(corev1.PodFailed, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: "Error", Message: message},
		}}}
	})
}

func saying(state vmpb.ReportStateRequest_State, message string) *vmpb.ReportStateRequest {
	return &vmpb.ReportStateRequest{State: state, Message: message}
}

func TestLook(t *testing.T) {
	up := podWith(corev1.PodRunning, nil)
	cutOff := podWith(corev1.PodRunning, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, Ready: true}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	})
	pulling := podWith(corev1.PodPending, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
		}}}
	})
	running := saying(vmpb.ReportStateRequest_STATE_RUNNING, "")
	prepared := func(vm *v1alpha1.VirtualMachine) { vm.Status.ImagePrepared = true }
	cases := map[string]struct {
		given         func(*v1alpha1.VirtualMachine)
		view          view
		phase         v1alpha1.VirtualMachinePhase
		status        metav1.ConditionStatus
		reason, about string
	}{
		"refused":      {nil, view{held: &problem{"Unsupported", "spec.x"}}, "Creating", "False", "Unsupported", "spec.x"},
		"starting":     {nil, view{pod: up}, "Creating", "False", reasonStarting, ""},
		"no container": {nil, view{pod: pulling}, "Creating", "False", "ImagePullBackOff", "no such image"},
		"running":      {prepared, view{pod: up, report: running}, "Running", "True", reasonRunning, ""},
		"preparing without numbers": {
			nil, view{pod: up, report: saying(vmpb.ReportStateRequest_STATE_PREPARING, "fetches the kernel")},
			"Creating", "False", reasonPreparing, "fetches the kernel",
		},
		"waiting": {
			nil, view{pod: up, report: saying(vmpb.ReportStateRequest_STATE_WAITING, "for the disk")},
			"Creating", "False", reasonStarting, "for the disk",
		},
		"paused as wanted": {
			func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause },
			view{pod: up, report: saying(vmpb.ReportStateRequest_STATE_PAUSED, "")}, "Running", "True", reasonPaused, "",
		},
		"still paused": {nil, view{pod: up, report: saying(vmpb.ReportStateRequest_STATE_PAUSED, "")}, "Running", "False", reasonPaused, ""},
		"unheard of since the restart of the controller": {func(vm *v1alpha1.VirtualMachine) {
			vm.Status.ActiveRunID = "1"
			vm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonRunning}}
		}, view{pod: up}, "Running", "True", reasonRunning, ""},
		"host away":                  {prepared, view{pod: cutOff, report: running}, "Lost", "Unknown", reasonLost, "host-1"},
		"host away, process answers": {prepared, view{pod: cutOff, report: running, answers: true}, "Running", "True", reasonRunning, ""},
		"image rejected":             {nil, view{pod: ended(left(vmpb.EndImageRejected, "wrong checksum"))}, "Creating", "False", "ImageRejected", "wrong checksum"},
		"guest shut down":            {prepared, view{pod: ended(left(vmpb.EndGuestShutdown, "bye"))}, "Stopped", "False", "GuestShutdown", "bye"},
		"ended without a word":       {prepared, view{pod: ended("")}, "Stopped", "False", "Error", "without saying why"},
		"ended with nonsense":        {prepared, view{pod: ended(left("no reason!", ""))}, "Stopped", "False", vmpb.EndInternal, ""},
		"evicted": {prepared, view{pod: podWith(corev1.PodFailed, func(pod *corev1.Pod) {
			pod.Status.Reason, pod.Status.Message = "Evicted", "disk pressure"
		})}, "Stopped", "False", "Evicted", "disk pressure"},
		"deleted by hand": {prepared, view{}, "Stopped", "False", reasonDeleted, "was deleted"},
		"being deleted": {func(vm *v1alpha1.VirtualMachine) { vm.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			view{pod: up, report: running}, "Terminating", "False", reasonTerminating, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			vm := sample("a")
			vm.Status.ActivePodName, vm.Status.ActivePodUID = "a-x", "1"
			if c.given != nil {
				c.given(vm)
			}
			got := look(vm, c.view)
			ready := meta.FindStatusCondition(got.conditions, v1alpha1.ConditionReady)
			if got.phase != c.phase || ready.Status != c.status || ready.Reason != c.reason || !strings.Contains(ready.Message, c.about) {
				t.Errorf("%s, %s %s %q; want %s, %s %s %q", got.phase, ready.Status, ready.Reason, ready.Message, c.phase, c.status, c.reason, c.about)
			}
		})
	}
}

// Every cut is at a whole letter: half of one is not stored as it is, and the next look
// would find something new.
func TestMessagesAreBounded(t *testing.T) {
	for extra := range 4 {
		text := strings.Repeat("x", extra) + strings.Repeat("\u00e4", longestMessage)
		got := bounded(text)
		if len(got) > longestMessage || len(got) < longestMessage-1 || !strings.HasPrefix(text, got) || !utf8.ValidString(got) {
			t.Errorf("%d bytes of %d: %q", len(got), len(text), got)
		}
	}
	if got := bounded("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("garbled text becomes %q", got)
	}
}

func TestBackOff(t *testing.T) {
	vm := types.NamespacedName{Namespace: "n", Name: "a"}
	a, now := newAttempts(), time.Unix(1000, 0)
	next := func(pod string, generation int64, permanent bool) time.Duration {
		return a.wait(vm, attempt{pod: types.UID(pod), generation: generation, permanent: permanent}, now)
	}
	want := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	for i, seconds := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		want("doubling", next(string(rune('a'+i)), 1, false), seconds*time.Second)
	}
	now = now.Add(45 * time.Second)
	want("the same pod again", next("h", 1, false), 15*time.Second)
	want("a changed spec", next("h", 2, false), 0)
	want("the first of a changed spec", next("i", 2, false), time.Second)
	want("a permanent reason", next("j", 2, true), time.Minute)
	a.begin(vm, 2, now)
	now = now.Add(4 * time.Minute)
	want("not long enough", next("k", 2, false), 4*time.Second)
	a.begin(vm, 2, now)
	now = now.Add(5 * time.Minute)
	want("after a steady run", next("l", 2, false), time.Second)
	a.forget(vm)
	want("forgotten", next("m", 2, false), time.Second)
}

func TestJudge(t *testing.T) {
	us := &vmpb.HypervisorID{VmName: "a", Namespace: "default", PodName: "p", RunId: 5}
	vm := func(pod, run string) *v1alpha1.VirtualMachine {
		vm := sample("a")
		vm.Status.ActivePodName, vm.Status.ActiveRunID = pod, run
		return vm
	}
	deleted := vm("p", "5")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	cases := map[string]struct {
		vm   *v1alpha1.VirtualMachine
		want verdict
	}{
		"gone":                        {nil, verdictTerminate},
		"being deleted":               {deleted, verdictTerminate},
		"nobody's":                    {vm("", ""), verdictNone},
		"another pod's":               {vm("q", "5"), verdictTerminate},
		"ours":                        {vm("p", "5"), verdictOK},
		"not yet called":              {vm("p", ""), verdictAdopt},
		"an older run's":              {vm("p", "4"), verdictAdopt},
		"a newer run's":               {vm("p", "6"), verdictTerminate},
		"numbers of different length": {vm("p", "10"), verdictTerminate},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := judge(c.vm, us); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}
