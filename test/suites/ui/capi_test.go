package ui

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
)

// capi writes objects of Cluster API as its controllers do.
type capi struct {
	t *testing.T
	client.Client
	namespace string
}

// create creates an object from YAML in flow style. It is controlled by owner unless that is nil.
func (c capi) create(kind, name string, owner *unstructured.Unstructured, text string) *unstructured.Unstructured {
	c.t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		c.t.Fatal(err)
	}
	object.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	object.SetKind(kind)
	object.SetNamespace(c.namespace)
	object.SetName(name)
	if owner != nil {
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	}
	if err := c.Create(c.t.Context(), object); err != nil {
		c.t.Fatal(err)
	}
	return object
}

// patch changes an object by a merge patch in YAML.
func (c capi) patch(object client.Object, text string) {
	c.t.Helper()
	patch, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.Patch(c.t.Context(), object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		c.t.Fatal(err)
	}
}

// set creates a MachineSet with machines, whose names it returns. INFRA in the status of a machine is its name.
func (c capi) set(deployment *unstructured.Unstructured, revision, replicas int, status string) {
	c.t.Helper()
	name := fmt.Sprintf("%s-%d", deployment.GetName(), revision)
	set := c.create("MachineSet", name, deployment, fmt.Sprintf(`{metadata: {annotations: {machinedeployment.clusters.x-k8s.io/revision: "%d"}}, spec: {replicas: %d, template: {spec: {infrastructureRef: {apiGroup: infrastructure.millwright.dev, kind: MillwrightMachineTemplate, name: t%d}}}}}`, revision, replicas, revision))
	for i := range replicas {
		machine := fmt.Sprintf("%s-%d", name, i)
		c.create("Machine", machine, set, fmt.Sprintf(`{spec: {clusterName: c, infrastructureRef: {apiGroup: infrastructure.millwright.dev, kind: MillwrightMachine, name: %s}}, status: %s}`, machine, status))
	}
}

// holdResponse holds the response to the next request until respond is called.
const holdResponse = `(() => {
	const fetched = window.fetch;
	window.fetch = async (...request) => {
		window.fetch = fetched;
		const response = await fetched(...request);
		await new Promise((resolve) => { window.respond = () => { resolve(); return true; }; });
		return response;
	};
	return true;
})()`

// TestUI_ShowsClusterAPIPool follows a pool of Cluster API in a browser: its machines, a rollout whose new machine cannot be
// created, the page of that machine, and the buttons.
func TestUI_ShowsClusterAPIPool(t *testing.T) {
	e := env.New(t, env.WithNumber(1))
	e.InstallCRDs(t, "test/suites/ui/testdata/crd")
	admin := filepath.Join(t.TempDir(), "admin")
	env.WriteKubeconfig(t, admin, e.Admin)
	page := openUI(t, "--kubeconfig", admin, "-n", e.Namespace)
	page.Await(`document.body.innerText.includes("No pools yet") && !document.body.innerText.includes("Cluster API")`)

	scheme := runtime.NewScheme()
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	withInfrastructure, err := client.New(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := capi{t, withInfrastructure, e.Namespace}
	deployment := c.create("MachineDeployment", "workers", nil, `{spec: {clusterName: c, replicas: 2, rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}},
		template: {spec: {version: v1.36.0, infrastructureRef: {apiGroup: infrastructure.millwright.dev, kind: MillwrightMachineTemplate, name: t1}}}},
		status: {observedGeneration: 1, replicas: 2, readyReplicas: 2, availableReplicas: 2, upToDateReplicas: 2}}`)
	c.set(deployment, 1, 2, `{phase: Running, nodeRef: {name: node}}`)
	c.create("MachineDeployment", "foreign", nil, `{spec: {clusterName: c, replicas: 1, template: {spec: {infrastructureRef: {apiGroup: infrastructure.example.com, name: x}}}}}`)
	page.Await(tiles("ok") + ` === 2 && document.querySelector(".pill").innerText === "Complete" && document.querySelectorAll(".pool").length === 1`)

	// The template changes, and the first new machine cannot be created.
	c.patch(deployment, `{status: {upToDateReplicas: 0, conditions: [{type: RollingOut, status: "True", reason: RollingOut, message: Rolling out 2 not up-to-date replicas, lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`)
	c.set(deployment, 2, 1, `{phase: Provisioning, conditions: [{type: InfrastructureReady, status: "False", reason: CreationFailed, message: no such image, lastTransitionTime: "2026-01-01T00:00:00Z"}]}`)
	infrastructure := &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "workers-2-0"},
		Spec:       infrav1.MillwrightMachineSpec{Driver: "sim", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"key":"the-secret"}`)}},
	}
	if err := c.Create(t.Context(), infrastructure); err != nil {
		t.Fatal(err)
	}
	infrastructure.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Reason: "CreationFailed", Message: "the image server has no such image", LastTransitionTime: metav1.Now()}}
	if err := c.Status().Update(t.Context(), infrastructure); err != nil {
		t.Fatal(err)
	}
	page.Await(`document.querySelectorAll(".part").length === 2 && document.querySelector(".waiting").innerText.includes("Rolling out 2 not up-to-date replicas")`)
	page.Screenshot(t, "capi")

	page.Click(".tile.trouble", "workers-2-0")
	page.Await(`document.querySelector(".conclusion").innerText.includes("workers-2-0 is not Running") && document.querySelector(".findings").innerText.includes("the image server has no such image")`)
	page.Await(`document.querySelector("main").innerText.includes("MillwrightMachine workers-2-0")`)
	page.Screenshot(t, "capi-machine")
	if secret := browser.Evaluate[bool](page, `fetch("/api/capi-machine?namespace=`+e.Namespace+`&name=workers-2-0").then((r) => r.text()).then((text) => text.includes("the-secret"))`); secret {
		t.Error("the browser gets the description of the VM for the driver")
	}

	page.Click(".crumb a", "workers")
	page.Click(".actions button", "Scale")
	page.Fill(".ask input", "5")
	page.Await(`document.querySelector(".command code").innerText.startsWith("kubectl scale machinedeployments.cluster.x-k8s.io workers --replicas 5 -n ` + e.Namespace + `")`)
	page.Click(".ask footer button", "Scale")
	page.Await(`document.querySelector(".done").innerText === "scaled to 5"`)
	page.Await(`document.querySelector(".summary").innerText.includes("of 5 available")`)
	page.Click(".actions button", "Pause")
	page.Await(`!document.querySelector(".ask .run").disabled`)
	browser.Evaluate[bool](page, holdResponse)
	page.Click(".ask footer button", "Pause")
	page.Await(`document.querySelector(".pill").innerText === "Paused"`)

	// The next question is asked before the response to the first one arrives, and stays.
	page.Click(".ask footer button", "Cancel")
	page.Click(".actions button", "Resume")
	page.Await(`window.respond && window.respond()`)
	page.Await(`document.querySelector(".done").innerText === "paused"`)
	page.Click(".ask footer button", "Resume")
	page.Await(`document.querySelector(".pill").innerText !== "Paused"`)

	// A Cluster's topology would undo changes.
	c.patch(deployment, `{metadata: {labels: {topology.cluster.x-k8s.io/owned: ""}}}`)
	page.Await(`document.querySelectorAll(".actions button").length === 0 && document.body.innerText.includes("The topology of cluster c determines this pool")`)
	if err := c.Delete(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	page.Await(`document.body.innerText.includes("This pool does not exist")`)
	for _, problem := range page.Problems() {
		if !strings.Contains(problem, "404") {
			t.Errorf("the page reports: %s", problem)
		}
	}
}
