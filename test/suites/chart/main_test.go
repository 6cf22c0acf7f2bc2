package chart

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/provider"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
)

// asDriver is an environment variable. It makes the test binary run as a driver.
const asDriver = "MILLWRIGHT_TEST_AS_DRIVER"

func TestMain(m *testing.M) {
	if os.Getenv(asDriver) != "" {
		provider.Serve("sim", func(context.Context, provider.Environment) (driver.Driver, error) { return sim.New(sim.Config{}), nil })
	}
	program.Main()
	env.Main(m)
}

// namespace is the namespace of all objects of the manifests.
const namespace = "millwright-system"

// values are the values of a chart.
type values = map[string]any

// place returns the path of a file of the repository.
func place(t *testing.T, path string) string {
	t.Helper()
	dir, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, path)
}

func load(t *testing.T) *helmchart.Chart {
	t.Helper()
	loaded, err := loader.LoadDir(place(t, "charts/millwright"))
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// template renders the chart as "helm template" does, without the CRDs, and returns its manifests and notes.
func template(t *testing.T, namespace string, of values) (manifests, notes string, err error) {
	t.Helper()
	install := action.NewInstall(&action.Configuration{})
	install.DryRun, install.ClientOnly, install.Replace = true, true, true
	install.ReleaseName, install.Namespace = "millwright", namespace
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.37.0", Major: "1", Minor: "37"}
	release, err := install.RunWithContext(t.Context(), load(t), of)
	if err != nil {
		return "", "", err
	}
	return release.Manifest, release.Info.Notes, nil
}

// charted returns the objects of the chart.
func charted(t *testing.T, namespace string, of values) []*unstructured.Unstructured {
	t.Helper()
	manifests, _, err := template(t, namespace, of)
	if err != nil {
		t.Fatal(err)
	}
	return fixture.Objects(t, []byte(manifests))
}
