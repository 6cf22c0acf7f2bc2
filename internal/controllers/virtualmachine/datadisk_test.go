package virtualmachine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// dataDisk returns a data disk of a size in a storage class. If class is empty, no storage class is set.
func dataDisk(name, size, class string) v1alpha1.DataDisk {
	disk := v1alpha1.DataDisk{Name: name}
	disk.VolumeClaimTemplate.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	if class != "" {
		disk.VolumeClaimTemplate.Spec.StorageClassName = &class
	}
	return disk
}

// runsWith schedules a Pod and reports as its hypervisor that the guest is running with the Pod's disks.
func (w *testEnv) runsWith(vm string, pod *corev1.Pod) {
	w.Helper()
	w.schedule(pod)
	h := w.hypervisor(vm, pod, 1)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
		r.ImagePrepared, r.Disks = true, w.sizesOf(pod)
	})
	w.awaitReady(vm, reasonRunning)
}

// sizesOf returns the disks of a Pod in the form in which its hypervisor reports them.
func (w *testEnv) sizesOf(pod *corev1.Pod) []*vmpb.DiskSize {
	w.Helper()
	spec := w.specOf(pod)
	sizes := []*vmpb.DiskSize{{Bytes: spec.GetRootDiskBytes()}}
	for _, disk := range spec.GetDataDisks() {
		sizes = append(sizes, &vmpb.DiskSize{Name: disk.GetName(), Bytes: disk.GetBytes()})
	}
	return sizes
}

// disksOf describes the data disks of a Pod, with their claims.
func (w *testEnv) disksOf(pod *corev1.Pod) string {
	w.Helper()
	var texts []string
	for _, disk := range w.specOf(pod).GetDataDisks() {
		claim := ""
		for _, mount := range pod.Spec.Containers[0].VolumeMounts {
			for _, volume := range pod.Spec.Volumes {
				if volume.Name == mount.Name && strings.HasPrefix(disk.GetPath(), mount.MountPath+"/") {
					claim = volume.PersistentVolumeClaim.ClaimName
				}
			}
		}
		texts = append(texts, fmt.Sprintf("%s on %s, %d bytes, exists %v, image %q", disk.GetName(), claim, disk.GetBytes(), disk.GetExists(), disk.GetInitialImage().GetUrl()))
	}
	return strings.Join(texts, "\n")
}

// loseClaim deletes a claim without the controller.
func (w *testEnv) loseClaim(name string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, claim))
	claim.Finalizers = nil
	w.must(w.client.Update(w.Context(), claim))
	w.must(w.client.Delete(w.Context(), claim))
}

// TestDataDisk_Lifecycle checks that data disks have their own claims, are never created a second time, and are deleted with
// the VM.
func TestDataDisk_Lifecycle(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	class := w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("logs", "1Gi", class), dataDisk("db", "2Gi", class)}
		vm.Spec.DataDisks[1].InitialImage = &v1alpha1.InitialImage{URL: "http://images.example/db.raw"}
	})
	pod := w.awaitPod("a", "")
	want := `logs on a-logs, 1073741824 bytes, exists false, image ""
db on a-db, 2147483648 bytes, exists false, image "http://images.example/db.raw"`
	if diff := cmp.Diff(want, w.disksOf(pod)); diff != "" {
		t.Errorf("data disks of the first pod (-want +got):\n%s", diff)
	}
	w.runsWith("a", pod)

	// One disk is removed from the list but its data is kept. The next hypervisor has only the other one.
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.DataDisks = vm.Spec.DataDisks[1:] })
	w.eventually("the change is pending", func() bool { return strings.Contains(w.pending("a"), "removal of data disk logs") })
	w.end(pod, left(vmpb.EndQEMUFailed, "QEMU crashed"))
	second := w.awaitPod("a", pod.Name)
	if got, want := w.disksOf(second), `db on a-db, 2147483648 bytes, exists true, image "http://images.example/db.raw"`; got != want {
		t.Errorf("the second pod has %s, want %s", got, want)
	}

	// A disk that is added again has its old data, unless its claim is lost.
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DataDisks = append(vm.Spec.DataDisks, dataDisk("logs", "1Gi", class))
	})
	w.loseClaim("a-logs")
	w.remove(second)
	w.awaitReady("a", v1alpha1.ReasonVolumeLost)
	if len(w.pods("a")) != 0 || !w.gone(&corev1.PersistentVolumeClaim{}, "a-logs") {
		t.Error("there is a new disk or a pod")
	}
	w.replaceDisk("a", second.Name)
	third := w.awaitPod("a", second.Name)
	if got := w.disksOf(third); !strings.Contains(got, "logs on a-logs, 1073741824 bytes, exists false") {
		t.Errorf("the third pod has %s", got)
	}

	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.remove(third)
	for _, name := range []string{"a", "a-db", "a-logs"} {
		claim := &corev1.PersistentVolumeClaim{}
		w.eventually(name+" is deleted", func() bool { return w.gone(claim, name) || claim.DeletionTimestamp != nil })
	}
}

// TestDataDisk_ManualStatusChangeIsIgnored checks that no data disk is deleted, and none is created instead, whatever claim a user
// writes into the status.
func TestDataDisk_ManualStatusChangeIsIgnored(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, prepared := range map[string]bool{"prepared": true, "not prepared": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			w.declare("a", w.withLogs)
			pod := w.awaitPod("a", "")
			w.runsWith("a", pod)
			w.stop()
			w.remove(pod)
			setClaim := func(claim string) {
				vm := w.vm("a")
				vm.Status.DataDisks = []v1alpha1.DataDiskStatus{{Name: "logs", VolumeClaimName: claim, Prepared: prepared}}
				w.must(w.client.Status().Update(t.Context(), vm))
			}
			setClaim("nonexistent")
			w.start()
			w.awaitReady("a", v1alpha1.ReasonVolumeLost)
			ready := meta.FindStatusCondition(w.vm("a").Status.Conditions, v1alpha1.ConditionReady)
			if claims := w.claims(); !slices.Equal(claims, []string{"a", "a-logs"}) || len(w.pods("a")) != 0 || !strings.Contains(ready.Message, "but a-logs exists; ") {
				t.Fatalf("claims %q, %d pods, %s", claims, len(w.pods("a")), ready.Message)
			}
			setClaim("a-logs")
			if got, want := w.disksOf(w.awaitPod("a", pod.Name)), logsOn("a", prepared, "http://images.example/logs.raw"); got != want {
				t.Errorf("the pod has %s, want %s", got, want)
			}
		})
	}
}

// pending returns the reason and message of the condition RestartNeeded, or "".
func (w *testEnv) pending(vm string) string {
	w.Helper()
	if condition := meta.FindStatusCondition(w.vm(vm).Status.Conditions, v1alpha1.ConditionRestartNeeded); condition != nil {
		return condition.Reason + ": " + condition.Message
	}
	return ""
}

// bind binds a claim to a volume of a size, in place of the volume controller and the storage.
func (w *testEnv) bind(name, size string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, claim))
	before := claim.DeepCopy()
	if claim.Spec.VolumeName == "" {
		claim.Spec.VolumeName = "volume-" + name
		w.must(w.client.Patch(w.Context(), claim, client.MergeFrom(before)))
		before = claim.DeepCopy()
	}
	claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	w.must(w.client.Status().Patch(w.Context(), claim, client.MergeFrom(before)))
}

// TestDisk_GrowsWhileGuestRuns checks that the condition RestartNeeded lists the pending changes, that disks grow while the guest is
// running once their volumes have grown, and that the other changes take effect with the next hypervisor.
func TestDisk_GrowsWhileGuestRuns(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	growing := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "growing"}, Provisioner: "example.org/none", AllowVolumeExpansion: ptr.To(true), VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
	w.must(client.IgnoreAlreadyExists(w.client.Create(t.Context(), growing)))
	fixed := w.storageClass(storagev1.VolumeBindingWaitForFirstConsumer)
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.VolumeClaimTemplate.Spec.StorageClassName = ptr.To("growing")
		vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("fixed", "1Gi", fixed), dataDisk("logs", "1Gi", "growing")}
	})
	pod := w.awaitPod("a", "")
	for _, name := range []string{"a", "a-fixed", "a-logs"} {
		w.bind(name, "1Gi")
	}
	w.schedule(pod)
	h := w.hypervisor("a", pod, 1)
	next := h.lease()
	w.wantStatus(next, vmpb.RunLeaseUpdate_STATUS_OK)
	report := func(root, logs uint64) {
		h.report(vmpb.ReportStateRequest_STATE_RUNNING, func(r *vmpb.ReportStateRequest) {
			r.ImagePrepared, r.Disks = true, []*vmpb.DiskSize{{Bytes: root}, {Name: "fixed", Bytes: 1 << 30}, {Name: "logs", Bytes: logs}}
		})
	}
	report(1<<30, 1<<30)
	w.awaitReady("a", reasonRunning)
	if got := w.pending("a"); got != "" {
		t.Errorf("at first: %s", got)
	}

	resize := func(to *v1alpha1.VolumeClaimTemplate, size string) {
		to.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.CPUs, vm.Spec.Memory = 4, ptr.To(resource.MustParse("1Gi"))
		resize(vm.Spec.VolumeClaimTemplate, "2Gi")
		resize(&vm.Spec.DataDisks[0].VolumeClaimTemplate, "3Gi")
		resize(&vm.Spec.DataDisks[1].VolumeClaimTemplate, "5Gi")
	})
	w.eventually("all changes are pending", func() bool {
		got := w.pending("a")
		return strings.HasPrefix(got, reasonCannotGrow+": Restart the virtual machine to apply these changes: CPUs: 4 instead of 2, memory: 1Gi instead of 512Mi, "+
			"disk: 2Gi instead of 1Gi, data disk fixed: 3Gi instead of 1Gi, data disk logs: 5Gi instead of 1Gi. The volume of data disk fixed cannot grow: ")
	})
	requests := func(name string) string {
		claim := &corev1.PersistentVolumeClaim{}
		w.must(w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, claim))
		return claim.Spec.Resources.Requests.Storage().String()
	}
	if got := requests("a") + " " + requests("a-fixed") + " " + requests("a-logs"); got != "2Gi 1Gi 5Gi" {
		t.Errorf("the claims request %s", got)
	}
	w.bind("a-logs", "5Gi") // the volume has grown
	if got := next().GetGrow(); len(got) != 1 || got[0].GetName() != "logs" || got[0].GetBytes() != 5<<30 {
		t.Errorf("the hypervisor is ordered to grow %v", got)
	}
	report(1<<30, 5<<30)
	w.eventually("data disk logs has grown", func() bool { return !strings.Contains(w.pending("a"), "data disk logs") })

	// An invalid spec does not affect the running guest.
	w.change("a", func(vm *v1alpha1.VirtualMachine) { resize(&vm.Spec.DataDisks[0].VolumeClaimTemplate, "8Pi") })
	w.eventually("the condition shows the invalid spec", func() bool { return strings.HasPrefix(w.pending("a"), reasonInvalid+": ") })
	if active := w.vm("a").Status.ActivePodName; active != pod.Name || w.ready("a") != reasonRunning {
		t.Errorf("pod %s, %s", active, w.ready("a"))
	}
}

// TestDisk_InvalidIsRefused checks invalid data disks that the API server or the controller refuses.
func TestDisk_InvalidIsRefused(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.stop() // the test needs no controller
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("logs", "2Gi", "")}
	})
	hundred := make([]v1alpha1.DataDisk, 100)
	for i := range hundred {
		hundred[i] = dataDisk(fmt.Sprint("d", i), "1Gi", "")
	}
	for name, change := range map[string]func(*v1alpha1.VirtualMachineSpec){
		"duplicate name": func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks = append(s.DataDisks, s.DataDisks[0]) },
		"invalid name":   func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks = append(s.DataDisks, dataDisk("A_b", "1Gi", "")) },
		"name too long": func(s *v1alpha1.VirtualMachineSpec) {
			s.DataDisks = append(s.DataDisks, dataDisk("aaaaaaaaaaaaaaaaaaaaa", "1Gi", ""))
		},
		"too many disks":    func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks = hundred },
		"smaller data disk": func(s *v1alpha1.VirtualMachineSpec) { s.DataDisks[0] = dataDisk("logs", "1Gi", "") },
		"smaller root disk": func(s *v1alpha1.VirtualMachineSpec) {
			s.VolumeClaimTemplate = &dataDisks("512Mi")[0].VolumeClaimTemplate
		},
		"image with FTP URL": func(s *v1alpha1.VirtualMachineSpec) {
			s.DataDisks[0].InitialImage = &v1alpha1.InitialImage{URL: "ftp://a"}
		},
	} {
		vm := w.vm("a")
		change(&vm.Spec)
		if err := w.client.Update(t.Context(), vm); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DataDisks = append(dataDisks("3Gi"), dataDisk("logs", "2048Mi", ""))
		vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("10Gi")
	})
	for name, disk := range map[string]v1alpha1.DataDisk{"zero": dataDisk("a", "0", ""), "too large": dataDisk("a", "5Pi", "")} {
		vm := fixture.VirtualMachine()
		vm.Spec.DataDisks = []v1alpha1.DataDisk{disk}
		if found := invalid(vm, podspec.Settings{}); found == nil || found.Reason != reasonInvalid {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func dataDisks(sizes ...string) []v1alpha1.DataDisk {
	var disks []v1alpha1.DataDisk
	for i, size := range sizes {
		disks = append(disks, dataDisk(fmt.Sprint("d", i), size, ""))
	}
	return slices.Clip(disks)
}
