package driver

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AnnotationAPIGroup is an annotation of the Machine and the MachineClass of a request. Its value
// is the API group of the object that the VM is for; the default is machine.sapcloud.io. Objects of
// two API groups may have the same namespace and name, so a driver SHOULD make the group part of
// the identity of a VM, and list only VMs of the class's group; see [APIGroupSeparator]. Otherwise
// machines of two API groups must have different tags: of two with the same name, the later one
// never gets a VM.
const AnnotationAPIGroup = "driver.millwright.dev/api-group"

// APIGroupClusterAPI is the value of AnnotationAPIGroup for a MillwrightMachine of Cluster API.
const APIGroupClusterAPI = "infrastructure.millwright.dev"

// APIGroup returns the value of AnnotationAPIGroup of a request's Machine or MachineClass. Empty
// means machine.sapcloud.io.
func APIGroup(object metav1.Object) string {
	return object.GetAnnotations()[AnnotationAPIGroup]
}

// APIGroupSeparator is implemented by drivers that keep the VMs of API groups apart, see
// [AnnotationAPIGroup]. With other drivers, orphaned VMs are not deleted while the objects of any
// API group cannot be read.
type APIGroupSeparator interface {
	// SeparatesAPIGroups reports whether the driver does so. A decorator returns the answer of
	// the driver that it wraps.
	SeparatesAPIGroups() bool
}

// SeparatesAPIGroups reports whether a driver keeps the VMs of API groups apart.
func SeparatesAPIGroups(d Driver) bool {
	separator, ok := d.(APIGroupSeparator)
	return ok && separator.SeparatesAPIGroups()
}
