package conformance

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
)

var updateRules = []Rule{
	{
		Number: 98, Level: Must, Title: "UpdateMachine returns NotFound for a machine without a VM, and creates none", Places: []string{"driver UpdateMachine 1"},
		check: func(p *probe) {
			before := p.instances()
			if _, err := p.tryUpdate(p.target("a").withID("conformance-unknown"), false); !is(err, codes.NotFound, codes.InvalidArgument) {
				p.failf("it returned %s, want NotFound", describe(err))
			}
			if left := p.added(before); len(left) > 0 {
				p.failf("VMs were created: %v", left)
			}
		},
	},
	{
		Number: 99, Level: Should, Title: "UpdateMachine compares the class with the actual VM", Places: []string{"driver UpdateMachine 2"},
		needs: []int{created, 101},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			if resp := p.update(a.of(p.updated()), true); len(resp.Updates) == 0 {
				p.failf("without MadeFrom, UpdateMachine did not detect that the VM differs")
			}
		},
	},
	{
		Number: 100, Level: Must, Title: "UpdateMachine reports no difference for a VM that the class would create", Places: []string{"driver UpdateMachine 3"},
		needs: []int{created},
		check: func(p *probe) {
			if resp := p.update(p.make(p.target("a")), true); len(resp.Updates)+len(resp.Replacements) > 0 {
				p.failf("for a new VM, UpdateMachine returned the updates %q and the replacements %q, want none", resp.Updates, resp.Replacements)
			}
		},
	},
	{
		Number: 101, Level: Must, Title: "UpdateMachine reports every difference", Places: []string{"driver UpdateMachine 3"},
		needs: []int{created},
		check: func(p *probe) {
			p.need(p.provider.Variants.Changed != nil, "a class that a VM does not fit")
			if resp := p.update(p.make(p.target("a")).of(p.provider.Variants.Changed), true); len(resp.Updates)+len(resp.Replacements) == 0 {
				p.failf("UpdateMachine reported no difference between a VM and a class that it does not fit")
			}
		},
	},
	{
		Number: 102, Level: Must, Title: "a dry run of UpdateMachine changes nothing", Places: []string{"driver UpdateMachine 4"},
		needs: []int{created, 99},
		check: func(p *probe) {
			a := p.make(p.target("a"))
			first := p.update(a.of(p.updated()), true)
			if second := p.update(a.of(p.updated()), true); !slices.Equal(first.Updates, second.Updates) {
				p.failf("the first dry run returned %q, the second %q", first.Updates, second.Updates)
			}
		},
	},
	{
		Number: 103, Level: Must, Title: "UpdateMachine makes the changes that its dry run reported", Places: []string{"driver UpdateMachine 4"},
		needs: []int{created, 99, 102},
		check: func(p *probe) {
			a := p.make(p.target("a")).of(p.updated())
			dryRun := p.update(a, true)
			if result := p.update(a, false); !slices.Equal(dryRun.Updates, result.Updates) || !slices.Equal(dryRun.Replacements, result.Replacements) {
				p.failf("the dry run returned %q and %q, the update %q and %q", dryRun.Updates, dryRun.Replacements, result.Updates, result.Replacements)
			}
		},
	},
	{
		Number: 104, Level: Must, Title: "UpdateMachine keeps the VM", Places: []string{"driver UpdateMachine 5"},
		needs: []int{created},
		check: func(p *probe) {
			a := p.make(p.target("a")).of(p.updated())
			before := p.instances()
			p.update(a, false)
			if id := p.idOf(a); id != a.id {
				p.failf("after the update GetMachineStatus returned %q, want %q", id, a.id)
			}
			if added := p.added(before); len(added) > 0 {
				p.failf("UpdateMachine created VMs: %v", added)
			}
		},
	},
	{
		Number: 105, Level: Must, Title: "UpdateMachine reports no more updates after it has succeeded", Places: []string{"driver UpdateMachine 5", "driver UpdateMachine 6"},
		needs: []int{created, 99},
		check: func(p *probe) {
			a := p.make(p.target("a")).of(p.updated())
			p.update(a, false)
			for range 2 {
				if again := p.update(a, false); len(again.Updates) > 0 {
					p.failf("the second UpdateMachine returned the updates %q, want none", again.Updates)
				}
			}
		},
	},
	{
		Number: 106, Level: Should, Title: "a change that may be impossible counts as a replacement", Places: []string{"driver UpdateMachine 7"},
		Unchecked: "which changes are possible depends on the provider",
	},
	{
		Number: 107, Level: Must, Title: "UpdateMachine rejects invalid classes", Places: []string{"driver UpdateMachine Codes"},
		needs: []int{created},
		check: func(p *probe) {
			p.updater()
			a := p.make(p.target("a"))
			for what, class := range p.provider.refused() {
				if _, err := p.tryUpdate(a.of(class), false); !is(err, codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition, codes.PermissionDenied) {
					p.failf("for %s, UpdateMachine returned %s, want InvalidArgument", what, describe(err))
				}
			}
		},
	},
	{
		Number: 108, Level: Must, Title: "differences are short texts without secrets", Places: []string{"driver UpdateMachineResponse"},
		needs: []int{created},
		check: func(p *probe) {
			resp := p.update(p.make(p.target("a")).of(p.updated()), true)
			all := slices.Concat(resp.Updates, resp.Replacements)
			if len(all) > 16 {
				p.failf("UpdateMachine returned %d differences, but only 16 are shown", len(all))
			}
			for _, text := range all {
				if strings.TrimSpace(text) == "" || len(text) > 256 || !utf8.ValidString(text) || p.hasSecret(text) {
					p.failf("a difference (%d bytes) is empty, is longer than 256 bytes, or contains a value of the Secret", len(text))
				}
			}
			for _, text := range resp.AtNextStart {
				if !slices.Contains(resp.Updates, text) {
					p.failf("%q is in AtNextStart but not in Updates", text)
				}
			}
		},
	},
}

// updater returns the driver as an Updater. It skips the check if the driver is not one.
func (p *probe) updater() driver.Updater {
	updater, ok := driver.As[driver.Updater](p.provider.Driver)
	if !ok {
		p.skip("the driver does not implement UpdateMachine")
	}
	return updater
}

func (p *probe) tryUpdate(t target, dryRun bool) (*driver.UpdateMachineResponse, error) {
	resp, err := do(p, p.ctx, "UpdateMachine", p.updater().UpdateMachine, &driver.UpdateMachineRequest{
		Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(), DryRun: dryRun,
	})
	if is(err, codes.Unimplemented) {
		p.skip("the driver does not implement UpdateMachine")
	}
	return resp, err
}

// update calls UpdateMachine. If that fails, the check stops.
func (p *probe) update(t target, dryRun bool) *driver.UpdateMachineResponse {
	resp, err := p.tryUpdate(t, dryRun)
	if err != nil || resp == nil {
		p.stopf("UpdateMachine returned %s", describe(err))
	}
	return resp
}

// updated returns a class to which the driver can update VMs of the class.
func (p *probe) updated() *v1alpha1.MachineClass {
	p.updater()
	p.need(p.provider.Variants.Updated != nil, "a class to which a VM can be updated")
	return p.provider.Variants.Updated
}
