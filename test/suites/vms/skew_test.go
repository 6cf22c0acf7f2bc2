package vms

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/test/support/previous"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestUp_VersionsAreSwapped upgrades and downgrades "up", whose process contains the VM controller and the manager, and then
// a host runner, while VMs run. Their hypervisors, which belong to the other version, are kept, and both versions create
// further VMs next to them.
func TestUp_VersionsAreSwapped(t *testing.T) {
	tier.All(t)
	before := previous.Build(t)
	c := prepare(t, "--hosts", "1")
	c.command = before.Command
	c.start()
	pool := c.pool("pool", 1, c.kernelBoot())
	machines := c.awaitSettled(pool)
	uids := c.uids()
	for step, version := range []struct {
		what    string
		command commandFunc
	}{{"current version", nil}, {"previous version", before.Command}} {
		for _, swap := range []struct {
			what string
			do   func()
		}{
			{"up of the " + version.what, func() { c.kill(); c.command = version.command; c.start() }},
			{"host runner of the " + version.what, func() { c.killOne(" hostrunner --name host-1") }},
		} {
			running := c.pids()
			swap.do()
			c.eventually(joining, func(g gomega.Gomega) {
				g.Expect(c.settled(g, pool)).To(gomega.ConsistOf(machines), "machines with "+swap.what)
				g.Expect(c.pids()).To(gomega.Equal(running), "QEMUs with "+swap.what)
			})
			if diff := cmp.Diff(uids, c.uids()); diff != "" {
				t.Errorf("with %s, the VMs changed:\n%s", swap.what, diff)
			}
		}
		c.scale(pool, int32(step+2))
		machines, uids = c.awaitSettled(pool), c.uids()
	}
	c.delete(pool)
	c.awaitNothingLeft()
}
