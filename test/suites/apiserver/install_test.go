package apiserver

import (
	"io/fs"
	"testing"

	"github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestInstallCRDs checks that CRDs that local mode installs are served when the function returns, and that
// installing them twice changes nothing.
func TestInstallCRDs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	e := env.New(t, env.WithOwn())
	scheme := env.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "machines.machine.sapcloud.io"}}
	if err := c.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	gomega.NewWithT(t).Eventually(func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(crd), crd))
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())

	crds, err := fs.Sub(config.Files, "crd")
	if err != nil {
		t.Fatal(err)
	}
	generations := map[string]int64{}
	for range 2 {
		if err := controlplane.InstallCRDs(t.Context(), e.Admin, crds); err != nil {
			t.Fatal(err)
		}
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, GenerateName: "after-"}}
		if err := c.Create(t.Context(), machine); err != nil {
			t.Fatal(err)
		}
		list := &apiextensionsv1.CustomResourceDefinitionList{}
		if err := c.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		for _, crd := range list.Items {
			if was, seen := generations[crd.Name]; seen && was != crd.Generation {
				t.Errorf("installing %s again changed it", crd.Name)
			}
			generations[crd.Name] = crd.Generation
		}
	}
}
