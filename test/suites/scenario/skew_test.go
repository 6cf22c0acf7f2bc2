package scenario

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/previous"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestManager_VersionsAreSwapped upgrades and downgrades the manager and the CRDs, in either order, while a pool is scaled.
// Each manager is killed before its pool is settled, so that the other version continues its work. No VM may be lost or
// created twice.
func TestManager_VersionsAreSwapped(t *testing.T) {
	tier.All(t)
	before := previous.Build(t)
	w := newScenario(t, env.WithOwn())
	const currentCRDs = "../../../config/crd"
	deployment := w.pool("skew", 0, `{"latency":"50ms","joinDelay":"100ms","visibleAfter":"50ms"}`)
	known := map[string]string{}
	for _, step := range []struct {
		what     string
		previous bool
		crds     string
		replicas int32
	}{
		{"previous build", true, before.CRDs(), 4},
		{"current manager with previous CRDs", false, before.CRDs(), 8},
		{"current build", false, currentCRDs, 5},
		{"previous manager with current CRDs", true, currentCRDs, 9},
		{"previous build again", true, before.CRDs(), 6},
		{"current build again", false, currentCRDs, 3},
	} {
		if err := controlplane.InstallCRDs(t.Context(), w.Admin, os.DirFS(step.crds)); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		start := func() *program.Process {
			if !step.previous {
				return w.longLeases()
			}
			p := program.StartOther(t, before.Command(context.Background(), w.managerArgs()...))
			t.Cleanup(p.Kill)
			return p
		}
		manager := start()
		w.leads(manager)
		w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) }) // continues the step before
		known = w.keeps(step.what, known)
		w.scale(deployment, step.replicas)
		w.eventually(func(g gomega.Gomega) { g.Expect(w.machineUIDs(g)).NotTo(gomega.HaveLen(len(known))) })
		manager.Kill()
		w.endLeases()
	}
	manager := w.manager()
	w.leads(manager)
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	w.keeps("the end", known)
	w.oneVMEach(3)
	manager.Stop()
}

// machineUIDs returns the Machines with their UIDs.
func (w *scenario) machineUIDs(g gomega.Gomega) map[string]string {
	machines := &v1alpha1.MachineList{}
	g.Expect(w.Client.List(w.t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
	uids := map[string]string{}
	for _, machine := range machines.Items {
		uids[machine.Name] = string(machine.UID)
	}
	return uids
}

// keeps checks that scaling has either only added or only removed Machines, and returns those that exist.
func (w *scenario) keeps(what string, before map[string]string) map[string]string {
	w.t.Helper()
	now := w.machineUIDs(gomega.NewWithT(w.t))
	smaller, larger := before, now
	if len(now) < len(before) {
		smaller, larger = now, before
	}
	for _, name := range slices.Sorted(maps.Keys(smaller)) {
		if larger[name] != smaller[name] {
			w.t.Errorf("%s: Machine %s was replaced: %v became %v", what, name, before, now)
		}
	}
	w.t.Logf("%s: %d Machines", what, len(now))
	return now
}
