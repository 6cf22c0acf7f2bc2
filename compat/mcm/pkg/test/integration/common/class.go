package common

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
)

// createClass creates a MachineClass, under another name, from a file or from a class of the seed. If an earlier
// run has left the class, it is updated.
func (f *IntegrationTestFramework) createClass(name, file string) *v1alpha1.MachineClass {
	ginkgo.GinkgoHelper()
	var class *v1alpha1.MachineClass
	var err error
	if file == "" {
		class, err = f.classOfTheSeed()
	} else {
		class, err = readClass(file)
	}
	expect(err)
	class.ObjectMeta = metav1.ObjectMeta{Namespace: f.env.namespace, Name: name, Labels: class.Labels, Annotations: class.Annotations}
	old := &v1alpha1.MachineClass{}
	switch err := f.control.Get(context.Background(), client.ObjectKeyFromObject(class), old); {
	case err == nil:
		class.ObjectMeta = old.ObjectMeta
		expect(f.control.Update(context.Background(), class))
	default:
		expect(client.IgnoreNotFound(err))
		expect(f.control.Create(context.Background(), class))
	}
	patches, err := f.env.patches()
	expect(err)
	for _, patch := range patches {
		expect(f.control.Patch(context.Background(), class, client.RawPatch(types.MergePatchType, patch)))
	}
	return class
}

// readClass reads the MachineClass in a file.
func readClass(file string) (*v1alpha1.MachineClass, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	class := &v1alpha1.MachineClass{}
	if err := yaml.UnmarshalStrict(text, class); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if class.SecretRef == nil {
		return nil, fmt.Errorf("%s: secretRef is required", file)
	}
	return class, nil
}

// classOfTheSeed returns the first class of the namespace that does not belong to the suite.
func (f *IntegrationTestFramework) classOfTheSeed() (*v1alpha1.MachineClass, error) {
	list := &v1alpha1.MachineClassList{}
	if err := f.control.List(context.Background(), list, client.InNamespace(f.env.namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if name := list.Items[i].Name; name != firstClass && name != secondClass {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("namespace %s has no MachineClass to copy; set MACHINECLASS_V1", f.env.namespace)
}

// patchFile is the name of the optional file with a merge patch for both classes.
const patchFile = "machine-class-patch.json"

// patches returns the merge patches for both classes.
func (e environment) patches() (patches [][]byte, err error) {
	if e.virtual {
		return nil, nil
	}
	switch patch, err := os.ReadFile(filepath.Join(root, ".ci", "controllers-test", patchFile)); {
	case err == nil:
		patches = append(patches, patch)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if e.classes.tagsAreStrings {
		tags := []string{e.cluster, "kubernetes-io-cluster-" + e.cluster, "kubernetes-io-role-integration-test"}
		patch, err := json.Marshal(map[string]any{"providerSpec": map[string]any{"tags": tags}})
		if err != nil {
			return nil, err
		}
		patches = append(patches, patch)
	}
	return slices.Clip(patches), nil
}

// secretOf returns the data of a class's Secrets, as drivers get it.
func (f *IntegrationTestFramework) secretOf(class *v1alpha1.MachineClass) map[string][]byte {
	ginkgo.GinkgoHelper()
	data := map[string][]byte{}
	for _, reference := range []*corev1.SecretReference{class.SecretRef, class.CredentialsSecretRef} {
		if reference == nil {
			continue
		}
		secret := &corev1.Secret{}
		expect(f.control.Get(context.Background(), client.ObjectKey{Namespace: reference.Namespace, Name: reference.Name}, secret))
		maps.Copy(data, secret.Data)
	}
	return data
}
