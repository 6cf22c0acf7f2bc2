package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/lease"
)

var vmReady = prometheus.NewDesc("millwright_virtual_machine_ready",
	"Status of the Ready condition of a virtual machine, by reason: 1 True, 0 False, 2 Unknown.",
	[]string{"name", "namespace", "reason"}, nil)

var vmMigration = prometheus.NewDesc("millwright_virtual_machine_migration",
	"The current or last live migration of a virtual machine, always 1. The reason label is set if it failed.",
	[]string{"name", "namespace", "phase", "reason"}, nil)

var vmDowntime = prometheus.NewDesc("millwright_virtual_machine_migration_downtime_seconds",
	"Downtime of the guest during the last live migration of a virtual machine, in seconds. Absent if it was not measured.",
	[]string{"name", "namespace"}, nil)

var vmOtherController = prometheus.NewDesc("millwright_virtual_machine_other_controller",
	"A virtual machine that this VM controller ignores because an annotation assigns it to another controller, always 1.",
	[]string{"name", "namespace", "controller"}, nil)

var vmRenewals = prometheus.NewDesc("millwright_virtual_machine_lease_renewals_per_second",
	"Number of lease renewals per second that all virtual machines with full leases need.", nil, nil)

var vmRenewalCapacity = prometheus.NewDesc("millwright_virtual_machine_lease_renewals_per_second_capacity",
	"Maximum number of lease renewals per second. A virtual machine that exceeds it is not started.", nil, nil)

// VMs exports the VirtualMachines of a cache. Add it to a manager.
type VMs struct {
	// Reader reads objects from a cache.
	Reader client.Reader
	// Registerer is where the metrics are registered while VMs runs.
	Registerer prometheus.Registerer
	// Controller is the name of this VM controller in vmv1alpha1.AnnotationController.
	Controller string
	// Renewals is the maximum of lease renewals per second that all VMs may need.
	Renewals float64
}

// NeedLeaderElection returns true because only the leader fills its cache.
func (v *VMs) NeedLeaderElection() bool { return true }

// Start registers the metrics and unregisters them when ctx is done. If several managers run in one
// process, the first one exports them.
func (v *VMs) Start(ctx context.Context) error {
	if err := export(ctx, v.Registerer, v); err != nil {
		return fmt.Errorf("registering the metrics of virtual machines: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (v *VMs) Describe(ch chan<- *prometheus.Desc) {
	ch <- vmReady
	ch <- vmMigration
	ch <- vmDowntime
	ch <- vmOtherController
	ch <- vmRenewals
	ch <- vmRenewalCapacity
}

// Collect implements prometheus.Collector. It reads the cache.
func (v *VMs) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := v.Reader.List(ctx, vms, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.Log.WithName("metrics").V(1).Info("Cannot read objects for a scrape", "kind", vmv1alpha1.VirtualMachineKind, "err", err.Error())
		return
	}
	s, renewals := &scrape{ch: ch, seen: map[string]bool{}}, 0.0
	for i := range vms.Items {
		vm := &vms.Items[i]
		ready := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady)
		if ready == nil {
			ready = &metav1.Condition{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionUnknown}
		}
		for _, sample := range conditions([]metav1.Condition{*ready}, func(c metav1.Condition) (kind, status string) {
			return c.Reason, string(c.Status)
		}) {
			s.add(vmReady, sample.value, vm.Name, vm.Namespace, sample.labels[0])
		}
		if other := vm.Annotations[vmv1alpha1.AnnotationController]; other != "" && other != v.Controller {
			s.add(vmOtherController, 1, vm.Name, vm.Namespace, other)
		} else if held := vm.Status.Lease; held != nil {
			renewals += lease.RenewalsPerSecond(time.Duration(held.DurationSeconds) * time.Second)
		}
		if last := vm.Status.Migration; last != nil {
			s.add(vmMigration, 1, vm.Name, vm.Namespace, string(last.Phase), last.Reason)
			if last.Downtime != nil {
				s.add(vmDowntime, last.Downtime.Seconds(), vm.Name, vm.Namespace)
			}
		}
	}
	s.add(vmRenewals, renewals)
	s.add(vmRenewalCapacity, v.Renewals)
}
