// Package common is the suite with which providers test their controllers against real clusters, at MCM's
// import path. It is used in a Ginkgo suite:
//
//	var commons = common.NewIntegrationTestFramework(&tracker{})
//
//	var _ = BeforeSuite(commons.SetupBeforeSuite)
//	var _ = AfterSuite(commons.Cleanup)
//	var _ = Describe("Machine controllers test", func() {
//		commons.BeforeEachCheck()
//		commons.ControllerTests()
//	})
//
// What it works with is in the environment:
//
//	CONTROL_KUBECONFIG         of the cluster with the Machines
//	TARGET_KUBECONFIG          of the cluster with the nodes; by default the same
//	CONTROL_CLUSTER_NAMESPACE  of the Machines; by default "default"
//	TARGET_CLUSTER_NAME        for the tracker
//	MACHINECLASS_V1            file with a MachineClass, whose Secret exists
//	MACHINECLASS_V2            file with another one; by default the same
//	MC_COMMAND, MCM_COMMAND    commands of the two controllers; by default they run already
package common

import (
	"context"
	"errors"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
)

// The objects of the suite.
const (
	machineName    = "test-machine"
	deploymentName = "test-machine-deployment"
	firstClass     = "test-mc-v1"
	secondClass    = "test-mc-v2"
)

// IntegrationTestFramework is the suite.
type IntegrationTestFramework struct {
	tracker           ResourcesTrackerInterface
	timeout, interval time.Duration

	env             environment
	control, target client.Client
	processes       []*process
	// initial is the number of ready nodes at the beginning.
	initial int
}

// NewIntegrationTestFramework returns the suite. The intervals are, in seconds, how long it waits for
// something, by default 300, and how often it looks, by default every 2.
func NewIntegrationTestFramework(tracker ResourcesTrackerInterface, intervals ...int64) *IntegrationTestFramework {
	durations := []time.Duration{300 * time.Second, 2 * time.Second}
	for i := range min(len(intervals), len(durations)) {
		durations[i] = time.Duration(intervals[i]) * time.Second
	}
	return &IntegrationTestFramework{tracker: tracker, timeout: durations[0], interval: durations[1]}
}

// SetupBeforeSuite connects to the clusters, starts the controllers and creates the classes.
func (f *IntegrationTestFramework) SetupBeforeSuite() {
	var err error
	f.env, err = fromEnvironment()
	expect(err)
	f.control, err = connect(f.env.control)
	expect(err)
	f.target, err = connect(f.env.target)
	expect(err)
	nodes, err := f.nodes()
	expect(err)
	f.initial = len(nodes)

	class := f.createClass(firstClass, f.env.firstClass)
	f.createClass(secondClass, f.env.secondClass)
	expect(f.tracker.InitializeResourcesTracker(class, f.secretOf(class), f.env.cluster))
	for name, command := range f.env.commands {
		started, err := start(name, command)
		expect(err)
		f.processes = append(f.processes, started)
	}
}

// Cleanup deletes the objects of the suite, waits until their VMs are gone, and stops the controllers that
// it started.
func (f *IntegrationTestFramework) Cleanup() {
	if f.control == nil {
		return // it did not begin
	}
	defer f.stop() // also if the rest fails, which panics
	for _, object := range []client.Object{f.deployment(), f.machine()} {
		expect(client.IgnoreNotFound(f.control.Delete(context.Background(), object)))
	}
	f.eventually(func(g gomega.Gomega) {
		for _, list := range []client.ObjectList{&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}} {
			g.Expect(f.control.List(context.Background(), list, client.InNamespace(f.env.namespace), ofTheSuite)).To(gomega.Succeed())
			g.Expect(list).To(gomega.HaveField("Items", gomega.BeEmpty()))
		}
	})
	for _, name := range []string{firstClass, secondClass} {
		class := &v1alpha1.MachineClass{}
		class.Namespace, class.Name = f.env.namespace, name
		expect(client.IgnoreNotFound(f.control.Delete(context.Background(), class)))
	}
}

// stop stops all controllers that the suite started.
func (f *IntegrationTestFramework) stop() {
	var failed []error
	for _, started := range f.processes {
		failed = append(failed, started.stop(grace))
	}
	f.processes = nil
	expect(errors.Join(failed...))
}

// BeforeEachCheck checks before each specification that the controllers run and all nodes are ready.
func (f *IntegrationTestFramework) BeforeEachCheck() {
	ginkgo.BeforeEach(func() {
		for _, started := range f.processes {
			expect(started.runs())
		}
		f.eventually(func(g gomega.Gomega) {
			nodes, err := f.nodes()
			g.Expect(err).NotTo(gomega.HaveOccurred())
			for name, ready := range nodes {
				g.Expect(ready).To(gomega.BeTrue(), "node %s is not ready", name)
			}
		})
	})
}

func (f *IntegrationTestFramework) eventually(check func(g gomega.Gomega)) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(check).WithTimeout(f.timeout).WithPolling(f.interval).Should(gomega.Succeed())
}

func expect(err error) {
	ginkgo.GinkgoHelper()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
}
