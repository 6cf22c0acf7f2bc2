package vm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
