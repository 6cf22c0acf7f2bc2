package local

import (
	"context"
	"fmt"
	"io/fs"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// InstallCRDs applies the CustomResourceDefinitions of a file system, one to a file, and
// waits until the API server serves them. It may be repeated, and changes then only what
// differs.
func InstallCRDs(ctx context.Context, config *rest.Config, crds fs.FS) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	paths, err := fs.Glob(crds, "*.yaml")
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	for _, path := range paths {
		if err := installCRD(ctx, c, crds, path); err != nil {
			return fmt.Errorf("installing the CRD %s: %w", path, err)
		}
	}
	return nil
}

func installCRD(ctx context.Context, c client.Client, crds fs.FS, path string) error {
	text, err := fs.ReadFile(crds, path)
	if err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		return fmt.Errorf("decoding it: %w", err)
	}
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(crd), client.FieldOwner("millwright"), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying it: %w", err)
	}
	served := func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd)
		return err == nil && established(crd), err
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, served)
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, ok := condition.(map[string]any)
		if ok && fields["type"] == "Established" && fields["status"] == "True" {
			return true
		}
	}
	return false
}
