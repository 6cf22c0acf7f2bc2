package virtualmachine

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// onMany gives a VM volumes with access mode ReadWriteMany, including the data disk "logs".
func (w *testEnv) onMany(vm *v1alpha1.VirtualMachine) {
	w.withLogs(vm)
	many := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
	vm.Spec.VolumeClaimTemplate.Spec.AccessModes = many
	vm.Spec.DataDisks[0].VolumeClaimTemplate.Spec.AccessModes = many
}

// TestDisk_SharedByMigration checks that a VM whose disks have access mode ReadWriteMany moves to Pods with the same claims, and
// that the claims are kept, also if a target fails and if the controller is restarted.
func TestDisk_SharedByMigration(t *testing.T) {
	t.Parallel()
	for name, leased := range map[string]bool{"one machine": false, "devices with leases": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			w.oneMachine = !leased
			w.restart()
			pod, source, _ := w.migratable("a", func(vm *v1alpha1.VirtualMachine) {
				w.onMany(vm)
				if leased {
					onDevices(vm)
					withLeases(vm)
				}
			})
			if !w.specOf(pod).GetRootDiskShared() {
				t.Fatal("the hypervisor's spec does not share the disks")
			}
			w.wantMigratable("a", metav1.ConditionTrue, migration.NoObstacle)
			w.evict(pod)
			source.requestTarget()
			first := w.awaitTarget("a", "")
			w.wantSameDisks(pod, first)
			w.end(first, left(vmpb.EndQEMUFailed, "QEMU crashed"))
			second := w.awaitTarget("a", first.Name)
			w.restart()
			source = w.hypervisor("a", pod, 1)
			w.wantStatus(source.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
			source.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) { r.ImagePrepared, r.CanMigrate = true, true })
			responses := source.requestTarget()
			w.wantSameDisks(pod, second)
			target, _ := w.target("a", second, 2)
			w.wantMigrate(responses, second)
			w.must(target.switchOver(source.us))
			target.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
				r.CanMigrate, r.Migration = true, &vmpb.ReportStateRequest_Migration{
					Phase: vmpb.ReportStateRequest_Migration_PHASE_DONE, TargetPod: second.Name,
				}
			})
			w.wantMigrating("a", string(v1alpha1.MigrationSucceeded))
			w.remove(pod)
			w.eventually("one pod is left", func() bool { return len(w.pods("a")) == 1 })
			w.wantMigratable("a", metav1.ConditionTrue, migration.NoObstacle)

			// The next hypervisor starts from the same disks.
			if leased {
				stream, err := target.RunLease(t.Context(), &vmpb.RunLeaseRequest{Us: target.us, Release: true})
				w.must(err)
				if update, err := stream.Recv(); err == nil {
					t.Errorf("the stream continues with %v", update)
				}
			}
			w.end(second, left(vmpb.EndQEMUFailed, "QEMU terminated."))
			third := w.awaitPod("a", second.Name)
			w.wantSameDisks(pod, third)
			if spec := w.specOf(third); spec.GetMode() != vmpb.VMSpec_SM_RUN || !spec.GetRootDiskExists() || !spec.GetRootDiskShared() {
				t.Errorf("the next hypervisor has %v", spec)
			}
			if diff := cmp.Diff([]string{"a", "a-logs"}, slices.Sorted(slices.Values(w.claims()))); diff != "" {
				t.Errorf("the claims (-want +got):\n%s", diff)
			}
		})
	}
}

// withLeases gives a VM leases with a duration that exceeds that of a test.
func withLeases(vm *v1alpha1.VirtualMachine) {
	vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = v1alpha1.LeaseFullLeases, int32(lease.MaxDuration.Seconds())
}

// onDevices makes all disks of a VM block devices.
func onDevices(vm *v1alpha1.VirtualMachine) {
	block := corev1.PersistentVolumeBlock
	if vm.Spec.VolumeClaimTemplate != nil {
		vm.Spec.VolumeClaimTemplate.Spec.VolumeMode = &block
	}
	for i := range vm.Spec.DataDisks {
		vm.Spec.DataDisks[i].VolumeClaimTemplate.Spec.VolumeMode = &block
	}
}

// wantSameDisks compares the disks of a Pod with those of an earlier one.
func (w *testEnv) wantSameDisks(before, pod *corev1.Pod) {
	w.Helper()
	if !w.specOf(pod).GetRootDiskShared() {
		w.Errorf("pod %s has %v", pod.Name, w.specOf(pod))
	}
	if diff := cmp.Diff(w.devicesOf(before), w.devicesOf(pod)); diff != "" || podspec.ClaimName(pod) != "a" {
		w.Errorf("the disks of pod %s (-want +got):\n%s", pod.Name, diff)
	}
	if diff := cmp.Diff(podspec.DataClaims(before), podspec.DataClaims(pod)); diff != "" {
		w.Errorf("the data disks of pod %s (-want +got):\n%s", pod.Name, diff)
	}
}

func (w *testEnv) wantMigratable(name string, status metav1.ConditionStatus, reason string) {
	w.Helper()
	w.eventually("the condition LiveMigratable is "+reason, func() bool {
		is := meta.FindStatusCondition(w.vm(name).Status.Conditions, v1alpha1.ConditionLiveMigratable)
		return is != nil && is.Status == status && is.Reason == reason
	})
}

// TestMigration_RefusedIfDisksAreNotShared checks that a VM does not migrate if only some of its disks could be shared, or if nothing is known
// to exclude two hypervisors from each other. If no disk could be shared, the disks are copied.
func TestMigration_RefusedIfDisksAreNotShared(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*v1alpha1.VirtualMachine)
		reason string
	}{
		"unknown locks": {func(*v1alpha1.VirtualMachine) {}, migration.ObstacleUnlocked},
		"one ReadWriteOnce disk": {func(vm *v1alpha1.VirtualMachine) {
			withLeases(vm)
			vm.Spec.DataDisks[0].VolumeClaimTemplate.Spec.AccessModes = nil
		}, migration.ObstacleMixed},
		"an ephemeral disk": {func(vm *v1alpha1.VirtualMachine) {
			withLeases(vm)
			vm.Spec.VolumeClaimTemplate = nil
		}, migration.ObstacleMixed},
		"only ReadWriteOnce disks": {func(vm *v1alpha1.VirtualMachine) {
			withLeases(vm)
			vm.Spec.VolumeClaimTemplate.Spec.AccessModes, vm.Spec.DataDisks[0].VolumeClaimTemplate.Spec.AccessModes = nil, nil
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			pod, source, _ := w.migratable("a", func(vm *v1alpha1.VirtualMachine) {
				w.onMany(vm)
				test.change(vm)
			})
			if w.specOf(pod).GetRootDiskShared() {
				t.Error("the hypervisor's spec shares the disks")
			}
			if test.reason == "" {
				w.wantMigratable("a", metav1.ConditionTrue, migration.NoObstacle)
				return
			}
			w.wantMigratable("a", metav1.ConditionFalse, test.reason)
			w.order("a", pod.Name)
			w.eventually("the request is refused", func() bool { return w.hasEvent("MigrationRefused", "ReadWriteMany") })
			w.evict(pod)
			if got := <-source.requestTarget(); got.err != nil || got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN {
				t.Errorf("the response is %v, %v", got.EnsureMigrationTargetResponse, got.err)
			}
		})
	}
}

// TestClaim_AccessModesDecideSharing checks that the access modes of the claims count, not those of the spec.
func TestClaim_AccessModesDecideSharing(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.oneMachine = true
	w.restart()
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.VolumeClaimTemplate.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.remove(pod)
	next := w.awaitPod("a", pod.Name)
	if got := podspec.DiskSharing(next); got != podspec.Copied {
		t.Errorf("the sharing of a ReadWriteOnce claim is %q", got)
	}
}
