package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// parts returns the parts that the options do not leave out. Each is registered separately, so that
// a manager that runs only one part can share a process with one that runs both.
func (c *Collector) parts() (parts []prometheus.Collector) {
	if !c.NoMachines {
		parts = append(parts, machinesPart{c})
	}
	if !c.NoSets {
		parts = append(parts, setsPart{c})
	}
	return parts
}

// machinesPart exports Machines.
type machinesPart struct{ *Collector }

// Describe implements prometheus.Collector.
func (p machinesPart) Describe(ch chan<- *prometheus.Desc) { describePart(ch, false, p.counted()) }

// Collect implements prometheus.Collector. It reads the cache.
func (p machinesPart) Collect(ch chan<- prometheus.Metric) {
	ctx, s, done := scraping(ch)
	defer done()
	s.add(frozen, one(p.Frozen != nil && p.Frozen()))
	machines, deployments := &v1alpha1.MachineList{}, &v1alpha1.MachineDeploymentList{}
	if p.read(ctx, machines, forMachines, "Machine") {
		addAll(s, machineItems, machines.Items, machineRows)
		// setsPart counts the failures of reading deployments.
		if p.Reader.List(ctx, deployments, client.UnsafeDisableDeepCopy) == nil {
			p.drop(poolsOf(machines.Items, deployments.Items))
		}
	}
	collectAll(ch, p.counted())
}

// counted returns the metrics that are not read from objects.
func (p machinesPart) counted() []prometheus.Collector {
	return []prometheus.Collector{p.once.join, p.once.failedJoin, p.failures[forMachines]}
}

// setsPart exports MachineSets and MachineDeployments.
type setsPart struct{ *Collector }

// Describe implements prometheus.Collector.
func (p setsPart) Describe(ch chan<- *prometheus.Desc) { describePart(ch, true, p.counted()) }

// Collect implements prometheus.Collector. It reads the cache.
func (p setsPart) Collect(ch chan<- prometheus.Metric) {
	ctx, s, done := scraping(ch)
	defer done()
	sets, deployments := &v1alpha1.MachineSetList{}, &v1alpha1.MachineDeploymentList{}
	if p.read(ctx, sets, forSets, "MachineSet") {
		addAll(s, setItems, sets.Items, setRows)
	}
	if p.read(ctx, deployments, forSets, "MachineDeployment") {
		addAll(s, deploymentItems, deployments.Items, deploymentRows)
	}
	collectAll(ch, p.counted())
}

// counted returns the metrics that are not read from objects. The deletion of a stale Machine
// belongs to its MachineSet.
func (p setsPart) counted() []prometheus.Collector {
	return []prometheus.Collector{p.once.stale, p.failures[forSets]}
}

// describePart describes the metrics of one part: those read from objects and those counted.
func describePart(ch chan<- *prometheus.Desc, sets bool, counted []prometheus.Collector) {
	for name, d := range described {
		if ofSetsOrDeployments(name) == sets {
			ch <- d
		}
	}
	for _, metric := range counted {
		metric.Describe(ch)
	}
}

func collectAll(ch chan<- prometheus.Metric, metrics []prometheus.Collector) {
	for _, metric := range metrics {
		metric.Collect(ch)
	}
}
