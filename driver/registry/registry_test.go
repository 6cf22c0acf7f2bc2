package registry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
)

// named is a driver that returns its own name.
type named struct {
	driver.Driver
	name string
}

func (d named) CreateMachine(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return &driver.CreateMachineResponse{ProviderID: d.name}, nil
}

// able also has optional interfaces.
type able struct {
	named
	volumes  []string
	err      error
	separate bool
}

func (d able) GetVolumeIDs(context.Context, *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return &driver.GetVolumeIDsResponse{VolumeIDs: d.volumes}, d.err
}

func (d able) LocateMachine(context.Context, *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return &driver.LocateMachineResponse{Location: d.name}, nil
}

func (d able) UpdateMachine(context.Context, *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return &driver.UpdateMachineResponse{Updates: []string{d.name}}, nil
}

func (d able) SeparatesAPIGroups() bool { return d.separate }

func (d able) GenerateMachineClassForMigration(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return nil, d.err
}

func class(provider string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Provider: provider}
}

// register registers drivers that return their names.
func register(t *testing.T, r *registry.Registry, names ...string) (remove func()) {
	t.Helper()
	for _, name := range names {
		var err error
		if remove, err = r.Register(name, named{name: name}); err != nil {
			t.Fatal(err)
		}
	}
	return remove
}

// TestRegistry_SelectsDriverByProvider: the provider of the class selects the driver, and the default need not be named.
func TestRegistry_SelectsDriverByProvider(t *testing.T) {
	cases := map[string]struct {
		drivers  []string
		standard string // default driver
		provider string
		want     string // driver that serves the class; empty if none does
		refusal  string
	}{
		"same name":                           {[]string{"vm"}, "", "vm", "vm", ""},
		"upper case":                          {[]string{"aws"}, "", "AWS", "aws", ""},
		"other driver":                        {[]string{"vm"}, "", "aws", "", `MachineClass "small" is for driver "aws", but this manager has the driver "vm"`},
		"no provider, default":                {[]string{"vm"}, "VM", "", "vm", ""},
		"no provider, no default":             {[]string{"vm"}, "", "", "", `MachineClass "small" has no provider, and this manager has the driver "vm"`},
		"one of two":                          {[]string{"vm", "sim"}, "", "sim", "sim", ""},
		"none of three":                       {[]string{"vm", "sim", "aws"}, "", "gcp", "", `MachineClass "small" is for driver "gcp", but this manager has the drivers "aws", "sim" and "vm"`},
		"no provider, two drivers":            {[]string{"vm", "sim"}, "", "", "", `MachineClass "small" has no provider, and this manager has the drivers "sim" and "vm"`},
		"no provider, one is the default":     {[]string{"vm", "sim"}, "sim", "", "sim", ""},
		"no provider, default not registered": {[]string{"vm"}, "sim", "", "", `MachineClass "small" has no provider, and this manager has the driver "vm"`},
		"any provider and a default":          {[]string{"", "sim"}, "sim", "", "", ""},
		"no driver":                           {nil, "", "vm", "", `MachineClass "small" is for driver "vm", but this manager has no driver`},
		"any provider":                        {[]string{""}, "", "aws", "", ""},
		"any provider, class has none":        {[]string{""}, "", "", "", ""},
		"any provider and another":            {[]string{"", "sim"}, "", "sim", "sim", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := registry.New(registry.Options{Default: tc.standard})
			register(t, r, tc.drivers...)
			if got := r.Refusal(class(tc.provider)); got != tc.refusal {
				t.Errorf("Refusal = %q, want %q", got, tc.refusal)
			}
			resp, err := r.CreateMachine(t.Context(), &driver.CreateMachineRequest{MachineClass: class(tc.provider)})
			if tc.refusal != "" {
				if !status.Is(err, codes.Unavailable) {
					t.Errorf("CreateMachine: %v, want Unavailable", err)
				}
				return
			}
			if err != nil || resp.ProviderID != tc.want {
				t.Errorf("CreateMachine: %v, %v; want %q", resp, err, tc.want)
			}
		})
	}
}

// TestRegistry_MissingDriverIsUnavailable: while a driver is not registered, its calls fail with Unavailable. After NotFound, controllers
// would create VMs a second time. After Unimplemented, they would consider VMs deleted.
func TestRegistry_MissingDriverIsUnavailable(t *testing.T) {
	r, of, ctx := registry.New(registry.Options{}), class("gone"), t.Context()
	register(t, r, "vm", "sim")
	_, created := r.CreateMachine(ctx, &driver.CreateMachineRequest{MachineClass: of})
	_, deleted := r.DeleteMachine(ctx, &driver.DeleteMachineRequest{MachineClass: of})
	_, found := r.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{MachineClass: of})
	_, listed := r.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: of})
	_, initialized := r.InitializeMachine(ctx, &driver.InitializeMachineRequest{MachineClass: of})
	_, located := r.LocateMachine(ctx, &driver.LocateMachineRequest{MachineClass: of})
	_, updated := r.UpdateMachine(ctx, &driver.UpdateMachineRequest{MachineClass: of})
	_, domains := r.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: of})
	_, placed := r.PlaceMachine(t.Context(), &driver.PlaceMachineRequest{MachineClass: of})
	for i, err := range []error{created, deleted, found, listed, initialized, located, updated, domains, placed} {
		if !status.Is(err, codes.Unavailable) {
			t.Errorf("method %d: %v, want Unavailable", i, err)
		}
	}
}

// TestRegistry_KeepsOptionalInterfaces: each driver has its own optional interfaces.
func TestRegistry_KeepsOptionalInterfaces(t *testing.T) {
	r := registry.New(registry.Options{})
	register(t, r, "bare")
	if _, err := r.Register("able", able{named: named{name: "able"}, volumes: []string{"v1"}, separate: true}); err != nil {
		t.Fatal(err)
	}
	if resp, err := r.LocateMachine(t.Context(), &driver.LocateMachineRequest{MachineClass: class("able")}); err != nil || resp.Location != "able" {
		t.Errorf("LocateMachine of able: %v, %v", resp, err)
	}
	if _, err := r.LocateMachine(t.Context(), &driver.LocateMachineRequest{MachineClass: class("bare")}); !status.Is(err, codes.Unimplemented) {
		t.Errorf("LocateMachine of bare: %v, want Unimplemented", err)
	}
	if resp, err := r.UpdateMachine(t.Context(), &driver.UpdateMachineRequest{MachineClass: class("able")}); err != nil || resp.Updates[0] != "able" {
		t.Errorf("UpdateMachine of able: %v, %v", resp, err)
	}
	if _, err := r.UpdateMachine(t.Context(), &driver.UpdateMachineRequest{MachineClass: class("bare")}); !status.Is(err, codes.Unimplemented) {
		t.Errorf("UpdateMachine of bare: %v, want Unimplemented", err)
	}
	if driver.SeparatesAPIGroups(r) {
		t.Error("the registry separates API groups although one driver does not")
	}
	if !registry.SeparatesAPIGroups(r, class("able")) || registry.SeparatesAPIGroups(r, class("bare")) || registry.SeparatesAPIGroups(r, class("gone")) {
		t.Error("only able should separate API groups")
	}
	if !registry.SeparatesAPIGroups(able{separate: true}, class("any")) {
		t.Error("a driver that is not a registry should separate API groups")
	}
}

// TestRegistry_Serving: Serving returns the driver for a provider and its name.
func TestRegistry_Serving(t *testing.T) {
	for provider, tc := range map[string]struct {
		drivers []string
		name    string
		served  bool
	}{
		"AWS":  {[]string{"aws", "gcp"}, "aws", true},
		"none": {[]string{"aws", "gcp"}, "", false},
		"any":  {[]string{"aws", registry.AnyProvider}, "", true},
		"":     {[]string{"aws"}, "aws", true},
	} {
		r := registry.New(registry.Options{Default: "aws"})
		register(t, r, tc.drivers...)
		if name, d := r.Serving(provider); name != tc.name || (d != nil) != tc.served {
			t.Errorf("Serving(%q) with drivers %q returned %q, %v", provider, tc.drivers, name, d)
		}
	}
}

// TestRegistry_RejectsDuplicateName: a second driver of the same name is rejected and the first stays. After its removal, the name
// is free.
func TestRegistry_RejectsDuplicateName(t *testing.T) {
	r := registry.New(registry.Options{})
	remove := register(t, r, "aws")
	if _, err := r.Register("AWS", named{name: "second"}); !errors.Is(err, registry.ErrTaken) {
		t.Fatalf("Register returned %v, want ErrTaken", err)
	}
	remove()
	register(t, r, "Aws")
	remove() // a second call must not remove the new driver
	if got := r.Names(); !slices.Equal(got, []string{"Aws"}) {
		t.Errorf("got drivers %v", got)
	}
	if _, err := r.Register("no driver", nil); err == nil {
		t.Error("Register accepted a nil driver")
	}
	for _, name := range []string{"-", "a b", "vm,sim", strings.Repeat("a", 254), "ä"} {
		if _, err := r.Register(name, named{}); err == nil {
			t.Errorf("Register accepted the name %q", name)
		}
	}
}

// TestRegistry_NotifiesListeners: listeners are notified of new drivers until they stop listening.
func TestRegistry_NotifiesListeners(t *testing.T) {
	r, heard := registry.New(registry.Options{}), make(chan string, 2)
	stop := r.OnRegister(func(name string) { heard <- name })
	register(t, r, "vm")
	if got := <-heard; got != "vm" {
		t.Errorf("got notifications for %q", got)
	}
	stop()
	register(t, r, "sim")
	another := r.OnRegister(func(name string) { heard <- name })
	defer another()
	register(t, r, "aws")
	if got := <-heard; got != "aws" {
		t.Errorf("got notifications for %q after stop", got)
	}
	r.Announce("unknown")
	r.Announce("AWS")
	if got := <-heard; got != "AWS" {
		t.Errorf("got notifications for %q after Announce", got)
	}
}

// TestRegistry_DecoratesDrivers: each driver is wrapped with its name.
func TestRegistry_DecoratesDrivers(t *testing.T) {
	r := registry.New(registry.Options{Decorate: func(name string, _ driver.Driver) driver.Driver { return named{name: "wrapped " + name} }})
	register(t, r, "vm")
	resp, err := r.CreateMachine(t.Context(), &driver.CreateMachineRequest{MachineClass: class("vm")})
	if err != nil || resp.ProviderID != "wrapped vm" {
		t.Errorf("CreateMachine returned %v, %v", resp, err)
	}
}

// TestRegistry_Nil: a nil registry rejects no class and has no driver.
func TestRegistry_Nil(t *testing.T) {
	var r *registry.Registry
	r.OnRegister(func(string) {})()
	if r.Refusal(class("aws")) != "" || r.Has("aws") || len(r.Names()) > 0 {
		t.Error("a nil registry rejects a class or has a driver")
	}
}

// TestRegistry_ConcurrentUse: drivers are registered and removed while they are used. This is for the race detector.
func TestRegistry_ConcurrentUse(t *testing.T) {
	r := registry.New(registry.Options{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 50 {
				if remove, err := r.Register("vm", named{name: "vm"}); err == nil {
					remove()
				}
				if _, err := r.CreateMachine(context.Background(), &driver.CreateMachineRequest{MachineClass: class("vm")}); err != nil && !status.Is(err, codes.Unavailable) {
					t.Error(err)
				}
				r.OnRegister(func(string) {})()
			}
		})
	}
	group.Wait()
}

// TestKinds_RejectsConflicts: conflicts between the drivers of a program are found before any driver is opened.
func TestKinds_RejectsConflicts(t *testing.T) {
	open := func(context.Context, registry.Environment) (driver.Driver, error) { return named{}, nil }
	adds := func(names ...string) func(*pflag.FlagSet) {
		return func(flags *pflag.FlagSet) {
			for _, name := range names {
				flags.String(name, "", "")
			}
		}
	}
	cases := map[string]struct {
		kinds registry.Kinds
		wrong string // part of the error; empty if there is no error
	}{
		"two kinds":           {registry.Kinds{{Name: "a", Open: open, Flags: adds("a-region")}, {Name: "b", Open: open, Flags: adds("b-region")}}, ""},
		"same name":           {registry.Kinds{{Name: "a", Open: open}, {Name: "A", Open: open}}, `driver "A"`},
		"invalid name":        {registry.Kinds{{Name: "a b", Open: open}}, `invalid driver name "a b"`},
		"no opener":           {registry.Kinds{{Name: "a"}}, `driver "a"`},
		"same flag":           {registry.Kinds{{Name: "a", Open: open, Flags: adds("region")}, {Name: "b", Open: open, Flags: adds("region")}}, "--region"},
		"flag of the manager": {registry.Kinds{{Name: "a", Open: open, Flags: adds("port")}}, "--port"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			flags := pflag.NewFlagSet("program", pflag.ContinueOnError)
			flags.Int("port", 0, "")
			err := errors.Join(tc.kinds.Check(), tc.kinds.AddFlags(flags))
			if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("got error %v, want an error about %q", err, tc.wrong)
			}
		})
	}
}
