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

// APIService is the name of the object that registers this API with kube-apiserver.
const APIService = api.Version + "." + api.Group

// owner is the field owner of the fields that Register writes.
const owner = "millwright-vm-controller"

// Register registers this API with kube-apiserver, which then sends requests for it to a port of a Service. The
// certificate of the server behind the Service must be signed by one of the authorities, which are in PEM form. Register
// is idempotent, and writes nothing if the registration is up to date. It returns an error if the API is registered for
// another Service, which may belong to another installation.
func Register(ctx context.Context, c client.Client, service types.NamespacedName, port int32, authorities []byte) error {
	desired := map[string]any{
		"group": api.Group, "version": api.Version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
		"caBundle": base64.StdEncoding.EncodeToString(authorities),
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
			return fmt.Errorf("API %s is already registered for service %s; if that service does not belong to another VM controller, run \"kubectl delete apiservice %s\"", APIService, other, APIService)
		}
		if spec, _, _ := unstructured.NestedMap(object.Object, "spec"); contains(spec, desired) {
			return nil
		}
	}
	object.Object = map[string]any{
		"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(),
		"metadata": map[string]any{"name": APIService}, "spec": desired,
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

// contains reports whether a map has all entries of another one.
func contains(has, desired map[string]any) bool {
	for key, value := range desired {
		if !equality.Semantic.DeepEqual(has[key], value) {
			return false
		}
	}
	return true
}

// ServerName returns the DNS name under which kube-apiserver reaches the server behind a Service.
func ServerName(service types.NamespacedName) string {
	return service.Name + "." + service.Namespace + ".svc"
}
