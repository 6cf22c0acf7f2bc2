package ui

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
)

// createPool creates a pool with one machine, as a manager does. It returns the deployment and the machine.
func createPool(t *testing.T, e *env.Env) (*v1alpha1.MachineDeployment, *v1alpha1.Machine) {
	t.Helper()
	objects := newPool(e.Namespace, "pool", 1)
	deployment := objects[2].(*v1alpha1.MachineDeployment)
	create := func(object client.Object, owner client.Object, kind string) {
		if owner != nil {
			object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind(kind))})
		}
		if err := e.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	create(deployment, nil, "")
	set := &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "pool-1", Labels: deployment.Spec.Selector.MatchLabels, Annotations: map[string]string{v1alpha1.AnnotationKeyRevision: "1"}},
		Spec:       v1alpha1.MachineSetSpec{Replicas: 1, Selector: deployment.Spec.Selector, Template: deployment.Spec.Template},
	}
	create(set, deployment, "MachineDeployment")
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "pool-1-a", Labels: set.Labels}, Spec: set.Spec.Template.Spec}
	create(machine, set, "MachineSet")
	return deployment, machine
}

// TestUI_ShowsKindsThatUserMayRead checks that a user without permissions for half of the kinds sees the others, that each
// page reports what is missing, and that new permissions take effect without a restart.
func TestUI_ShowsKindsThatUserMayRead(t *testing.T) {
	e := env.New(t)
	createPool(t, e)
	user := e.UserWith(t, "test/suites/ui/testdata/half-role.yaml")
	kubeconfig := filepath.Join(t.TempDir(), "user")
	env.WriteKubeconfig(t, kubeconfig, user)
	page := openUI(t, "--kubeconfig", kubeconfig, "-n", e.Namespace)
	page.Await(`document.querySelector(".pool h2").innerText === "pool" && document.querySelector(".notes").innerText.includes("You have no permission to list Machines.")`)
	for hash, kind := range map[string]string{"#/pool/" + e.Namespace + "/pool": "Machine", "#/machine/" + e.Namespace + "/pool-1-a": "Machine", "#/vms": "VirtualMachine", "#/hosts": "Node"} {
		browser.Evaluate[any](page, fmt.Sprintf("location.hash = %q", hash))
		page.Await(fmt.Sprintf(`document.querySelector("main").innerText.includes("You have no permission to list %ss.")`, kind))
	}
	browser.Evaluate[any](page, `location.hash = "#/metrics"`)
	page.Await(`document.querySelector(".notes").innerText.includes("--metrics-url")`)

	browser.Evaluate[any](page, `location.hash = "#/"`)
	e.Grant(t, "user-of-"+e.Namespace, "test/suites/ui/testdata/machines-role.yaml")
	page.Await(tiles("new") + ` === 1 && !document.querySelector("main").innerText.includes("list Machines.")`)
	for _, problem := range page.Problems() {
		if !strings.Contains(problem, "403 (Forbidden)") { // the explanation of the machine
			t.Errorf("the page reports: %s", problem)
		}
	}
}

// TestUI_FollowsDeletionOfOpenObject checks that the open page of a machine, and that of a pool, report that it was deleted.
func TestUI_FollowsDeletionOfOpenObject(t *testing.T) {
	e := env.New(t)
	deployment, machine := createPool(t, e)
	admin := filepath.Join(t.TempDir(), "admin")
	env.WriteKubeconfig(t, admin, e.Admin)
	page := openUI(t, "--kubeconfig", admin, "-n", e.Namespace, "--metrics-url", "none")
	page.Click(".tile", "pool-1-a")
	page.Await(`document.querySelector(".conclusion") && document.querySelectorAll(".actions button").length > 0`)
	if err := e.Client.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	page.Await(`document.querySelectorAll(".actions button").length === 0 && document.querySelector(".conclusion").innerText.includes("does not exist")`)

	browser.Evaluate[any](page, fmt.Sprintf("location.hash = %q", "#/pool/"+e.Namespace+"/pool"))
	page.Await(`document.querySelectorAll(".actions button").length > 0 && document.querySelector(".conclusion")`)
	if err := e.Client.Delete(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	page.Await(`document.body.innerText.includes("This pool does not exist")`)
	for _, problem := range page.Problems() {
		t.Errorf("the page reports: %s", problem)
	}
}
