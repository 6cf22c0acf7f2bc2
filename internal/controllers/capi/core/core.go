// Package core reads Cluster API's own kinds.
//
// Its Machine and Cluster have only the fields that the controllers read. The JSON names of these fields are the same
// in v1beta1 and v1beta2 of cluster.x-k8s.io. Objects of these types must not be written.
//
// +kubebuilder:object:generate=true
package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// GroupName is the API group of Cluster API.
const GroupName = "cluster.x-k8s.io"

// Kinds of Cluster API.
const (
	MachineKind    = "Machine"
	MachineSetKind = "MachineSet"
	ClusterKind    = "Cluster"
)

// Labels and annotations of Cluster API.
const (
	// LabelCluster is the name of the Cluster that an object belongs to.
	LabelCluster = "cluster.x-k8s.io/cluster-name"
	// LabelControlPlane is on the objects of control plane machines.
	LabelControlPlane = "cluster.x-k8s.io/control-plane"
	// LabelWatchFilter selects the manager that reconciles an object.
	LabelWatchFilter = "cluster.x-k8s.io/watch-filter"
	// AnnotationPaused pauses one object, regardless of its value.
	AnnotationPaused = "cluster.x-k8s.io/paused"
	// KeyManagedBy is an annotation or a label of infrastructure clusters that another system manages; see
	// ExternallyManaged.
	KeyManagedBy = "cluster.x-k8s.io/managed-by"
	// AnnotationClonedFrom is the name of the template from which an object was created.
	AnnotationClonedFrom = "cluster.x-k8s.io/cloned-from-name"
	// AnnotationMoved is set on objects that clusterctl deletes after it has moved them to another cluster.
	AnnotationMoved = "clusterctl.cluster.x-k8s.io/delete-for-move"
	// AnnotationDryRun is set on objects in dry runs of the topology controller.
	AnnotationDryRun = "topology.cluster.x-k8s.io/dry-run"
	// AnnotationUpdateInProgress is set on the objects of a machine that Cluster API updates in place. It is set by
	// the request that changes the spec, and removed when the update is complete.
	AnnotationUpdateInProgress = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"
)

// Keys of a Secret with bootstrap data.
const (
	// BootstrapData is the key of the data.
	BootstrapData = "value"
	// BootstrapFormat is the key of the data's format: cloud-config (the default) or ignition.
	BootstrapFormat = "format"
)

// Machine has the fields of a Cluster API Machine that the controllers read.
//
// +kubebuilder:object:root=true
type Machine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              MachineSpec   `json:"spec"`
	Status            MachineStatus `json:"status"`
}

// MachineSpec has the fields of a Machine's spec that the controllers read.
type MachineSpec struct {
	ClusterName       string    `json:"clusterName"`
	Bootstrap         Bootstrap `json:"bootstrap"`
	InfrastructureRef Reference `json:"infrastructureRef"`
	// FailureDomain is the failure domain of the machine; empty for any.
	FailureDomain string `json:"failureDomain,omitempty"`
}

// Bootstrap refers to the bootstrap data of a machine.
type Bootstrap struct {
	// DataSecretName is the name of the Secret; nil while there is none.
	DataSecretName *string `json:"dataSecretName,omitempty"`
}

// Reference refers to an object of any kind.
type Reference struct {
	// APIVersion is the group and version, as in v1beta1. APIGroup is the group, as in v1beta2.
	APIVersion string `json:"apiVersion,omitempty"`
	APIGroup   string `json:"apiGroup,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
}

// Is reports whether the reference is to an object of a kind.
func (r Reference) Is(kind schema.GroupKind) bool {
	group := r.APIGroup
	if group == "" {
		group, _, _ = strings.Cut(r.APIVersion, "/")
	}
	return r.Kind == kind.Kind && group == kind.Group
}

// Requests returns a request for the object in a namespace; none if the reference is to another kind.
func (r Reference) Requests(namespace string, kind schema.GroupKind) []reconcile.Request {
	if !r.Is(kind) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: r.Name}}}
}

// MachineStatus has the fields of a Machine's status that the controllers read.
type MachineStatus struct {
	// NodeRef refers to the machine's node; nil while there is none.
	NodeRef    *Reference  `json:"nodeRef,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition has the fields of a condition that both API versions have.
type Condition struct {
	Type   string                 `json:"type"`
	Status metav1.ConditionStatus `json:"status"`
}

// HasNode reports whether the machine has a node.
func (m *Machine) HasNode() bool { return m.Status.NodeRef != nil && m.Status.NodeRef.Name != "" }

// Healthy reports whether the machine's condition NodeHealthy is true.
func (m *Machine) Healthy() bool {
	return slices.Contains(m.Status.Conditions, Condition{Type: "NodeHealthy", Status: metav1.ConditionTrue})
}

// ControlPlane reports whether the machine belongs to a control plane.
func (m *Machine) ControlPlane() bool { return metav1.HasLabel(m.ObjectMeta, LabelControlPlane) }

// MachineList is a list of Machines.
//
// +kubebuilder:object:root=true
type MachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Machine `json:"items"`
}

// Cluster has the fields of a Cluster that the controllers read.
//
// +kubebuilder:object:root=true
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ClusterSpec   `json:"spec"`
	Status            ClusterStatus `json:"status"`
}

// ClusterSpec has the fields of a Cluster's spec that the controllers read.
type ClusterSpec struct {
	Paused               bool      `json:"paused,omitempty"`
	ControlPlaneEndpoint Endpoint  `json:"controlPlaneEndpoint"`
	InfrastructureRef    Reference `json:"infrastructureRef"`
}

// Endpoint is the address of the API servers. The zero value means that it is unknown.
type Endpoint struct {
	Host string `json:"host,omitempty"`
	Port int32  `json:"port,omitempty"`
}

// Known reports whether host and port are set.
func (e Endpoint) Known() bool { return e.Host != "" && e.Port != 0 }

// ClusterStatus has the fields of a Cluster's status that the controllers read.
type ClusterStatus struct {
	// InfrastructureReady is the field of v1beta1, and Initialization is that of v1beta2.
	InfrastructureReady bool                  `json:"infrastructureReady,omitempty"`
	Initialization      ClusterInitialization `json:"initialization"`
}

// ClusterInitialization is the progress of a Cluster's first provisioning, in v1beta2.
type ClusterInitialization struct {
	InfrastructureProvisioned bool `json:"infrastructureProvisioned,omitempty"`
}

// HasInfrastructure reports whether machines may be created for the Cluster.
func (c *Cluster) HasInfrastructure() bool {
	return c.Status.InfrastructureReady || c.Status.Initialization.InfrastructureProvisioned
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Cluster `json:"items"`
}

// AddToScheme adds the kinds to a scheme under an API version.
func AddToScheme(scheme *runtime.Scheme, version schema.GroupVersion) {
	scheme.AddKnownTypes(version, &Machine{}, &MachineList{}, &Cluster{}, &ClusterList{})
	metav1.AddToGroupVersion(scheme, version)
}

// Owner returns the name of the owner of an object that has a kind of Cluster API; "" if there is none.
func Owner(object metav1.Object, kind string) string {
	for _, ref := range object.GetOwnerReferences() {
		group, _, _ := strings.Cut(ref.APIVersion, "/")
		if ref.Kind == kind && group == GroupName {
			return ref.Name
		}
	}
	return ""
}

// ClusterName returns the name of the Cluster in an object's label or owner references; "" if there is none.
func ClusterName(object metav1.Object) string {
	return cmp.Or(object.GetLabels()[LabelCluster], Owner(object, ClusterKind))
}

// FindCluster returns a Cluster; nil if the name is empty or the Cluster does not exist.
func FindCluster(ctx context.Context, reader client.Reader, namespace, name string) (*Cluster, error) {
	if name == "" {
		return nil, nil
	}
	cluster := &Cluster{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, cluster)
	switch {
	case err == nil:
		return cluster, nil
	case client.IgnoreNotFound(err) == nil:
		return nil, nil
	default:
		return nil, fmt.Errorf("reading Cluster %s: %w", name, err)
	}
}

// Requests lists objects from a cache, and returns a request for each object that keep selects. If keep is nil, all
// are selected.
func Requests(ctx context.Context, cache client.Reader, list client.ObjectList, keep func(client.Object) bool, options ...client.ListOption) []reconcile.Request {
	if err := cache.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil // the cache has stopped
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(item runtime.Object) error { // this function returns no errors
		if object := item.(client.Object); keep == nil || keep(object) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
		}
		return nil
	})
	return requests
}

// Paused reports whether an object or its Cluster is paused. The Cluster is nil if there is none.
func Paused(cluster *Cluster, object metav1.Object) bool {
	_, paused := object.GetAnnotations()[AnnotationPaused]
	return paused || cluster != nil && cluster.Spec.Paused
}

// Updating reports whether Cluster API is updating the machine of an object in place.
func Updating(object metav1.Object) bool {
	_, updating := object.GetAnnotations()[AnnotationUpdateInProgress]
	return updating
}

// Moved reports whether an object is being deleted because clusterctl has moved it to another cluster.
func Moved(object metav1.Object) bool {
	_, moved := object.GetAnnotations()[AnnotationMoved]
	return moved
}

// Watched reports whether a manager with a filter reconciles an object. An empty filter matches all objects.
func Watched(filter string, object metav1.Object) bool {
	return filter == "" || object.GetLabels()[LabelWatchFilter] == filter
}

// Versions of Cluster API's kinds that can be read, the preferred one first. Each one is used with the versions of
// Cluster API whose newest contract it is.
var (
	V1Beta2 = schema.GroupVersion{Group: GroupName, Version: "v1beta2"}
	V1Beta1 = schema.GroupVersion{Group: GroupName, Version: "v1beta1"}
)

// ErrNotServed means that the cluster does not serve an API version or resource.
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

// Serves returns ErrNotServed if the cluster does not serve resources of an API version.
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

// ExternallyManaged reports whether another system manages an infrastructure cluster. Cluster API's documentation of
// its contract requires a label for this, but its code reads an annotation. Both are accepted, with any value.
func ExternallyManaged(infra metav1.Object) bool {
	_, annotation := infra.GetAnnotations()[KeyManagedBy]
	_, label := infra.GetLabels()[KeyManagedBy]
	return annotation || label
}
