package vm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/drivers/vm"
)

const updateRole = "config/rbac/driver-vm-update-role.yaml"

// update updates a VM to the class with changes.
func (w *testDriver) update(name, id string, changes object, dryRun bool) (resp *driver.UpdateMachineResponse, err error) {
	w.t.Helper()
	changed, m := w.withClass(changes), machine(name, id)
	changed.unchanged(m, func() {
		resp, err = w.UpdateMachine(w.t.Context(), &driver.UpdateMachineRequest{Machine: m, MachineClass: changed.class, Secret: w.secret, DryRun: dryRun})
	})
	return resp, err
}

// TestUpdateMachine_ChangesMutableFields: mutable fields and their labels change, and the VirtualMachine otherwise stays the same.
func TestUpdateMachine_ChangesMutableFields(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	id := w.mustCreate("m").ProviderID
	changes := object{
		"size": "medium", "migrateStrategy": "Cold", "hypervisorImage": "example.com/hypervisor:2", "terminationGracePeriodSeconds": 60,
		"ports": []object{{"name": "ssh", "port": 22}}, "readinessProbe": object{"port": 22}, "rootFsSize": 7, "vmPool": "elsewhere",
		"tags": object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/worker": "1", "tier": "gold"},
	}
	_, err := w.update("m", id, changes, false)
	wantCode(t, err, codes.PermissionDenied) // the role is missing
	w.UserWith(t, updateRole)

	want := &driver.UpdateMachineResponse{
		Updates:      []string{"tags", "cpus", "memory", "hypervisorImage", "terminationGracePeriodSeconds", "ports", "readinessProbe", "migrateStrategy"},
		AtNextStart:  []string{"cpus", "memory", "hypervisorImage", "terminationGracePeriodSeconds", "ports", "readinessProbe"},
		Replacements: []string{"vmPool", "rootFsSize"},
	}
	before := w.vms()[0]
	for _, dryRun := range []bool{true, false} {
		got, err := w.update("m", id, changes, dryRun)
		wantCode(t, err, codes.OK)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("dry run %v (-want +got):\n%s", dryRun, diff)
		}
		if now := w.vms()[0]; dryRun && now.ResourceVersion != before.ResourceVersion {
			t.Error("the dry run changed the VM")
		}
	}
	now := w.vms()[0]
	expected := before.DeepCopy()
	delete(expected.Labels, "team")
	expected.Labels["tier"] = "gold"
	expected.Spec.CPUs, expected.Spec.HypervisorImage, expected.Spec.MigrateStrategy = 2, "example.com/hypervisor:2", vmv1alpha1.MigrateCold
	expected.Spec.TerminationGracePeriodSeconds = 60
	expected.Spec.Ports, expected.Spec.ReadinessProbe = []vmv1alpha1.Port{{Name: "ssh", Port: 22}}, &vmv1alpha1.ReadinessProbe{Port: 22}
	*expected.Spec.Memory = resource.MustParse("2Gi")
	if diff := cmp.Diff(expected.Labels, now.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(expected.Spec, now.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	again, err := w.update("m", id, changes, false)
	wantCode(t, err, codes.OK)
	if diff := cmp.Diff(&driver.UpdateMachineResponse{Replacements: want.Replacements}, again); diff != "" {
		t.Errorf("repeated (-want +got):\n%s", diff)
	}

	_, err = w.update("m", "millwright:///"+w.Namespace+"/00000000-0000-4000-8000-000000000000", nil, false)
	wantCode(t, err, codes.NotFound)
}

// edit changes the only VM as its users do.
func (w *testDriver) edit(change func(*vmv1alpha1.VirtualMachineSpec)) {
	w.t.Helper()
	v := w.theVM()
	change(&v.Spec)
	w.must(w.admin.Update(w.t.Context(), v))
}

// wantUpdate updates the only VM to the class with changes, and checks the response and that a second update changes
// nothing. It returns the VM.
func (w *testDriver) wantUpdate(id string, changes object, want driver.UpdateMachineResponse) *vmv1alpha1.VirtualMachine {
	w.t.Helper()
	for _, want := range []driver.UpdateMachineResponse{want, {Replacements: want.Replacements}} {
		got, err := w.update("m", id, changes, false)
		wantCode(w.t, err, codes.OK)
		if diff := cmp.Diff(&want, got); diff != "" {
			w.t.Errorf("update to %v (-want +got):\n%s", changes, diff)
		}
	}
	return w.theVM()
}

// TestUpdateMachine_PlacementAndLeases: fields about hosts and leases take effect with the next hypervisor, and those
// about claims need a new VM.
func TestUpdateMachine_PlacementAndLeases(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.UserWith(t, updateRole)
	w.hosts()
	id := w.mustCreate("m").ProviderID
	names := []string{"leaseDurationSeconds", "hostSelector", "antiAffinity", "resources", "leaseMode"}
	got := w.wantUpdate(id, object{
		"leaseMode": "FullLeases", "leaseDurationSeconds": 20, "hostSelector": object{"disk": "ssd"}, "antiAffinity": object{},
		"resources":  object{"limits": object{"memory": "2Gi"}},
		"diskAccess": "Direct", "accessModes": []string{"ReadWriteMany"}, "volumeMode": "Block",
	}, driver.UpdateMachineResponse{Updates: names, AtNextStart: names, Replacements: []string{"accessModes", "volumeMode"}}).Spec
	if got.LeaseMode != vmv1alpha1.LeaseFullLeases || got.LeaseDurationSeconds != 20 || got.HostSelector["disk"] != "ssd" ||
		*got.AntiAffinity != (vmv1alpha1.AntiAffinity{Group: "shoot.worker", Mode: vmv1alpha1.AntiAffinityPreferred}) || got.Resources.Limits.Memory().String() != "2Gi" {
		t.Errorf("the VM is %+v", got)
	}
	if disk := got.VolumeClaimTemplate.Spec; disk.VolumeMode != nil || disk.AccessModes[0] != corev1.ReadWriteOnce {
		t.Errorf("the disk of the existing VM was changed: %+v", disk)
	}

	// The defaults restore what a VM without these fields has, except for the duration of leases, which has no effect.
	names = []string{"hostSelector", "antiAffinity", "resources", "leaseMode"}
	got = w.wantUpdate(id, object{"leaseMode": "StorageLocking", "hostSelector": object{}, "antiAffinity": object{"mode": "None"}, "resources": object{}},
		driver.UpdateMachineResponse{Updates: names, AtNextStart: names}).Spec
	if got.LeaseMode != vmv1alpha1.LeaseStorageLocking || len(got.HostSelector) > 0 || got.AntiAffinity != nil || len(got.Resources.Limits) > 0 {
		t.Errorf("the VM is %+v", got)
	}
}

// TestUpdateMachine_UnsetFieldsAreKept: a class that does not set the fields about hosts and leases neither changes nor
// replaces a VM whose users have set them, nor one that has no default of new VMs.
func TestUpdateMachine_UnsetFieldsAreKept(t *testing.T) {
	w := newTestDriver(t, vm.Options{}).withClass(object{
		"tags":      object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/control-plane": "1"},
		"dataDisks": []object{{"name": "logs", "size": 1}},
	})
	w.UserWith(t, updateRole)
	w.hosts()
	id := w.mustCreate("m").ProviderID
	if got := w.theVM().Spec.AntiAffinity; got == nil || *got != (vmv1alpha1.AntiAffinity{Group: "shoot.control-plane", Mode: vmv1alpha1.AntiAffinityPreferred}) {
		t.Errorf("a new VM of a control plane has the anti-affinity %+v", got)
	}
	for _, change := range []func(*vmv1alpha1.VirtualMachineSpec){
		func(spec *vmv1alpha1.VirtualMachineSpec) { spec.AntiAffinity = nil },
		func(spec *vmv1alpha1.VirtualMachineSpec) {
			many := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			spec.LeaseMode, spec.LeaseDurationSeconds = vmv1alpha1.LeaseFullLeases, 30
			spec.VolumeClaimTemplate.Spec.AccessModes, spec.DataDisks[0].VolumeClaimTemplate.Spec.AccessModes = many, many
			spec.HostSelector = map[string]string{"disk": "ssd"}
			spec.AntiAffinity = &vmv1alpha1.AntiAffinity{Group: "mine", Mode: vmv1alpha1.AntiAffinityRequired}
			spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			spec.AddressesFromPools = []vmv1alpha1.IPPoolReference{{APIGroup: "ipam.cluster.x-k8s.io", Kind: "InClusterIPPool", Name: "mine"}}
		},
	} {
		w.edit(change)
		before := w.theVM()
		got, err := w.UpdateMachine(t.Context(), &driver.UpdateMachineRequest{Machine: machine("m", id), MachineClass: w.class, Secret: w.secret})
		wantCode(t, err, codes.OK)
		if diff := cmp.Diff(&driver.UpdateMachineResponse{}, got); diff != "" {
			t.Errorf("the response (-want +got):\n%s", diff)
		}
		if now := w.theVM(); now.ResourceVersion != before.ResourceVersion {
			t.Errorf("the VM was changed:\n%s", cmp.Diff(before, now))
		}
		if again := w.mustCreate("m"); again.ProviderID != id {
			t.Error("the VM was not adopted")
		}
	}
}

// TestUpdateMachine_DisksKeepTheirLeases: a VM whose disks need leases does not lose them, because it could not start
// again.
func TestUpdateMachine_DisksKeepTheirLeases(t *testing.T) {
	const needed = "leaseMode: the disks of the VM need FullLeases"
	for name, tc := range map[string]struct {
		made, changes object
		want          []string
	}{
		"served":                       {object{"diskAccess": "Served"}, object{"diskAccess": "Direct"}, []string{needed, "diskAccess"}},
		"shared devices":               {object{"volumeMode": "Block", "accessModes": []string{"ReadWriteMany"}}, object{"accessModes": []string{"ReadWriteOnce"}}, []string{needed, "accessModes"}},
		"class does not set the disks": {object{"diskAccess": "Served"}, object{}, []string{needed}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, vm.Options{})
			w.UserWith(t, updateRole)
			w.hosts()
			tc.made["leaseMode"], tc.changes["leaseMode"] = "FullLeases", "StorageLocking"
			id := w.withClass(tc.made).mustCreate("m").ProviderID
			if got := w.wantUpdate(id, tc.changes, driver.UpdateMachineResponse{Replacements: tc.want}).Spec; got.LeaseMode != vmv1alpha1.LeaseFullLeases {
				t.Errorf("the VM has leaseMode %s", got.LeaseMode)
			}
		})
	}
}
