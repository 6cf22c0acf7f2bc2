package conformance

import (
	"context"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
)

var statusRules = []Rule{
	{
		Number: 38, Level: Must, Title: "GetMachineStatus describes a VM as CreateMachine did", Places: []string{"driver GetMachineStatus 3", "MCM GetMachineStatus 2"},
		needs: []int{created}, check: describesAlike,
	},
	{
		Number: 39, Level: Must, Title: "a machine without a VM is NotFound", Places: []string{"driver GetMachineStatus Codes", "MCM GetMachineStatus 8"},
		check: func(p *probe) {
			if _, err := p.status(p.target("a")); !is(err, codes.NotFound) {
				p.failf("GetMachineStatus answers %s, want NotFound", said(err))
			}
		},
	},
	{
		Number: 40, Level: Must, Title: "GetMachineStatus finds a VM whose ID is not stored", Places: []string{"driver GetMachineStatus 2"},
		needs: []int{created},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			if id := p.idOf(a.known("")); id != a.id {
				p.failf("by the name of the machine it finds %q, want %q", id, a.id)
			}
		},
	},
	{
		Number: 41, Level: Must, Title: "a VM of the same name with another ID does not count", Places: []string{"driver GetMachineStatus 2"},
		needs: []int{created, deleted, 5},
		check: func(p *probe) {
			first := p.make(p.target("a"))
			p.destroy(first)
			p.make(first.known(""))
			if _, err := p.status(first); !is(err, codes.NotFound) {
				p.failf("GetMachineStatus of the lost VM %s answers %s, want NotFound", first.id, said(err))
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
				p.failf("GetMachineStatus has made %v, or deleted %s", added, a.id)
			}
		},
	},
	{
		Number: 43, Level: Must, Title: "a VM with a stored ID is found although its class was edited", Places: []string{"driver GetMachineStatus 2"},
		needs: []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			if id := p.idOf(a.of(other)); id != a.id {
				p.failf("with the edited class GetMachineStatus finds %q, want %q: the machine would be replaced", id, a.id)
			}
		},
	},
	{
		Number: 44, Level: Must, Title: "VMs of other clusters are not found", Places: []string{"driver Identity 2", "MCM GetMachineStatus 3"},
		needs: []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a := p.make(p.target("a"))
			if id := p.idOf(a.known("").of(other)); id != "" {
				p.failf("with the class of another cluster GetMachineStatus finds %s", id)
			}
		},
	},
	{
		Number: 45, Level: Must, Title: "a VM whose deletion has not ended exists", Places: []string{"driver GetMachineStatus 4"},
		needs: []int{created, deleted},
		check: func(p *probe) {
			p.duringDeletion(func(a target) {
				if _, err := p.status(a); is(err, codes.NotFound) && p.instances()[a.id] {
					p.stopf("GetMachineStatus answers NotFound while %s exists", a.id)
				}
			})
		},
	},
	{
		Number: 46, Level: Must, Title: "GetMachineStatus that cannot find out does not answer NotFound", Places: []string{"driver GetMachineStatus 6"},
		needs: []int{created},
		check: func(p *probe) {
			bad := p.provider.Variants.BadSecret
			p.need(bad != nil, "a Secret that the provider does not accept")
			a := p.make(p.target("a"))
			if _, err := p.status(a.with(bad)); err == nil || is(err, codes.NotFound) {
				p.failf("with a Secret that the provider does not accept it answers %s: after NotFound a VM counts as lost", said(err))
			}
		},
	},
	{
		Number: 47, Level: Must, Title: "several VMs of a machine are OutOfRange", Places: []string{"driver GetMachineStatus Codes", "MCM GetMachineStatus 8"},
		needs: []int{created, 40},
		check: func(p *probe) {
			a := p.duplicated()
			if _, err := p.status(a.known("")); !is(err, codes.OutOfRange) {
				p.failf("GetMachineStatus answers %s, want OutOfRange, which makes controllers look for orphans", said(err))
			}
		},
	},
	{
		Number: 48, Level: May, Title: "optional methods answer Unimplemented",
		Places: []string{
			"MCM GetMachineStatus 1", "MCM ListMachines 1", "MCM GetVolumeIDs 1", "MCM GenerateMachineClassForMigration 1",
			"MCM Available Services 1", "MCM Available Services 2",
		},
		Unchecked: "a permission; the rules of a method that answers Unimplemented are skipped",
	},
}

func describesAlike(p *probe) {
	a := p.target("a")
	made, err := p.create(p.ctx, a)
	if err != nil || made == nil {
		p.stopf("CreateMachine answers %s", said(err))
	}
	found, err := p.status(a.known(made.ProviderID))
	switch {
	case !exists(err):
		p.failf("GetMachineStatus answers %s", said(err))
	case found == nil:
		p.skip("the response is missing, which another rule is about")
	case found.ProviderID != made.ProviderID || found.NodeName != made.NodeName:
		p.failf("GetMachineStatus returns ID %q and node %q, CreateMachine %q and %q", found.ProviderID, found.NodeName, made.ProviderID, made.NodeName)
	}
}

// needOtherCluster returns the class of another cluster.
func (p *probe) needOtherCluster() *v1alpha1.MachineClass {
	other := p.provider.otherCluster()
	p.need(other != nil, "a class of another cluster, or a tag such as kubernetes.io/cluster/NAME in the class")
	return other
}

// duringDeletion calls a function again and again while a VM is being deleted.
func (p *probe) duringDeletion(look func(t target)) {
	class := p.provider.Variants.SlowDeletion
	p.need(class != nil && p.provider.Hooks.Instances != nil, "a class whose VMs take a while to be deleted, and a way to count VMs")
	a := p.make(p.target("a").of(class))
	p.wantRemoved(a)
	p.poll(p.ctx, func(context.Context) bool {
		look(a)
		return !p.instances()[a.id]
	})
}

// duplicated makes a machine with two VMs.
func (p *probe) duplicated() target {
	duplicate := p.provider.Hooks.Duplicate
	p.need(duplicate != nil, "a way to make a second VM of a machine")
	a := p.make(p.target("a"))
	if err := duplicate(p.ctx, a.namespace, a.name, a.class); err != nil {
		p.stopf("making a second VM: %v", err)
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
					p.failf("the list has %q for %s, want %q", machine, t.id, t.name)
				}
			}
		},
	},
	{
		Number: 50, Level: Must, Title: "ListMachines of one cluster returns no VMs of another",
		Places: []string{"driver Identity 2", "driver ListMachines 2", "MCM ListMachines 3", "MCM Machine Provider Interface 2", "MCM Identifying Cluster Machines 1"},
		needs:  []int{created},
		check: func(p *probe) {
			other := p.needOtherCluster()
			a, b := p.make(p.target("a")), p.make(p.target("b").of(other))
			ours, theirs := p.list(a.class), p.list(other)
			if ours[b.id] != "" || theirs[a.id] != "" {
				p.failf("the list of one cluster has a VM of the other: it would be deleted as an orphan")
			}
		},
	},
	{
		Number: 51, Level: Must, Title: "VMs that are being deleted are listed", Places: []string{"driver ListMachines 1"},
		needs: []int{created, deleted, 49},
		check: func(p *probe) {
			p.duringDeletion(func(a target) {
				if p.list(a.class)[a.id] == "" && p.instances()[a.id] {
					p.stopf("the list lacks %s, which exists", a.id)
				}
			})
		},
	},
	{
		Number: 52, Level: Must, Title: "several VMs of one name are listed", Places: []string{"driver ListMachines 1"},
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
				p.failf("the list has %d VMs of %s, want 2", found, a.name)
			}
		},
	},
	{
		Number: 53, Level: Must, Title: "a list that is not complete is an error", Places: []string{"driver ListMachines 4"},
		check: func(p *probe) {
			bad := p.provider.Variants.BadSecret
			p.need(bad != nil, "a Secret that the provider does not accept")
			if machines, err := p.tryList(p.provider.Class, bad); err == nil {
				p.failf("with a Secret that the provider does not accept it answers OK with %v", machines)
			}
		},
	},
	{
		Number: 54, Level: May, Title: "VMs of other classes of the cluster may be listed", Places: []string{"driver ListMachines 3"},
		Unchecked: "a permission; other VMs in a list are ignored",
	},
}

var groupRules = []Rule{{
	Number: 55, Level: Should, Title: "VMs of API groups are kept apart, if the driver says so", Places: []string{"driver SeparatesAPIGroups"},
	needs: []int{created},
	check: func(p *probe) {
		if !driver.SeparatesAPIGroups(p.provider.Driver) {
			p.skip("the driver does not say that it separates API groups")
		}
		class := p.provider.Class.DeepCopy()
		class.Annotations = map[string]string{driver.AnnotationAPIGroup: driver.APIGroupClusterAPI}
		a, other := p.make(p.target("a")), p.target("a").of(class)
		other.annotations = class.Annotations
		if id := p.idOf(other); id != "" || p.list(class)[a.id] != "" {
			p.failf("the VM %s is found or listed for an object of another API group", a.id)
		}
	},
}}
