package conformance

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance/internal/observe"
)

// Rules that others build on: without a VM, and without its deletion, most cannot be told.
const (
	created = 1
	deleted = 29
)

var identityRules = []Rule{
	{
		Number: created, Level: Must, Title: "CreateMachine makes a VM and returns its provider ID",
		Places: []string{"MCM CreateMachine 1", "MCM CreateMachine 8"},
		check:  func(p *probe) { p.make(p.target("a")) },
	},
	{
		Number: 2, Level: Must, Title: "CreateMachine returns the name of the node", Places: []string{"MCM CreateMachine 9"},
		needs: []int{created},
		check: func(p *probe) {
			if resp, err := p.create(p.ctx, p.target("a")); err == nil && resp != nil && resp.NodeName == "" {
				p.failf("the node name is empty")
			}
		},
	},
	{
		Number: 3, Level: Must, Title: "machines of two namespaces have two VMs", Places: []string{"driver Identity 1"},
		needs: []int{created}, check: namespacesAreApart,
	},
	{
		Number: 4, Level: Must, Title: "the UID of a machine does not identify its VM",
		Places: []string{"driver Identity 1", "MCM Machine Provider Interface 1", "MCM CreateMachine 6", "MCM DeleteMachine 8"},
		needs:  []int{created, 40},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			restored := a.known("")
			restored.uid = "c0f00000-0000-4000-8000-000000000002"
			if id := p.idOf(restored); id != a.id {
				p.failf("with another UID, as after a restore from a backup, GetMachineStatus finds %q instead of %q", id, a.id)
			}
		},
	},
	{
		Number: 5, Level: Must, Title: "a provider ID is never used again", Places: []string{"driver Identity 3"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			first := p.make(p.target("a"))
			p.destroy(first)
			if second := p.make(first.known("")); second.id == first.id {
				p.failf("two VMs, one after the other, have the provider ID %s", first.id)
			}
		},
	},
	{
		Number: 6, Level: Must, Title: "the provider ID of a VM stays the same", Places: []string{"driver Identity 3"},
		needs: []int{created, 38},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			for range 3 {
				if id := p.idOf(a); id != a.id {
					p.failf("GetMachineStatus returns provider ID %q for %q", id, a.id)
				}
			}
		},
	},
}

func namespacesAreApart(p *probe) {
	here := p.make(p.target("a"))
	there := p.target("a").in(here.namespace + "-other")
	if id := p.idOf(there); id != "" {
		p.failf("GetMachineStatus finds the VM %s of the machine of the same name in another namespace", id)
	}
	if there = p.make(there); there.id == here.id {
		p.failf("the machines share the VM %s", here.id)
	}
}

var createRules = []Rule{
	{
		Number: 17, Level: Must, Title: "a repeated creation finds the VM",
		Places: []string{"driver CreateMachine 1", "MCM CreateMachine 2", "MCM CreateMachine 7"},
		needs:  []int{created}, check: createsOnce,
	},
	{
		Number: 18, Level: Must, Title: "a creation whose answer was lost can be repeated", Places: []string{"driver CreateMachine 1"},
		needs: []int{created, 17, 40}, check: lostAnswers,
	},
	{
		Number: 19, Level: Must, Title: "an interrupted creation leaves no unknown VM",
		Places: []string{"driver Requests 6", "driver CreateMachine 5"},
		needs:  []int{created, 17, 18, deleted}, check: interrupted,
	},
	{
		Number: 20, Level: Must, Title: "a restarted driver finds the VM", Places: []string{"driver Identity 1", "driver CreateMachine 1"},
		needs: []int{created, 17}, check: restarted,
	},
	{
		Number: 21, Level: Must, Title: "concurrent creations of a machine make one VM",
		Places: []string{"driver CreateMachine 1", "driver Requests 7"},
		needs:  []int{created, 17}, check: concurrentForOne,
	},
	{
		Number: 22, Level: Must, Title: "concurrent creations of many machines make a VM each", Places: []string{"driver Requests 7"},
		needs: []int{created, 40}, check: concurrentForMany,
	},
	{
		Number: 23, Level: Must, Title: "a VM that does not fit is AlreadyExists", Places: []string{"driver CreateMachine 2", "MCM CreateMachine 12"},
		needs: []int{created}, check: func(p *probe) { p.misfit() },
	},
	{
		Number: 24, Level: Must, Title: "a VM that does not fit is left as it is", Places: []string{"driver CreateMachine 2"},
		needs: []int{created, 17, 23},
		check: func(p *probe) {
			a := p.misfit()
			if again, err := p.create(p.ctx, a.known("")); err != nil || again == nil || again.ProviderID != a.id {
				p.failf("the VM was %s; after AlreadyExists for the changed class, CreateMachine with its own class answers %+v, %v", a.id, again, err)
			}
		},
	},
	{
		Number: 25, Level: Must, Title: "a used-up quota is ResourceExhausted", Places: []string{"driver CreateMachine Codes", "MCM CreateMachine 12"},
		check: func(p *probe) {
			class := p.provider.Variants.Classes[Full]
			p.need(class != nil, "a class whose quota is used up")
			p.wantCreate(p.target("a").of(class), codes.ResourceExhausted)
		},
	},
	{
		Number: 26, Level: Must, Title: "a size out of its range is OutOfRange", Places: []string{"driver CreateMachine Codes", "MCM CreateMachine 12"},
		check: func(p *probe) {
			class := p.provider.Variants.Classes[OutOfRange]
			p.need(class != nil, "a class with a size that is out of its range")
			p.wantCreate(p.target("a").of(class), codes.OutOfRange)
		},
	},
	{
		Number: 27, Level: Should, Title: "CreateMachine does not wait for the guest or the node", Places: []string{"driver CreateMachine 3"},
		Unchecked: "how long a provider takes to accept a VM is not known; calls have the deadline of the controllers",
	},
	{
		Number: 28, Level: Should, Title: "steps that can fail separately belong into InitializeMachine", Places: []string{"driver CreateMachine 4"},
		Unchecked: "it is about how a driver is divided, which calls do not show",
	},
}

// wantCreate expects a code of CreateMachine.
func (p *probe) wantCreate(t target, want ...codes.Code) {
	if _, err := p.create(p.ctx, t); !is(err, want...) {
		p.failf("CreateMachine answers %s, want %s", said(err), anyOf(want))
	}
}

func createsOnce(p *probe) {
	a := p.make(p.target("a"))
	switch again, err := p.create(p.ctx, a.known("")); {
	case err != nil || again == nil:
		p.failf("the second CreateMachine answers %s", said(err))
	case again.ProviderID != a.id:
		p.failf("the second CreateMachine returns %s, the first one %s", again.ProviderID, a.id)
	}
}

// looks are at which looks at its context a call is interrupted.
const looks = 4

// interruptions calls CreateMachine with contexts that end at different places, so that the answer is lost.
func (p *probe) interruptions(t target) {
	for look := range looks {
		_, err := p.create(observe.EndsAt(p.ctx, look+1), t)
		if err != nil && !is(err, codes.Canceled, codes.DeadlineExceeded, codes.Aborted) {
			p.failf("an interrupted CreateMachine answers %s", said(err))
		}
	}
}

func lostAnswers(p *probe) {
	a := p.target("a")
	p.interruptions(a)
	if a = p.make(a); p.idOf(a.known("")) != a.id {
		p.failf("after interrupted creations, GetMachineStatus does not find the VM %s by the name of the machine", a.id)
	}
}

func interrupted(p *probe) {
	before := p.instances()
	a := p.target("a")
	p.interruptions(a)
	p.destroy(p.make(a))
	if left := p.added(before); len(left) > 0 {
		p.failf("after interrupted creations and a deletion, VMs are left: %v", left)
	}
}

func restarted(p *probe) {
	restart := p.provider.Hooks.Restart
	p.need(restart != nil, "a way to restart the driver")
	a := p.make(p.target("a"))
	second, err := restart()
	if err != nil {
		p.stopf("restarting the driver: %v", err)
	}
	first := p.provider.Driver
	defer func() { p.provider.Driver = first }()
	p.provider.Driver = second
	again, err := p.create(p.ctx, a.known(""))
	switch {
	case err != nil || again == nil:
		p.failf("CreateMachine of the restarted driver answers %s", said(err))
	case again.ProviderID != a.id:
		p.failf("CreateMachine of the restarted driver returns %s, the first one %s", again.ProviderID, a.id)
	}
	if id := p.idOf(a.known(a.id)); id != a.id {
		p.failf("GetMachineStatus of the restarted driver finds %q instead of %q", id, a.id)
	}
}

// atOnce calls a function for each number at the same time.
func atOnce(n int, call func(i int)) {
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-begin
			call(i)
		})
	}
	close(begin)
	all.Wait()
}

const callsAtOnce = 8

func concurrentForOne(p *probe) {
	before := p.instances()
	a := p.target("a")
	p.count(a)
	ids := make([]string, callsAtOnce)
	atOnce(callsAtOnce, func(i int) {
		switch resp, err := p.create(p.ctx, a); {
		case err == nil && resp != nil:
			ids[i] = resp.ProviderID
		case !is(err, codes.Aborted):
			p.failf("one of several CreateMachine at once answers %s", said(err))
		}
	})
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return id == "" })
	if len(ids) != 1 {
		p.failf("%d CreateMachine at once return the provider IDs %q, want one", callsAtOnce, ids)
	}
	if added := p.added(before); len(added) > 1 {
		p.failf("%d CreateMachine at once have made the VMs %v", callsAtOnce, added)
	}
}

// machinesAtOnce is how many machines a check has at most.
const machinesAtOnce = 4

func concurrentForMany(p *probe) {
	targets := make([]target, machinesAtOnce)
	for i := range targets {
		targets[i] = p.target(fmt.Sprint(i))
		p.count(targets[i])
	}
	atOnce(len(targets), func(i int) {
		resp, err := p.create(p.ctx, targets[i])
		if err != nil || resp == nil {
			p.failf("CreateMachine of one of several machines at once answers %s", said(err))
			return
		}
		targets[i] = targets[i].known(resp.ProviderID)
		p.settle(targets[i])
	})
	owner := map[string]string{}
	for _, t := range targets {
		if other := owner[t.id]; other != "" && t.id != "" {
			p.failf("%s and %s have both got the VM %s", other, t.name, t.id)
		}
		owner[t.id] = t.name
		if id := p.idOf(t.known("")); id != t.id {
			p.failf("the VM of %s is %q; CreateMachine returned %q", t.name, id, t.id)
		}
	}
}

// misfit makes a VM and calls CreateMachine with a class that it does not fit.
func (p *probe) misfit() target {
	changed := p.provider.Variants.Changed
	p.need(changed != nil, "the class with changed parameters")
	a := p.make(p.target("a"))
	p.wantCreate(a.known("").of(changed), codes.AlreadyExists)
	return a
}

var requestRules = []Rule{
	{
		Number: 7, Level: Must, Title: "requests are not modified", Places: []string{"driver Requests 1"},
		needs: []int{created},
		check: func(p *probe) {
			p.life()
			for _, call := range p.calls {
				if call.changed != "" {
					p.failf("%s modifies the %s of its request, which controllers share", call.method, call.changed)
				}
			}
		},
	},
	{
		Number: 8, Level: Must, Title: "requests are not kept after the answer", Places: []string{"driver Requests 1"},
		needs: []int{created}, check: requestsAreNotKept,
	},
	{
		Number: 9, Level: Must, Title: "the Secret is never nil, and its user data are complete", Places: []string{"driver Requests 2"},
		Unchecked: "it binds the controllers; the checks keep to it",
	},
	{
		Number: 10, Level: Must, Title: "the machine of an orphan has only a name and an ID", Places: []string{"driver Requests 3"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			orphan := a
			orphan.bare = true
			if err := p.remove(orphan); err != nil && !is(err, codes.NotFound) {
				p.stopf("DeleteMachine of an orphan answers %s", said(err))
			}
			if err := p.gone(p.ctx, a); err != nil {
				p.failf("the orphan is not deleted: %v", err)
			}
		},
	},
	{
		Number: 11, Level: May, Title: "what a driver may use of a request",
		Places: []string{
			"driver Requests 4", "MCM CreateMachine 3", "MCM CreateMachine 4", "MCM CreateMachine 5", "MCM CreateMachine 10",
			"MCM DeleteMachine 4", "MCM DeleteMachine 5", "MCM DeleteMachine 6", "MCM DeleteMachine 9",
			"MCM GetMachineStatus 4", "MCM GetMachineStatus 5", "MCM ListMachines 5",
		},
		Unchecked: "permissions to use the class, the Secret, the ID and the last known state: nothing can break them",
	},
	{
		Number: 12, Level: Must, Title: "CreateMachine refuses invalid specifications",
		Places: []string{"driver Requests 5", "MCM ProviderSpec 1", "MCM CreateMachine 12"},
		check: func(p *probe) {
			p.eachRefused(func(what string, t target) {
				if _, err := p.create(p.ctx, t); !is(err, codes.InvalidArgument, codes.OutOfRange) {
					p.failf("with %s it answers %s, want InvalidArgument", what, said(err))
				}
			})
		},
	},
	{
		Number: 13, Level: Must, Title: "the other methods refuse invalid specifications",
		Places: []string{"driver Requests 5", "MCM ProviderSpec 1", "MCM ListMachines 7"},
		check: func(p *probe) {
			p.eachRefused(func(what string, t target) {
				_, listed := p.tryList(t.class, t.secret)
				_, found := p.tryStatus(t)
				for method, err := range map[string]error{"ListMachines": listed, "GetMachineStatus": found, "DeleteMachine": p.remove(t)} {
					if !is(err, codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented) {
						p.failf("with %s, %s answers %s, want InvalidArgument", what, method, said(err))
					}
				}
			})
		},
	},
	{
		Number: 14, Level: Must, Title: "a refused creation makes no VM", Places: []string{"driver CreateMachine Codes"},
		check: func(p *probe) {
			before := p.instances()
			p.eachRefused(func(_ string, t target) {
				_, _ = p.create(p.ctx, t)
			})
			if left := p.added(before); len(left) > 0 {
				p.failf("VMs were made with invalid specifications: %v", left)
			}
		},
	},
	{
		Number: 15, Level: Must, Title: "CreateMachine refuses a machine without a name", Places: []string{"driver CreateMachine Codes", "MCM CreateMachine 12"},
		check: func(p *probe) {
			nameless := p.target("a")
			nameless.name = ""
			p.wantCreate(nameless, codes.InvalidArgument)
		},
	},
	{
		Number: 16, Level: Must, Title: "DeleteMachine refuses a machine without a name", Places: []string{"driver DeleteMachine Codes", "MCM DeleteMachine 11"},
		check: func(p *probe) {
			nameless := p.target("a")
			nameless.name = ""
			if err := p.remove(nameless); !is(err, codes.InvalidArgument) {
				p.failf("DeleteMachine answers %s, want InvalidArgument", said(err))
			}
		},
	},
}

// eachRefused calls a function for a machine of each invalid class.
func (p *probe) eachRefused(call func(what string, t target)) {
	classes := p.provider.refused()
	for i, what := range slices.Sorted(maps.Keys(classes)) {
		call(what, p.target(fmt.Sprint(i)).of(classes[what]))
	}
}

// requestsAreNotKept changes what a request was made of after the answer.
func requestsAreNotKept(p *probe) {
	a := p.target("a")
	p.count(a)
	req := &driver.CreateMachineRequest{Machine: a.machine(), MachineClass: a.class.DeepCopy(), Secret: a.secret.DeepCopy()}
	resp, err := do(p, p.ctx, "CreateMachine", p.provider.Driver.CreateMachine, req)
	if err != nil || resp == nil {
		p.stopf("CreateMachine answers %s", said(err))
	}
	p.settle(a.known(resp.ProviderID))
	req.Machine.Name, req.Machine.Namespace = "reused", "reused"
	req.MachineClass.ProviderSpec = runtime.RawExtension{Raw: []byte("reused")}
	req.Secret.Data = nil
	if id := p.idOf(a.known(resp.ProviderID)); id != resp.ProviderID {
		p.failf("after the memory of the request was reused, GetMachineStatus finds %q instead of %q", id, resp.ProviderID)
	}
	if machines, err := p.tryList(a.class, a.secret); err != nil && !is(err, codes.Unimplemented) || err == nil && machines[resp.ProviderID] != a.name {
		p.failf("after the memory of the request was reused, ListMachines answers %v, %s", machines, said(err))
	}
}

// life calls each method for a machine, from its creation to its deletion.
func (p *probe) life() {
	a := p.make(p.target("a"))
	_, _ = p.tryStatus(a)
	_, _ = p.tryList(a.class, a.secret)
	_ = p.remove(a)
}
