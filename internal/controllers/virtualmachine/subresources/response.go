package subresources

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	api "github.com/millwright-dev/millwright/api/vm/subresources"
)

// discovery returns the discovery document at a path; nil for all other paths. The document is the same for all users
// whom kube-apiserver allows to read it.
func discovery(method, path string) any {
	if method != http.MethodGet {
		return nil
	}
	version := metav1.GroupVersionForDiscovery{GroupVersion: api.Group + "/" + api.Version, Version: api.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: api.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	switch path {
	case "/apis", "/apis/":
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}}
	case "/apis/" + api.Group:
		return group
	case "/apis/" + api.Group + "/" + api.Version:
		return resources()
	}
	return nil
}

// resources lists the subresources, with the verbs that roles use.
func resources() metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: api.Group + "/" + api.Version}
	for _, name := range []string{"console", "log", "migrate", "pause", "portforward", "reset", "screenshot", "vnc"} {
		resource := metav1.APIResource{Name: api.Resource + "/" + name, Namespaced: true, Kind: "VirtualMachine", Group: "vm.metropolis.monogon.dev", Version: "v1alpha1"}
		for _, operation := range operations() {
			if operation.subresource == name {
				resource.Verbs = append(resource.Verbs, operation.verb)
			}
		}
		list.APIResources = append(list.APIResources, resource)
	}
	return list
}

// writeError writes an error as the response.
func writeError(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if details := status.Details; details != nil && details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(details.RetryAfterSeconds)))
	}
	writeJSON(w, int(status.Code), status)
}

// writeJSON writes a document as the response.
func writeJSON(w http.ResponseWriter, code int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache, private")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(document) // an error means that the client is gone
}

// writeSuccess writes the response to a request that succeeded.
func writeSuccess(w http.ResponseWriter, message string) {
	writeJSON(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusOK, Message: message,
	})
}

// groupResource returns the resource that errors refer to.
func groupResource(subresource string) schema.GroupResource {
	return schema.GroupResource{Group: api.Group, Resource: api.Resource + "/" + subresource}
}
