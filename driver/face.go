package driver

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AnnotationFace is on the Machine and the MachineClass of requests behind which stands
// another API than machine.sapcloud.io. Its value names that API. Machines of two APIs
// may have the same namespace and name, so a driver SHOULD make the value part of what it
// knows its VMs by, and list only VMs of the class's own; see FaceTeller. Where a driver does
// not, two such machines must not share the tags of one cluster: the later one never gets a
// VM.
const AnnotationFace = "driver.millwright.dev/face"

// FaceClusterAPI is the value of AnnotationFace for Cluster API.
const FaceClusterAPI = "capi"

// Face names the API that stands behind the Machine or MachineClass of a request; empty
// for machine.sapcloud.io.
func Face(object metav1.Object) string {
	return object.GetAnnotations()[AnnotationFace]
}

// FaceTeller is implemented by drivers that keep the VMs of faces apart, as AnnotationFace
// asks for. With others, no VM counts as nobody's while objects of another face may not be
// read.
type FaceTeller interface {
	// TellsFaces tells whether the driver does; a decorator answers for what it decorates.
	TellsFaces() bool
}

// TellsFaces tells whether a driver keeps the VMs of faces apart.
func TellsFaces(d Driver) bool {
	teller, ok := d.(FaceTeller)
	return ok && teller.TellsFaces()
}
