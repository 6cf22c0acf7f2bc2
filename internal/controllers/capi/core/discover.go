package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// Versions of Cluster API's kinds that can be read, the preferred one first. Each is read
// where its contract is the newest that Cluster API supports.
var (
	V1Beta2 = schema.GroupVersion{Group: GroupName, Version: "v1beta2"}
	V1Beta1 = schema.GroupVersion{Group: GroupName, Version: "v1beta1"}
)

// ErrNotServed is the error about a version or resource that the cluster does not serve.
var ErrNotServed = errors.New("the cluster does not serve")

// Discover returns the version of Cluster API's kinds to read, or ErrNotServed.
func Discover(cluster discovery.DiscoveryInterface) (schema.GroupVersion, error) {
	err := Serves(cluster, V1Beta2, "machines", "clusters")
	if err == nil {
		return V1Beta2, nil
	}
	if errors.Is(err, ErrNotServed) {
		err = Serves(cluster, V1Beta1, "machines", "clusters")
	}
	if err != nil {
		return schema.GroupVersion{}, err
	}
	return V1Beta1, nil
}

// Serves returns ErrNotServed if the cluster does not serve the resources of a version.
func Serves(cluster discovery.DiscoveryInterface, version schema.GroupVersion, resources ...string) error {
	served, err := cluster.ServerResourcesForGroupVersion(version.String())
	if apierrors.IsNotFound(err) {
		served, err = &metav1.APIResourceList{}, nil
	}
	if err != nil {
		return fmt.Errorf("discovering the resources of %s: %w", version, err)
	}
	missing := slices.DeleteFunc(slices.Clone(resources), func(name string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	})
	if len(missing) > 0 {
		return fmt.Errorf("%w %s of %s", ErrNotServed, strings.Join(missing, ", "), version)
	}
	return nil
}
