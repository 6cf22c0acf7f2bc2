package sim

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// TestDriver_SeparatesAPIGroups: a machine of another API group cannot create, find or delete the VM of a Machine with the same
// name and class.
func TestDriver_SeparatesAPIGroups(t *testing.T) {
	d := New(Config{})
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	other := class.DeepCopy()
	other.Annotations = map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
	ctx := t.Context()
	if _, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: other}); !status.Is(err, codes.AlreadyExists) {
		t.Errorf("create: %v", err)
	}
	if _, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: other}); !status.Is(err, codes.NotFound) {
		t.Errorf("find: %v", err)
	}
	if _, err := d.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: machine, MachineClass: other}); err != nil {
		t.Errorf("delete: %v", err)
	}
	for of, want := range map[*v1alpha1.MachineClass]int{class: 1, other: 0} {
		listed, err := d.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: of})
		if err != nil || len(listed.MachineList) != want {
			t.Errorf("API group %q: got list %v, %v; want %d VMs", driver.APIGroup(of), listed, err, want)
		}
	}
}
