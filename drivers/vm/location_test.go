package vm_test

import (
	"testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// TestEditedClass: a VM whose provider ID is stored is found and deleted whatever the class says now.
func TestEditedClass(t *testing.T) {
	for name, changes := range map[string]object{
		"another cluster": {"tags": object{"kubernetes.io/cluster/other": "1", "kubernetes.io/role/worker": "1"}},
		"another role":    {"tags": object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/bastion": "1"}},
		"another pool":    {"vmPool": "elsewhere"},
		"another size":    {"size": "large"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, vm.Options{})
			w.hosts()
			made := w.mustCreate("m")
			edited := w.withClass(changes)
			if got, err := edited.status("m", made.ProviderID); err != nil || got.ProviderID != made.ProviderID {
				t.Errorf("status is %v, %v", got, err)
			}
			edited.mustRemove("m", made.ProviderID)
			if left := w.vms(); len(left) > 0 {
				t.Errorf("%d VMs are left after the deletion", len(left))
			}
		})
	}
}

// at returns where the VM of a machine is looked for, after the machine's creation began somewhere.
func (w *testDriver) at(begun string) string {
	w.t.Helper()
	m := machine("m", "")
	m.Annotations = map[string]string{driver.AnnotationLocation: begun}
	resp, err := w.LocateMachine(w.t.Context(), &driver.LocateMachineRequest{Machine: m, MachineClass: w.class, Secret: w.secret})
	w.must(err)
	return resp.Location
}

// TestLocation: the location tells the infrastructure, the pool, the cluster and the installation apart,
// and the infrastructure is the same behind another kubeconfig.
func TestLocation(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.UserWith(t, "config/rbac/driver-vm-cluster-role.yaml")
	begun := w.at("")
	if again := w.at(begun); again != begun {
		t.Errorf("the location changes from %s to %s", begun, again)
	}
	if there := w.withKubeconfig(w.kubeconfig("system:masters")).at(begun); there != begun {
		t.Errorf("with another kubeconfig it looks in %s, want %s", there, begun)
	}
	for name, other := range map[string]*testDriver{
		"pool":    w.withClass(object{"vmPool": "elsewhere"}),
		"cluster": w.withClass(object{"tags": object{"kubernetes.io/cluster/other": "1", "kubernetes.io/role/worker": "1"}}),
	} {
		if at := other.at(""); at == begun {
			t.Errorf("another %s has the same location %s", name, at)
		}
		if at := other.at(begun); at != begun {
			t.Errorf("with another %s it looks in %s, want %s, where the creation began", name, at, begun)
		}
	}
	if at := w.with(vm.Options{Installation: "other"}).at(begun); at == begun {
		t.Errorf("another installation looks in %s, too", at)
	}
	for _, strange := range []string{"a/b", "//", "x/../y/z", begun + "/more", "nowhere/vms/shoot/x"} {
		if at := w.at(strange); at != begun {
			t.Errorf("from %q it is led to %s", strange, at)
		}
	}
}

// TestCreationThatBeganElsewhere: a VM without a stored ID is found and deleted in the pool, and with the
// cluster, that its creation began with.
func TestCreationThatBeganElsewhere(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	begun := machine("m", "")
	begun.Annotations = map[string]string{driver.AnnotationLocation: w.at("")}
	id := w.mustCreate("m").ProviderID
	edited := w.withClass(object{"vmPool": "elsewhere", "tags": object{"kubernetes.io/cluster/other": "1", "kubernetes.io/role/worker": "1"}})
	got, err := edited.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: begun, MachineClass: edited.class, Secret: w.secret})
	if err != nil || got.ProviderID != id {
		t.Fatalf("status is %v, %v", got, err)
	}
	if _, err := edited.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: begun, MachineClass: edited.class, Secret: w.secret}); err != nil {
		t.Fatal(err)
	}
	if vms, secrets := w.vms(), w.secrets(); len(vms)+len(secrets) > 0 {
		t.Errorf("%d VMs and %d Secrets are left", len(vms), len(secrets))
	}
}
