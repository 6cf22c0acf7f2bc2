package vm_test

import (
	"testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// TestVM_IsFoundAfterClassIsEdited: a VM whose provider ID is stored is found and deleted after the class was edited.
func TestVM_IsFoundAfterClassIsEdited(t *testing.T) {
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
				t.Errorf("got status %v, %v", got, err)
			}
			edited.mustRemove("m", made.ProviderID)
			if left := w.vms(); len(left) > 0 {
				t.Errorf("%d VMs still exist after the deletion", len(left))
			}
		})
	}
}

// at returns the location of a machine's VM whose creation started at the given location.
func (w *testDriver) at(begun string) string {
	w.t.Helper()
	m := machine("m", "")
	m.Annotations = map[string]string{driver.AnnotationLocation: begun}
	resp, err := w.LocateMachine(w.t.Context(), &driver.LocateMachineRequest{Machine: m, MachineClass: w.class, Secret: w.secret})
	w.must(err)
	return resp.Location
}

// TestLocation_IdentifiesPoolAndCluster: the location distinguishes infrastructure, pool, cluster and installation. The infrastructure is
// the same with another kubeconfig.
func TestLocation_IdentifiesPoolAndCluster(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.UserWith(t, "config/rbac/driver-vm-cluster-role.yaml")
	begun := w.at("")
	if again := w.at(begun); again != begun {
		t.Errorf("the location changed from %s to %s", begun, again)
	}
	if there := w.withKubeconfig(w.kubeconfig("system:masters")).at(begun); there != begun {
		t.Errorf("with another kubeconfig, got location %s, want %s", there, begun)
	}
	for name, other := range map[string]*testDriver{
		"pool":    w.withClass(object{"vmPool": "elsewhere"}),
		"cluster": w.withClass(object{"tags": object{"kubernetes.io/cluster/other": "1", "kubernetes.io/role/worker": "1"}}),
	} {
		if at := other.at(""); at == begun {
			t.Errorf("another %s has the same location %s", name, at)
		}
		if at := other.at(begun); at != begun {
			t.Errorf("with another %s, got location %s, want %s, where the creation started", name, at, begun)
		}
	}
	if at := w.with(vm.Options{Installation: "other"}).at(begun); at == begun {
		t.Errorf("another installation has the same location %s", at)
	}
	for _, strange := range []string{"a/b", "//", "x/../y/z", begun + "/more", "nowhere/vms/shoot/x"} {
		if at := w.at(strange); at != begun {
			t.Errorf("annotation %q: got location %s", strange, at)
		}
	}
}

// TestVM_IsFoundWhereCreationStarted: a VM without a stored ID is found and deleted in the pool, and with the cluster,
// where its creation started.
func TestVM_IsFoundWhereCreationStarted(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.hosts()
	begun := machine("m", "")
	begun.Annotations = map[string]string{driver.AnnotationLocation: w.at("")}
	id := w.mustCreate("m").ProviderID
	edited := w.withClass(object{"vmPool": "elsewhere", "tags": object{"kubernetes.io/cluster/other": "1", "kubernetes.io/role/worker": "1"}})
	got, err := edited.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: begun, MachineClass: edited.class, Secret: w.secret})
	if err != nil || got.ProviderID != id {
		t.Fatalf("got status %v, %v", got, err)
	}
	if _, err := edited.DeleteMachine(t.Context(), &driver.DeleteMachineRequest{Machine: begun, MachineClass: edited.class, Secret: w.secret}); err != nil {
		t.Fatal(err)
	}
	if vms, secrets := w.vms(), w.secrets(); len(vms)+len(secrets) > 0 {
		t.Errorf("%d VMs and %d Secrets still exist", len(vms), len(secrets))
	}
}
