package driver

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AnnotationFace is on the Machine and the MachineClass of requests behind which stands
// another API than machine.sapcloud.io. Its value names that API. Machines of two APIs
// may have the same namespace and name, so a driver SHOULD make the value part of what it
// knows its VMs by, and list only VMs of the class's own. Where drivers do not, two such
// machines must not share the tags of one cluster: the later one never gets a VM.
const AnnotationFace = "driver.millwright.dev/face"

// FaceClusterAPI is the value of AnnotationFace for Cluster API.
const FaceClusterAPI = "capi"

// Face names the API that stands behind the Machine or MachineClass of a request; empty
// for machine.sapcloud.io.
func Face(object metav1.Object) string {
	return object.GetAnnotations()[AnnotationFace]
}
