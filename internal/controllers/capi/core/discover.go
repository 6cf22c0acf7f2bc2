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
// where its contract is the newest that Cluster API knows.
var (
	V1Beta2 = schema.GroupVersion{Group: GroupName, Version: "v1beta2"}
	V1Beta1 = schema.GroupVersion{Group: GroupName, Version: "v1beta1"}
)

// MissingError says what a cluster does not serve.
type MissingError struct {
	// Version is the group and version, and Resources are what is missing of it; none if
	// all is.
	Version   schema.GroupVersion
	Resources []string
}

// Error implements error.
func (e *MissingError) Error() string {
	if len(e.Resources) == 0 {
		return "the cluster does not serve " + e.Version.String()
	}
	return fmt.Sprintf("the cluster does not serve %s of %s", strings.Join(e.Resources, ", "), e.Version)
}

// Discover finds the version of Cluster API's kinds to read. If there is none, the error
// is a MissingError.
func Discover(cluster discovery.DiscoveryInterface) (schema.GroupVersion, error) {
	var missing error
	for _, version := range []schema.GroupVersion{V1Beta2, V1Beta1} {
		err := Serves(cluster, version, "machines", "clusters")
		if err == nil {
			return version, nil
		}
		if !isMissing(err) {
			return schema.GroupVersion{}, err
		}
		missing = err
	}
	return schema.GroupVersion{}, missing
}

// Serves checks that a cluster serves resources of a version. What is missing is told by a
// MissingError.
func Serves(cluster discovery.DiscoveryInterface, version schema.GroupVersion, resources ...string) error {
	served, err := cluster.ServerResourcesForGroupVersion(version.String())
	if apierrors.IsNotFound(err) {
		return &MissingError{Version: version}
	}
	if err != nil {
		return fmt.Errorf("asking for the resources of %s: %w", version, err)
	}
	missing := slices.DeleteFunc(slices.Clone(resources), func(name string) bool {
		return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	})
	if len(missing) > 0 {
		return &MissingError{Version: version, Resources: missing}
	}
	return nil
}

func isMissing(err error) bool {
	var missing *MissingError
	return errors.As(err, &missing)
}
