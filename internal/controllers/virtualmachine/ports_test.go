package virtualmachine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const labelApp = "vm.metropolis.monogon.dev/app"

// selected reports whether a Service that selects the label of a VM would lead to a Pod.
func (w *testEnv) selected(pod *corev1.Pod, value string) func() bool {
	return func() bool {
		w.must(w.client.Get(w.Context(), client.ObjectKeyFromObject(pod), pod))
		return pod.Labels[labelApp] == value
	}
}

// guestReady reports the result of a check of the guest.
func (h *hypervisor) guestReady(problem string) {
	h.Helper()
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.ImagePrepared = true
		r.Guest = &vmpb.ReportStateRequest_Guest{Ready: problem == "", Message: problem}
	})
}

// guestCondition returns the status and the message of the condition GuestReady.
func (w *testEnv) guestCondition(name string) string {
	w.Helper()
	condition := meta.FindStatusCondition(w.vm(name).Status.Conditions, v1alpha1.ConditionGuestReady)
	if condition == nil {
		return ""
	}
	return string(condition.Status) + " " + condition.Message
}

// TestPorts_ServicesFollowReadyGuest checks that the Pod has the VM's labels exactly while the guest is ready, that later
// labels of the VM apply to the running Pod, and that only those of our prefix are copied.
func TestPorts_ServicesFollowReadyGuest(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80}}
		vm.Labels = map[string]string{labelApp: "web", "app": "other", v1alpha1.LabelVM: "b"}
	})
	pod := w.awaitPod("a", "")
	w.schedule(pod)
	h := w.hypervisor("a", pod, 1)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)

	h.guestReady("port 80 does not accept connections")
	w.eventually("the condition has the reason", func() bool {
		return w.guestCondition("a") == "False port 80 does not accept connections"
	})
	if w.selected(pod, "")(); pod.Labels[labelApp] != "" {
		t.Errorf("labels of the pod of a guest that is not ready: %v", pod.Labels)
	}
	h.guestReady("")
	w.eventually("the pod is selected", w.selected(pod, "web"))
	if pod.Labels["app"] != "" || pod.Labels[v1alpha1.LabelVM] != "a" {
		t.Errorf("labels of the pod: %v", pod.Labels)
	}
	w.restart() // the next process has no report yet
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Labels[labelApp] = "shop" })
	w.eventually("the pod has the changed label", w.selected(pod, "shop"))

	again := w.hypervisor("a", pod, 1)
	again.report(vmpb.ReportStateRequest_STATE_STOPPING, func(r *vmpb.ReportStateRequest) { r.Guest = &vmpb.ReportStateRequest_Guest{Ready: true} })
	w.eventually("the pod of a guest that shuts down is not selected", w.selected(pod, ""))
	again.guestReady("")
	w.eventually("the pod is selected again", w.selected(pod, "shop"))
	again.guestReady("port 80 did not respond within 4s")
	w.eventually("the pod is not selected", w.selected(pod, ""))
	w.eventually("the condition has the new reason", func() bool { // it is written after the Pod has lost its labels
		return w.guestCondition("a") == "False port 80 did not respond within 4s"
	})
}

// sign signs an existing Pod, so that it is not considered forged without the authority.
func (w *fakeEnv) sign(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := w.live.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	w.cluster.signer.Sign(pod)
	if err := w.live.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// TestPorts_OnlyAuthoritativePod checks that a Pod loses the labels when it loses the authority, but not because it is being
// deleted, and that the Pod of a hypervisor without ports gets none.
func TestPorts_OnlyAuthoritativePod(t *testing.T) {
	for name, test := range map[string]struct {
		change func(vm *v1alpha1.VirtualMachine, pod *corev1.Pod)
		want   string
	}{
		"other authority": {change: func(vm *v1alpha1.VirtualMachine, _ *corev1.Pod) {
			vm.Status.ActivePodName, vm.Status.ActivePodUID = "other", "uid-of-other"
			vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "pod", TargetPodName: "other"}
		}},
		"deleted": {want: "web", change: func(_ *v1alpha1.VirtualMachine, pod *corev1.Pod) {
			pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"example.com/kubelet"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			vm, pod, all := newRunning(t)
			vm.Labels = map[string]string{labelApp: "web"}
			pod.Labels[labelApp] = "web"
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
			test.change(vm, pod)
			w := newFakeEnv(t, newAuthority(t), all...)
			w.sign(t, pod)
			w.pass(t.Context())
			err := w.live.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
			if client.IgnoreNotFound(err) != nil || err == nil && pod.Labels[labelApp] != test.want {
				t.Errorf("the pod has labels %v, %v", pod.Labels, err)
			}
		})
	}
	vm, pod, all := newRunning(t)
	vm.Labels = map[string]string{labelApp: "web"}
	w := newFakeEnv(t, newAuthority(t), all...)
	w.pass(t.Context())
	if err := w.live.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.Labels[labelApp] != "" {
		t.Errorf("the pod without ports has labels %v, %v", pod.Labels, err)
	}
}

// TestPorts_Switchover checks that the new Pod gets the labels immediately after a switchover if the guest was ready at the
// source, and before the former Pod loses them and is deleted.
func TestPorts_Switchover(t *testing.T) {
	for name, test := range map[string]struct {
		phase  v1alpha1.MigrationPhase
		ready  metav1.ConditionStatus
		denied bool // the labels of the new Pod cannot be changed
		want   []string
	}{
		"ready":             {phase: v1alpha1.MigrationSucceeded, ready: metav1.ConditionTrue, want: []string{"label next web", "label pod ", "delete pod"}},
		"not ready":         {phase: v1alpha1.MigrationSucceeded, ready: metav1.ConditionFalse, want: []string{"label pod ", "delete pod"}},
		"without migration": {phase: v1alpha1.MigrationFailed, ready: metav1.ConditionTrue, want: []string{"label pod ", "delete pod"}},
		"not labeled":       {phase: v1alpha1.MigrationSucceeded, ready: metav1.ConditionTrue, denied: true, want: []string{"label next web", "delete pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			vm, pod, all := newRunning(t)
			vm.Labels = map[string]string{labelApp: "web"}
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
			next := pod.DeepCopy()
			next.Name, next.UID = "next", "uid-of-next"
			pod.Labels[labelApp] = "web"
			vm.Status.ActivePodName, vm.Status.ActivePodUID = next.Name, next.UID
			vm.Status.Migration = &v1alpha1.VirtualMachineMigration{Phase: test.phase, SourcePodName: pod.Name, TargetPodName: next.Name}
			vm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionGuestReady, Status: test.ready}}
			w := newFakeEnv(t, newAuthority(t), append(all, next)...)
			w.sign(t, pod)
			w.sign(t, next)
			var got []string
			w.cluster.client = interceptor.NewClient(w.live, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if _, is := object.(*corev1.Pod); is {
						got = append(got, "label "+object.GetName()+" "+object.GetLabels()[labelApp])
						if test.denied {
							return errors.New("denied")
						}
					}
					return c.Patch(ctx, object, patch, options...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
					got = append(got, "delete "+object.GetName())
					return c.Delete(ctx, object, options...)
				},
			})
			_, err := w.Reconcile(t.Context(), ctrl.Request{NamespacedName: fakeKey})
			if (err != nil) != test.denied || !slices.Equal(got, test.want) {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// TestPorts_OtherStepFails checks that a Pod loses the labels with the authority although the API server refuses to delete
// it, and that a Pod whose labels cannot be changed is deleted.
func TestPorts_OtherStepFails(t *testing.T) {
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "pod", errors.New("denied by a webhook"))
	for name, test := range map[string]struct {
		refused    interceptor.Funcs
		wantExists bool
	}{
		"deletion": {refused: interceptor.Funcs{Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return denied }}, wantExists: true},
		"labels": {refused: interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, is := object.(*corev1.Pod); is {
				return denied
			}
			return c.Patch(ctx, object, patch, options...)
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			vm, pod, all := newRunning(t)
			vm.Labels = map[string]string{labelApp: "web"}
			pod.Labels[labelApp] = "web"
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
			vm.Status.ActivePodName, vm.Status.ActivePodUID = "other", "uid-of-other"
			vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "pod", TargetPodName: "other"}
			w := newFakeEnv(t, newAuthority(t), all...)
			w.sign(t, pod)
			w.cluster.client = interceptor.NewClient(w.live, test.refused)
			if _, err := w.Reconcile(t.Context(), ctrl.Request{NamespacedName: fakeKey}); !errors.Is(err, denied) {
				t.Errorf("the pass returned %v", err)
			}
			err := w.live.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
			if exists := err == nil; client.IgnoreNotFound(err) != nil || exists != test.wantExists || exists && pod.Labels[labelApp] != "" {
				t.Errorf("the pod exists: %t, with labels %v, %v", exists, pod.Labels, err)
			}
		})
	}
}
