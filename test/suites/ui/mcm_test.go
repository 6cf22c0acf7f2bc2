package ui

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// leaveMCMsCRDs removes all CRDs that a cluster with only MCM does not have.
func leaveMCMsCRDs(t *testing.T, e *env.Env) {
	t.Helper()
	e.InstallMCMsCRDs(t)
	of := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	others := func() (found []client.Object) {
		// Not only their metadata: for its deletion, the client decodes the response with its scheme, which lacks the kind.
		crds := &unstructured.UnstructuredList{}
		crds.SetGroupVersionKind(of.GroupVersion().WithKind(of.Kind + "List"))
		if err := e.Client.List(t.Context(), crds); err != nil {
			t.Fatal(err)
		}
		for i := range crds.Items {
			if !isMCMs(crds.Items[i].GetName()) {
				found = append(found, &crds.Items[i])
			}
		}
		return found
	}
	for _, crd := range others() {
		if err := e.Client.Delete(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
	}
	gomega.NewWithT(t).Eventually(others).WithTimeout(env.WaitTimeout).Should(gomega.BeEmpty())
}

func isMCMs(crd string) bool {
	for _, plural := range []string{"machinedeployments", "machinesets", "machines", "machineclasses"} {
		if crd == plural+"."+v1alpha1.GroupName {
			return true
		}
	}
	return false
}

// createRecorded creates the objects of a moment that was recorded from MCM, with their owners and status. Secrets are left
// out: the page does not show them.
func createRecorded(t *testing.T, e *env.Env, moment string) {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "api/machine/v1alpha1/testdata/mcm", moment))
	if err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	uids := map[types.UID]types.UID{}
	for i := range list.Items {
		if recorded := &list.Items[i]; recorded.GetKind() != "Secret" {
			uids[recorded.GetUID()] = createOne(t, e, recorded, uids)
		}
	}
}

// createOne creates a recorded object. uids are those of its owners.
func createOne(t *testing.T, e *env.Env, recorded *unstructured.Unstructured, uids map[types.UID]types.UID) types.UID {
	t.Helper()
	object := recorded.DeepCopy()
	for _, field := range []string{"deletionTimestamp", "deletionGracePeriodSeconds", "uid", "generation", "creationTimestamp", "resourceVersion"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	if object.GetKind() != "Node" {
		object.SetNamespace(e.Namespace)
	}
	owners := object.GetOwnerReferences()
	for i := range owners {
		owners[i].UID = uids[owners[i].UID]
	}
	object.SetOwnerReferences(owners)
	if err := e.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if status, has := recorded.Object["status"]; has {
		object.Object["status"] = status
		if err := e.Client.Status().Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if recorded.GetDeletionTimestamp() != nil { // a finalizer keeps it
		if err := e.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	return object.GetUID()
}

// TestUI_ShowsClusterOfMCM checks the page for a cluster with MCM's CRDs and the objects that MCM writes in the middle of a
// rollout, without anything of Millwright: pools, machines and explanations are shown, and each part for virtual machines
// reports that the cluster does not have them.
func TestUI_ShowsClusterOfMCM(t *testing.T) {
	tier.All(t)
	e := env.New(t, env.WithOwn())
	leaveMCMsCRDs(t, e)
	createRecorded(t, e, "03-mid-rollout-old-terminating.json")
	admin := filepath.Join(t.TempDir(), "admin")
	env.WriteKubeconfig(t, admin, e.Admin)
	page := openUI(t, "--kubeconfig", admin, "-n", e.Namespace, "--metrics-url", "none")
	page.Await(`document.querySelectorAll(".pool").length === 3 && document.querySelectorAll(".tile").length === 6`)
	page.Await(tiles("bad") + ` === 2 && ` + tiles("end") + ` === 1 && ` + tiles("ok") + ` === 3`)
	page.Await(`document.querySelector("main").innerText.includes("This cluster does not have the kinds of Cluster API.")`)
	for hash, wait := range map[string]string{
		"#/pool/NAMESPACE/pool":                 `document.querySelectorAll(".part").length === 2 && document.querySelector(".conclusion")`,
		"#/pool/NAMESPACE/nocap":                `document.querySelector(".conclusion") && document.querySelector("main").innerText.includes("ResourceExhausted")`,
		"#/machine/NAMESPACE/nocap-6f8d5-n4n84": `document.querySelector(".conclusion") && document.querySelector("main").innerText.includes("CrashLoopBackOff")`,
		"#/machine/NAMESPACE/pool-77f8b-29jpz":  `document.querySelector(".conclusion")?.innerText.includes("is Running") && document.querySelector("main").innerText.includes("Node pool-77f8b-29jpz")`,
		"#/machine/NAMESPACE/pool-55b97-rvs5k":  `document.querySelector(".conclusion") && document.querySelector(".pill").innerText === "Terminating"`,
		"#/vms":                                 `document.querySelector("main").innerText.includes("This cluster does not have the kind VirtualMachine.")`,
		"#/hosts":                               `document.querySelector("main").innerText.includes("This cluster does not have the kind VirtualMachine.") && document.querySelector(".empty")`,
	} {
		browser.Evaluate[any](page, fmt.Sprintf(`location.hash = %q.replace("NAMESPACE", %q)`, hash, e.Namespace))
		page.Await(wait)
		if unread := browser.Evaluate[bool](page, `document.querySelector("main").innerText.includes("could not be read")`); unread {
			t.Errorf("%s: objects could not be read", hash)
		}
		page.Screenshot(t, filepath.Base(hash))
	}
	for _, problem := range page.Problems() {
		t.Errorf("the page reports: %s", problem)
	}
}
