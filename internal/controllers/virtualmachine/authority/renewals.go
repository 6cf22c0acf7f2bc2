package authority

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// DefaultRenewals is the default of Registry.Renewals. BenchmarkRenewal shows that an API server on two busy cores serves
// about twice as many, which is what hypervisors may request.
const DefaultRenewals = 100

// excess is how many times as often as necessary a hypervisor may request its lease. A request that gets no response is
// repeated after half of the time between two renewals.
const excess = 2

// RenewalRequests returns the requests per second, and the size of a burst, for which a client that reads VMs for
// renewals needs capacity. Since each hypervisor has at most its part, all hypervisors together cannot exceed it.
func RenewalRequests(renewals float64) (perSecond float32, burst int) {
	return float32(excess * renewals), max(1, int(2*excess*renewals))
}

// Renewals describes the lease renewals per second of all VMs.
type Renewals struct {
	// Used is what the VMs with leases need, including those that are about to start.
	Used float64
	// Capacity is the limit.
	Capacity float64
	// Added means that the VM needs more than it did before.
	Added bool
}

// nearlyUsed is the part of the capacity above which Renewals.Low returns true.
const nearlyUsed = 0.8

// Low reports whether more than 80 percent of the capacity is used.
func (r Renewals) Low() bool { return r.Used > nearlyUsed*r.Capacity }

// renewals are the renewals of VMs whose leases are not yet visible in the cache. The zero value has none.
type renewals struct {
	mu       sync.Mutex
	reserved map[types.NamespacedName]renewal
}

type renewal struct {
	perSecond float64
	since     time.Time
}

// neededBy returns the renewals per second that a VM needs; 0 if it has no lease that expires.
func neededBy(vm *v1alpha1.VirtualMachine) float64 {
	if vm.Status.Lease == nil {
		return 0
	}
	return lease.RenewalsPerSecond(RecordOf(vm.Status.Lease).Duration)
}

// ReserveRenewals reserves the renewals that a VM needs for its next lease, and reports whether there is capacity for
// them. A VM that needs no more than for its last lease always has capacity, so that it can start again. The
// reservation counts until the cache shows the lease, but not longer than unseenTimeout.
func (r *Registry) ReserveRenewals(ctx context.Context, vm *v1alpha1.VirtualMachine) (Renewals, bool, error) {
	if vm.Spec.LeaseMode != v1alpha1.LeaseFullLeases {
		return Renewals{}, true, nil
	}
	r.renewals.mu.Lock()
	defer r.renewals.mu.Unlock()
	all := &v1alpha1.VirtualMachineList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return Renewals{}, false, fmt.Errorf("listing virtual machines: %w", err)
	}
	key, next := client.ObjectKeyFromObject(vm), lease.RenewalsPerSecond(DurationOf(vm))
	total := Renewals{Used: next + r.neededByOthers(all.Items, key), Capacity: cmp.Or(r.Renewals, DefaultRenewals)}
	if total.Used > total.Capacity && next > neededBy(vm) {
		return total, false, nil
	}
	total.Added = next > max(neededBy(vm), r.renewals.reserved[key].perSecond)
	r.renewals.reserved[key] = renewal{next, r.Clock.Now()}
	return total, true, nil
}

// neededByOthers returns the renewals per second that all VMs of this controller but one need. It drops the reservations
// that the cache shows, that have expired, and those of VMs that are gone. The caller holds the lock of the reservations.
func (r *Registry) neededByOthers(vms []v1alpha1.VirtualMachine, except types.NamespacedName) float64 {
	sum, pending := 0.0, map[types.NamespacedName]renewal{}
	for i := range vms {
		if r.Foreign != nil && r.Foreign(&vms[i]) {
			continue
		}
		key, needed := client.ObjectKeyFromObject(&vms[i]), neededBy(&vms[i])
		reservation := r.renewals.reserved[key] // the zero value has expired
		if r.Clock.Now().Sub(reservation.since) < unseenTimeout && reservation.perSecond > needed {
			pending[key] = reservation
		}
		if key != except {
			sum += max(needed, pending[key].perSecond)
		}
	}
	r.renewals.reserved = pending
	return sum
}

// RenewalLimit returns how often the hypervisors of a VM may request its lease, per second. It returns 0 if the VM has
// no lease that expires, or if the Pod is neither that of its holder nor that of the target of its migration. It
// reads only the cache.
func (r *Registry) RenewalLimit(ctx context.Context, vm types.NamespacedName, pod string) float64 {
	cached, err := read(ctx, r.Client, vm)
	if err != nil || cached == nil || cached.Status.Lease == nil {
		return 0
	}
	if pod == "" || cached.Status.ActivePodName != pod && !migration.IsTarget(&cached.Status, pod) {
		return 0
	}
	return excess * neededBy(cached)
}

// server is a way to the API server. The calls of different ones do not wait for each other.
type server struct {
	client.Reader
	writer client.Client
	locks  *keyedLocks
}

// common is for everything but renewals.
func (r *Registry) common() server { return server{r.APIReader, r.Client, &r.locks} }

// serverFor is for a request for a lease. It returns the one for renewals if RenewalLimit counts the request.
func (r *Registry) serverFor(ctx context.Context, us *vmpb.HypervisorID) server {
	if r.RenewalClient == nil || r.RenewalLimit(ctx, KeyOf(us), us.GetPodName()) == 0 {
		return r.common()
	}
	return server{r.RenewalClient, r.RenewalClient, &r.renewalLocks}
}
