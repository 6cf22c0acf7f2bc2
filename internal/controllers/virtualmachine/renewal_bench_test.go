package virtualmachine

import (
	"fmt"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// BenchmarkRenewal measures how many leases per second can be renewed, with an API server on the same host.
func BenchmarkRenewal(b *testing.B) {
	e := env.New(b)
	unlimited := rest.CopyConfig(e.Admin)
	unlimited.QPS = -1
	server, err := client.New(unlimited, client.Options{Scheme: testScheme()})
	if err != nil {
		b.Fatal(err)
	}
	const vms = 100
	for i := range vms {
		vm := fixture.In(e.Namespace, fixture.Named(fmt.Sprintf("vm-%d", i), fixture.VirtualMachine(func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.LeaseMode = v1alpha1.LeaseFullLeases
		})))
		if err := server.Create(b.Context(), vm); err != nil {
			b.Fatal(err)
		}
		vm.Status.ActivePodName, vm.Status.ActivePodUID, vm.Status.ActiveRunID = vm.Name, "uid", "1"
		vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, DurationSeconds: 60, FencingToken: 1, TransitionTime: metav1.Now()}
		if err := server.Status().Update(b.Context(), vm); err != nil {
			b.Fatal(err)
		}
	}
	registry := &authority.Registry{Client: server, APIReader: server, Clock: clock.RealClock{}}
	var next atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(work *testing.PB) {
		for work.Next() {
			name := fmt.Sprintf("vm-%d", next.Add(1)%vms)
			us := &vmpb.HypervisorID{Namespace: e.Namespace, VmName: name, PodName: name, RunId: 1}
			if update, err := registry.Lease(b.Context(), us, true); err != nil || update.GetValidFor() == nil {
				b.Errorf("%v, %v", update, err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "renewals/s")
}
