package ui

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}

// linkPattern matches the link that the command prints.
var linkPattern = regexp.MustCompile(`http://\S+/\?token=\S+`)

// start starts the program until the test is complete.
func start(t *testing.T, args ...string) *program.Process {
	t.Helper()
	p := program.Start(t, args...)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("millwright %s printed:\n%s", args[0], p.Output.Tail(100))
		}
	})
	return p
}

// openUI starts the page and opens its link.
func openUI(t *testing.T, args ...string) *browser.Page {
	t.Helper()
	page := browser.Open(t) // skips the test without a browser
	p := start(t, append([]string{"ui", "--browser=false"}, args...)...)
	link := ""
	gomega.NewWithT(t).Eventually(func() string {
		link = linkPattern.FindString(p.Output.Tail(10))
		return link
	}).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).ShouldNot(gomega.BeEmpty())
	page.Navigate(link)
	return page
}

func newPool(namespace, name string, replicas int32) []client.Object {
	labels := map[string]string{"name": name}
	return []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"userData": []byte("token: <<BOOTSTRAP_TOKEN>> the-secret")}},
		classOf(namespace, name, name),
		&v1alpha1.MachineDeployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1alpha1.MachineDeploymentSpec{
				Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: v1alpha1.MachineTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: name}},
				},
			},
		},
	}
}

func classOf(namespace, name, secret string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Provider: "sim", ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
		SecretRef: &corev1.SecretReference{Namespace: namespace, Name: secret},
	}
}

// tiles is a JavaScript expression for the number of tiles of a phase.
func tiles(class string) string {
	return fmt.Sprintf(`document.querySelectorAll(".tile.%s").length`, class)
}

// TestUI_ShowsPool follows a pool in a browser: its machines become Running, a button scales it, a rollout reports that it
// waits for a class, and then replaces the machines within the bounds.
func TestUI_ShowsPool(t *testing.T) {
	e := env.NewPair(t)
	dir := t.TempDir()
	control, target := filepath.Join(dir, "control"), filepath.Join(dir, "target")
	env.WriteKubeconfig(t, control, e.UserWith(t, "config/rbac/control-role.yaml"))
	env.WriteKubeconfig(t, target, e.Target.UserWith(t, "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml"))
	start(t, "manager", "--driver", "sim", "--sim-dir", filepath.Join(dir, "sim"), "--sim-heartbeat", "0", "--namespace", e.Namespace,
		"--control-kubeconfig", control, "--target-kubeconfig", target, "--port", "0")
	admin, adminTarget := filepath.Join(dir, "admin"), filepath.Join(dir, "admin-target")
	env.WriteKubeconfig(t, admin, e.Admin)
	env.WriteKubeconfig(t, adminTarget, e.Target.Admin)
	page := openUI(t, "--kubeconfig", admin, "--target-kubeconfig", adminTarget, "-n", e.Namespace)
	page.Await(`document.body.innerText.includes("No pools yet")`)

	for _, object := range newPool(e.Namespace, "pool", 3) {
		if err := e.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	page.Await(tiles("ok") + ` === 3 && document.querySelector(".pill").innerText === "Complete"`)
	page.Screenshot(t, "pools")

	page.Click(".pool h2 a", "pool")
	page.Click(".actions button", "Scale")
	page.Fill(".ask input", "5")
	page.Await(`document.querySelector(".command code").innerText.startsWith("kubectl scale machinedeployments.machine.sapcloud.io pool --replicas 5 -n ` + e.Namespace + `")`)
	page.Screenshot(t, "scale")
	page.Click(".ask footer button", "Scale")
	page.Await(`document.querySelector(".done").innerText === "scaled to 5"`)
	page.Await(tiles("ok") + ` === 5`)

	page.Click(".actions button", "Pause")
	page.Click(".ask footer button", "Pause")
	page.Await(`document.querySelector(".pill").innerText === "Paused"`)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"class":{"name":"pool-next"}}}}}`))
	if err := e.Client.Patch(t.Context(), newPool(e.Namespace, "pool", 5)[2], patch); err != nil {
		t.Fatal(err)
	}
	browser.Evaluate[any](page, `window.most = 0; new MutationObserver(() => { most = Math.max(most, document.querySelectorAll(".tile").length) }).observe(document, { childList: true, subtree: true })`)
	page.Click(".actions button", "Resume")
	page.Click(".ask footer button", "Resume")
	// The rollout waits for the class of the first new machine.
	page.Await(`document.querySelectorAll(".part").length === 2 && document.body.innerText.includes("Rolling out revision 2")`)
	page.Await(`document.body.innerText.includes('MachineClass "pool-next" not found')`)
	page.Screenshot(t, "rollout")
	if err := e.Client.Create(t.Context(), classOf(e.Namespace, "pool-next", "pool")); err != nil {
		t.Fatal(err)
	}
	page.Await(tiles("ok") + ` === 5 && document.querySelectorAll(".part").length === 1 && document.querySelector(".pill").innerText === "Complete"`)
	if most := browser.Evaluate[int](page, `most`); most > 6 {
		t.Errorf("the page showed %d machines, want at most 5 and 1 of the surge", most)
	}
	if secret := browser.Evaluate[bool](page, `Promise.all(["pool", "machine"].map((kind) => fetch("/api/" + kind + "?namespace=`+e.Namespace+`&name=pool").then((r) => r.text()))).then((texts) => texts.join("").includes("the-secret"))`); secret {
		t.Error("the browser gets the content of a Secret")
	}

	page.Click(".tile", "")
	page.Await(`document.querySelector(".conclusion")?.innerText.includes("is Running") && document.querySelector(".life")`)
	page.Screenshot(t, "machine")
	for _, problem := range page.Problems() {
		t.Errorf("the page reports: %s", problem)
	}
}
