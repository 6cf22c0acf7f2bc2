package virtualmachine

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// userData returns the user data in a Secret.
func userData(secret string) *v1alpha1.UserData {
	return &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: secret, Key: "userData"}}
}

// operatorsObjects are changes of a VM by which its guest or its hypervisor would use what belongs to the operator, and
// the beginning of the message.
var operatorsObjects = map[string]struct {
	change  func(w *fakeEnv, vm *v1alpha1.VirtualMachine)
	message string
}{
	"namespace of the controller": {func(w *fakeEnv, vm *v1alpha1.VirtualMachine) {
		settings := w.cluster.settings()
		settings.Namespace = vm.Namespace
		w.cluster.settings = func() podspec.Settings { return settings }
	}, "metadata.namespace: "},
	"image of the author": {func(_ *fakeEnv, vm *v1alpha1.VirtualMachine) {
		vm.Spec.HypervisorImage = "registry.example.com/author"
	}, "spec.hypervisorImage: image registry.example.com/author is not permitted; remove the field, or ask an operator to add the image to --hypervisor-images "},
	"network without permission": {func(_ *fakeEnv, vm *v1alpha1.VirtualMachine) {
		vm.Spec.Networks = []v1alpha1.Network{{Name: "a", Multus: v1alpha1.MultusNetwork{NetworkName: "networks/storage"}}}
	}, "spec.networks[0].multus.networkName: network networks/storage is not permitted; create the virtual machine without it, or ask an operator to add it to --network-attachments "},
}

// TestPod_OperatorsObjectsAreRefused checks that a VM gets no Pod in the namespace of the VM controller, with an image
// that the operator does not permit, or with the key of the authority, and that the condition names the field.
func TestPod_OperatorsObjectsAreRefused(t *testing.T) {
	tests := map[string]string{"key of the authority": "spec.userData.secretRef: "}
	for name, test := range operatorsObjects {
		tests[name] = test.message
	}
	for name, message := range tests {
		t.Run(name, func(t *testing.T) {
			vm := fixture.VirtualMachine()
			vm.Spec.VolumeClaimTemplate = nil
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: podspec.AuthoritySecret}, Data: map[string][]byte{"userData": {1}}}
			w := newFakeEnv(t, newAuthority(t), secret)
			if test, found := operatorsObjects[name]; found {
				test.change(w, vm)
			} else {
				vm.Spec.UserData = userData(podspec.AuthoritySecret)
			}
			if err := w.live.Create(t.Context(), vm); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				w.pass(t.Context())
			}
			w.wantRefused(t, reasonInvalid, message)
		})
	}
}

// newMigrating returns the objects of a running VM with user data in Secret boot, whose migration has reserved a target.
func newMigrating(t *testing.T) (vm *v1alpha1.VirtualMachine, objects []client.Object) {
	t.Helper()
	vm, pod, objects := newRunning(t)
	vm.Spec.UserData = userData("boot")
	source, err := podspec.Pod(vm, podspec.Settings{Image: "hypervisor:test"})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers, pod.Spec.Volumes = source.Spec.Containers, source.Spec.Volumes
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
		Phase: v1alpha1.MigrationPreparing, SourcePodName: pod.Name, SourceNodeName: "host-1", TargetPodName: "target",
		StartTime: metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
	}
	return vm, objects
}

// target returns the target Pod of the migration, or nil if there is none.
func (w *fakeEnv) target(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	err := w.live.Get(t.Context(), client.ObjectKey{Namespace: fakeKey.Namespace, Name: "target"}, pod)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestMigration_TargetKeepsUserData checks that the target of a migration mounts the user data of the source, not what
// the author has written into the spec since the source was checked.
func TestMigration_TargetKeepsUserData(t *testing.T) {
	vm, objects := newMigrating(t)
	vm.Generation++
	vm.Spec.UserData = userData(podspec.AuthoritySecret)
	w := newFakeEnv(t, newAuthority(t), objects...)
	w.pass(t.Context())
	target := w.target(t)
	if target == nil {
		t.Fatalf("there is no target: %+v", w.get(t).Status)
	}
	var secrets []string
	for _, volume := range target.Spec.Volumes {
		if volume.Secret != nil {
			secrets = append(secrets, volume.Secret.SecretName)
		}
	}
	if len(secrets) != 1 || secrets[0] != "boot" {
		t.Errorf("the target mounts secrets %q", secrets)
	}
}

// TestMigration_TargetIsRefused checks that the checks of the first Pod of a VM also apply to the target of a
// migration, which then fails with their message, while the guest keeps running.
func TestMigration_TargetIsRefused(t *testing.T) {
	for name, test := range operatorsObjects {
		t.Run(name, func(t *testing.T) {
			vm, objects := newMigrating(t)
			w := newFakeEnv(t, newAuthority(t), objects[1:]...)
			test.change(w, vm)
			status := vm.Status
			if err := w.live.Create(t.Context(), vm); err != nil {
				t.Fatal(err)
			}
			vm.Status = status
			if err := w.live.Status().Update(t.Context(), vm); err != nil {
				t.Fatal(err)
			}
			w.pass(t.Context())
			w.pass(t.Context())
			record := w.get(t).Status.Migration
			if record.Phase != v1alpha1.MigrationFailed || record.Reason != migration.ReasonRefused || !strings.HasPrefix(record.Message, test.message) {
				t.Errorf("the migration is %+v", record)
			}
			if target := w.target(t); target != nil || len(w.deletes) > 0 {
				t.Errorf("the target is %v, and %q were deleted", target, w.deletes)
			}
		})
	}
}

// TestDiskServer_MountsOnlyOwnClaims checks that a disk server never mounts a claim of another VM or of no VM: a data
// disk of one VM has the claim name of another VM's root disk. It also checks that it gets the disk when the claim is
// free.
func TestDiskServer_MountsOnlyOwnClaims(t *testing.T) {
	other := fixture.Named(fakeKey.Name+"-b", fixture.VirtualMachine())
	foreign := podspec.Claim(other, "", other.Spec.VolumeClaimTemplate, other.Name)
	unowned := foreign.DeepCopy()
	unowned.OwnerReferences = nil
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{"of another VM": foreign, "of no VM": unowned, "free": nil} {
		t.Run(name, func(t *testing.T) {
			vm, pod, objects := newRunning(t)
			withServedDisks(vm)
			vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("b", "1Gi", "")}
			vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "gone", PodUID: "uid-of-gone"}
			pod.Status.Phase = corev1.PodFailed
			objects[2].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimBound
			if claim != nil {
				objects = append(objects, claim)
			}
			w := newFakeEnv(t, newAuthority(t), objects...)
			w.pass(t.Context())
			if claim == nil {
				w.bindClaim(t, other.Name)
			}
			for range 5 {
				w.pass(t.Context())
			}
			pods := &corev1.PodList{}
			if err := w.live.List(t.Context(), pods, client.MatchingLabels{v1alpha1.LabelDiskServer: "true"}); err != nil {
				t.Fatal(err)
			}
			if claim == nil {
				if len(pods.Items) != 1 || len(podspec.Claims(&pods.Items[0])) != 2 {
					t.Errorf("the disk servers are %v", pods.Items)
				}
				return
			}
			if len(pods.Items) > 0 {
				t.Errorf("disk server %s mounts claims %q", pods.Items[0].Name, podspec.Claims(&pods.Items[0]))
			}
			served := meta.FindStatusCondition(w.get(t).Status.Conditions, v1alpha1.ConditionDisksServed)
			if served == nil || served.Reason != reasonClaimTaken || !strings.Contains(served.Message, other.Name) {
				t.Errorf("condition %+v", served)
			}
		})
	}
}

// bindClaim gives a claim its volume.
func (w *fakeEnv) bindClaim(t *testing.T, name string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	if err := w.live.Get(t.Context(), client.ObjectKey{Namespace: fakeKey.Namespace, Name: name}, claim); err != nil {
		t.Fatal(err)
	}
	claim.Status.Phase = corev1.ClaimBound
	if err := w.live.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}
