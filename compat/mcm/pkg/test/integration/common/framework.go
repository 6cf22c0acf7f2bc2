// Package common is the suite with which providers test their controllers against real clusters, at MCM's import
// path. Use it in a Ginkgo suite:
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
// Environment variables configure the suite:
//
//	CONTROL_KUBECONFIG         kubeconfig of the cluster with the Machines
//	TARGET_KUBECONFIG          kubeconfig of the cluster with the nodes; default: CONTROL_KUBECONFIG
//	CONTROL_CLUSTER_NAMESPACE  namespace of the Machines; default: "default"
//	TARGET_CLUSTER_NAME        name for the tracker and for TAGS_ARE_STRINGS
//	MACHINECLASS_V1            file with a MachineClass whose Secret exists
//	MACHINECLASS_V2            file with another MachineClass; default: MACHINECLASS_V1
//	TAGS_ARE_STRINGS           true: set the tags of the providerSpec to a list of strings with the cluster's name
//	IS_CONTROL_CLUSTER_SEED    true: the control cluster has CRDs, controllers and a class to copy
//	IS_VIRTUAL_PROVIDER        true: do not patch classes, and do not change CRDs or a Deployment
//	GNA_SECRET_NAME            label worker.gardener.cloud/gardener-node-agent-secret-name of all nodes
//	PRESERVE_CRD_AT_END        true: do not remove the CRDs that the suite installed
//	MACHINE_CONTROLLER_COMMAND, MACHINE_CONTROLLER_MANAGER_COMMAND
//	                           commands of the two controllers; default: "make start" of the provider and of
//	                           dev/mcm, if that rule exists; otherwise the controllers must already be running
//	CONTROLLERS_TEST_LOGS      directory for their logs; default: .ci/controllers-test/logs of the provider
//	MC_IMAGE_TAG, MCM_IMAGE_TAG  images of the two controllers to set in the Deployment, instead of commands
//	MACHINE_CONTROLLER_MANAGER_DEPLOYMENT_NAME  name of the Deployment; default: machine-controller-manager
//
// A merge patch in .ci/controllers-test/machine-class-patch.json of the provider changes both classes.
package common

import (
	"context"
	"errors"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/gardener/machine-controller-manager/pkg/test/integration/common/helpers"
)

// Names of the suite's objects.
const (
	machineName    = "test-machine"
	deploymentName = "test-machine-deployment"
	firstClass     = "test-mc-v1"
	secondClass    = "test-mc-v2"
)

// ResourcesTrackerInterface finds resources that VMs have left behind at a provider.
type ResourcesTrackerInterface = helpers.ResourcesTrackerInterface

// IntegrationTestFramework is the suite.
type IntegrationTestFramework struct {
	// ControlCluster and TargetCluster are for specs that a provider adds. They are set when SetupBeforeSuite has
	// run, and may be the same cluster.
	ControlCluster, TargetCluster *helpers.Cluster

	tracker           ResourcesTrackerInterface
	timeout, interval time.Duration

	env             environment
	control, target client.Client
	processes       []*process
	// installed are the CRDs that the suite installed.
	installed []*unstructured.Unstructured
	// replicas is the number of replicas of the seed's controllers, if the suite has scaled them down.
	replicas *int32
	// initial is the number of ready nodes at the start.
	initial int
}

// NewIntegrationTestFramework returns the suite. The intervals are, in seconds, the timeout of the suite's waits
// (default 300) and the polling interval (default 2).
func NewIntegrationTestFramework(tracker ResourcesTrackerInterface, intervals ...int64) *IntegrationTestFramework {
	durations := []time.Duration{300 * time.Second, 2 * time.Second}
	for i := range min(len(intervals), len(durations)) {
		durations[i] = time.Duration(intervals[i]) * time.Second
	}
	return &IntegrationTestFramework{tracker: tracker, timeout: durations[0], interval: durations[1]}
}

// SetupBeforeSuite connects to the clusters, installs CRDs, starts the controllers and creates the classes.
func (f *IntegrationTestFramework) SetupBeforeSuite() {
	var err error
	f.env, err = fromEnvironment()
	expect(err)
	expect(f.connect())
	nodes, err := f.nodes()
	expect(err)
	f.initial = len(nodes)

	f.installCRDs()
	f.suspend()
	class := f.createClass(firstClass, f.env.classes.first)
	f.createClass(secondClass, f.env.classes.second)
	expect(f.tracker.InitializeResourcesTracker(class, f.secretOf(class), f.env.cluster))
	f.deploy(f.env.images)
	for name, command := range f.env.commands {
		started, err := start(name, command)
		expect(err)
		f.processes = append(f.processes, started)
	}
}

// connect creates the clients for both clusters.
func (f *IntegrationTestFramework) connect() error {
	var err error
	if f.ControlCluster, err = helpers.NewCluster(absolute(f.env.control)); err != nil {
		return err
	}
	if f.TargetCluster, err = helpers.NewCluster(absolute(f.env.target)); err != nil {
		return err
	}
	f.control, err = newClient(f.env.control)
	if err != nil {
		return err
	}
	f.target, err = newClient(f.env.target)
	return err
}

// newClient returns a client for a cluster.
func newClient(kubeconfig string) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// Cleanup deletes the objects of the suite, waits until their VMs are gone, and stops the controllers that it
// started. Then it removes the CRDs that it installed, and restores the replicas that it scaled down. If VMs
// remain, the CRDs and the objects that refer to the VMs also remain.
func (f *IntegrationTestFramework) Cleanup() {
	if f.control == nil {
		return // setup did not run
	}
	defer f.resume() // even if the rest fails, which panics
	defer f.stop()
	for _, object := range []client.Object{f.deployment(), f.machine()} {
		expect(ignoreGone(f.control.Delete(context.Background(), object)))
	}
	f.eventually(func(g gomega.Gomega) {
		for _, list := range lists() {
			g.Expect(ignoreGone(f.control.List(context.Background(), list, client.InNamespace(f.env.namespace), ofTheSuite))).To(gomega.Succeed())
			g.Expect(list).To(gomega.HaveField("Items", gomega.BeEmpty()))
		}
	})
	for _, name := range []string{firstClass, secondClass} {
		f.deleteClass(name)
	}
	f.stop()
	f.removeCRDs()
}

// lists returns empty lists of the kinds that represent machines.
func lists() []client.ObjectList {
	return []client.ObjectList{&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}}
}

// deleteClass deletes a class and waits until its finalizer is removed.
func (f *IntegrationTestFramework) deleteClass(name string) {
	class := &v1alpha1.MachineClass{}
	class.Namespace, class.Name = f.env.namespace, name
	expect(ignoreGone(f.control.Delete(context.Background(), class)))
	f.eventually(func(g gomega.Gomega) {
		err := f.control.Get(context.Background(), client.ObjectKeyFromObject(class), class)
		g.Expect(ignoreGone(err)).To(gomega.Succeed())
		g.Expect(err).To(gomega.HaveOccurred(), "class %s still exists", name)
	})
}

// ignoreGone returns nil if the error means that the object or its CRD does not exist, and err otherwise.
func ignoreGone(err error) error {
	if meta.IsNoMatchError(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
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

// BeforeEachCheck checks before each spec that the controllers are running and all nodes are ready.
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

// eventually waits until a check passes. It fails immediately if a controller has exited.
func (f *IntegrationTestFramework) eventually(check func(g gomega.Gomega)) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func(g gomega.Gomega) {
		for _, started := range f.processes {
			if err := started.runs(); err != nil {
				gomega.StopTrying(err.Error()).Now()
			}
		}
		check(g)
	}).WithTimeout(f.timeout).WithPolling(f.interval).Should(gomega.Succeed())
}

func expect(err error) {
	ginkgo.GinkgoHelper()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
}
