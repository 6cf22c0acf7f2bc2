package subresources

import (
	"context"
	"encoding/base64"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// APIService is the name of the object by which kube-apiserver knows this API.
const APIService = Version + "." + Group

// Register has kube-apiserver send requests for this API to a port of a Service, whose server has a certificate
// of the authority, in PEM form. It is idempotent.
func Register(ctx context.Context, c client.Client, service types.NamespacedName, port int, authority []byte) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": APIService},
		"spec": map[string]any{
			"group": Group, "version": Version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
			"caBundle": base64.StdEncoding.EncodeToString(authority),
			"service":  map[string]any{"namespace": service.Namespace, "name": service.Name, "port": int64(port)},
		},
	}}
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("millwright-vm-controller"), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("registering the API %s: %w", APIService, err)
	}
	return nil
}

// ServerName returns the name under which kube-apiserver knows the server behind a Service.
func ServerName(service types.NamespacedName) string {
	return service.Name + "." + service.Namespace + ".svc"
}
