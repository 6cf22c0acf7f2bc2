package capicore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Convert makes the API server convert objects of the kinds in a directory between their versions by a manager's
// webhooks, as the components of a release do.
func Convert(ctx context.Context, c client.Client, crds string, port int, caBundle []byte) error {
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		if len(crd.Spec.Versions) == 1 {
			continue
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{
					URL: ptr.To(fmt.Sprintf("https://127.0.0.1:%d/convert", port)), CABundle: caBundle,
				},
				ConversionReviewVersions: []string{"v1"},
			},
		}}})
		if err != nil {
			return err
		}
		named := &unstructured.Unstructured{}
		named.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		named.SetName(crd.Name)
		if err := c.Patch(ctx, named, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("setting the conversion of %s: %w", crd.Name, err)
		}
	}
	return nil
}

// Registration describes how to register the webhooks of a manager.
type Registration struct {
	// Name is the name of the configurations.
	Name string
	// Port is the port of the webhooks on 127.0.0.1.
	Port int
	// CABundle verifies their serving certificate.
	CABundle []byte
	// Namespace limits the webhooks to one namespace. If empty, they apply to all.
	Namespace string
}

func (r Registration) reach(config *admissionv1.WebhookClientConfig) {
	config.URL = ptr.To(fmt.Sprintf("https://127.0.0.1:%d%s", r.Port, *config.Service.Path))
	config.Service, config.CABundle = nil, r.CABundle
}

func (r Registration) selector() *metav1.LabelSelector {
	if r.Namespace == "" {
		return nil
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace}}
}

// Register registers the webhooks of a manifest as shipped, except for their addresses.
func Register(ctx context.Context, c client.Client, path string, r Registration) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
		if err := errors.Join(yaml.Unmarshal([]byte(document), mutating), yaml.Unmarshal([]byte(document), validating)); err != nil {
			return err
		}
		if mutating.Kind == "MutatingWebhookConfiguration" {
			mutating.Name = r.Name
			for i := range mutating.Webhooks {
				r.reach(&mutating.Webhooks[i].ClientConfig)
				mutating.Webhooks[i].NamespaceSelector = r.selector()
			}
			if err := c.Create(ctx, mutating); err != nil {
				return err
			}
			continue
		}
		validating.Name = r.Name
		for i := range validating.Webhooks {
			r.reach(&validating.Webhooks[i].ClientConfig)
			validating.Webhooks[i].NamespaceSelector = r.selector()
		}
		if err := c.Create(ctx, validating); err != nil {
			return err
		}
	}
	return nil
}
