package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// InstallCRDs applies the CustomResourceDefinitions of a file system, one to a file, and
// waits until the API server tells in discovery that it serves them. It may be repeated,
// and changes then only what differs.
func InstallCRDs(ctx context.Context, config *rest.Config, crds fs.FS) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	paths, err := fs.Glob(crds, "*.yaml")
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	var applied []*apiextensionsv1.CustomResourceDefinition
	for _, path := range paths {
		crd, err := applyCRD(ctx, c, crds, path)
		if err != nil {
			return fmt.Errorf("installing the CRD %s: %w", path, err)
		}
		applied = append(applied, crd)
	}
	for _, crd := range applied {
		if err := awaitServed(ctx, discover, crd); err != nil {
			return fmt.Errorf("waiting for %s to be served: %w", crd.Name, err)
		}
	}
	return nil
}

func applyCRD(ctx context.Context, c client.Client, crds fs.FS, path string) (*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := fs.ReadFile(crds, path)
	if err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, crd); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("millwright"), client.ForceOwnership)
	if err != nil {
		return nil, fmt.Errorf("applying it: %w", err)
	}
	return crd, nil
}

// Apply applies all objects of the YAML files that match a pattern, file by file, and may
// be repeated. Objects of kinds with namespaces that name none go into the given one.
func Apply(ctx context.Context, config *rest.Config, manifests fs.FS, pattern, namespace string) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("applying manifests: %w", err)
	}
	paths, err := fs.Glob(manifests, pattern)
	if err != nil || len(paths) == 0 {
		return errors.Join(fmt.Errorf("there are no manifests %s", pattern), err)
	}
	for _, path := range paths {
		text, err := fs.ReadFile(manifests, path)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if err := ApplyText(ctx, c, text, namespace); err != nil {
			return fmt.Errorf("applying %s: %w", path, err)
		}
	}
	return nil
}

// ApplyText is Apply for the objects of one text.
func ApplyText(ctx context.Context, c client.Client, text []byte, namespace string) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("splitting it: %w", err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return fmt.Errorf("decoding it: %w", err)
		}
		if len(object.Object) == 0 {
			continue // only comments
		}
		if err := applyObject(ctx, c, object, namespace); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func applyObject(ctx context.Context, c client.Client, object *unstructured.Unstructured, namespace string) error {
	namespaced, err := c.IsObjectNamespaced(object)
	if err != nil {
		return err
	}
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace(namespace)
	}
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("millwright"), client.ForceOwnership)
}

// awaitServed waits until every served version of the CRD is in discovery.
func awaitServed(ctx context.Context, discover discovery.DiscoveryInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		for _, version := range crd.Spec.Versions {
			if !version.Served {
				continue
			}
			group := metav1.GroupVersion{Group: crd.Spec.Group, Version: version.Name}
			resources, err := discover.ServerResourcesForGroupVersion(group.String())
			if err != nil {
				return false, client.IgnoreNotFound(err)
			}
			if !lists(resources, crd.Spec.Names.Plural) {
				return false, nil
			}
		}
		return true, nil
	})
}

func lists(resources *metav1.APIResourceList, plural string) bool {
	for _, resource := range resources.APIResources {
		if resource.Name == plural {
			return true
		}
	}
	return false
}
