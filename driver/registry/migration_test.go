package registry_test

import (
	"testing"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
)

// migrator says which kinds are its own.
type migrator struct {
	named
	kinds []string
}

func (m migrator) MigratedKinds() []string { return m.kinds }

// TestMigrator: an object goes to the driver that it names, or that says its kind is its own, and to no
// other because that happens to be the first.
func TestMigrator(t *testing.T) {
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
		"says so":                         {aws, false, "", "aws", codes.OK},
		"says so, others may come":        {aws, true, "", "aws", codes.OK},
		"the only one":                    {sim, false, "", "sim", codes.OK},
		"the only one yet":                {sim, true, "", "", codes.Unavailable},
		"one of three says so":            {two, false, "", "aws", codes.OK},
		"two say so":                      {claimed, false, "", "", codes.FailedPrecondition},
		"two say so, and one is named":    {claimed, false, "AWS", "aws", codes.OK},
		"named, although another says so": {two, true, "a-sim", "a-sim", codes.OK},
		"named, and not there":            {two, false, "azure", "", codes.Unimplemented},
		"named, and may come":             {two, true, "azure", "", codes.Unavailable},
		"nobody":                          {nil, false, "", "", codes.Unimplemented},
		"nobody yet":                      {nil, true, "", "", codes.Unavailable},
		"none of two says so":             {map[string][]string{"sim": nil, "vm": nil}, false, "", "", codes.Unimplemented},
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
				t.Errorf("%q, %v; want %q, %v", got, err, tc.want, tc.code)
			}
		})
	}
}
