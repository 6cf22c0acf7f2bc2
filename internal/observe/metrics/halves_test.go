package metrics

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestCollector_TwoProcessesExportEachSeriesOnce checks that two processes with one part each export every series
// exactly once.
func TestCollector_TwoProcessesExportEachSeriesOnce(t *testing.T) {
	class, machine, set, deployment := fleet()
	gathered := func(noMachines, noSets bool) []string {
		c, _ := collect(t, interceptor.Funcs{}, class, machine, set, deployment)
		c.NoMachines, c.NoSets = noMachines, noSets
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c.parts()...)
		c.changed(t.Context(), pending(machine), joined(machine))
		c.changed(t.Context(), stale(machine), replaced(machine))
		return series(t, registry)
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

// TestCollector_SeveralManagersInOneProcess checks all combinations of parts. Metrics are unregistered when the
// manager that registered them stops, and only then.
func TestCollector_SeveralManagersInOneProcess(t *testing.T) {
	halves := map[string]Options{"machines": {NoSets: true}, "sets": {NoMachines: true}, "both": {}}
	for first, of := range halves {
		for second, as := range halves {
			t.Run(first+", then "+second, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					registry := prometheus.NewRegistry()
					endFirst, endSecond := starts(t, registry, of), starts(t, registry, as)
					exports(t, registry, !of.NoMachines || !as.NoMachines, !of.NoSets || !as.NoSets)
					endSecond()
					exports(t, registry, !of.NoMachines, !of.NoSets)
					endFirst()
					exports(t, registry, false, false)
				})
			})
		}
	}
}

// starts starts a Collector with the options, and returns a function that stops it.
func starts(t *testing.T, registry *prometheus.Registry, of Options) (end func()) {
	t.Helper()
	c, _ := collect(t, interceptor.Funcs{})
	c.NoMachines, c.NoSets, c.Registerer = of.NoMachines, of.NoSets, registry
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start returned %v", err)
		}
	}
}

// exports checks whether Machines, and MachineSets and MachineDeployments, are exported.
func exports(t *testing.T, registry *prometheus.Registry, machines, sets bool) {
	t.Helper()
	lines := strings.Join(series(t, registry), "\n")
	for name, want := range map[string]bool{
		"mcm_machine_items_total": machines, "mcm_machine_set_items_total": sets, "mcm_machine_stale_machines_total": sets,
	} {
		if got := strings.Contains(lines, name); got != want {
			t.Errorf("%s is exported: %v, want %v", name, got, want)
		}
	}
}
