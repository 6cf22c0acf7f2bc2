package metrics

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestTwoProcessesExportEachObjectOnce: what one leaves out the other has.
func TestTwoProcessesExportEachObjectOnce(t *testing.T) {
	class, machine, set, deployment := fleet()
	gathered := func(noMachines, noSets bool) []string {
		c, registry := collect(t, interceptor.Funcs{}, class, machine, set, deployment)
		c.NoMachines, c.NoSets = noMachines, noSets
		return slices.DeleteFunc(series(t, registry), func(line string) bool {
			return strings.HasPrefix(line, "counter mcm_misc_scrape_failure_total") || strings.HasPrefix(line, "counter mcm_machine_stale_machines_total")
		})
	}
	both, machines, sets := gathered(false, false), gathered(false, true), gathered(true, false)
	if len(machines) == 0 || len(sets) == 0 {
		t.Errorf("%d series of machines, %d of sets and deployments", len(machines), len(sets))
	}
	together := append(slices.Clone(machines), sets...)
	slices.Sort(together)
	if !slices.Equal(together, both) {
		t.Errorf("two processes export\n%s\none exports\n%s", strings.Join(together, "\n"), strings.Join(both, "\n"))
	}
}
