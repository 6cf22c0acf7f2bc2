package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// servedVM returns a VM with a data disk, whose disks are served.
func servedVM() *v1alpha1.VirtualMachine {
	vm := fixture.VirtualMachine()
	vm.Name, vm.Namespace, vm.UID, vm.Generation = "a", "default", "11111111-2222-3333-4444-555555555555", 7
	vm.Spec.DiskAccess, vm.Spec.LeaseMode = v1alpha1.DiskAccessServed, v1alpha1.LeaseFullLeases
	vm.Spec.DataDisks = []v1alpha1.DataDisk{{Name: "logs", VolumeClaimTemplate: *vm.Spec.VolumeClaimTemplate.DeepCopy(), InitialImage: vm.Spec.InitialImage}}
	vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: "boot"}}
	vm.Spec.AntiAffinity = &v1alpha1.AntiAffinity{Group: "web", Mode: v1alpha1.AntiAffinityRequired}
	vm.Spec.FailureDomain = "rack-7"
	vm.Status.VolumeClaimName, vm.Status.ActivePodName = "a", "a-x"
	vm.Status.DataDisks = []v1alpha1.DataDiskStatus{{Name: "logs", VolumeClaimName: "a-logs"}}
	vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "a-disks-y"}
	vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, DurationSeconds: 60}
	return vm
}

var servedSettings = Settings{
	Image: "hypervisor:1", Endpoint: "127.0.0.1:1234", Authority: "CERTIFICATE\n", Accelerator: "tcg",
	Options: Options{User: 65532, KVMResource: "devices.example.com/kvm", PriorityClass: "machines"},
}

// TestServedPods compares Pods with golden files, as TestPods does: the server has the disks, and the hypervisor has
// everything else.
func TestServedPods(t *testing.T) {
	vm := servedVM()
	hypervisor, err := Pod(vm, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "served", hypervisor)
	server, err := DiskServer(vm, nil, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	wantGolden(t, "disk-server", server)
	if IsDiskServer(hypervisor) || !IsDiskServer(server) {
		t.Error("IsDiskServer is wrong")
	}
}

// TestDiskServer_OfHolder checks that a server that replaces another one, while a hypervisor has the VM, has the
// disks of that hypervisor and does not prepare any.
func TestDiskServer_OfHolder(t *testing.T) {
	vm := servedVM()
	holder, err := Pod(vm, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	vm.Status.ImagePrepared = true
	vm.Spec.DataDisks = nil
	vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("77Gi")
	server, err := DiskServer(vm, holder, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := specOf(server)
	if err != nil {
		t.Fatal(err)
	}
	if disks := spec.GetDataDisks(); len(disks) != 1 || !disks[0].GetExists() || len(DataClaims(server)) != 1 {
		t.Errorf("the data disks are %v", disks)
	}
	if spec.GetMode() != vmpb.VMSpec_SM_RUN || !spec.GetRootDiskExists() || spec.GetRootDiskBytes() == 77<<30 {
		t.Errorf("the spec is %v", spec)
	}
}

// TestDiskServer_GuestWithKernel checks that a server knows that the guest does not boot from the root disk. It would
// otherwise refuse an image that cannot boot.
func TestDiskServer_GuestWithKernel(t *testing.T) {
	vm := servedVM()
	vm.Spec.KernelBoot = &v1alpha1.KernelBoot{Kernel: v1alpha1.BootFile{URL: "https://example.com/vmlinuz"}, CommandLine: "quiet"}
	server, err := DiskServer(vm, nil, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := specOf(server)
	if err != nil {
		t.Fatal(err)
	}
	if spec.GetKernelBoot().GetKernel().GetUrl() != vm.Spec.KernelBoot.Kernel.URL || spec.GetUserData() != nil {
		t.Errorf("the spec is %v", spec)
	}
}

func TestServes(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.VirtualMachine)
		want   bool
	}{
		"unchanged":    {func(*v1alpha1.VirtualMachine) {}, true},
		"other memory": {func(vm *v1alpha1.VirtualMachine) { vm.Spec.CPUs = 7 }, true},
		"a larger disk": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("77Gi")
		}, false},
		"another data disk": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.DataDisks = append(vm.Spec.DataDisks, v1alpha1.DataDisk{Name: "db"})
		}, false},
		"one data disk fewer": {func(vm *v1alpha1.VirtualMachine) { vm.Spec.DataDisks = nil }, false},
		"another image":       {func(vm *v1alpha1.VirtualMachine) { vm.Spec.HypervisorImage = "hypervisor:2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			vm := servedVM()
			server, err := DiskServer(vm, nil, servedSettings)
			if err != nil {
				t.Fatal(err)
			}
			test.change(vm)
			if got, err := Serves(vm, server, servedSettings); err != nil || got != test.want {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// TestServedTarget checks that the target of a migration uses the disks at the same server.
func TestServedTarget(t *testing.T) {
	vm := servedVM()
	source, err := Pod(vm, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "a-x", TargetPodName: "a-z", SourceNodeName: "host-1"}
	target, err := Target(vm, source, servedSettings)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := specOf(target)
	if err != nil {
		t.Fatal(err)
	}
	if len(Claims(target)) > 0 || !spec.GetDisksServed() || spec.GetMode() != vmpb.VMSpec_SM_INCOMING_MIGRATION || len(spec.GetDataDisks()) != 1 {
		t.Errorf("it has claims %q and the spec %v", Claims(target), spec)
	}
	if target.Name != "a-z" {
		t.Errorf("its name is %s", target.Name)
	}
}
