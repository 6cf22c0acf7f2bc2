package controlplane

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// InstallCRDs applies the CustomResourceDefinitions in the YAML files of a file system, and waits until they
// appear in discovery. It is idempotent.
func InstallCRDs(ctx context.Context, config *rest.Config, crds fs.FS) error {
	applied, err := applyFiles(ctx, config, crds, "*.yaml", "")
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("installing the CRDs: %w", err)
	}
	for _, object := range applied {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, crd); err != nil {
			return fmt.Errorf("decoding the CRD %s: %w", object.GetName(), err)
		}
		if err := awaitServed(ctx, discover, crd); err != nil {
			return fmt.Errorf("waiting until %s is served: %w", crd.Name, err)
		}
	}
	return nil
}

// awaitServed waits until every served version of the CRD is in discovery. Failed requests are retried.
func awaitServed(ctx context.Context, discover discovery.DiscoveryInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 5*time.Minute, true, func(context.Context) (bool, error) {
		for _, version := range crd.Spec.Versions {
			if !version.Served {
				continue
			}
			resource := schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}
			enabled, err := discovery.IsResourceEnabled(discover, resource)
			if last = err; err != nil || !enabled {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w, after %w", err, last)
	}
	return err
}

// Apply applies all objects of the YAML files that match a pattern, file by file. It is idempotent. Namespaced
// objects without a namespace get the given one.
func Apply(ctx context.Context, config *rest.Config, manifests fs.FS, pattern, namespace string) error {
	_, err := applyFiles(ctx, config, manifests, pattern, namespace)
	return err
}

func applyFiles(ctx context.Context, config *rest.Config, manifests fs.FS, pattern, namespace string) ([]*unstructured.Unstructured, error) {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("applying manifests: %w", err)
	}
	paths, err := fs.Glob(manifests, pattern)
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(fmt.Errorf("no manifests match %s", pattern), err)
	}
	var all []*unstructured.Unstructured
	for _, path := range paths {
		text, err := fs.ReadFile(manifests, path)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		objects, err := applyText(ctx, c, text, namespace)
		if err != nil {
			return nil, fmt.Errorf("applying %s: %w", path, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

// ApplyText is like Apply for the YAML documents in a text.
func ApplyText(ctx context.Context, c client.Client, text []byte, namespace string) error {
	_, err := applyText(ctx, c, text, namespace)
	return err
}

func applyText(ctx context.Context, c client.Client, text []byte, namespace string) ([]*unstructured.Unstructured, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var applied []*unstructured.Unstructured
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return applied, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading a YAML document: %w", err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("decoding a YAML document: %w", err)
		}
		if len(object.Object) == 0 {
			continue // only comments
		}
		if err := applyObject(ctx, c, object, namespace); err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		applied = append(applied, object)
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

//go:embed joining.yaml
var joining []byte

// AllowJoining lets nodes request and renew kubelet certificates by bootstrap token, as with kubeadm; approving
// the first one is left to others. The ConfigMap kube-public/cluster-info has the certificate authority, which
// the holder of a token can verify. It is idempotent, also if called concurrently.
func (cp *ControlPlane) AllowJoining(ctx context.Context) error {
	c, err := client.New(cp.RESTConfig(), client.Options{})
	if err != nil {
		return fmt.Errorf("letting nodes join: %w", err)
	}
	if err := ApplyText(ctx, c, joining, ""); err != nil {
		return fmt.Errorf("letting nodes join: %w", err)
	}
	if err := forbidBlanketApproval(ctx, c); err != nil {
		return err
	}
	info := clientcmdapi.NewConfig()
	info.Clusters[""] = &clientcmdapi.Cluster{Server: cp.URL(), CertificateAuthorityData: cp.CAData()}
	text, err := clientcmd.Write(*info)
	if err != nil {
		return fmt.Errorf("encoding cluster-info: %w", err)
	}
	// The other keys are signatures of the bootstrap signer.
	published := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": metav1.NamespacePublic, "name": "cluster-info"},
		"data":     map[string]any{"kubeconfig": string(text)},
	}}
	if err := applyObject(ctx, c, published, ""); err != nil {
		return fmt.Errorf("publishing cluster-info: %w", err)
	}
	return nil
}

// forbidBlanketApproval deletes a binding of earlier versions that a directory may still have, with which any
// token was approved as any node.
func forbidBlanketApproval(ctx context.Context, c client.Client) error {
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "millwright:approve-node-certificates"}}
	if err := c.Delete(ctx, binding); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the blanket approval of nodes: %w", err)
	}
	return nil
}
