package conformance

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance/internal/observe"
)

// Rules that others depend on: most checks need a VM, and its deletion.
const (
	created = 1
	deleted = 29
)

var identityRules = []Rule{
	{
		Number: created, Level: Must, Title: "CreateMachine creates a VM and returns its provider ID",
		Places: []string{"MCM CreateMachine 1", "MCM CreateMachine 8"},
		check:  func(p *probe) { p.make(p.target("a")) },
	},
	{
		Number: 2, Level: Must, Title: "CreateMachine returns the name of the node", Places: []string{"MCM CreateMachine 9"},
		needs: []int{created},
		check: func(p *probe) {
			if resp, err := p.create(p.ctx, p.target("a")); err == nil && resp != nil && resp.NodeName == "" {
				p.failf("CreateMachine returned an empty node name")
			}
		},
	},
	{
		Number: 3, Level: Must, Title: "machines of the same name in two namespaces have separate VMs", Places: []string{"driver Identity 1"},
		needs: []int{created}, check: namespacesAreSeparate,
	},
	{
		Number: 4, Level: Must, Title: "the UID of a machine does not identify its VM",
		Places: []string{"driver Identity 1", "MCM Machine Provider Interface 1", "MCM CreateMachine 6", "MCM DeleteMachine 8"},
		needs:  []int{created, 40},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			restored := a.withID("")
			restored.uid = "c0f00000-0000-4000-8000-000000000002"
			if id := p.idOf(restored); id != a.id {
				p.failf("with another UID, as after a restore from a backup, GetMachineStatus returned %q, want %q", id, a.id)
			}
		},
	},
	{
		Number: 5, Level: Must, Title: "a provider ID is never reused", Places: []string{"driver Identity 3"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			first := p.make(p.target("a"))
			p.destroy(first)
			if second := p.make(first.withID("")); second.id == first.id {
				p.failf("two successive VMs have the provider ID %s", first.id)
			}
		},
	},
	{
		Number: 6, Level: Must, Title: "the provider ID of a VM never changes", Places: []string{"driver Identity 3"},
		needs: []int{created, 38},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			for range 3 {
				if id := p.idOf(a); id != a.id {
					p.failf("GetMachineStatus returned provider ID %q, want %q", id, a.id)
				}
			}
		},
	},
}

func namespacesAreSeparate(p *probe) {
	here := p.make(p.target("a"))
	there := p.target("a").in(here.namespace + "-other")
	// The IDs of the VMs also show the fault of a driver that does not implement GetMachineStatus.
	if resp, err := p.tryStatus(there); exists(err) && resp != nil {
		p.failf("GetMachineStatus found VM %s, which belongs to the machine of the same name in another namespace", resp.ProviderID)
	}
	if there = p.make(there); there.id == here.id {
		p.failf("both machines have the VM %s", here.id)
	}
}

var createRules = []Rule{
	{
		Number: 17, Level: Must, Title: "a repeated CreateMachine finds the VM",
		Places: []string{"driver CreateMachine 1", "MCM CreateMachine 2", "MCM CreateMachine 7"},
		needs:  []int{created}, check: createsOnce,
	},
	{
		Number: 18, Level: Must, Title: "CreateMachine can be repeated if its response was lost", Places: []string{"driver CreateMachine 1"},
		needs: []int{created, 17, 40}, check: lostResponses,
	},
	{
		Number: 19, Level: Must, Title: "an interrupted CreateMachine leaves no unknown VM",
		Places: []string{"driver Requests 6", "driver CreateMachine 5"},
		needs:  []int{created, 17, 18, deleted}, check: interrupted,
	},
	{
		Number: 20, Level: Must, Title: "a restarted driver finds the VM", Places: []string{"driver Identity 1", "driver CreateMachine 1"},
		needs: []int{created, 17}, check: restarted,
	},
	{
		Number: 21, Level: Must, Title: "concurrent CreateMachine calls for one machine create one VM",
		Places: []string{"driver CreateMachine 1", "driver Requests 7"},
		needs:  []int{created, 17}, check: concurrentForOne,
	},
	{
		Number: 22, Level: Must, Title: "concurrent CreateMachine calls for several machines create one VM each", Places: []string{"driver Requests 7"},
		needs: []int{created, 40}, check: concurrentForMany,
	},
	{
		Number: 23, Level: Must, Title: "CreateMachine returns AlreadyExists for a VM that does not fit the request", Places: []string{"driver CreateMachine 2", "MCM CreateMachine 12"},
		needs: []int{created}, check: func(p *probe) { p.mismatch() },
	},
	{
		Number: 24, Level: Must, Title: "CreateMachine does not change a VM that does not fit the request", Places: []string{"driver CreateMachine 2"},
		needs: []int{created, 17, 23},
		check: func(p *probe) {
			a := p.mismatch()
			if again, err := p.create(p.ctx, a.withID("")); err != nil || again == nil || again.ProviderID != a.id {
				p.failf("CreateMachine with the original class, after AlreadyExists for the changed class, returned %+[2]v, %[3]v; want the VM %[1]s", a.id, again, err)
			}
		},
	},
	{
		Number: 25, Level: Must, Title: "CreateMachine returns ResourceExhausted for an exhausted quota", Places: []string{"driver CreateMachine Codes", "MCM CreateMachine 12"},
		check: func(p *probe) {
			class := p.provider.Variants.Classes[Full]
			p.need(class != nil, "a class whose quota is exhausted")
			p.wantCreate(p.target("a").of(class), codes.ResourceExhausted)
		},
	},
	{
		Number: 26, Level: Must, Title: "CreateMachine returns OutOfRange for a size outside its valid range", Places: []string{"driver CreateMachine Codes", "MCM CreateMachine 12"},
		check: func(p *probe) {
			class := p.provider.Variants.Classes[OutOfRange]
			p.need(class != nil, "a class with a size outside its valid range")
			p.wantCreate(p.target("a").of(class), codes.OutOfRange)
		},
	},
	{
		Number: 27, Level: Should, Title: "CreateMachine does not wait for the guest or the node", Places: []string{"driver CreateMachine 3"},
		Unchecked: "the time that a provider takes to accept a VM is unknown; calls have the deadline of the controllers",
	},
	{
		Number: 28, Level: Should, Title: "steps that can fail separately belong in InitializeMachine", Places: []string{"driver CreateMachine 4"},
		Unchecked: "this is about the structure of a driver, which calls do not show",
	},
}

// wantCreate expects CreateMachine to return one of the given codes.
func (p *probe) wantCreate(t target, want ...codes.Code) {
	if _, err := p.create(p.ctx, t); !is(err, want...) {
		p.failf("CreateMachine returned %s, want %s", describe(err), anyOf(want))
	}
}

func createsOnce(p *probe) {
	a := p.make(p.target("a"))
	switch again, err := p.create(p.ctx, a.withID("")); {
	case err != nil || again == nil:
		p.failf("the second CreateMachine returned %s", describe(err))
	case again.ProviderID != a.id:
		p.failf("the second CreateMachine returned %s, want %s", again.ProviderID, a.id)
	}
}

// contextChecks is the number of checks of the context at which a call is interrupted, one per call.
const contextChecks = 4

// interruptions calls CreateMachine with contexts that are canceled at different places, so that the response is lost.
func (p *probe) interruptions(t target) {
	for n := range contextChecks {
		_, err := p.create(observe.CancelAtCheck(p.ctx, n+1), t)
		if err != nil && !is(err, codes.Canceled, codes.DeadlineExceeded, codes.Aborted) {
			p.failf("an interrupted CreateMachine returned %s", describe(err))
		}
	}
}

func lostResponses(p *probe) {
	a := p.target("a")
	p.interruptions(a)
	if a = p.make(a); p.idOf(a.withID("")) != a.id {
		p.failf("after interrupted creations, GetMachineStatus did not find VM %s by the name of the machine", a.id)
	}
}

func interrupted(p *probe) {
	before := p.instances()
	a := p.target("a")
	p.interruptions(a)
	p.destroy(p.make(a))
	if left := p.added(before); len(left) > 0 {
		p.failf("VMs remain after interrupted creations and a deletion: %v", left)
	}
}

func restarted(p *probe) {
	restart := p.provider.Hooks.Restart
	p.need(restart != nil, "a hook that restarts the driver")
	a := p.make(p.target("a"))
	second, err := restart()
	if err != nil {
		p.stopf("cannot restart the driver: %v", err)
	}
	first := p.provider.Driver
	defer func() { p.provider.Driver = first }()
	p.provider.Driver = second
	again, err := p.create(p.ctx, a.withID(""))
	switch {
	case err != nil || again == nil:
		p.failf("CreateMachine of the restarted driver returned %s", describe(err))
	case again.ProviderID != a.id:
		p.failf("CreateMachine of the restarted driver returned %s, want %s", again.ProviderID, a.id)
	}
	if id := p.idOf(a.withID(a.id)); id != a.id {
		p.failf("GetMachineStatus of the restarted driver finds %q instead of %q", id, a.id)
	}
}

// inParallel calls a function concurrently for each number below n.
func inParallel(n int, call func(i int)) {
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

const concurrentCalls = 8

func concurrentForOne(p *probe) {
	before := p.instances()
	a := p.target("a")
	p.count(a)
	ids := make([]string, concurrentCalls)
	inParallel(concurrentCalls, func(i int) {
		switch resp, err := p.create(p.ctx, a); {
		case err == nil && resp != nil:
			ids[i] = resp.ProviderID
		case !is(err, codes.Aborted):
			p.failf("one of several concurrent CreateMachine calls returned %s", describe(err))
		}
	})
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return id == "" })
	if len(ids) != 1 {
		p.failf("%d concurrent CreateMachine calls returned the provider IDs %q, want one ID", concurrentCalls, ids)
	}
	if added := p.added(before); len(added) > 1 {
		p.failf("%d concurrent CreateMachine calls created the VMs %v, want one VM", concurrentCalls, added)
	}
}

// concurrentMachines is the maximum number of machines of a check.
const concurrentMachines = 4

func concurrentForMany(p *probe) {
	targets := make([]target, concurrentMachines)
	for i := range targets {
		targets[i] = p.target(fmt.Sprint(i))
		p.count(targets[i])
	}
	inParallel(len(targets), func(i int) {
		resp, err := p.create(p.ctx, targets[i])
		if err != nil || resp == nil {
			p.failf("one of the concurrent CreateMachine calls for several machines returned %s", describe(err))
			return
		}
		targets[i] = targets[i].withID(resp.ProviderID)
		p.settle(targets[i])
	})
	owner := map[string]string{}
	for _, t := range targets {
		if other := owner[t.id]; other != "" && t.id != "" {
			p.failf("CreateMachine returned the same VM for %s and %s: %s", other, t.name, t.id)
		}
		owner[t.id] = t.name
		if id := p.idOf(t.withID("")); id != t.id {
			p.failf("GetMachineStatus of %s returned %q, want %q", t.name, id, t.id)
		}
	}
}

// mismatch creates a VM and calls CreateMachine with a class that the VM does not fit.
func (p *probe) mismatch() target {
	changed := p.provider.Variants.Changed
	p.need(changed != nil, "a class with changed parameters")
	a := p.make(p.target("a"))
	p.wantCreate(a.withID("").of(changed), codes.AlreadyExists)
	return a
}

var requestRules = []Rule{
	{
		Number: 7, Level: Must, Title: "requests are not modified", Places: []string{"driver Requests 1"},
		needs: []int{created},
		check: func(p *probe) {
			p.callAll()
			for _, call := range p.calls {
				if call.changed != "" {
					p.failf("%s modified %s in its request, which controllers share", call.method, call.changed)
				}
			}
		},
	},
	{
		Number: 8, Level: Must, Title: "requests are not retained after the call returns", Places: []string{"driver Requests 1"},
		needs: []int{created}, check: requestsAreNotKept,
	},
	{
		Number: 9, Level: Must, Title: "the Secret is never nil, and its user data is complete", Places: []string{"driver Requests 2"},
		Unchecked: "this rule binds the controllers; the checks follow it",
	},
	{
		Number: 10, Level: Must, Title: "an orphan's machine has only a name and an ID", Places: []string{"driver Requests 3"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			orphan := a
			orphan.bare = true
			if err := p.remove(orphan); err != nil && !is(err, codes.NotFound) {
				p.stopf("DeleteMachine of an orphan returned %s", describe(err))
			}
			if err := p.waitUntilGone(p.ctx, a); err != nil {
				p.failf("the orphan was not deleted: %v", err)
			}
		},
	},
	{
		Number: 11, Level: May, Title: "what a driver may use from a request",
		Places: []string{
			"driver Requests 4", "MCM CreateMachine 3", "MCM CreateMachine 4", "MCM CreateMachine 5", "MCM CreateMachine 10",
			"MCM DeleteMachine 4", "MCM DeleteMachine 5", "MCM DeleteMachine 6", "MCM DeleteMachine 9",
			"MCM GetMachineStatus 4", "MCM GetMachineStatus 5", "MCM ListMachines 5",
		},
		Unchecked: "permissions to use the class, the Secret, the ID and the last known state; a driver cannot violate them",
	},
	{
		Number: 12, Level: Must, Title: "CreateMachine rejects invalid specifications",
		Places: []string{"driver Requests 5", "MCM ProviderSpec 1", "MCM CreateMachine 12"},
		check: func(p *probe) {
			p.each(p.provider.refused(), func(what string, t target) {
				if _, err := p.create(p.ctx, t); !is(err, codes.InvalidArgument, codes.OutOfRange) {
					p.failf("with %s, CreateMachine returned %s, want InvalidArgument", what, describe(err))
				}
			})
		},
	},
	{
		Number: 13, Level: Must, Title: "methods that look for VMs reject specifications that do not identify them",
		Places: []string{"driver Requests 5", "MCM ProviderSpec 1", "MCM ListMachines 7"},
		check: func(p *probe) {
			p.each(p.provider.unidentified(), func(what string, t target) {
				_, listed := p.tryList(t.class, t.secret)
				_, found := p.tryStatus(t)
				for method, err := range map[string]error{"ListMachines": listed, "GetMachineStatus": found, "DeleteMachine": p.remove(t)} {
					if !is(err, codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented) {
						p.failf("with %s, %s returned %s, want InvalidArgument", what, method, describe(err))
					}
				}
			})
		},
	},
	{
		Number: 14, Level: Must, Title: "a rejected creation creates no VM", Places: []string{"driver CreateMachine Codes"},
		check: func(p *probe) {
			before := p.instances()
			p.each(p.provider.refused(), func(_ string, t target) {
				_, _ = p.create(p.ctx, t)
			})
			if left := p.added(before); len(left) > 0 {
				p.failf("VMs were created from invalid specifications: %v", left)
			}
		},
	},
	{
		Number: 15, Level: Must, Title: "CreateMachine rejects a machine without a name", Places: []string{"driver CreateMachine Codes", "MCM CreateMachine 12"},
		check: func(p *probe) {
			nameless := p.target("a")
			nameless.name = ""
			p.wantCreate(nameless, codes.InvalidArgument)
		},
	},
	{
		Number: 16, Level: Must, Title: "DeleteMachine rejects a machine without a name", Places: []string{"driver DeleteMachine Codes", "MCM DeleteMachine 11"},
		check: func(p *probe) {
			nameless := p.target("a")
			nameless.name = ""
			if err := p.remove(nameless); !is(err, codes.InvalidArgument) {
				p.failf("DeleteMachine returned %s, want InvalidArgument", describe(err))
			}
		},
	},
	{
		Number: 109, Level: Should, Title: "methods that look for VMs accept unknown fields",
		Places: []string{"driver Requests 5"}, Departs: "MCM ProviderSpec 1",
		needs: []int{created, deleted, 32, 40}, check: acceptsUnknownField,
	},
}

// acceptsUnknownField adds an unknown field to the class of a VM whose ID is not stored, and deletes the VM.
func acceptsUnknownField(p *probe) {
	a := p.make(p.target("a"))
	edited := a.withID("").of(p.provider.newer())
	_, listed := p.tryList(edited.class, edited.secret)
	_, located := p.tryLocate(edited)
	_, found := p.tryStatus(edited)
	for method, err := range map[string]error{"ListMachines": listed, "LocateMachine": located, "GetMachineStatus": found, "DeleteMachine": p.remove(edited)} {
		if !is(err, codes.OK, codes.Uninitialized, codes.Unimplemented) {
			p.failf("with an unknown field in the providerSpec, %s returned %s, want OK", method, describe(err))
		}
	}
	if err := p.waitUntilGone(p.ctx, a); err != nil {
		p.failf("with an unknown field in the providerSpec, DeleteMachine did not delete the VM: %v", err)
	}
}

// each calls a function for each class, with a machine of that class.
func (p *probe) each(classes map[string]*v1alpha1.MachineClass, call func(what string, t target)) {
	for i, what := range slices.Sorted(maps.Keys(classes)) {
		call(what, p.target(fmt.Sprint(i)).of(classes[what]))
	}
}

// requestsAreNotKept changes the objects of a request after the call has returned.
func requestsAreNotKept(p *probe) {
	a := p.target("a")
	p.count(a)
	req := &driver.CreateMachineRequest{Machine: a.machine(), MachineClass: a.class.DeepCopy(), Secret: a.secret.DeepCopy()}
	resp, err := do(p, p.ctx, "CreateMachine", p.provider.Driver.CreateMachine, req)
	if err != nil || resp == nil {
		p.stopf("CreateMachine returned %s", describe(err))
	}
	p.settle(a.withID(resp.ProviderID))
	req.Machine.Name, req.Machine.Namespace = "reused", "reused"
	req.MachineClass.ProviderSpec = runtime.RawExtension{Raw: []byte("reused")}
	req.Secret.Data = nil
	if id := p.idOf(a.withID(resp.ProviderID)); id != resp.ProviderID {
		p.failf("after the caller reused the memory of the request, GetMachineStatus returned %q, want %q", id, resp.ProviderID)
	}
	if machines, err := p.tryList(a.class, a.secret); err != nil && !is(err, codes.Unimplemented) || err == nil && machines[resp.ProviderID] != a.name {
		p.failf("after the caller reused the memory of the request, ListMachines returned %v, %s", machines, describe(err))
	}
}

// callAll calls each method for a machine, from its creation to its deletion.
func (p *probe) callAll() {
	a := p.make(p.target("a"))
	_, _ = p.tryStatus(a)
	_, _ = p.tryList(a.class, a.secret)
	_ = p.remove(a)
}
