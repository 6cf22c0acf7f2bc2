package metrics

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestTwoProcessesExportEachOnce: what one leaves out the other has.
func TestTwoProcessesExportEachOnce(t *testing.T) {
	class, machine, set, deployment := fleet()
	gathered := func(noMachines, noSets bool) []string {
		c, registry := collect(t, interceptor.Funcs{}, class, machine, set, deployment)
		registry.Unregister(c)
		c.NoMachines, c.NoSets = noMachines, noSets
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
		c.changed(t.Context(), pending(machine), joined(machine))
		c.changed(t.Context(), stale(machine), replaced(machine))
		return series(t, registry)
	}
	c, registry := collect(t, interceptor.Funcs{}, class, machine, set, deployment)
	registry.Unregister(c)
	for _, noMachines := range []bool{true, false} { // as where one process runs both
		if err := registry.Register(New(Options{Reader: c.Reader, Clock: c.Clock, NoMachines: noMachines, NoSets: !noMachines})); err != nil {
			t.Errorf("the two are not exported together: %v", err)
		}
	}
	both, machines, sets := gathered(false, false), gathered(false, true), gathered(true, false)
	together := append(slices.Clone(machines), sets...)
	slices.Sort(together)
	if !slices.Equal(together, both) {
		t.Errorf("two processes export\n%s\none exports\n%s", strings.Join(together, "\n"), strings.Join(both, "\n"))
	}
	for name, exported := range map[string][]string{"mcm_machine_join_duration_seconds": machines, "mcm_machine_stale_machines_total": sets} {
		if !strings.Contains(strings.Join(exported, "\n"), name) {
			t.Errorf("its process does not export %s", name)
		}
	}
}
