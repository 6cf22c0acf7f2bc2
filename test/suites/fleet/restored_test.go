package fleet

import (
	"fmt"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// restoredSpec is the spec of VMs whose nodes join soon.
const restoredSpec = `{"latency":"100ms","joinDelay":"500ms","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`

// scale changes the number of Machines, and waits until they are available.
func (c *cluster) scale(machines int) {
	c.Helper()
	c.machines = machines
	c.patch(c.deployment(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, machines))
	c.eventually(c.settled)
}

// list returns the Machines by their UIDs.
func (c *cluster) list(g gomega.Gomega) map[types.UID]*v1alpha1.Machine {
	list, machines := &v1alpha1.MachineList{}, map[types.UID]*v1alpha1.Machine{}
	g.Expect(c.Client.List(c.Context(), list, client.InNamespace(c.namespace))).To(gomega.Succeed())
	for i := range list.Items {
		machines[list.Items[i].UID] = &list.Items[i]
	}
	return machines
}

// wantKept checks that Machines still exist, and that their VMs were never deleted.
func (c *cluster) wantKept(kept map[types.UID]*v1alpha1.Machine) {
	c.Helper()
	now, vms := c.list(c), []string{}
	for uid, machine := range kept {
		if is := now[uid]; is == nil || is.DeletionTimestamp != nil {
			c.Errorf("machine %s was deleted", machine.Name)
		}
		vms = append(vms, machine.Spec.ProviderID)
	}
	for _, entry := range c.journal() {
		if entry.Effect == sim.Deleted && slices.Contains(vms, entry.ProviderID) {
			c.Errorf("the VM %s of a machine that was kept was deleted", entry.ProviderID)
		}
	}
}

// TestFleet_TargetIsRestored restores the etcd of a target from a backup that is older than some nodes. The Machines of
// these nodes must be treated like all Machines whose nodes are missing: they become Unknown, and are replaced when their health
// timeout expires. The other Machines must not be affected.
func TestFleet_TargetIsRestored(t *testing.T) {
	tier.All(t)
	t.Attr("fault", "The etcd of a target cluster is restored from a backup that lacks the nodes of two of four Machines")
	w := newWorld(t, env.WithOwn())
	c := w.cluster("cluster", w.Target)
	c.pool(2, restoredSpec)
	replica := w.replica(leases("60s", "40s")...)
	w.eventually(c.settled)
	kept := c.list(c)
	restore := w.Target.Backup(t)
	c.scale(4)

	restore(false)
	w.eventually(func(g gomega.Gomega) {
		for uid, machine := range c.list(g) {
			want := v1alpha1.MachineUnknown
			if kept[uid] != nil {
				want = v1alpha1.MachineRunning
			}
			g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(want), "%s: %s", machine.Name, machine.Status.LastOperation.Description)
		}
	})
	if machines := c.list(c); len(machines) != 4 {
		t.Errorf("%d machines before the health timeout, want 4", len(machines))
	}
	c.patch(c.deployment(), `{"spec":{"template":{"spec":{"healthTimeout":"1s"}}}}`)
	w.eventually(func(g gomega.Gomega) {
		c.settled(g)
		for uid, machine := range c.list(g) {
			g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning), "%s, kept: %t", machine.Name, kept[uid] != nil)
		}
	})
	c.wantKept(kept)
	c.wantOneVMEach()
	replica.Stop()
	t.Attr("outcome", "The Machines without nodes become Unknown, and are replaced when their health timeout expires; the others and their VMs are kept; no Machine has two VMs")
}

// TestFleet_SeedIsRestored restores the etcd of a seed from a backup that is older than a Machine. The replica must exit before
// it acts on objects from before and after the restore. When restarted, it must continue with the Machines of the backup. The VM of
// the missing Machine is an orphan, and must be deleted.
func TestFleet_SeedIsRestored(t *testing.T) {
	tier.All(t)
	t.Attr("fault", "The etcd of a seed is restored from a backup that lacks one of three Machines")
	w := newWorld(t, env.WithOwn())
	c := w.cluster("cluster", w.Target)
	c.pool(2, restoredSpec)
	flags := append(leases("60s", "40s"), "--machine-safety-orphan-vms-period", "10s")
	replica := w.replica(flags...)
	w.eventually(c.settled)
	kept := c.list(c)
	restore := w.Backup(t)
	w.Advance(t)
	c.scale(3)

	restore(false)
	w.eventually(func(g gomega.Gomega) { g.Expect(replica.Done()).To(gomega.BeClosed()) })
	w.Expect(replica.ExitCode()).To(gomega.Equal(1))
	w.Expect(replica.Output.String()).To(gomega.ContainSubstring(manager.ErrRestored.Error()))
	replica = w.replica(flags...)
	c.machines = 2 // as in the backup
	w.eventually(c.settled)
	c.scale(3)
	c.wantKept(kept)
	c.wantOneVMEach()
	replica.Stop()
	t.Attr("outcome", "The replica exits, and is started again; the VM without a Machine is deleted as an orphan, the Machines of the backup and their VMs are kept, and the pool is scaled as before; no Machine has two VMs")
}
