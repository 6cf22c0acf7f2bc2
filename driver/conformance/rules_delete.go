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
				p.failf("%s still exists although GetMachineStatus answers NotFound", a.id)
			}
		},
	},
	{
		Number: 30, Level: Must, Title: "deleting what is not there succeeds", Places: []string{"driver DeleteMachine 1", "MCM DeleteMachine 2"},
		check: func(p *probe) { p.wantRemoved(p.target("a")) },
	},
	{
		Number: 31, Level: Should, Title: "a repeated deletion succeeds", Places: []string{"driver DeleteMachine 2", "MCM DeleteMachine 7"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.destroy(a)
			p.wantRemoved(a)
		},
	},
	{
		Number: 32, Level: Must, Title: "DeleteMachine finds a VM whose ID is not stored", Places: []string{"driver DeleteMachine 3"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.wantRemoved(a.known(""))
			if err := p.gone(p.ctx, a); err != nil {
				p.failf("after DeleteMachine by name: %v", err)
			}
		},
	},
	{
		Number: 33, Level: Must, Title: "a VM of the same name with another ID is not deleted", Places: []string{"driver DeleteMachine 3"},
		needs: []int{created, deleted, 5},
		check: func(p *probe) {
			first := p.make(p.target("a"))
			p.destroy(first)
			second := p.make(first.known(""))
			p.wantRemoved(first)
			p.wantThere(second)
		},
	},
	{
		Number: 34, Level: Must, Title: "a VM with a stored ID is deleted although its class was edited", Places: []string{"driver DeleteMachine 4"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			p.wantRemoved(a.of(other))
			if err := p.gone(p.ctx, a); err != nil {
				p.failf("after DeleteMachine with the edited class: %v", err)
			}
		},
	},
	{
		Number: 35, Level: Must, Title: "VMs of other clusters are not deleted",
		Places: []string{"driver Identity 2", "driver DeleteMachine 4", "MCM DeleteMachine 3"},
		needs:  []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			p.wantRemoved(a.known("").of(other))
			p.wantThere(a)
		},
	},
	{
		Number: 36, Level: Must, Title: "a deletion during the creation can be completed",
		Places: []string{"driver Requests 7", "driver DeleteMachine 2"},
		needs:  []int{created, deleted, 17}, check: deletedWhileCreated,
	},
	{
		Number: 37, Level: Should, Title: "DeleteMachine returns when the VM is gone", Places: []string{"driver DeleteMachine 5"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			p.wantRemoved(a)
			if _, err := p.status(a); !is(err, codes.NotFound) {
				p.failf("after DeleteMachine, GetMachineStatus answers %s: MCM deletes the Node while the VM runs", said(err))
			}
		},
	},
}

// wantRemoved expects DeleteMachine to succeed.
func (p *probe) wantRemoved(t target) {
	if err := p.remove(t); err != nil && !is(err, codes.NotFound) {
		p.stopf("DeleteMachine answers %s", said(err))
	}
}

// wantThere expects that a VM exists.
func (p *probe) wantThere(t target) {
	if id := p.idOf(t); id != t.id {
		p.failf("the VM %s is gone", t.id)
	}
}

func deletedWhileCreated(p *probe) {
	before := p.instances()
	a := p.target("a")
	p.count(a)
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := p.create(p.ctx, a); err != nil && !is(err, codes.Aborted, codes.FailedPrecondition, codes.NotFound, codes.Unavailable, codes.Unknown) {
			p.failf("CreateMachine during a deletion answers %s", said(err))
		}
	})
	both.Go(func() {
		if err := p.remove(a); err != nil && !is(err, codes.NotFound, codes.Aborted, codes.FailedPrecondition, codes.Unavailable, codes.Unknown) {
			p.failf("DeleteMachine during a creation answers %s", said(err))
		}
	})
	both.Wait()
	p.destroy(a.known(p.idOf(a)))
	if left := p.added(before); len(left) > 0 {
		p.failf("a deletion during a creation, and another one after both, leave %v", left)
	}
}
