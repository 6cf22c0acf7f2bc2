// Package core reads Cluster API's own kinds.
//
// Its Machine and Cluster hold only the fields that are read, under the JSON names that
// they have in API versions v1beta1 and v1beta2 of cluster.x-k8s.io: one type fits both.
// So they are never written.
package core

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of Cluster API.
const GroupName = "cluster.x-k8s.io"

// Kinds of Cluster API.
const (
	MachineKind = "Machine"
	ClusterKind = "Cluster"
)

// Labels and annotations of Cluster API.
const (
	// LabelCluster names the Cluster that an object belongs to.
	LabelCluster = "cluster.x-k8s.io/cluster-name"
	// LabelControlPlane is on what belongs to a control plane machine.
	LabelControlPlane = "cluster.x-k8s.io/control-plane"
	// LabelWatchFilter says which of several managers an object is for.
	LabelWatchFilter = "cluster.x-k8s.io/watch-filter"
	// AnnotationPaused pauses one object, whatever its value.
	AnnotationPaused = "cluster.x-k8s.io/paused"
	// AnnotationManagedBy says that another system looks after a cluster's infrastructure.
	AnnotationManagedBy = "cluster.x-k8s.io/managed-by"
	// AnnotationClonedFrom names the template that an object was made from.
	AnnotationClonedFrom = "cluster.x-k8s.io/cloned-from-name"
	// AnnotationMoved is on what clusterctl deletes because it lives elsewhere now.
	AnnotationMoved = "clusterctl.cluster.x-k8s.io/delete-for-move"
	// AnnotationDryRun is on what the topology controller only tries out.
	AnnotationDryRun = "topology.cluster.x-k8s.io/dry-run"
)

// Keys of a Secret with bootstrap data.
const (
	// BootstrapData holds the data.
	BootstrapData = "value"
	// BootstrapFormat says what it is: cloud-config, if nothing is said, or ignition.
	BootstrapFormat = "format"
)

// Machine is what is read of a Machine.
type Machine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// Spec is the user's.
	Spec MachineSpec `json:"spec"`
	// Status is Cluster API's.
	Status MachineStatus `json:"status"`
}

// MachineSpec is what is read of a Machine's spec.
type MachineSpec struct {
	// ClusterName names the Cluster.
	ClusterName string `json:"clusterName"`
	// Bootstrap says how the machine becomes a node.
	Bootstrap Bootstrap `json:"bootstrap"`
	// InfrastructureRef names the infrastructure.
	InfrastructureRef Reference `json:"infrastructureRef"`
	// FailureDomain in which the machine shall be; empty if it does not matter.
	FailureDomain string `json:"failureDomain,omitempty"`
}

// Bootstrap says how a machine becomes a node.
type Bootstrap struct {
	// DataSecretName names the Secret with the bootstrap data; nil before there is one.
	DataSecretName *string `json:"dataSecretName,omitempty"`
}

// Reference names an object of any kind.
type Reference struct {
	// APIVersion is the group and version, in v1beta1; APIGroup the group, in v1beta2.
	APIVersion string `json:"apiVersion,omitempty"`
	APIGroup   string `json:"apiGroup,omitempty"`
	// Kind and Name of the object.
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
}

// Is reports whether the reference is to an object of this kind.
func (r Reference) Is(kind schema.GroupKind) bool {
	group := r.APIGroup
	if group == "" {
		group, _, _ = strings.Cut(r.APIVersion, "/")
	}
	return r.Kind == kind.Kind && group == kind.Group
}

// MachineStatus is what is read of a Machine's status.
type MachineStatus struct {
	// NodeRef names the node that the machine became.
	NodeRef *Reference `json:"nodeRef,omitempty"`
	// Conditions of the machine.
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition is what is read of a condition.
type Condition struct {
	// Type says what it is about.
	Type string `json:"type"`
	// Status reports whether that is so.
	Status metav1.ConditionStatus `json:"status"`
}

// conditionNodeHealthy reports whether the node is ready, and complains of nothing.
const conditionNodeHealthy = "NodeHealthy"

// HasNode reports whether the machine became a node.
func (m *Machine) HasNode() bool { return m.Status.NodeRef != nil && m.Status.NodeRef.Name != "" }

// Healthy reports whether Cluster API says that the machine's node is.
func (m *Machine) Healthy() bool {
	return slices.Contains(m.Status.Conditions, Condition{Type: conditionNodeHealthy, Status: metav1.ConditionTrue})
}

// ControlPlane reports whether the machine is of a control plane.
func (m *Machine) ControlPlane() bool {
	_, marked := m.Labels[LabelControlPlane]
	return marked
}

// MachineList is a list of Machines.
type MachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Machine `json:"items"`
}

// Cluster is what is read of a Cluster.
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// Spec is the user's.
	Spec ClusterSpec `json:"spec"`
	// Status is Cluster API's.
	Status ClusterStatus `json:"status"`
}

// ClusterSpec is what is read of a Cluster's spec.
type ClusterSpec struct {
	// Paused tells that nothing is to be done for the cluster.
	Paused bool `json:"paused,omitempty"`
	// ControlPlaneEndpoint is where the API servers are reached.
	ControlPlaneEndpoint Endpoint `json:"controlPlaneEndpoint"`
	// InfrastructureRef names the infrastructure that the machines share.
	InfrastructureRef Reference `json:"infrastructureRef"`
}

// Endpoint is where API servers are reached.
type Endpoint struct {
	// Host is a name or an address; Port is 0 if there is none.
	Host string `json:"host,omitempty"`
	Port int32  `json:"port,omitempty"`
}

// Known reports whether the endpoint says where.
func (e Endpoint) Known() bool { return e.Host != "" && e.Port != 0 }

// ClusterStatus is what is read of a Cluster's status.
type ClusterStatus struct {
	// InfrastructureReady is contract v1beta1's.
	InfrastructureReady bool `json:"infrastructureReady,omitempty"`
	// Initialization is contract v1beta2's.
	Initialization ClusterInitialization `json:"initialization"`
}

// ClusterInitialization tells how far a Cluster has come for the first time.
type ClusterInitialization struct {
	// InfrastructureProvisioned is v1beta2's InfrastructureReady.
	InfrastructureProvisioned bool `json:"infrastructureProvisioned,omitempty"`
}

// HasInfrastructure reports whether machines may be made for the Cluster.
func (c *Cluster) HasInfrastructure() bool {
	return c.Status.InfrastructureReady || c.Status.Initialization.InfrastructureProvisioned
}

// ClusterList is a list of Clusters.
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Cluster `json:"items"`
}

// AddToScheme adds the kinds to a scheme, under the API version that is read.
func AddToScheme(scheme *runtime.Scheme, version schema.GroupVersion) {
	scheme.AddKnownTypes(version, &Machine{}, &MachineList{}, &Cluster{}, &ClusterList{})
	metav1.AddToGroupVersion(scheme, version)
}

// Owner finds the name of the object's owner of that kind of Cluster API; empty if it has
// none.
func Owner(object metav1.Object, kind string) string {
	for _, ref := range object.GetOwnerReferences() {
		group, _, _ := strings.Cut(ref.APIVersion, "/")
		if ref.Kind == kind && group == GroupName {
			return ref.Name
		}
	}
	return ""
}

// Paused reports whether the object is to be left alone. The Cluster is nil if there is none.
func Paused(cluster *Cluster, object metav1.Object) bool {
	if _, paused := object.GetAnnotations()[AnnotationPaused]; paused {
		return true
	}
	return cluster != nil && cluster.Spec.Paused
}

// Moved reports whether the object is deleted only because it lives elsewhere now.
func Moved(object metav1.Object) bool {
	_, moved := object.GetAnnotations()[AnnotationMoved]
	return moved
}

// Watched reports whether the object is for a manager with this filter. Without a filter,
// all are.
func Watched(filter string, object metav1.Object) bool {
	return filter == "" || object.GetLabels()[LabelWatchFilter] == filter
}

// DeepCopyObject implements runtime.Object.
func (m *Machine) DeepCopyObject() runtime.Object {
	copied := &Machine{TypeMeta: m.TypeMeta, Spec: m.Spec}
	m.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	if name := m.Spec.Bootstrap.DataSecretName; name != nil {
		copied.Spec.Bootstrap.DataSecretName = new(*name)
	}
	if ref := m.Status.NodeRef; ref != nil {
		copied.Status.NodeRef = new(*ref)
	}
	copied.Status.Conditions = slices.Clone(m.Status.Conditions)
	return copied
}

// DeepCopyObject implements runtime.Object.
func (l *MachineList) DeepCopyObject() runtime.Object {
	copied := &MachineList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopyObject().(*Machine))
	}
	return copied
}

// DeepCopyObject implements runtime.Object.
func (c *Cluster) DeepCopyObject() runtime.Object {
	copied := &Cluster{TypeMeta: c.TypeMeta, Spec: c.Spec, Status: c.Status}
	c.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	return copied
}

// DeepCopyObject implements runtime.Object.
func (l *ClusterList) DeepCopyObject() runtime.Object {
	copied := &ClusterList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopyObject().(*Cluster))
	}
	return copied
}
