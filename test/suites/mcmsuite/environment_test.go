package mcmsuite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// provider is a directory from which the integration suite is run, like a provider's test/integration/controller.
type provider struct {
	*env.Env
	t                     *testing.T
	directory, kubeconfig string
	// seen is the file to which the classes of the suite are written when they exist.
	seen string
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{Env: env.New(t, env.WithOwn(), env.WithControllerManager()), t: t, directory: t.TempDir()}
	p.kubeconfig, p.seen = p.path("kubeconfig"), p.path("seen.json")
	env.WriteKubeconfig(t, p.kubeconfig, p.Admin)
	p.write("millwright", fmt.Sprintf("#!/bin/sh\n%s exec %q \"$@\"\n", program.Environment, os.Args[0]))
	p.write("test/integration/controller/.keep", "")
	build := exec.CommandContext(t.Context(), "go", "-C", filepath.Join(root, "compat", "mcm"), "test", "-c", "-o", p.path("suite"), "./test/integration/controller")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return p
}

func (p *provider) path(name string) string { return filepath.Join(p.directory, name) }

// write writes a file, which may be executable.
func (p *provider) write(name, text string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

// writeObject writes a file with an object.
func (p *provider) writeObject(name string, object client.Object) {
	p.t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(name, string(text))
}

// run runs the specifications whose names contain focus, with additional variables.
func (p *provider) run(focus string, variables ...string) {
	p.t.Helper()
	binaries, err := env.Binaries()
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.CommandContext(p.t.Context(), p.path("suite"), "-ginkgo.v", "-ginkgo.no-color", "-ginkgo.focus="+focus)
	command.Dir = p.path("test/integration/controller")
	command.Env = append(os.Environ(), "CONTROL_KUBECONFIG="+p.kubeconfig, "CONTROL_CLUSTER_NAMESPACE="+p.Namespace, "TARGET_CLUSTER_NAME=tested",
		fmt.Sprintf("LIST_COMMAND=%s --kubeconfig=%s -n %s get machineclasses -o json >%s; echo '{}'", filepath.Join(binaries, "kubectl"), p.kubeconfig, p.Namespace, p.seen))
	command.Env = append(command.Env, variables...)
	if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), " Passed | 0 Failed") || strings.Contains(string(out), "Ran 0 of") {
		p.t.Fatalf("%v: %v\n%s", variables, err, out)
	}
}

// classes returns the classes that the suite created, as they were at its beginning.
func (p *provider) classes() map[string]v1alpha1.MachineClass {
	p.t.Helper()
	text, err := os.ReadFile(p.seen)
	list := &v1alpha1.MachineClassList{}
	if err == nil {
		err = yaml.Unmarshal(text, list)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	found := map[string]v1alpha1.MachineClass{}
	for _, class := range list.Items {
		found[class.Name] = class
	}
	return found
}

func (p *provider) eventually(check func(g gomega.Gomega)) {
	p.t.Helper()
	gomega.NewWithT(p.t).Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// crd returns the CRD of a kind. Its UID is empty if it does not exist.
func (p *provider) crd(kind string) *metav1.PartialObjectMetadata {
	p.t.Helper()
	crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: kind + ".machine.sapcloud.io"}}
	crd.SetGroupVersionKind(crdKind)
	if err := p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(crd), crd); client.IgnoreNotFound(err) != nil {
		p.t.Error(err)
	}
	return crd
}

// crds reports whether the control cluster serves the kinds of machine.sapcloud.io.
func (p *provider) crds() bool {
	p.t.Helper()
	crd := p.crd("machines")
	return crd.UID != "" && crd.DeletionTimestamp.IsZero()
}

// TestMCMSuite_Environment checks the effect of the documented variables with a real API server.
func TestMCMSuite_Environment(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	t.Parallel()
	p := newProvider(t)
	p.writeObject("v1.yaml", class(p.Namespace, "mine"))
	if err := p.Client.Create(t.Context(), secret(p.Namespace)); err != nil {
		t.Fatal(err)
	}
	p.withoutCRDs()
	p.ofASeed()
	p.linked()
	p.inPods()
}

// deleteCRDs deletes the CRDs of machine.sapcloud.io. The deletion of the CRD of Machines is not complete until a
// new CRD of MachineDeployments exists, for which wait waits.
func (p *provider) deleteCRDs() (wait func()) {
	p.t.Helper()
	const finalizer = "example.com/test"
	crds := map[string]*metav1.PartialObjectMetadata{}
	for _, kind := range []string{"machineclasses", "machinedeployments", "machines", "machinesets"} {
		crd := p.crd(kind)
		if kind == "machines" {
			if err := p.patch(crd, func() { controllerutil.AddFinalizer(crd, finalizer) }); err != nil {
				p.t.Fatal(err)
			}
		}
		deleted := &unstructured.Unstructured{} // clients delete metadata only of kinds that they know
		deleted.SetGroupVersionKind(crdKind)
		deleted.SetName(crd.Name)
		if err := p.Client.Delete(p.t.Context(), deleted); err != nil {
			p.t.Fatal(err)
		}
		crds[kind] = crd
	}
	var released sync.WaitGroup
	released.Go(func() {
		p.eventually(func(g gomega.Gomega) {
			another := p.crd("machinedeployments")
			g.Expect(another.UID).NotTo(gomega.Or(gomega.BeEmpty(), gomega.Equal(crds["machinedeployments"].UID)))
			machines := p.crd("machines")
			g.Expect(p.patch(machines, func() { controllerutil.RemoveFinalizer(machines, finalizer) })).To(gomega.Succeed())
		})
	})
	return released.Wait
}

// patch changes an object unless it has changed since it was read.
func (p *provider) patch(object client.Object, change func()) error {
	before := client.MergeFromWithOptions(object.DeepCopyObject().(client.Object), client.MergeFromWithOptimisticLock{})
	change()
	return p.Client.Patch(p.t.Context(), object, before)
}

// withoutCRDs checks that the suite installs CRDs, even while earlier ones are being deleted, and that it removes
// them if configured to. Tags are converted to strings.
func (p *provider) withoutCRDs() {
	p.t.Helper()
	wait := p.deleteCRDs()
	first := "MACHINECLASS_V1=" + p.path("v1.yaml")
	p.run("returns NotFound", first, "TAGS_ARE_STRINGS=true")
	wait()
	for _, name := range []string{firstClass, secondClass} {
		if got, want := string(p.classes()[name].ProviderSpec.Raw), `{"tags":["tested","kubernetes-io-cluster-tested","kubernetes-io-role-integration-test"]}`; got != want {
			p.t.Errorf("the providerSpec of %s is %s, want %s", name, got, want)
		}
	}
	if p.crds() {
		p.t.Error("the CRDs that the suite installed are still there")
	}
	p.run("returns NotFound", first, "PRESERVE_CRD_AT_END=true")
	if !p.crds() {
		p.t.Error("PRESERVE_CRD_AT_END does not preserve the CRDs")
	}
	p.run("returns NotFound", first)
	if !p.crds() {
		p.t.Error("the suite removed CRDs that it had not installed")
	}
}

// ofASeed checks that a class of the seed is copied, that the seed's controllers are scaled down while those of
// the suite run, and that its CRDs are kept. Nodes have the label that their node agent reads.
func (p *provider) ofASeed() {
	p.t.Helper()
	own, deployment := class(p.Namespace, "of-the-seed"), controllers(p.Namespace)
	for _, object := range []client.Object{own, deployment} {
		if err := p.Client.Create(p.t.Context(), object); err != nil {
			p.t.Fatal(err)
		}
	}
	p.write(".ci/controllers-test/machine-class-patch.json", `{"providerSpec":{"pool":"patched"}}`)
	clients := kubernetes.NewForConfigOrDie(p.Admin)
	nodes, err := clients.CoreV1().Nodes().Watch(p.t.Context(), metav1.ListOptions{LabelSelector: "worker.gardener.cloud/gardener-node-agent-secret-name=agent"})
	if err != nil {
		p.t.Fatal(err)
	}
	deployments, err := clients.AppsV1().Deployments(p.Namespace).Watch(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer nodes.Stop()
	defer deployments.Stop()

	access := fmt.Sprintf("--control-kubeconfig=%[1]s --target-kubeconfig=%[1]s --namespace=%s --address=127.0.0.1 --port=0 --leader-elect=false", p.kubeconfig, p.Namespace)
	p.run("adds a node|removes the node", "IS_CONTROL_CLUSTER_SEED=true", "GNA_SECRET_NAME=agent",
		"MACHINE_CONTROLLER_COMMAND="+p.path("millwright")+" machine-controller "+access+" --driver=sim", "MACHINE_CONTROLLER_MANAGER_COMMAND="+p.path("millwright")+" machine-controller-manager "+access)

	if got := string(p.classes()[secondClass].ProviderSpec.Raw); got != `{"pool":"patched"}` {
		p.t.Errorf("the providerSpec of the copied class is %s", got)
	}
	await(p.t, nodes, "a node with the label", func(*corev1.Node) bool { return true })
	await(p.t, deployments, "the Deployment at rest", func(d *appsv1.Deployment) bool {
		return *d.Spec.Replicas == 0 && d.Annotations["dependency-watchdog.gardener.cloud/ignore-scaling"] == "true"
	})
	if err := p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil {
		p.t.Fatal(err)
	}
	if _, marked := deployment.Annotations["dependency-watchdog.gardener.cloud/ignore-scaling"]; *deployment.Spec.Replicas != 2 || marked {
		p.t.Errorf("at the end the Deployment has %d replicas and annotations %v", *deployment.Spec.Replicas, deployment.Annotations)
	}
	if err := p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(own), own); err != nil || !p.crds() {
		p.t.Errorf("the seed's class or CRDs are gone: %v", err)
	}
}

// linked checks that the suite starts the provider's controller and, through the link dev/mcm, that of this repository
// with "make start".
func (p *provider) linked() {
	p.t.Helper()
	root, err := env.Sources()
	if err != nil {
		p.t.Fatal(err)
	}
	p.write("Makefile", "start:\n\t@exec ./millwright machine-controller --control-kubeconfig=$(CONTROL_KUBECONFIG) --target-kubeconfig=$(TARGET_KUBECONFIG)"+
		" --namespace=$(CONTROL_NAMESPACE) --leader-elect=$(LEADER_ELECT) --address=127.0.0.1 --port=0 --driver=sim\n")
	p.write("dev/.keep", "")
	if err := os.Symlink(root, p.path("dev/mcm")); err != nil {
		p.t.Fatal(err)
	}
	// A MachineDeployment needs the process that make start builds, which can take longer than Machines need.
	p.run("adds a node|removes the node|makes a MachineDeployment available|removes all nodes", "MACHINECLASS_V1="+p.path("v1.yaml"), "MAKEFLAGS=BINARY="+p.path("built")+" START_FLAGS=--port=0")
	if _, err := os.Stat(p.path("built")); err != nil {
		p.t.Errorf("make start did not build the program: %v", err)
	}
	for _, path := range []string{"Makefile", "dev/mcm"} {
		if err := os.Remove(p.path(path)); err != nil {
			p.t.Error(err)
		}
	}
}

// inPods checks that the images of the controllers are set in the Deployment, which the suite creates if it does
// not exist. The Deployment and its Pods are real, but there is no kubelet: the test marks the Pods as ready.
func (p *provider) inPods() {
	p.t.Helper()
	deployment := controllers(p.Namespace)
	if err := p.Client.Delete(p.t.Context(), deployment); err != nil {
		p.t.Fatal(err)
	}
	p.writeObject("kubernetes/deployment.yaml", controllers("elsewhere"))
	ctx, end := context.WithCancel(p.t.Context())
	var kubelet sync.WaitGroup
	kubelet.Go(func() { p.readyPods(ctx) })
	defer kubelet.Wait()
	defer end()
	for _, tc := range []struct{ variables, want []string }{
		{[]string{"MCM_IMAGE_TAG=mcm:1", "MC_IMAGE_TAG=mc:1"}, []string{"mcm:1", "mc:1"}},
		{[]string{"MC_IMAGE_TAG=mc:2"}, []string{"mcm:1", "mc:2"}},
	} {
		p.run("returns NotFound", append(tc.variables, "MACHINECLASS_V1="+p.path("v1.yaml"))...)
		pods := &corev1.PodList{}
		if err := p.Client.List(p.t.Context(), pods, client.InNamespace(p.Namespace)); err != nil {
			p.t.Fatal(err)
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil {
				continue
			}
			if got := []string{pod.Spec.Containers[0].Image, pod.Spec.Containers[1].Image}; !slices.Equal(got, tc.want) {
				p.t.Errorf("%v: a Pod has the images %q", tc.variables, got)
			}
		}
		if err := p.Client.Get(p.t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil || len(pods.Items) == 0 {
			p.t.Errorf("%d Pods, %v", len(pods.Items), err)
		}
	}
}

// readyPods marks all Pods as ready, like a kubelet.
func (p *provider) readyPods(ctx context.Context) {
	pods, err := kubernetes.NewForConfigOrDie(p.Admin).CoreV1().Pods(p.Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		p.t.Error(err)
		return
	}
	defer pods.Stop()
	ready := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
	for event := range pods.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type != watch.Added {
			continue
		}
		if err := p.Client.Status().Patch(ctx, pod, ready); client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			p.t.Error(err)
		}
	}
}

// await reads a watch until an object satisfies the condition.
func await[T any](t *testing.T, events watch.Interface, what string, desired func(T) bool) {
	t.Helper()
	timeout := time.After(env.WaitTimeout)
	for {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				t.Fatalf("the watch ended before %s was there", what)
			}
			if object, ok := event.Object.(T); ok && desired(object) {
				return
			}
		case <-timeout:
			t.Fatalf("%s was never there", what)
		}
	}
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// controllers returns the Deployment of a seed. Its Pods are not run here.
func controllers(namespace string) *appsv1.Deployment {
	replicas, labels := int32(2), map[string]string{"role": "machine-controller-manager"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "machine-controller-manager"}}
	deployment.Spec = appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}}
	deployment.Spec.Template.Labels = labels
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "machine-controller-manager", Image: "none"}, {Name: "machine-controller", Image: "none"}}
	return deployment
}
