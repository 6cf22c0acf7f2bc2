package vms

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// guarded is a value that one goroutine changes and others read.
type guarded[T any] struct {
	mu    sync.Mutex
	value T
}

func (v *guarded[T]) change(how func(T) T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.value = how(v.value)
}

func (v *guarded[T]) get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value
}

// follow calls see with a MachineDeployment's Machines by name, initially and after each change, until the end of
// the test. A watch misses no change, so see gets every observable state.
func (c *cluster) follow(pool *v1alpha1.MachineDeployment, see func(machines map[string]*v1alpha1.Machine)) {
	c.t.Helper()
	list, all := &v1alpha1.MachineList{}, map[string]*v1alpha1.Machine{}
	ours := client.MatchingLabels{"name": pool.Name}
	if err := c.client.List(c.t.Context(), list, ours); err != nil {
		c.t.Fatal(err)
	}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	see(all)
	since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	changes, err := c.client.Watch(ctx, &v1alpha1.MachineList{}, ours, since)
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	var following sync.WaitGroup
	following.Go(func() {
		for change := range changes.ResultChan() {
			machine, ok := change.Object.(*v1alpha1.Machine)
			switch {
			case ctx.Err() != nil:
				return
			case !ok:
				c.t.Errorf("the watch of deployment %s ends with %v", pool.Name, change.Object)
				return
			case change.Type == watch.Deleted:
				delete(all, machine.Name)
			default:
				all[machine.Name] = machine
			}
			see(all)
		}
		if ctx.Err() == nil {
			c.t.Errorf("the watch of deployment %s was closed during the test", pool.Name)
		}
	})
	c.t.Cleanup(func() {
		cancel()
		changes.Stop()
		following.Wait()
	})
}

// awaitMachines waits until a MachineDeployment is settled, regardless of other VMs.
func (c *cluster) awaitMachines(pool *v1alpha1.MachineDeployment) []string {
	c.t.Helper()
	var found []string
	c.eventually(joining, func(g gomega.Gomega) { found = c.settled(g, pool) })
	return found
}

// vmNamed returns the name of a Machine's VM.
func (c *cluster) vmNamed(machine string) string {
	c.t.Helper()
	vms := c.vmsOf(gomega.NewWithT(c.t), machine)
	if len(vms) != 1 {
		c.t.Fatalf("Machine %s has %d VMs", machine, len(vms))
	}
	return vms[0].Name
}

// phaseNames returns the phases of Machines, for messages.
func phaseNames(machines map[string]*v1alpha1.Machine) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		all = append(all, name+" "+string(machines[name].Status.CurrentStatus.Phase))
	}
	return all
}
