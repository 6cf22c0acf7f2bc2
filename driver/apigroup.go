package driver

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AnnotationAPIGroup is on the Machine and the MachineClass of a request that was made for an
// object of another API group than machine.sapcloud.io. Its value is that group. Objects of two
// API groups may have the same namespace and name, so a driver SHOULD make the group part of
// what identifies a VM, and list only VMs of the class's own group; see [APIGroupSeparator]. If a
// driver does not, two such machines must not share the tags of one cluster: the later one never
// gets a VM.
const AnnotationAPIGroup = "driver.millwright.dev/api-group"

// APIGroupClusterAPI is the value of AnnotationAPIGroup for machines of Cluster API.
const APIGroupClusterAPI = "infrastructure.millwright.dev"

// APIGroup returns the API group for whose object a request was made, from its Machine or
// MachineClass. Empty means machine.sapcloud.io.
func APIGroup(object metav1.Object) string {
	return object.GetAnnotations()[AnnotationAPIGroup]
}

// APIGroupSeparator is implemented by drivers that keep the VMs of API groups apart, as
// AnnotationAPIGroup asks for. With a driver that does not implement it, no VM counts as an
// orphan while objects of another API group may not be read.
type APIGroupSeparator interface {
	// SeparatesAPIGroups reports whether the driver does; a decorator answers for the driver
	// that it decorates.
	SeparatesAPIGroups() bool
}

// SeparatesAPIGroups reports whether a driver keeps the VMs of API groups apart.
func SeparatesAPIGroups(d Driver) bool {
	separator, ok := d.(APIGroupSeparator)
	return ok && separator.SeparatesAPIGroups()
}
