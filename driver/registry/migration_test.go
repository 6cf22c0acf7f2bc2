package registry_test

import (
	"testing"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
)

// migrator lists the kinds that it migrates.
type migrator struct {
	named
	kinds []string
}

func (m migrator) MigratedKinds() []string { return m.kinds }

// TestRegistry_SelectsMigrator: the driver that an object names, or the driver that lists its kind, migrates the object. The order
// of drivers does not matter.
func TestRegistry_SelectsMigrator(t *testing.T) {
	aws := map[string][]string{"aws": {"AWSMachineClass"}}
	sim := map[string][]string{"sim": nil}
	two := map[string][]string{"aws": {"AWSMachineClass"}, "a-sim": nil, "gcp": {"GCPMachineClass"}}
	claimed := map[string][]string{"aws": {"AWSMachineClass"}, "amazon": {"GCPMachineClass", "AWSMachineClass"}}
	for name, tc := range map[string]struct {
		drivers  map[string][]string
		grows    bool
		provider string
		want     string
		code     codes.Code
	}{
		"lists the kind":                      {aws, false, "", "aws", codes.OK},
		"lists the kind, others may register": {aws, true, "", "aws", codes.OK},
		"only driver":                         {sim, false, "", "sim", codes.OK},
		"only driver so far":                  {sim, true, "", "", codes.Unavailable},
		"one of three lists the kind":         {two, false, "", "aws", codes.OK},
		"two list the kind":                   {claimed, false, "", "", codes.FailedPrecondition},
		"two list the kind, one is named":     {claimed, false, "AWS", "aws", codes.OK},
		"named, another lists the kind":       {two, true, "a-sim", "a-sim", codes.OK},
		"named, not registered":               {two, false, "azure", "", codes.Unimplemented},
		"named, may register":                 {two, true, "azure", "", codes.Unavailable},
		"no driver":                           {nil, false, "", "", codes.Unimplemented},
		"no driver yet":                       {nil, true, "", "", codes.Unavailable},
		"neither of two lists the kind":       {map[string][]string{"sim": nil, "vm": nil}, false, "", "", codes.Unimplemented},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry.New(registry.Options{MayGrow: tc.grows})
			for name, kinds := range tc.drivers {
				if _, err := r.Register(name, migrator{named{name: name}, kinds}); err != nil {
					t.Fatal(err)
				}
			}
			got, d, err := r.Migrator("AWSMachineClass", tc.provider)
			if got != tc.want || status.Code(err) != tc.code || (d != nil) != (tc.code == codes.OK) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tc.want, tc.code)
			}
		})
	}
}
