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

// answers is a Pod's condition when its host reports, and silent when it does not any more.
var (
	answers = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	silent  = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
)

// newSilent is newRunning on a host that does not report any more, with an annotation.
func newSilent(t *testing.T, fence string) (vm *v1alpha1.VirtualMachine, pod *corev1.Pod, all []client.Object) {
	t.Helper()
	vm, pod, all = newRunning(t)
	metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationFence, fence)
	pod.Status.Conditions = []corev1.PodCondition{silent}
	all[2].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimBound
	return vm, pod, all
}

// TestJudgeFence: only the right host of the right hypervisor, which does not answer, is fenced.
func TestJudgeFence(t *testing.T) {
	for name, test := range map[string]struct {
		value  string
		change func(*fenceFacts)
		want   string
	}{
		"right":                      {"pod/host-1", nil, reasonFenced},
		"empty":                      {"", nil, reasonMalformed},
		"without a host":             {"pod", nil, reasonMalformed},
		"with an empty host":         {"pod/", nil, reasonMalformed},
		"without a pod":              {"/host-1", nil, reasonMalformed},
		"with something more":        {"pod/host-1/7", nil, reasonMalformed},
		"with blanks":                {" pod/host-1", nil, reasonOtherPod},
		"of an earlier hypervisor":   {"earlier/host-1", nil, reasonOtherPod},
		"of another host":            {"pod/host-2", nil, reasonOtherHost},
		"of no hypervisor":           {"pod/host-1", func(f *fenceFacts) { f.vm.Status.ActivePodName, f.pod = "", nil }, reasonOtherPod},
		"without a host yet":         {"pod/host-1", func(f *fenceFacts) { f.pod.Spec.NodeName = "" }, reasonOtherHost},
		"the hypervisor answers":     {"pod/host-1", func(f *fenceFacts) { f.hasLease = true }, reasonHostAnswers},
		"the host answers":           {"pod/host-1", func(f *fenceFacts) { f.pod.Status.Conditions[0] = answers }, reasonHostAnswers},
		"the host has said nothing":  {"pod/host-1", func(f *fenceFacts) { f.pod.Status.Conditions = nil }, reasonHostAnswers},
		"the hypervisor has ended":   {"pod/host-1", func(f *fenceFacts) { f.pod.Status.Phase = corev1.PodFailed }, reasonPodEnded},
		"the pod is gone":            {"pod/host-1", func(f *fenceFacts) { f.pod = nil }, reasonPodEnded},
		"the VM is being deleted":    {"pod/host-1", func(f *fenceFacts) { f.vm.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, reasonTerminating},
		"the hypervisor has a lease": {"pod/host-1", func(f *fenceFacts) { f.vm.Status.Lease = &v1alpha1.VirtualMachineLease{} }, reasonFullLeases},
	} {
		t.Run(name, func(t *testing.T) {
			vm, pod, _ := newSilent(t, test.value)
			facts := fenceFacts{vm: vm, pod: pod}
			if test.change != nil {
				test.change(&facts)
			}
			if reason, message := judgeFence(facts); reason != test.want || message == "" {
				t.Errorf("%s: %s, want %s", reason, message, test.want)
			}
		})
	}
}

// seen is the VM, and the condition Fenced with its annotation.
func (w *absurdWorld) seen(t *testing.T) (vm *v1alpha1.VirtualMachine, fenced string, given bool) {
	t.Helper()
	vm = &v1alpha1.VirtualMachine{}
	if err := w.live.Get(t.Context(), absurdKey, vm); err != nil {
		t.Fatal(err)
	}
	if condition := meta.FindStatusCondition(vm.Status.Conditions, v1alpha1.ConditionFenced); condition != nil {
		fenced = string(condition.Status) + " " + condition.Reason
	}
	_, given = vm.Annotations[v1alpha1.AnnotationFence]
	return vm, fenced, given
}

func (w *absurdWorld) said(reason string) bool {
	events := w.cluster.events.(*record.FakeRecorder).Events
	for len(events) > 0 {
		if strings.Contains(<-events, reason) {
			return true
		}
	}
	return false
}

// TestFence: the VM of a host that is fenced starts on another one, from its disk, when hypervisors had time to be
// heard.
func TestFence(t *testing.T) {
	before, pod, all := newSilent(t, "pod/host-1")
	w := newAbsurdWorld(t, newAuthority(t), all...)
	w.pass(t.Context())
	w.pass(t.Context())
	if vm, fenced, given := w.seen(t); vm.Status.ActivePodName != pod.Name || !given || fenced != "" {
		t.Fatalf("after 20 s the VM is in pod %s, and the annotation is there: %v; fenced %q", vm.Status.ActivePodName, given, fenced)
	}
	for range 3 {
		w.pass(t.Context())
	}
	vm, fenced, given := w.seen(t)
	if vm.Status.ActivePodName == pod.Name || vm.Status.ActivePodUID == "" || vm.Status.VolumeClaimName != before.Status.VolumeClaimName || !vm.Status.ImagePrepared {
		t.Errorf("the authority is %+v", vm.Status.VirtualMachineAuthority)
	}
	if fenced != "True Fenced" || given || !w.said("A user said that node host-1") {
		t.Errorf("fenced %q, and the annotation is there: %v", fenced, given)
	}
	if !slices.Equal(w.deletes, []string{pod.Name}) {
		t.Errorf("%v are deleted", w.deletes)
	}
}

// TestFenceIsRefused: an annotation that is wrong or stale goes, and changes nothing, also when it comes true later.
func TestFenceIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		value, want string
		change      func(vm *v1alpha1.VirtualMachine, pod *corev1.Pod)
	}{
		"another host":     {value: "pod/host-2", want: "False OtherHost"},
		"another pod":      {value: "pod-before/host-1", want: "False OtherPod"},
		"malformed":        {value: "\x1b[2Jpod host-1\n" + strings.Repeat("ä", 5000), want: "False Malformed"},
		"a host that runs": {value: "pod/host-1", want: "False HostAnswers", change: func(_ *v1alpha1.VirtualMachine, pod *corev1.Pod) { pod.Status.Conditions[0] = answers }},
		"a VM that goes": {value: "pod/host-1", want: "False Terminating", change: func(vm *v1alpha1.VirtualMachine, _ *corev1.Pod) {
			vm.DeletionTimestamp, vm.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, append(vm.Finalizers, "example.org/stays")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before, pod, all := newSilent(t, test.value)
			if test.change != nil {
				test.change(before, pod)
			}
			w := newAbsurdWorld(t, newAuthority(t), all...)
			w.clock.Step(time.Minute)
			w.pass(t.Context())
			vm, fenced, given := w.seen(t)
			if given || fenced != test.want || !w.said("FenceRefused") {
				t.Errorf("fenced %q, and the annotation is there: %v", fenced, given)
			}
			w.checkTexts(t, before)
			pod.Status.Conditions = []corev1.PodCondition{silent}
			if err := w.live.Status().Update(t.Context(), pod); client.IgnoreNotFound(err) != nil { // it goes with its VM
				t.Fatal(err)
			}
			for range 3 {
				w.pass(t.Context())
			}
			if after, _, _ := w.seen(t); after.Status.VirtualMachineAuthority != vm.Status.VirtualMachineAuthority {
				t.Errorf("the authority is %+v", after.Status.VirtualMachineAuthority)
			}
		})
	}
}

// TestFenceBelievesNoCache: a host that answers again is not fenced, though the cache does not know yet.
func TestFenceBelievesNoCache(t *testing.T) {
	_, pod, all := newSilent(t, "pod/host-1")
	w := newAbsurdWorld(t, newAuthority(t), all...)
	w.cluster.live = interceptor.NewClient(w.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, object, opts...)
			if live, is := object.(*corev1.Pod); is && err == nil {
				live.Status.Conditions = []corev1.PodCondition{answers}
			}
			return err
		},
	})
	w.clock.Step(time.Minute)
	for range 3 {
		w.pass(t.Context())
	}
	if vm, fenced, given := w.seen(t); vm.Status.ActivePodName != pod.Name || fenced != "False HostAnswers" || given {
		t.Errorf("the VM is in pod %s, and fenced %q", vm.Status.ActivePodName, fenced)
	}
}
