package authority

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// slots are the migration slots that are reserved but not yet visible in the cache. They limit concurrent migrations
// per host. The zero value has no reservations.
type slots struct {
	mu       sync.Mutex
	reserved map[types.NamespacedName]slot
}

// slot is the permission of a VM to leave a host for a target.
type slot struct {
	node, target string
	since        time.Time
}

// unseenTimeout is how long a reservation counts while the cache does not show the migration. If the migration record
// was already removed, the cache never shows it.
const unseenTimeout = time.Minute

// reserveSlot reports whether a VM may leave its host now. If it may, it counts as leaving until the cache shows its
// target or release is called.
func (r *Registry) reserveSlot(ctx context.Context, us *vmpb.HypervisorID, node, target string) (bool, error) {
	if r.MigrationsPerHost <= 0 || node == "" {
		return true, nil
	}
	r.slots.mu.Lock()
	defer r.slots.mu.Unlock()
	all := &v1alpha1.VirtualMachineList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing virtual machines: %w", err)
	}
	if r.slots.inUse(all.Items, node, KeyOf(us), r.Clock.Now()) >= r.MigrationsPerHost {
		return false, nil
	}
	r.slots.reserved[KeyOf(us)] = slot{node, target, r.Clock.Now()}
	return true, nil
}

// inUse returns how many VMs leave or enter a node, not counting one VM. It drops the reservations of migrations that
// the cache shows, of VMs that are gone, and of migrations that the cache does not show within unseenTimeout.
func (s *slots) inUse(vms []v1alpha1.VirtualMachine, node string, except types.NamespacedName, now time.Time) int {
	count, pending := 0, map[types.NamespacedName]slot{}
	for i := range vms {
		vm := &vms[i]
		key := client.ObjectKeyFromObject(vm)
		reservation := s.reserved[key] // the zero value has expired
		if now.Sub(reservation.since) < unseenTimeout && (vm.Status.Migration == nil || vm.Status.Migration.TargetPodName != reservation.target) {
			pending[key] = reservation
		}
		if key != except && (pending[key].node == node || migration.Uses(vm, node)) {
			count++
		}
	}
	s.reserved = pending
	return count
}

func (s *slots) release(vm types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reserved, vm)
}
