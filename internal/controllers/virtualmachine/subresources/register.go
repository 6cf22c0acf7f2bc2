package subresources

import (
	"context"
	"encoding/base64"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
)

// APIService is the name of the object by which kube-apiserver knows this API.
const APIService = api.Version + "." + api.Group

// owner owns what is written here.
const owner = "millwright-vm-controller"

// Register has kube-apiserver send requests for this API to a port of a Service, whose server has a certificate
// of the authority, in PEM form. It is idempotent, and writes nothing if that is so already. Errors: the API is
// registered for another Service, which may be that of another installation.
func Register(ctx context.Context, c client.Client, service types.NamespacedName, port int32, authority []byte) error {
	want := map[string]any{
		"group": api.Group, "version": api.Version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
		"caBundle": base64.StdEncoding.EncodeToString(authority),
		"service":  map[string]any{"namespace": service.Namespace, "name": service.Name, "port": int64(port)},
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}}
	object.SetName(APIService)
	err := c.Get(ctx, client.ObjectKeyFromObject(object), object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the registration of the API %s: %w", APIService, err)
	}
	if err == nil {
		if other := serviceOf(object); other != service {
			return fmt.Errorf("the API %s is registered for another service, %s: if that is no other VM controller's, run: kubectl delete apiservice %s", APIService, other, APIService)
		}
		if spec, _, _ := unstructured.NestedMap(object.Object, "spec"); contains(spec, want) {
			return nil
		}
	}
	object.Object = map[string]any{
		"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(),
		"metadata": map[string]any{"name": APIService}, "spec": want,
	}
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("registering the API %s: %w", APIService, err)
	}
	return nil
}

// serviceOf returns the Service to which kube-apiserver sends requests.
func serviceOf(object *unstructured.Unstructured) types.NamespacedName {
	namespace, _, _ := unstructured.NestedString(object.Object, "spec", "service", "namespace")
	name, _, _ := unstructured.NestedString(object.Object, "spec", "service", "name")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// contains reports whether a map has all that another one has.
func contains(has, wanted map[string]any) bool {
	for key, value := range wanted {
		if !equality.Semantic.DeepEqual(has[key], value) {
			return false
		}
	}
	return true
}

// ServerName returns the name under which kube-apiserver knows the server behind a Service.
func ServerName(service types.NamespacedName) string {
	return service.Name + "." + service.Namespace + ".svc"
}
