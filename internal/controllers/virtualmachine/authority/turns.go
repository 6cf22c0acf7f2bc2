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

// turns are the reservations of targets that the cache does not have yet. The zero value has none.
type turns struct {
	mu    sync.Mutex
	given map[types.NamespacedName]turn
}

// turn lets a VM leave a host for a target.
type turn struct {
	node, target string
	since        time.Time
}

// unseenFor is how long a turn counts that the cache does not show. The cache never shows a record that was removed.
const unseenFor = time.Minute

// takeTurn reports whether a VM may leave its host now. If it may, it counts as leaving from then on, until
// the cache has its target or giveBack is called.
func (r *Registry) takeTurn(ctx context.Context, us *vmpb.HypervisorID, node, target string) (bool, error) {
	if r.MigrationsPerHost <= 0 || node == "" {
		return true, nil
	}
	r.turns.mu.Lock()
	defer r.turns.mu.Unlock()
	all := &v1alpha1.VirtualMachineList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing virtual machines: %w", err)
	}
	if r.turns.busy(all.Items, node, KeyOf(us), r.Clock.Now()) >= r.MigrationsPerHost {
		return false, nil
	}
	r.turns.given[KeyOf(us)] = turn{node, target, r.Clock.Now()}
	return true, nil
}

// busy returns how many VMs other than one leave or enter a node. It forgets turns that the cache shows, those of VMs
// that are gone, and those that the cache does not show in time.
func (t *turns) busy(vms []v1alpha1.VirtualMachine, node string, but types.NamespacedName, now time.Time) int {
	count, pending := 0, map[types.NamespacedName]turn{}
	for i := range vms {
		vm := &vms[i]
		key := client.ObjectKeyFromObject(vm)
		given, found := t.given[key]
		if found && now.Sub(given.since) < unseenFor && (vm.Status.Migration == nil || vm.Status.Migration.TargetPodName != given.target) {
			pending[key] = given
		}
		if key != but && (pending[key].node == node || migration.Uses(vm, node)) {
			count++
		}
	}
	t.given = pending
	return count
}

func (t *turns) giveBack(vm types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.given, vm)
}
