package sim_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// The first call creates a VM, but its response is lost. The second call finds the VM.
func Example() {
	cloud := sim.NewCloud(sim.CloudOptions{Seed: 1})
	cloud.Fail(sim.Fault{Method: sim.CreateMachine, Machine: "worker-*", Codes: []codes.Code{codes.DeadlineExceeded}, LostAnswer: true})
	d := sim.New(sim.Config{Cloud: cloud})

	req := &driver.CreateMachineRequest{
		Machine:      &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "worker-1"}},
		MachineClass: &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "small"}},
	}
	_, err := d.CreateMachine(context.Background(), req)
	fmt.Println("first:", status.Code(err))
	_, err = d.CreateMachine(context.Background(), req)
	fmt.Println("second:", status.Code(err))

	entries, err := cloud.Journal()
	if err != nil {
		panic(err)
	}
	history := sim.Histories(entries)["shop/worker-1"]
	fmt.Println("VMs:", len(history.ProviderIDs), "concurrent:", history.MostAtOnce)
	// Output:
	// first: DeadlineExceeded
	// second: OK
	// VMs: 1 concurrent: 1
}
