package virtualmachine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// onBlock gives a VM a root disk and a data disk "logs" that are block devices, and a data disk "db" that is a file.
func onBlock(vm *v1alpha1.VirtualMachine, class string) {
	vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("logs", "1Gi", class), dataDisk("db", "1Gi", class)}
	vm.Spec.DataDisks[0].VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
}

// devicesOf describes which disks a Pod has as devices and which as files, with their claims and volume modes.
func (w *testEnv) devicesOf(pod *corev1.Pod) string {
	w.Helper()
	claims := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		if from := volume.PersistentVolumeClaim; from != nil {
			claim := &corev1.PersistentVolumeClaim{}
			w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: from.ClaimName}, claim))
			claims[volume.Name] = fmt.Sprintf("%s (%s)", from.ClaimName, *claim.Spec.VolumeMode)
		}
	}
	paths := []string{w.specOf(pod).GetRootDiskPath()}
	for _, disk := range w.specOf(pod).GetDataDisks() {
		paths = append(paths, disk.GetPath())
	}
	container, texts := pod.Spec.Containers[0], []string{}
	for _, path := range paths {
		for _, device := range container.VolumeDevices {
			if path == device.DevicePath {
				texts = append(texts, path+" is "+claims[device.Name])
			}
		}
		for _, mount := range container.VolumeMounts {
			if strings.HasPrefix(path, mount.MountPath+"/") {
				texts = append(texts, path+" is on "+claims[mount.Name])
			}
		}
	}
	return strings.Join(texts, "\n")
}

func devicesAt(root, logs, db string) string {
	return fmt.Sprintf("/dev/millwright/root is %s (Block)\n/dev/millwright/data-logs is %s (Block)\n/var/lib/millwright-data/db/disk.img is on %s (Filesystem)", root, logs, db)
}

// TestDisk_BlockVolumeIsUsedAsDevice checks that a disk with volumeMode Block uses the volume as a device, also in a migration target.
func TestDisk_BlockVolumeIsUsedAsDevice(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	class := w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer)
	pod, source, _ := w.migratable("a", func(vm *v1alpha1.VirtualMachine) { onBlock(vm, class) })
	if diff := cmp.Diff(devicesAt("a", "a-logs", "a-db"), w.devicesOf(pod)); diff != "" {
		t.Errorf("the disks (-want +got):\n%s", diff)
	}
	if is := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionStorageLocking); is == nil ||
		is.Status != metav1.ConditionUnknown || !strings.Contains(is.Message, "block device") {
		t.Errorf("the condition is %+v", is)
	}
	w.evict(pod)
	responses := source.requestTarget()
	target := w.awaitTarget("a", "")
	if diff := cmp.Diff(devicesAt(target.Name, target.Name+"-logs", target.Name+"-db"), w.devicesOf(target)); diff != "" {
		t.Errorf("the target's disks (-want +got):\n%s", diff)
	}
	w.target("a", target, 2)
	w.wantMigrate(responses, target)
}

// TestVolume_ModeIsKept checks that the volumeMode of an existing disk cannot be changed.
func TestVolume_ModeIsKept(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	class := w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) { onBlock(vm, class) })
	pod := w.awaitPod("a", "")
	w.stop() // so that there are no conflicting writes
	for name, change := range map[string]func(*v1alpha1.VirtualMachineSpec){
		"root disk":       func(s *v1alpha1.VirtualMachineSpec) { s.VolumeClaimTemplate.Spec.VolumeMode = nil },
		"block data disk": func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks[0].VolumeClaimTemplate.Spec.VolumeMode = nil },
		"file data disk": func(s *v1alpha1.VirtualMachineSpec) {
			s.DataDisks[1].VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		},
		"unknown mode": func(s *v1alpha1.VirtualMachineSpec) {
			s.DataDisks[1].VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeMode("Tape"))
		},
	} {
		vm := w.vm("a")
		change(&vm.Spec)
		if err := w.client.Update(t.Context(), vm); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.start()
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		vm.Spec.DataDisks[1].VolumeClaimTemplate.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem) // unchanged
	})
	// A disk that is removed from the list can be added with another mode, but its existing claim is found again.
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.DataDisks = vm.Spec.DataDisks[1:] })
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DataDisks = append(vm.Spec.DataDisks, dataDisk("logs", "1Gi", class))
	})
	w.remove(pod)
	w.awaitReady("a", reasonUnsupported)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.DataDisks = vm.Spec.DataDisks[:1] })
	w.awaitPod("a", pod.Name)
}

// TestStorageLocking_MissingPreventsStart checks that a VM does not start if nothing prevents two hosts from using a disk at the same
// time.
func TestStorageLocking_MissingPreventsStart(t *testing.T) {
	many := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
	for name, test := range map[string]struct {
		change func(*v1alpha1.VirtualMachineSpec)
		want   string
	}{
		"ReadWriteOnce":              {func(*v1alpha1.VirtualMachineSpec) {}, ""},
		"root disk on ReadWriteMany": {func(s *v1alpha1.VirtualMachineSpec) { s.VolumeClaimTemplate.Spec.AccessModes = many }, "spec.volumeClaimTemplate"},
		"data disk on ReadWriteMany": {func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks[0].VolumeClaimTemplate.Spec.AccessModes = many }, "spec.dataDisks[logs].volumeClaimTemplate"},
		"file on ReadWriteMany":      {func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks[1].VolumeClaimTemplate.Spec.AccessModes = many }, ""},
		"with leases": {func(s *v1alpha1.VirtualMachineSpec) {
			s.VolumeClaimTemplate.Spec.AccessModes, s.LeaseMode = many, v1alpha1.LeaseFullLeases
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vm := fixture.Named("a", fixture.VirtualMachine())
			onBlock(vm, "")
			test.change(&vm.Spec)
			if got := podspec.UnlockedDevices(&vm.Spec); got != test.want {
				t.Errorf("unlocked: %q, want %q", got, test.want)
			}
			if found := invalid(vm, podspec.Settings{}); (found != nil) != (test.want != "") || found != nil && found.Reason != reasonUnsupported {
				t.Errorf("invalid returns %+v", found)
			}
		})
	}
}
