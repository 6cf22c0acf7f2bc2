package common

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gardener/machine-controller-manager/kubernetes"
	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
)

// installCRDs installs the CRDs that the control cluster lacks, and waits until they are served. A seed has its own
// CRDs. Existing CRDs are not changed.
func (f *IntegrationTestFramework) installCRDs() {
	ginkgo.GinkgoHelper()
	if f.env.seed || f.env.virtual {
		return
	}
	all, err := readCRDs()
	expect(err)
	for _, crd := range all {
		f.eventually(func(g gomega.Gomega) {
			installed, err := f.installCRD(crd)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			if installed {
				f.installed = append(f.installed, crd)
			}
		})
	}
	f.eventually(func(g gomega.Gomega) {
		for _, crd := range f.installed {
			g.Expect(f.control.Get(context.Background(), client.ObjectKeyFromObject(crd), crd)).To(gomega.Succeed())
			g.Expect(established(crd)).To(gomega.BeTrue(), "CRD %s is not established", crd.GetName())
		}
		// Discovery may list the kinds later.
		for _, list := range append(lists(), &v1alpha1.MachineClassList{}) {
			g.Expect(f.control.List(context.Background(), list, client.InNamespace(f.env.namespace), client.Limit(1))).To(gomega.Succeed())
		}
	})
}

// installCRD creates a CRD and reports whether it did not exist. A CRD that is being deleted, as after an earlier
// run, is an error, because it will be gone soon.
func (f *IntegrationTestFramework) installCRD(crd *unstructured.Unstructured) (bool, error) {
	there := crd.DeepCopy()
	err := f.control.Create(context.Background(), crd)
	if !apierrors.IsAlreadyExists(err) {
		return err == nil, err
	}
	if err := f.control.Get(context.Background(), client.ObjectKeyFromObject(there), there); err != nil {
		return false, err
	}
	if there.GetDeletionTimestamp() != nil {
		return false, fmt.Errorf("CRD %s is being deleted", there.GetName())
	}
	return false, nil
}

// removeCRDs removes the CRDs that installCRDs installed.
func (f *IntegrationTestFramework) removeCRDs() {
	ginkgo.GinkgoHelper()
	if f.env.keepCRDs {
		return
	}
	var failed []error
	for _, crd := range f.installed {
		failed = append(failed, client.IgnoreNotFound(f.control.Delete(context.Background(), crd)))
	}
	f.installed = nil
	expect(errors.Join(failed...))
}

// readCRDs returns the CRDs of machine.sapcloud.io.
func readCRDs() (all []*unstructured.Unstructured, err error) {
	files, err := fs.Glob(kubernetes.CRDs, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := kubernetes.CRDs.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &crd.Object); err != nil {
			return nil, err
		}
		all = append(all, crd)
	}
	return all, nil
}

// established reports whether the API server serves the kind of a CRD.
func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, ok := condition.(map[string]any); ok && fields["type"] == "Established" {
			return fields["status"] == "True"
		}
	}
	return false
}
