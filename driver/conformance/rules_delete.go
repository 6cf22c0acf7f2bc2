package conformance

import (
	"sync"

	"github.com/millwright-dev/millwright/driver/codes"
)

var deleteRules = []Rule{
	{
		Number: deleted, Level: Must, Title: "DeleteMachine deletes the VM", Places: []string{"MCM DeleteMachine 1", "driver DeleteMachine 2"},
		needs: []int{created},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.destroy(a)
			if p.instances()[a.id] {
				p.failf("VM %s still exists although GetMachineStatus returned NotFound", a.id)
			}
		},
	},
	{
		Number: 30, Level: Must, Title: "DeleteMachine succeeds if the VM does not exist", Places: []string{"driver DeleteMachine 1", "MCM DeleteMachine 2"},
		check: func(p *probe) { p.wantDeleted(p.target("a")) },
	},
	{
		Number: 31, Level: Should, Title: "a repeated DeleteMachine succeeds", Places: []string{"driver DeleteMachine 2", "MCM DeleteMachine 7"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.destroy(a)
			p.wantDeleted(a)
		},
	},
	{
		Number: 32, Level: Must, Title: "DeleteMachine finds a VM whose ID is not stored", Places: []string{"driver DeleteMachine 3"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.wantDeleted(a.withID(""))
			if err := p.waitUntilGone(p.ctx, a); err != nil {
				p.failf("DeleteMachine by name did not delete the VM: %v", err)
			}
		},
	},
	{
		Number: 33, Level: Must, Title: "DeleteMachine does not delete a VM of the same name with another ID", Places: []string{"driver DeleteMachine 3"},
		needs: []int{created, deleted, 5},
		check: func(p *probe) {
			first := p.make(p.target("a"))
			p.destroy(first)
			second := p.make(first.withID(""))
			p.wantDeleted(first)
			p.wantExists(second)
		},
	},
	{
		Number: 34, Level: Must, Title: "DeleteMachine deletes a VM with a stored ID after its class was edited",
		Places: []string{"driver DeleteMachine 4"}, Departs: "MCM DeleteMachine 3",
		needs: []int{created, deleted},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			p.wantDeleted(a.of(other))
			if err := p.waitUntilGone(p.ctx, a); err != nil {
				p.failf("DeleteMachine with the edited class did not delete the VM: %v", err)
			}
		},
	},
	{
		Number: 35, Level: Must, Title: "DeleteMachine does not delete VMs of other clusters",
		Places: []string{"driver Identity 2", "driver DeleteMachine 4", "MCM DeleteMachine 3"},
		needs:  []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			p.wantDeleted(a.withID("").of(other))
			p.wantExists(a)
		},
	},
	{
		Number: 36, Level: Must, Title: "a deletion that starts during the creation can be completed",
		Places: []string{"driver Requests 7", "driver DeleteMachine 2"},
		needs:  []int{created, deleted, 17}, check: deletedWhileCreated,
	},
	{
		Number: 37, Level: Should, Title: "DeleteMachine returns when the VM is gone", Places: []string{"driver DeleteMachine 5"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.wantDeleted(a)
			if _, err := p.status(a); !is(err, codes.NotFound) {
				p.failf("after DeleteMachine, GetMachineStatus returned %s; MCM then deletes the Node while the VM still runs", describe(err))
			}
		},
	},
}

// wantDeleted expects DeleteMachine to succeed.
func (p *probe) wantDeleted(t target) {
	if err := p.remove(t); err != nil && !is(err, codes.NotFound) {
		p.stopf("DeleteMachine returned %s", describe(err))
	}
}

// wantExists expects a VM to exist.
func (p *probe) wantExists(t target) {
	if id := p.idOf(t); id != t.id {
		p.failf("VM %s was deleted", t.id)
	}
}

func deletedWhileCreated(p *probe) {
	before := p.instances()
	a := p.target("a")
	p.count(a)
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := p.create(p.ctx, a); err != nil && !is(err, codes.Aborted, codes.FailedPrecondition, codes.NotFound, codes.Unavailable, codes.Unknown) {
			p.failf("CreateMachine during a deletion returned %s", describe(err))
		}
	})
	both.Go(func() {
		if err := p.remove(a); err != nil && !is(err, codes.NotFound, codes.Aborted, codes.FailedPrecondition, codes.Unavailable, codes.Unknown) {
			p.failf("DeleteMachine during a creation returned %s", describe(err))
		}
	})
	both.Wait()
	p.destroy(a.withID(p.idOf(a)))
	if left := p.added(before); len(left) > 0 {
		p.failf("VMs remain after a deletion during a creation and a deletion after both: %v", left)
	}
}
