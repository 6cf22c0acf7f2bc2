package ui

import (
	"path/filepath"
	"testing"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestUI_DrawsMetricsOfLocalCluster checks that the page finds and draws the metrics of the manager in "millwright up".
func TestUI_DrawsMetricsOfLocalCluster(t *testing.T) {
	tier.All(t)
	dir := filepath.Join(t.TempDir(), "cluster")
	up := start(t, "up", "--driver", "sim", "--dir", dir, "--api-port", "0", "--image-port", "0", "--vm-port", "0", "--unsafe-no-fsync")
	gomega.NewWithT(t).Eventually(up.Output.String).WithTimeout(env.WaitTimeout).Should(gomega.ContainSubstring("Ready after"))
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range newPool("default", "pool", 2) {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	page := openUI(t, "--dir", dir)
	page.Await(tiles("ok") + ` === 2`)
	browser.Evaluate[any](page, `location.hash = "#/metrics"`)
	page.Await(`document.querySelector("main").innerText.includes("from the manager of the local cluster")`)
	for _, text := range []string{"default/pool", "OK", "200", "machine"} {
		page.Await(`[...document.querySelectorAll(".series span")].some((e) => e.innerText.startsWith("` + text + `"))`)
	}
	page.Screenshot(t, "metrics")
	for _, problem := range page.Problems() {
		t.Errorf("the page reports: %s", problem)
	}
}
