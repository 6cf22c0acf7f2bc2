package conformance

import (
	"context"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
)

var statusRules = []Rule{
	{
		Number: 38, Level: Must, Title: "GetMachineStatus returns the same response as CreateMachine", Places: []string{"driver GetMachineStatus 3", "MCM GetMachineStatus 2"},
		needs: []int{created}, check: returnsSameResponse,
	},
	{
		Number: 39, Level: Must, Title: "GetMachineStatus returns NotFound for a machine without a VM", Places: []string{"driver GetMachineStatus Codes", "MCM GetMachineStatus 8"},
		check: func(p *probe) {
			if _, err := p.status(p.target("a")); !is(err, codes.NotFound) {
				p.failf("GetMachineStatus returned %s, want NotFound", describe(err))
			}
		},
	},
	{
		Number: 40, Level: Must, Title: "GetMachineStatus finds a VM whose ID is not stored", Places: []string{"driver GetMachineStatus 2"},
		needs: []int{created},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			if id := p.idOf(a.withID("")); id != a.id {
				p.failf("GetMachineStatus by the name of the machine returned %q, want %q", id, a.id)
			}
		},
	},
	{
		Number: 41, Level: Must, Title: "GetMachineStatus ignores a VM of the same name with another ID", Places: []string{"driver GetMachineStatus 2"},
		needs: []int{created, deleted, 5},
		check: func(p *probe) {
			first := p.make(p.target("a"))
			p.destroy(first)
			p.make(first.withID(""))
			if _, err := p.status(first); !is(err, codes.NotFound) {
				p.failf("GetMachineStatus of the lost VM %s returned %s, want NotFound", first.id, describe(err))
			}
		},
	},
	{
		Number: 42, Level: Must, Title: "GetMachineStatus changes nothing", Places: []string{"driver GetMachineStatus 1", "MCM GetMachineStatus 6"},
		needs: []int{created},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			before := p.instances()
			for range 5 {
				_, _ = p.status(a)
				_, _ = p.status(p.target("b"))
			}
			if added := p.added(before); len(added) > 0 || !p.instances()[a.id] && before[a.id] {
				p.failf("GetMachineStatus created %v or deleted %s", added, a.id)
			}
		},
	},
	{
		Number: 43, Level: Must, Title: "GetMachineStatus finds a VM with a stored ID after its class was edited",
		Places: []string{"driver GetMachineStatus 2"}, Departs: "MCM GetMachineStatus 3",
		needs: []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			if id := p.idOf(a.of(other)); id != a.id {
				p.failf("with the edited class, GetMachineStatus returned %q, want %q; a controller would replace the machine", id, a.id)
			}
		},
	},
	{
		Number: 44, Level: Must, Title: "GetMachineStatus does not find VMs of other clusters", Places: []string{"driver Identity 2", "MCM GetMachineStatus 3"},
		needs: []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			if id := p.idOf(a.withID("").of(other)); id != "" {
				p.failf("with the class of another cluster, GetMachineStatus returned VM %s", id)
			}
		},
	},
	{
		Number: 45, Level: Must, Title: "GetMachineStatus finds a VM until its deletion is complete", Places: []string{"driver GetMachineStatus 4"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			p.duringDeletion(func(a target) {
				if _, err := p.status(a); is(err, codes.NotFound) && p.instances()[a.id] {
					p.stopf("GetMachineStatus returned NotFound while VM %s exists", a.id)
				}
			})
		},
	},
	{
		Number: 46, Level: Must, Title: "GetMachineStatus does not return NotFound if it cannot determine whether the VM exists", Places: []string{"driver GetMachineStatus 6"},
		needs: []int{created},
		check: func(p *probe) {
			bad := p.provider.Variants.BadSecret
			p.need(bad != nil, "a Secret that the provider does not accept")
			a := p.make(p.target("a"))
			if _, err := p.status(a.with(bad)); err == nil || is(err, codes.NotFound) {
				p.failf("with a Secret that the provider does not accept, GetMachineStatus returned %s; a controller would consider the VM lost", describe(err))
			}
		},
	},
	{
		Number: 47, Level: Must, Title: "GetMachineStatus returns OutOfRange for a machine with several VMs", Places: []string{"driver GetMachineStatus Codes", "MCM GetMachineStatus 8"},
		needs: []int{created, 40},
		check: func(p *probe) {
			a := p.duplicated()
			if _, err := p.status(a.withID("")); !is(err, codes.OutOfRange) {
				p.failf("GetMachineStatus returned %s, want OutOfRange; this code makes controllers look for orphans", describe(err))
			}
		},
	},
	{
		Number: 48, Level: May, Title: "optional methods may return Unimplemented",
		Places: []string{
			"MCM GetMachineStatus 1", "MCM ListMachines 1", "MCM GetVolumeIDs 1", "MCM GenerateMachineClassForMigration 1",
			"MCM Available Services 1", "MCM Available Services 2",
		},
		Unchecked: "a permission; the rules of a method that returns Unimplemented are skipped",
	},
}

func returnsSameResponse(p *probe) {
	a := p.target("a")
	made, err := p.create(p.ctx, a)
	if err != nil || made == nil {
		p.stopf("CreateMachine returned %s", describe(err))
	}
	found, err := p.status(a.withID(made.ProviderID))
	switch {
	case !exists(err):
		p.failf("GetMachineStatus returned %s", describe(err))
	case found == nil:
		p.skip("the response is missing; another rule covers this")
	case found.ProviderID != made.ProviderID || found.NodeName != made.NodeName:
		p.failf("GetMachineStatus returned ID %q and node %q; CreateMachine returned %q and %q", found.ProviderID, found.NodeName, made.ProviderID, made.NodeName)
	}
}

// needOtherCluster returns the class of another cluster. Without one, it skips the check.
func (p *probe) needOtherCluster() *v1alpha1.MachineClass {
	other := p.provider.otherCluster()
	p.need(other != nil, "a class of another cluster, or a tag such as kubernetes.io/cluster/NAME in the class")
	return other
}

// duringDeletion calls a function repeatedly while a VM is being deleted.
func (p *probe) duringDeletion(look func(t target)) {
	class := p.provider.Variants.SlowDeletion
	p.need(class != nil && p.provider.Hooks.Instances != nil, "a class whose VMs are deleted slowly, and a hook that lists VMs")
	a := p.make(p.target("a").of(class))
	p.wantDeleted(a)
	p.poll(p.ctx, func(context.Context) bool {
		look(a)
		return !p.instances()[a.id]
	})
}

// duplicated returns a machine with two VMs.
func (p *probe) duplicated() target {
	duplicate := p.provider.Hooks.Duplicate
	p.need(duplicate != nil, "a hook that creates a second VM for a machine")
	a := p.make(p.target("a"))
	if err := duplicate(p.ctx, a.namespace, a.name, a.class); err != nil {
		p.stopf("cannot create a second VM: %v", err)
	}
	return a
}

var listRules = []Rule{
	{
		Number: 49, Level: Must, Title: "ListMachines returns all VMs of the class",
		Places: []string{"driver ListMachines 1", "MCM ListMachines 2", "MCM ListMachines 4"},
		needs:  []int{created},
		check: func(p *probe) {
			for _, t := range []target{p.make(p.target("a")), p.make(p.target("b"))} {
				if machine := p.list(t.class)[t.id]; machine != t.name {
					p.failf("ListMachines returned machine %q for VM %s, want %q", machine, t.id, t.name)
				}
			}
		},
	},
	{
		Number: 50, Level: Must, Title: "ListMachines returns no VMs of other clusters",
		Places: []string{"driver Identity 2", "driver ListMachines 2", "MCM ListMachines 3", "MCM Machine Provider Interface 2", "MCM Identifying Cluster Machines 1"},
		needs:  []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a, b := p.make(p.target("a")), p.make(p.target("b").of(other))
			ours, theirs := p.list(a.class), p.list(other)
			if ours[b.id] != "" || theirs[a.id] != "" {
				p.failf("the list of one cluster contains a VM of the other cluster; a controller would delete it as an orphan")
			}
		},
	},
	{
		Number: 51, Level: Must, Title: "ListMachines returns VMs that are being deleted", Places: []string{"driver ListMachines 1"},
		needs: []int{created, deleted, 49},
		check: func(p *probe) {
			p.duringDeletion(func(a target) {
				if p.list(a.class)[a.id] == "" && p.instances()[a.id] {
					p.stopf("ListMachines did not return VM %s, which exists", a.id)
				}
			})
		},
	},
	{
		Number: 52, Level: Must, Title: "ListMachines returns all VMs of one name", Places: []string{"driver ListMachines 1"},
		needs: []int{created, 5, 49},
		check: func(p *probe) {
			a := p.duplicated()
			found := 0
			for _, machine := range p.list(a.class) {
				if machine == a.name {
					found++
				}
			}
			if found != 2 {
				p.failf("ListMachines returned %d VMs of %s, want 2", found, a.name)
			}
		},
	},
	{
		Number: 53, Level: Must, Title: "ListMachines returns an error instead of an incomplete list", Places: []string{"driver ListMachines 4"},
		check: func(p *probe) {
			bad := p.provider.Variants.BadSecret
			p.need(bad != nil, "a Secret that the provider does not accept")
			if machines, err := p.tryList(p.provider.Class, bad); err == nil {
				p.failf("with a Secret that the provider does not accept, ListMachines returned OK with %v", machines)
			}
		},
	},
	{
		Number: 54, Level: May, Title: "ListMachines may return VMs of other classes of the cluster", Places: []string{"driver ListMachines 3"},
		Unchecked: "a permission; other VMs in a list are ignored",
	},
}

var groupRules = []Rule{{
	Number: 55, Level: Should, Title: "a driver that separates API groups keeps their VMs apart", Places: []string{"driver SeparatesAPIGroups"},
	needs: []int{created},
	check: func(p *probe) {
		if !driver.SeparatesAPIGroups(p.provider.Driver) {
			p.skip("the driver does not declare that it separates API groups")
		}
		class := p.provider.Class.DeepCopy()
		class.Annotations = map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
		a, other := p.make(p.target("a")), p.target("a").of(class)
		other.annotations = class.Annotations
		if id := p.idOf(other); id != "" || p.list(class)[a.id] != "" {
			p.failf("VM %s was found or listed for an object of another API group", a.id)
		}
	},
}}
