// Package coretest installs stand-ins for the kinds of Cluster API, for tests that need only
// that they are served.
package coretest

import (
	"context"
	"fmt"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// Install makes an API server serve Machines and Clusters in both versions, with any
// fields and without a status subresource. It may be called again.
func Install(t testing.TB, config *rest.Config) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for kind, plural := range map[string]string{core.MachineKind: "machines", core.ClusterKind: "clusters"} {
		if err := install(t.Context(), c, definition(kind, plural)); err != nil {
			t.Fatalf("installing %s: %v", plural, err)
		}
	}
}

func install(ctx context.Context, c client.Client, crd *apiextensionsv1.CustomResourceDefinition) error {
	if err := c.Create(ctx, crd); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return false, fmt.Errorf("reading: %w", err)
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}

func definition(kind, plural string) *apiextensionsv1.CustomResourceDefinition {
	anything := &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: plural + "." + core.GroupName,
			// The API server asks for a link where a community's group is used.
			Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: core.GroupName,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: core.V1Beta2.Version, Served: true, Storage: true, Schema: anything},
				{Name: core.V1Beta1.Version, Served: true, Schema: anything},
			},
		},
	}
}
