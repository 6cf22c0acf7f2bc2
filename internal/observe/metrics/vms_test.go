package metrics

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

func vmNamed(name string, ready ...metav1.Condition) *vmv1alpha1.VirtualMachine {
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	vm.Status.Conditions = ready
	return vm
}

// TestVM_Metrics checks that each VM has its readiness with the reason, its last migration, and its
// controller if that is another one. If the API server does not respond, there are no series.
func TestVM_Metrics(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	ready := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: status, Reason: reason}
	}
	away := false
	moved := vmNamed("moved", ready(metav1.ConditionTrue, "Running"))
	moved.Status.Migration = &vmv1alpha1.VirtualMachineMigration{Phase: vmv1alpha1.MigrationFailed, Reason: "CopyFailed"}
	arrived := vmNamed("arrived", ready(metav1.ConditionTrue, "Running"))
	arrived.Status.Migration = &vmv1alpha1.VirtualMachineMigration{
		Phase: vmv1alpha1.MigrationSucceeded, Downtime: &metav1.Duration{Duration: 250 * time.Millisecond},
	}
	moved.Annotations = map[string]string{vmv1alpha1.AnnotationController: "vms/other"}
	moved.Status.Lease = &vmv1alpha1.VirtualMachineLease{DurationSeconds: 6} // the other controller renews it
	arrived.Status.Lease = &vmv1alpha1.VirtualMachineLease{DurationSeconds: 6}
	arrived.Annotations = map[string]string{vmv1alpha1.AnnotationController: "vms/own"}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		moved, arrived, vmNamed("new"), vmNamed("runs", ready(metav1.ConditionTrue, "Running")),
		vmNamed("full", ready(metav1.ConditionFalse, vmv1alpha1.ReasonNoSpace)),
		vmNamed("lost", ready(metav1.ConditionUnknown, "HostUnreachable")),
	).WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if away {
			return errors.New("away")
		}
		return c.List(ctx, list, options...)
	}}).Build()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&VMs{Reader: reader, Registerer: registry, Controller: "vms/own", Renewals: 100})
	series := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.Metric {
				key := family.GetName()
				for _, label := range metric.Label {
					key += " " + label.GetValue()
				}
				found[key] = metric.GetGauge().GetValue()
			}
		}
		return found
	}
	const name = "millwright_virtual_machine_ready "
	want := map[string]float64{
		name + "new shop ": 2, name + "runs shop Running": 1, name + "full shop NoSpace": 0, name + "lost shop HostUnreachable": 2,
		name + "moved shop Running": 1, "millwright_virtual_machine_migration moved shop Failed CopyFailed": 1,
		name + "arrived shop Running": 1, "millwright_virtual_machine_migration arrived shop Succeeded ": 1,
		"millwright_virtual_machine_migration_downtime_seconds arrived shop": 0.25,
		"millwright_virtual_machine_other_controller vms/other moved shop":   1,
		"millwright_virtual_machine_lease_renewals_per_second":               0.5,
		"millwright_virtual_machine_lease_renewals_per_second_capacity":      100,
	}
	if diff := cmp.Diff(want, series()); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	away = true
	if found := series(); len(found) > 0 {
		t.Errorf("series %v while the API server is unreachable", found)
	}
}
