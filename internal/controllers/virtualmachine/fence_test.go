package virtualmachine

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// reachable and unreachable are the condition of a Pod whose host reports, and of one whose host does not.
var (
	reachable   = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	unreachable = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
)

// newUnreachable is like newRunning, with the VM on an unreachable host and with a fence annotation.
func newUnreachable(t *testing.T, fence string) (vm *v1alpha1.VirtualMachine, pod *corev1.Pod, all []client.Object) {
	t.Helper()
	vm, pod, all = newRunning(t)
	metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationFence, fence)
	pod.Status.Conditions = []corev1.PodCondition{unreachable}
	all[2].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimBound
	return vm, pod, all
}

// TestEvaluateFence checks that only an unreachable host is accepted as fenced, and only if the annotation names it and
// the current hypervisor.
func TestEvaluateFence(t *testing.T) {
	for name, test := range map[string]struct {
		value  string
		change func(*fenceFacts)
		want   string
	}{
		"valid":                         {"pod/host-1", nil, reasonFenced},
		"empty":                         {"", nil, reasonMalformed},
		"no host":                       {"pod", nil, reasonMalformed},
		"empty host":                    {"pod/", nil, reasonMalformed},
		"no pod":                        {"/host-1", nil, reasonMalformed},
		"too many parts":                {"pod/host-1/7", nil, reasonMalformed},
		"with blank":                    {" pod/host-1", nil, reasonOtherPod},
		"earlier hypervisor":            {"earlier/host-1", nil, reasonOtherPod},
		"another host":                  {"pod/host-2", nil, reasonOtherHost},
		"no hypervisor":                 {"pod/host-1", func(f *fenceFacts) { f.vm.Status.ActivePodName, f.pod = "", nil }, reasonOtherPod},
		"pod not scheduled":             {"pod/host-1", func(f *fenceFacts) { f.pod.Spec.NodeName = "" }, reasonOtherHost},
		"the hypervisor is connected":   {"pod/host-1", func(f *fenceFacts) { f.hasLease = true }, reasonHostReachable},
		"the host is reachable":         {"pod/host-1", func(f *fenceFacts) { f.pod.Status.Conditions[0] = reachable }, reasonHostReachable},
		"the host has not reported":     {"pod/host-1", func(f *fenceFacts) { f.pod.Status.Conditions = nil }, reasonHostReachable},
		"the hypervisor has terminated": {"pod/host-1", func(f *fenceFacts) { f.pod.Status.Phase = corev1.PodFailed }, reasonPodEnded},
		"the pod is gone":               {"pod/host-1", func(f *fenceFacts) { f.pod = nil }, reasonPodEnded},
		"the VM is being deleted":       {"pod/host-1", func(f *fenceFacts) { f.vm.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, reasonTerminating},
		"the hypervisor has a lease":    {"pod/host-1", func(f *fenceFacts) { f.vm.Status.Lease = &v1alpha1.VirtualMachineLease{} }, reasonFullLeases},
	} {
		t.Run(name, func(t *testing.T) {
			vm, pod, _ := newUnreachable(t, test.value)
			facts := fenceFacts{vm: vm, pod: pod}
			if test.change != nil {
				test.change(&facts)
			}
			if reason, message := evaluateFence(facts); reason != test.want || message == "" {
				t.Errorf("%s: %s, want %s", reason, message, test.want)
			}
		})
	}
}

// state returns the VM, its condition Fenced, and whether the annotation is set.
func (w *fakeEnv) state(t *testing.T) (vm *v1alpha1.VirtualMachine, fenced string, given bool) {
	t.Helper()
	vm = &v1alpha1.VirtualMachine{}
	if err := w.live.Get(t.Context(), fakeKey, vm); err != nil {
		t.Fatal(err)
	}
	if condition := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionFenced); condition != nil {
		fenced = string(condition.Status) + " " + condition.Reason
	}
	_, given = vm.Annotations[v1alpha1.AnnotationFence]
	return vm, fenced, given
}

func (w *fakeEnv) hasEvent(reason string) bool {
	events := w.cluster.events.(*record.FakeRecorder).Events
	for len(events) > 0 {
		if strings.Contains(<-events, reason) {
			return true
		}
	}
	return false
}

// TestFence checks that the VM of a fenced host starts on another one from its disk, after hypervisors had time to
// connect.
func TestFence(t *testing.T) {
	before, pod, all := newUnreachable(t, "pod/host-1")
	w := newFakeEnv(t, newAuthority(t), all...)
	w.pass(t.Context())
	w.pass(t.Context())
	if vm, fenced, given := w.state(t); vm.Status.ActivePodName != pod.Name || !given || fenced != "" {
		t.Fatalf("after 20 s the VM is in pod %s, annotation set: %v, condition Fenced: %q", vm.Status.ActivePodName, given, fenced)
	}
	for range 3 {
		w.pass(t.Context())
	}
	vm, fenced, given := w.state(t)
	if vm.Status.ActivePodName == pod.Name || vm.Status.ActivePodUID == "" || vm.Status.VolumeClaimName != before.Status.VolumeClaimName || !vm.Status.ImagePrepared {
		t.Errorf("the authority is %+v", vm.Status.VirtualMachineAuthority)
	}
	next := &corev1.Pod{}
	if err := w.live.Get(t.Context(), client.ObjectKey{Namespace: vm.Namespace, Name: vm.Status.ActivePodName}, next); err != nil || !keptApart(next) {
		t.Errorf("the next hypervisor can be scheduled to the fenced host: %+v, %v", next.Spec.Affinity, err)
	}
	if fenced != "True Fenced" || given || !w.hasEvent("A user declared node host-1 fenced") {
		t.Errorf("condition Fenced: %q, annotation set: %v", fenced, given)
	}
	if !slices.Equal(w.deletes, []string{pod.Name}) {
		t.Errorf("deleted: %v", w.deletes)
	}
}

// TestFence_Refused checks that a wrong or outdated annotation is removed and has no effect, even if it becomes true
// later.
func TestFence_Refused(t *testing.T) {
	for name, test := range map[string]struct {
		value, want string
		change      func(vm *v1alpha1.VirtualMachine, pod *corev1.Pod)
	}{
		"another host":   {value: "pod/host-2", want: "False OtherHost"},
		"another pod":    {value: "pod-before/host-1", want: "False OtherPod"},
		"malformed":      {value: "\x1b[2Jpod host-1\n" + strings.Repeat("ä", 5000), want: "False Malformed"},
		"reachable host": {value: "pod/host-1", want: "False HostAnswers", change: func(_ *v1alpha1.VirtualMachine, pod *corev1.Pod) { pod.Status.Conditions[0] = reachable }},
		"VM is being deleted": {value: "pod/host-1", want: "False Terminating", change: func(vm *v1alpha1.VirtualMachine, _ *corev1.Pod) {
			vm.DeletionTimestamp, vm.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, append(vm.Finalizers, "example.org/stays")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before, pod, all := newUnreachable(t, test.value)
			if test.change != nil {
				test.change(before, pod)
			}
			w := newFakeEnv(t, newAuthority(t), all...)
			w.clock.Step(time.Minute)
			w.pass(t.Context())
			vm, fenced, given := w.state(t)
			if given || fenced != test.want || !w.hasEvent("FenceRefused") {
				t.Errorf("condition Fenced: %q, annotation set: %v", fenced, given)
			}
			w.checkTexts(t, before)
			pod.Status.Conditions = []corev1.PodCondition{unreachable}
			if err := w.live.Status().Update(t.Context(), pod); client.IgnoreNotFound(err) != nil { // the Pod may be deleted with its VM
				t.Fatal(err)
			}
			for range 3 {
				w.pass(t.Context())
			}
			if after, _, _ := w.state(t); after.Status.VirtualMachineAuthority != vm.Status.VirtualMachineAuthority {
				t.Errorf("the authority is %+v", after.Status.VirtualMachineAuthority)
			}
		})
	}
}

// TestFence_DoesNotTrustCache checks that a host that is reachable again is not fenced, even if the cache does not show
// that yet.
func TestFence_DoesNotTrustCache(t *testing.T) {
	_, pod, all := newUnreachable(t, "pod/host-1")
	w := newFakeEnv(t, newAuthority(t), all...)
	w.cluster.live = interceptor.NewClient(w.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, object, opts...)
			if live, is := object.(*corev1.Pod); is && err == nil {
				live.Status.Conditions = []corev1.PodCondition{reachable}
			}
			return err
		},
	})
	w.clock.Step(time.Minute)
	for range 3 {
		w.pass(t.Context())
	}
	if vm, fenced, given := w.state(t); vm.Status.ActivePodName != pod.Name || fenced != "False HostAnswers" || given {
		t.Errorf("the VM is in pod %s, condition Fenced: %q", vm.Status.ActivePodName, fenced)
	}
}
