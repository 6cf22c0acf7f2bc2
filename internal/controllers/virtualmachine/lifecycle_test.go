package virtualmachine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/rotation"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// specOf returns the spec of the hypervisor in a Pod.
func (w *testEnv) specOf(pod *corev1.Pod) *vmpb.VMSpec {
	w.Helper()
	spec := &vmpb.VMSpec{}
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.Name == vmpb.EnvSpec {
			w.must(protojson.Unmarshal([]byte(variable.Value), spec))
		}
	}
	return spec
}

var left = fixture.TerminationMessage

// TestVirtualMachine_Lifecycle checks the lifecycle of a VM from its creation, through the termination of a hypervisor, to its deletion.
func TestVirtualMachine_Lifecycle(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	vm := w.vm("a")
	if vm.Spec.UUID == "" || !slices.Contains(vm.Finalizers, v1alpha1.Finalizer) || vm.Status.VolumeClaimName != "a" {
		t.Errorf("uuid %q, finalizers %v, claim %q", vm.Spec.UUID, vm.Finalizers, vm.Status.VolumeClaimName)
	}
	if spec := w.specOf(pod); spec.GetMode() != vmpb.VMSpec_SM_PREPARE_IMAGE || !slices.Equal(spec.GetAddress(), []string{"10.77.0.16"}) {
		t.Errorf("the spec of the first hypervisor has %s, %v", spec.GetMode(), spec.GetAddress())
	}
	w.awaitReady("a", reasonScheduling)
	w.schedule(pod)
	w.awaitReady("a", reasonStarting)

	h := w.hypervisor("a", pod, 7)
	next := h.lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_PREPARING, func(r *vmpb.ReportStateRequest) { r.DoneBytes, r.TotalBytes = 12<<20, 64<<20 })
	w.awaitReady("a", reasonPreparing)
	if got := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionReady).Message; got != "12 MiB of 64 MiB written" {
		t.Errorf("message %q", got)
	}
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
	if !w.vm("a").Status.ImagePrepared {
		t.Error("the response was sent before the status recorded that the image is prepared")
	}
	w.awaitReady("a", reasonRunning)
	if vm := w.vm("a"); vm.Status.Phase != v1alpha1.PhaseRunning || vm.Status.NodeName != "host-1" || vm.Status.ActiveRunID != "7" {
		t.Errorf("phase %s, node %s, run %s", vm.Status.Phase, vm.Status.NodeName, vm.Status.ActiveRunID)
	}

	w.end(pod, left(vmpb.EndQEMUFailed, "QEMU terminated."))
	second := w.awaitPod("a", pod.Name)
	if spec := w.specOf(second); spec.GetMode() != vmpb.VMSpec_SM_RUN {
		t.Errorf("the spec of the second hypervisor has %s", spec.GetMode())
	}
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	w.eventually("the terminated pod is deleted", func() bool { w.remove(pod); return len(w.pods("a")) == 1 })

	w.schedule(second)
	lease := w.hypervisor("a", second, 8).lease()
	w.wantStatus(lease, vmpb.RunLeaseUpdate_STATUS_OK)
	w.wantOrderlyEnd(second, lease)
	w.wantEvents("Normal Created ", "Normal Running Running on host-1", "Warning QEMUFailed ", "Normal Created ")
}

// TestPod_RunningSidecarDoesNotBlockRestart checks that a VM is restarted, and its old Pod deleted, even if a container that a webhook
// added keeps running after the hypervisor has terminated.
func TestPod_RunningSidecarDoesNotBlockRestart(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.schedule(pod)
	w.kubelet(pod, func(status *corev1.PodStatus) {
		status.Phase = corev1.PodRunning
		status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "sidecar", Image: "i", ImageID: "i", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: podspec.ContainerName, Image: "i", ImageID: "i", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: left(vmpb.EndQEMUFailed, "QEMU terminated.")}}},
		}
	})
	w.awaitPod("a", pod.Name)
	w.wantEvents("Normal Created ", "Warning QEMUFailed ", "Normal Created ")
	w.eventually("the old pod is being deleted", func() bool {
		return w.gone(pod, pod.Name) || pod.DeletionTimestamp != nil
	})
}

// wantOrderlyEnd deletes the VM "a", and checks that the run lease, the Pod, the disk and the object end in this
// order.
func (w *testEnv) wantOrderlyEnd(second *corev1.Pod, lease func() *vmpb.RunLeaseUpdate) {
	w.Helper()
	w.must(w.client.Delete(w.Context(), w.vm("a")))
	w.wantStatus(lease, vmpb.RunLeaseUpdate_STATUS_TERMINATE)
	w.eventually("the pod is being deleted", func() bool { return w.pods("a")[0].DeletionTimestamp != nil })
	claim := &corev1.PersistentVolumeClaim{}
	if w.gone(claim, "a") || claim.DeletionTimestamp != nil {
		w.Error("the disk is deleted before its hypervisor")
	}
	w.remove(second)
	w.eventually("the disk is being deleted", func() bool { return w.gone(claim, "a") || claim.DeletionTimestamp != nil })
	if vm := w.vm("a"); vm.Status.Phase != v1alpha1.PhaseTerminating {
		w.Errorf("phase %s", vm.Status.Phase)
	}
	claim.Finalizers = nil
	w.must(client.IgnoreNotFound(w.client.Update(w.Context(), claim)))
	w.eventually("the virtual machine is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "a") })
}

// wantEvents checks the prefixes of all events so far.
func (w *testEnv) wantEvents(want ...string) {
	w.Helper()
	var got []string
	for len(w.events.Events) > 0 {
		got = append(got, <-w.events.Events)
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		w.Errorf("events %q, want %q", got, want)
	}
}

// TestController_RestartAtEachStep checks that a new controller process continues the work of the last one, and creates nothing
// twice.
func TestController_RestartAtEachStep(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.restart()
	w.schedule(pod)
	w.awaitReady("a", reasonStarting)
	w.restart()
	h := w.hypervisor("a", pod, 1)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared = true })
	w.awaitReady("a", reasonRunning)
	w.restart()
	w.wantStatus(w.hypervisor("a", pod, 1).lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	// A process that has no report yet also observes changes of the spec.
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.CPUs = 3 })
	generation := w.vm("a").Generation
	w.eventually("the change is observed", func() bool { return w.vm("a").Status.ObservedGeneration == generation })
	if got := w.ready("a"); got != reasonRunning || len(w.pods("a")) != 1 {
		t.Errorf("ready %s, %d pods", got, len(w.pods("a")))
	}
}

func TestPod_ReservedIsCreatedAfterRestart(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.stop()
	w.declare("a", nil)
	vm := w.vm("a")
	vm.Status.ActivePodName = "a-reserved"
	w.must(w.client.Status().Update(t.Context(), vm))
	w.start()
	if pod := w.awaitPod("a", ""); pod.Name != "a-reserved" || len(w.pods("a")) != 1 {
		t.Errorf("pod %s of %d", pod.Name, len(w.pods("a")))
	}
}

func TestPod_UnschedulableIsReported(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.kubelet(pod, func(status *corev1.PodStatus) {
		status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available",
		}}
	})
	w.awaitReady("a", v1alpha1.ReasonUnschedulable)
	condition := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionScheduled)
	if condition.Reason != v1alpha1.ReasonUnschedulable || condition.Message != "0/2 nodes are available" {
		t.Errorf("condition %+v", condition)
	}
}

// TestPod_ReplacedWithNewImageIfItCannotStart checks that a Pod whose image cannot be pulled is replaced when the VM
// gets another image, and not before.
func TestPod_ReplacedWithNewImageIfItCannotStart(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.HypervisorImage = "none:1" })
	stuck := w.awaitPod("a", "")
	w.schedule(stuck)
	w.kubelet(stuck, func(status *corev1.PodStatus) {
		status.Phase = corev1.PodPending
		status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerName, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
		}}}
	})
	w.awaitReady("a", v1alpha1.ReasonImagePullFailed)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.HypervisorImage = "good:1" })
	w.eventually("the pod is deleted", func() bool {
		return w.gone(stuck, stuck.Name) || !stuck.DeletionTimestamp.IsZero()
	})
	w.remove(stuck)
	next := w.awaitPod("a", stuck.Name)
	if image := next.Spec.Containers[0].Image; image != "good:1" {
		t.Errorf("the next pod has image %s", image)
	}
}

// TestPod_UnschedulableIsReplacedAfterSpecChange checks that an unschedulable Pod is replaced when the spec changes, and
// that a Pod with a host is not.
func TestPod_UnschedulableIsReplacedAfterSpecChange(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	w.declare("b", nil)
	refused, kept := w.awaitPod("a", ""), w.awaitPod("b", "")
	w.schedule(kept)
	for _, pod := range []*corev1.Pod{refused, kept} {
		w.kubelet(pod, func(status *corev1.PodStatus) {
			status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available",
			}}
		})
	}
	w.awaitReady("a", v1alpha1.ReasonUnschedulable)
	for _, name := range []string{"b", "a"} {
		w.change(name, func(vm *v1alpha1.VirtualMachine) { vm.Spec.Memory = ptr.To(resource.MustParse("96Mi")) })
	}
	next := w.awaitPod("a", refused.Name)
	if got := w.specOf(next).GetResources().GetMemoryBytes(); got != 96<<20 {
		t.Errorf("the next pod's guest has %d bytes of memory", got)
	}
	w.awaitPod("b", "")
	if pods := w.pods("b"); len(pods) != 1 || pods[0].UID != kept.UID {
		t.Errorf("a pod with a host was replaced: %v", pods)
	}
}

// TestAddress_IsReleasedWithVM checks that a VM gets the address that it waits for when the other VM is deleted or changes
// its address.
func TestAddress_IsReleasedWithVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const address = "10.77.5.5"
	w := newTestEnv(t)
	request := func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.VMIPs, vm.Spec.VolumeClaimTemplate = []string{address}, nil // no claims, because nothing removes their finalizers
	}
	w.declare("a", request)
	w.awaitPod("a", "")
	w.declare("b", request)
	w.awaitReady("b", reasonAddress)
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.awaitPod("b", "")
	w.declare("c", request)
	w.awaitReady("c", reasonAddress)
	w.change("b", func(vm *v1alpha1.VirtualMachine) { vm.Spec.VMIPs = []string{"10.77.5.6"} })
	w.end(w.awaitPod("b", ""), left(vmpb.EndQEMUFailed, "QEMU crashed"))
	w.awaitPod("c", "")
}

// TestStatus_HasOnlyValidAddresses checks that a VM gets no Pod if its addresses or spec change after they were validated and
// before the Pod is created.
func TestStatus_HasOnlyValidAddresses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.VirtualMachine)
		reason string
	}{
		"annotation": {func(vm *v1alpha1.VirtualMachine) {
			metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationAddresses, "10.77.0.16")
		}, reasonAddress},
		"spec": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VMIPs, vm.Generation = []string{"10.77.0.16"}, vm.Generation+1
		}, reasonAddress},
		"invalid spec": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
			vm.Generation++
		}, reasonInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			other := fixture.Named("other", fixture.VirtualMachine())
			other.UID, other.Spec.UUID = "uid-of-other", ""
			metav1.SetMetaDataAnnotation(&other.ObjectMeta, v1alpha1.AnnotationAddresses, "10.77.0.16")
			other.Status.Addresses = []string{"10.77.0.16"}
			vm := fixture.VirtualMachine()
			vm.Spec.VolumeClaimTemplate = nil
			w := newFakeEnv(t, newAuthority(t), vm, other)
			changed := 0
			w.cluster.live = interceptor.NewClient(w.live, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
					if live, is := object.(*v1alpha1.VirtualMachine); is && changed == 0 && c.Get(ctx, key, live) == nil && live.Status.ActivePodName != "" {
						changed++
						test.change(live)
						if err := w.live.Update(ctx, live); err != nil {
							return err
						}
					}
					return c.Get(ctx, key, object, opts...)
				},
			})
			for range 5 {
				w.pass(t.Context())
			}
			after, pods := &v1alpha1.VirtualMachine{}, &corev1.PodList{}
			if err := errors.Join(w.live.Get(t.Context(), fakeKey, after), w.live.List(t.Context(), pods)); err != nil {
				t.Fatal(err)
			}
			ready := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
			if changed != 1 || len(pods.Items) > 0 || ready == nil || ready.Reason != test.reason {
				t.Errorf("changed %d times, %d Pods, condition %+v; want no Pods and reason %s", changed, len(pods.Items), ready, test.reason)
			}
		})
	}
}

func TestUserData_CreatedLater(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: "boot", Key: "x"}}
	})
	w.awaitReady("a", reasonUserDataMissing)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "boot"}, Data: map[string][]byte{"y": []byte("1")}}
	w.must(w.client.Create(t.Context(), secret))
	w.eventually("the message names the key", func() bool {
		condition := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionReady)
		return condition.Message == "spec.userData.secretRef: secret boot has no key x"
	})
	if len(w.pods("a")) != 0 {
		t.Error("there is a pod without user data")
	}
	secret.Data["x"] = []byte("2")
	w.must(w.client.Update(t.Context(), secret))
	w.awaitPod("a", "")
}

// TestAuthority_KeyIsNotReadableByGuest checks that a guest cannot read the key of the certificate authority, with which
// it could impersonate any hypervisor and the VM controller.
func TestAuthority_KeyIsNotReadableByGuest(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	if _, err := rotation.Load(t.Context(), w.client, w.namespace); err != nil {
		t.Fatal(err)
	}
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: podspec.AuthoritySecret, Key: corev1.TLSPrivateKeyKey}}
	})
	w.awaitReady("a", reasonInvalid)
	if len(w.pods("a")) != 0 {
		t.Error("there is a pod that mounts the key of the authority")
	}
}

func TestPod_ManualDeletionRestartsVM(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	w.remove(pod)
	if next := w.awaitPod("a", pod.Name); w.specOf(next).GetMode() != vmpb.VMSpec_SM_RUN {
		t.Errorf("the spec of the next hypervisor has %s", w.specOf(next).GetMode())
	}
}

// TestAuthority_LossTerminatesPod checks that the existing Pod is elected after a restore without status, and that its guest keeps
// running.
func TestAuthority_LossTerminatesPod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, h, _ := w.running("a")
	w.stop()
	vm := w.vm("a")
	vm.Status = v1alpha1.VirtualMachineStatus{}
	w.must(w.client.Status().Update(t.Context(), vm))
	w.start()
	h = w.hypervisor("a", pod, h.us.GetRunId())
	next := h.lease()
	update := next()
	if update.GetStatus() == vmpb.RunLeaseUpdate_STATUS_UNKNOWN {
		update = next()
	}
	if update.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK {
		t.Errorf("the run lease has %s", update.GetStatus())
	}
	if vm := w.vm("a"); vm.Status.ActivePodUID != pod.UID || vm.Status.VolumeClaimName != "a" {
		t.Errorf("authority %+v", vm.Status.VirtualMachineAuthority)
	}
}

// secondPod creates a second Pod of a VM, as in a migration.
func (w *testEnv) secondPod(vm string, name string) *corev1.Pod {
	w.Helper()
	return w.createPod(vm, name, podstate.Signer{MAC: w.authority.MAC})
}

// forge creates a Pod that looks like a hypervisor of a VM, as a user can who can create Pods.
func (w *testEnv) forge(vm string, name string) *corev1.Pod {
	w.Helper()
	return w.createPod(vm, name, podstate.Signer{})
}

func (w *testEnv) createPod(vm string, name string, signer podstate.Signer) *corev1.Pod {
	w.Helper()
	object := w.vm(vm)
	object.Status.ActivePodName = name
	pod, err := podspec.Pod(object, podspec.Settings{Image: "hypervisor:test"})
	w.must(err)
	signer.Sign(pod)
	w.must(w.client.Create(w.Context(), pod))
	return pod
}

// TestPod_ForgedIsDeleted checks that a Pod that a user has created with an owner reference to a VM never becomes its
// hypervisor and gets no certificate: neither before the VM has a Pod, nor under the name that is reserved for its next Pod.
func TestPod_ForgedIsDeleted(t *testing.T) {
	t.Parallel()
	for name, reserved := range map[string]string{"before the first Pod": "", "with the reserved name": "a-forged"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			w.declare("a", func(vm *v1alpha1.VirtualMachine) {
				vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: "late", Key: "x"}}
			})
			w.awaitReady("a", reasonUserDataMissing)
			w.stop()
			if reserved != "" {
				vm := w.vm("a")
				vm.Status.ActivePodName = reserved
				w.must(w.client.Status().Update(t.Context(), vm))
			}
			forged := w.forge("a", "a-forged")
			tokens := service.TokenReviewer{Client: w.client, APIReader: w.client, Signer: podstate.Signer{MAC: w.authority.MAC}}
			_, err := tokens.Resolve(t.Context(), w.token(forged, vmpb.TokenAudience))
			wantCode(t, err, codes.PermissionDenied)
			w.must(w.client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "late"}, Data: map[string][]byte{"x": []byte("1")}}))
			w.start()
			w.eventually("the forged Pod is deleted", func() bool { return w.gone(&corev1.Pod{}, forged.Name) })
			if pod := w.awaitPod("a", ""); pod.UID == forged.UID {
				t.Errorf("the forged Pod is authoritative: %+v", w.vm("a").Status.VirtualMachineAuthority)
			}
		})
	}
}

// TestAuthority_LossKeepsPodWithRunLease checks that the Pod with an open run lease is kept.
func TestAuthority_LossKeepsPodWithRunLease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	w.stop()
	second := w.secondPod("a", "a-second")
	w.schedule(second)
	vm := w.vm("a")
	vm.Status = v1alpha1.VirtualMachineStatus{}
	w.must(w.client.Status().Update(t.Context(), vm))
	w.start()
	next := w.hypervisor("a", pod, 1).lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_UNKNOWN)
	w.eventually("the second pod is deleted", func() bool {
		return !w.gone(second, second.Name) && second.DeletionTimestamp != nil
	})
	if got := w.vm("a").Status.ActivePodName; got != "" {
		t.Errorf("%s is authoritative although there is another pod", got)
	}
	w.remove(second)
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	w.eventually("the pod is elected", func() bool { return w.vm("a").Status.ActivePodUID == pod.UID })
}

// TestPod_WithoutAuthorityIsDeleted checks that a second Pod in addition to the authoritative one is deleted.
func TestPod_WithoutAuthorityIsDeleted(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	w.secondPod("a", "a-second")
	w.eventually("the second pod is deleted", func() bool { return w.gone(&corev1.Pod{}, "a-second") })
	if w.gone(pod, pod.Name) || pod.DeletionTimestamp != nil {
		t.Error("the authoritative pod is deleted")
	}
}

// TestPod_MeetsBaselineStandard checks that hypervisor Pods are admitted by Pod Security level "baseline". For "restricted",
// they lack only a user, which is that of their image.
func TestPod_MeetsBaselineStandard(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	level := `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`
	w.must(w.client.Patch(w.Context(), namespace, client.RawPatch(types.MergePatchType, []byte(level))))
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	strict := pod.DeepCopy()
	strict.ObjectMeta = metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "strict-"}
	strict.Spec.Containers[0].SecurityContext.RunAsNonRoot = ptr.To(true)
	level = strings.ReplaceAll(level, "baseline", "restricted")
	w.must(w.client.Patch(w.Context(), namespace, client.RawPatch(types.MergePatchType, []byte(level))))
	w.eventually("a pod that does not run as root is admitted", func() bool { return w.client.Create(w.Context(), strict, client.DryRunAll) == nil })
}
