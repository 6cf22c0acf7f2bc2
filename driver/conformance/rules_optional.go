package conformance

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

var initializeRules = []Rule{
	{
		Number: 56, Level: Must, Title: "GetMachineStatus returns Uninitialized until InitializeMachine has succeeded", Places: []string{"driver InitializeMachine 3", "driver GetMachineStatus 5"},
		needs: []int{created},
		check: func(p *probe) {
			if _, err := p.status(p.uninitialized()); !is(err, codes.Uninitialized) {
				p.failf("GetMachineStatus before the initialization returned %s, want Uninitialized", describe(err))
			}
		},
	},
	{
		Number: 57, Level: Must, Title: "Uninitialized comes with a complete response", Places: []string{"driver GetMachineStatus 5", "driver Errors 2"},
		needs: []int{created, 56},
		check: func(p *probe) {
			a := p.uninitialized()
			if resp, _ := p.status(a); resp == nil || resp.ProviderID != a.id || resp.NodeName == "" {
				p.failf("the response next to Uninitialized is %+v", resp)
			}
		},
	},
	{
		Number: 58, Level: Must, Title: "InitializeMachine can be repeated", Places: []string{"driver InitializeMachine 2"},
		needs: []int{created, 59},
		check: func(p *probe) {
			a := p.uninitialized()
			for range 2 {
				if err := p.initialize(a); err != nil {
					p.stopf("InitializeMachine returned %s", describe(err))
				}
			}
		},
	},
	{
		Number: 59, Level: Must, Title: "a VM is initialized after InitializeMachine", Places: []string{"driver InitializeMachine 3"},
		needs: []int{created},
		check: func(p *probe) {
			a := p.uninitialized()
			err := p.initialize(a)
			if _, found := p.status(a); err != nil || found != nil {
				p.failf("InitializeMachine returned %s; GetMachineStatus then returned %s", describe(err), describe(found))
			}
		},
	},
	{
		Number: 60, Level: Must, Title: "InitializeMachine returns NotFound for a machine without a VM", Places: []string{"driver InitializeMachine Codes"},
		check: func(p *probe) {
			if err := p.initialize(p.target("a")); !is(err, codes.NotFound) {
				p.failf("it returned %s, want NotFound", describe(err))
			}
		},
	},
	{
		Number: 61, Level: Must, Title: "when InitializeMachine is called", Places: []string{"driver InitializeMachine 1"},
		Unchecked: "this rule binds the controllers",
	},
}

// uninitialized creates a VM that needs initialization.
func (p *probe) uninitialized() target {
	p.need(p.provider.Uninitialized, "VMs that need initialization")
	return p.makeOnly(p.target("a"))
}

var volumeRules = []Rule{
	{
		Number: 62, Level: Must, Title: "GetVolumeIDs returns the IDs of the driver's volumes", Places: []string{"MCM GetVolumeIDs 2"},
		check: func(p *probe) {
			p.need(len(p.provider.Variants.Volumes) > 0, "volumes whose IDs are known")
			if ids := p.volumes(slices.Collect(maps.Values(p.provider.Variants.Volumes))...); !slices.Equal(ids, slices.Sorted(maps.Keys(p.provider.Variants.Volumes))) {
				p.failf("GetVolumeIDs returned %q", ids)
			}
		},
	},
	{
		Number: 63, Level: May, Title: "GetVolumeIDs leaves out volumes of other storage systems without an error", Places: []string{"driver GetVolumeIDs 2", "MCM GetVolumeIDs 3"},
		check: func(p *probe) {
			for _, id := range p.volumes(foreignVolume()) {
				p.failf("GetVolumeIDs returned %q for an NFS volume", id)
			}
		},
	},
	{
		Number: 64, Level: Must, Title: "the IDs of volumes never change", Places: []string{"driver GetVolumeIDs 1", "MCM GetVolumeIDs 4"},
		check: func(p *probe) {
			volumes := append(slices.Collect(maps.Values(p.provider.Variants.Volumes)), foreignVolume())
			if first, second := p.volumes(volumes...), p.volumes(volumes...); !slices.Equal(first, second) {
				p.failf("the first GetVolumeIDs returned %q, the second %q", first, second)
			}
		},
	},
}

func foreignVolume() *corev1.PersistentVolumeSpec {
	return &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		NFS: &corev1.NFSVolumeSource{Server: "nfs.example.com", Path: "/conformance"},
	}}
}

// volumes returns the IDs of volumes, sorted.
func (p *probe) volumes(specs ...*corev1.PersistentVolumeSpec) []string {
	identifier, ok := driver.As[driver.VolumeIdentifier](p.provider.Driver)
	if !ok {
		p.skip("the driver does not implement GetVolumeIDs")
	}
	resp, err := do(p, p.ctx, "GetVolumeIDs", identifier.GetVolumeIDs, &driver.GetVolumeIDsRequest{PVSpecs: specs})
	switch {
	case is(err, codes.Unimplemented):
		p.skip("the driver does not implement GetVolumeIDs")
	case err != nil || resp == nil:
		p.stopf("GetVolumeIDs returned %s", describe(err))
	}
	return slices.Sorted(slices.Values(resp.VolumeIDs))
}

var migrationRules = []Rule{
	{
		Number: 65, Level: Must, Title: "GenerateMachineClassForMigration rejects unknown kinds", Places: []string{"driver GenerateMachineClassForMigration Codes", "MCM GenerateMachineClassForMigration 1"},
		check: func(p *probe) {
			migrator, ok := driver.As[driver.ClassMigrator](p.provider.Driver)
			if !ok {
				p.skip("the driver does not implement GenerateMachineClassForMigration")
			}
			_, err := do(p, p.ctx, "GenerateMachineClassForMigration", migrator.GenerateMachineClassForMigration, &driver.GenerateMachineClassForMigrationRequest{
				ProviderSpecificMachineClass: &struct{}{}, MachineClass: &v1alpha1.MachineClass{},
				ClassSpec: &v1alpha1.ClassSpec{Kind: "ConformanceMachineClass", Name: "conformance"},
			})
			if !is(err, codes.Unimplemented) {
				p.failf("it returned %s, want Unimplemented", describe(err))
			}
		},
	},
	{
		Number: 66, Level: Must, Title: "GenerateMachineClassForMigration fills the class and can be repeated",
		Places: []string{
			"driver GenerateMachineClassForMigration 1", "driver GenerateMachineClassForMigration 2", "MCM GenerateMachineClassForMigration 2",
			"MCM GenerateMachineClassForMigration 3", "MCM GenerateMachineClassForMigration 4",
		},
		Unchecked: "the kinds of classes differ between providers; a driver tests its own",
	},
}

var domainRules = []Rule{
	{
		Number: 67, Level: Must, Title: "failure domains have unique names of 1 to 256 bytes", Places: []string{"driver ListFailureDomains 3"},
		check: func(p *probe) {
			seen := map[string]bool{}
			for _, name := range p.domains() {
				if name == "" || len(name) > 256 || seen[name] {
					p.failf("the name %q is a duplicate, or has an invalid length (%d bytes)", name, len(name))
				}
				seen[name] = true
			}
		},
	},
	{
		Number: 68, Level: Must, Title: "ListFailureDomains changes nothing", Places: []string{"driver ListFailureDomains 1"},
		check: func(p *probe) {
			if first, second := p.domains(), p.domains(); !slices.Equal(first, second) {
				p.failf("the first ListFailureDomains returned %q, the second %q", first, second)
			}
		},
	},
	{
		Number: 69, Level: Should, Title: "ListFailureDomains needs only a few fields, and returns all failure domains", Places: []string{"driver ListFailureDomains 2", "driver ListFailureDomains 4"},
		Unchecked: "which fields matter and which failure domains exist depends on the provider",
	},
	{
		Number: 70, Level: Must, Title: "PlaceMachine depends only on its request", Places: []string{"driver PlaceMachine 1"},
		check: func(p *probe) {
			domain := p.domain()
			if first, second := p.place(p.provider.Class, domain), p.place(p.provider.Class, domain); !reflect.DeepEqual(fieldsOf(first), fieldsOf(second)) {
				p.failf("the first PlaceMachine returned %s, the second %s", first.ProviderSpec.Raw, second.ProviderSpec.Raw)
			}
		},
	},
	{
		Number: 71, Level: Must, Title: "PlaceMachine replaces an existing failure domain", Places: []string{"driver PlaceMachine 2"},
		needs: []int{70},
		check: func(p *probe) {
			names := p.domains()
			p.need(len(names) > 1, "two failure domains")
			direct := p.place(p.provider.Class, names[1])
			if moved := p.place(p.place(p.provider.Class, names[0]), names[1]); !reflect.DeepEqual(fieldsOf(direct), fieldsOf(moved)) {
				p.failf("PlaceMachine returned %[2]s for a class in %[1]s; for a class that was in %[3]s before, it returned %[4]s", names[1], direct.ProviderSpec.Raw, names[0], moved.ProviderSpec.Raw)
			}
		},
	},
	{
		Number: 72, Level: Must, Title: "PlaceMachine rejects names that no failure domain can have", Places: []string{"driver PlaceMachine Codes"},
		check: func(p *probe) {
			domains := p.needDomains()
			_, err := domains.PlaceMachine(p.ctx, &driver.PlaceMachineRequest{MachineClass: p.provider.Class.DeepCopy(), FailureDomain: strings.Repeat("x", 300)})
			if is(err, codes.Unimplemented) {
				p.skip("the driver does not implement PlaceMachine")
			}
			if !is(err, codes.NotFound) {
				p.failf("for a name of 300 bytes, PlaceMachine returned %s, want NotFound", describe(err))
			}
		},
	},
	{
		Number: 73, Level: Must, Title: "PlaceMachine preserves the meaning of all other fields", Places: []string{"driver PlaceMachine 3"},
		Unchecked: "which fields name a failure domain depends on the provider",
	},
}

func (p *probe) needDomains() driver.FailureDomains {
	domains, ok := driver.As[driver.FailureDomains](p.provider.Driver)
	if !ok {
		p.skip("the driver has no failure domains")
	}
	return domains
}

// domains returns the names of the failure domains, sorted.
func (p *probe) domains() []string {
	resp, err := do(p, p.ctx, "ListFailureDomains", p.needDomains().ListFailureDomains, &driver.ListFailureDomainsRequest{
		MachineClass: p.provider.Class.DeepCopy(), Secret: p.provider.Secret.DeepCopy(),
	})
	switch {
	case is(err, codes.Unimplemented):
		p.skip("the driver has no failure domains")
	case err != nil || resp == nil:
		p.stopf("ListFailureDomains returned %s", describe(err))
	}
	var names []string
	for _, domain := range resp.FailureDomains {
		names = append(names, domain.Name)
	}
	return slices.Sorted(slices.Values(names))
}

func (p *probe) domain() string {
	names := p.domains()
	p.need(len(names) > 0, "a failure domain")
	return names[0]
}

// place returns the class placed in a failure domain.
func (p *probe) place(class *v1alpha1.MachineClass, domain string) *v1alpha1.MachineClass {
	resp, err := do(p, p.ctx, "PlaceMachine", p.needDomains().PlaceMachine, &driver.PlaceMachineRequest{MachineClass: class.DeepCopy(), FailureDomain: domain})
	if err != nil || resp == nil {
		p.stopf("PlaceMachine in %s returned %s", domain, describe(err))
	}
	placed := class.DeepCopy()
	placed.ProviderSpec = *resp.ProviderSpec.DeepCopy()
	return placed
}

var locationRules = []Rule{
	{
		Number: 74, Level: Must, Title: "equal requests have equal locations", Places: []string{"driver LocateMachine 1"},
		needs: []int{created},
		check: func(p *probe) {
			first := p.locate(p.target("a"))
			a := p.make(p.target("a"))
			if second := p.locate(a); first != second {
				p.failf("the location was %q before the creation and %q after it", first, second)
			}
		},
	},
	{
		Number: 75, Level: Must, Title: "a driver looks for a VM at the location where its creation began", Places: []string{"driver LocateMachine 2"},
		needs: []int{created, 40, 74, 77, 78}, check: looksWhereCreationBegan,
	},
	{
		Number: 76, Level: Must, Title: "another account has another location", Places: []string{"driver LocateMachine 1", "driver LocateMachine 3"},
		needs: []int{74, 77, 78},
		check: func(p *probe) {
			secret := p.provider.Variants.OtherAccount
			p.need(secret != nil, "a Secret of another account")
			begun := p.locate(p.target("a"))
			if there := p.locate(p.target("a").with(secret).withLocation(begun)); there == begun {
				p.failf("the location with the Secret of another account is also %q", begun)
			}
		},
	},
	{
		Number: 77, Level: Must, Title: "a location has 1 to 256 bytes", Places: []string{"driver LocateMachine 4"},
		check: func(p *probe) {
			if location := p.locate(p.target("a")); location == "" || len(location) > 256 {
				p.failf("the location %q has %d bytes, want 1 to 256", location, len(location))
			}
		},
	},
	{
		Number: 78, Level: Must, Title: "a location contains no secrets", Places: []string{"driver LocateMachine 4"},
		check: func(p *probe) {
			if p.hasSecret(p.locate(p.target("a"))) {
				p.failf("the location contains a value of the Secret; it is stored in an annotation")
			}
		},
	},
	{
		Number: 79, Level: Should, Title: "LocateMachine sends few requests", Places: []string{"driver LocateMachine 5"},
		Unchecked: "the checks do not see the requests of a driver to its provider",
	},
}

// locate returns the location of a machine. The check is skipped if the driver does not implement LocateMachine.
func (p *probe) locate(t target) string {
	resp, err := p.tryLocate(t)
	switch {
	case is(err, codes.Unimplemented):
		p.skip("the driver does not implement LocateMachine")
	case err != nil || resp == nil:
		p.stopf("LocateMachine returned %s", describe(err))
	}
	return resp.Location
}

func (p *probe) tryLocate(t target) (*driver.LocateMachineResponse, error) {
	locator, ok := driver.As[driver.Locator](p.provider.Driver)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the driver has no LocateMachine")
	}
	return do(p, p.ctx, "LocateMachine", locator.LocateMachine, &driver.LocateMachineRequest{
		Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
	})
}

// looksWhereCreationBegan edits the class of a machine whose ID is not stored, and checks that the driver finds the VM.
func looksWhereCreationBegan(p *probe) {
	begun := p.locate(p.target("a"))
	var edited *v1alpha1.MachineClass
	for _, class := range []*v1alpha1.MachineClass{p.provider.Variants.Changed, p.provider.otherCluster()} {
		if class != nil && p.locate(p.target("a").of(class)) != begun {
			edited = class
		}
	}
	p.need(edited != nil, "a class that has another location with the same Secret")
	a := p.make(p.target("a"))
	moved := a.withID("").of(edited).withLocation(begun)
	if location := p.locate(moved); location != begun {
		p.failf("after the class was edited, the location is %q, want %q, where the creation began", location, begun)
	}
	if id := p.idOf(moved); id != a.id {
		p.failf("after the class was edited, GetMachineStatus returned %q, want %q", id, a.id)
	}
}
