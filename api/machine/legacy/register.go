package legacy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of this package.
const GroupName = "machine.sapcloud.io"

// The kinds of this package.
const (
	AWS       = "AWSMachineClass"
	Azure     = "AzureMachineClass"
	GCP       = "GCPMachineClass"
	OpenStack = "OpenStackMachineClass"
	Alicloud  = "AlicloudMachineClass"
	Packet    = "PacketMachineClass"
)

const (
	// AnnotationMigrated marks an object of this package from which a MachineClass of the same name
	// was made. Its value is not read.
	AnnotationMigrated = "machine.sapcloud.io/migrated"
	// AnnotationMigratedFrom is an annotation of a MachineClass: the kind of the object that it was
	// made from.
	AnnotationMigratedFrom = "machine.millwright.dev/migrated-from"
	// AnnotationProvider is an annotation of an object of this package: the provider whose driver is to
	// migrate it. Without it, that is the driver whose own the kind is.
	AnnotationProvider = "machine.millwright.dev/provider"
)

var (
	// SchemeGroupVersion is the group and version of this package's kinds.
	SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
	// SchemeBuilder collects what AddToScheme adds.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme adds the kinds of this package to a scheme, which may have MachineClass, too.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Kinds returns the kinds of this package, sorted.
func Kinds() []string {
	return []string{AWS, Alicloud, Azure, GCP, OpenStack, Packet}
}

// Resource returns the name of a kind in URLs and roles; empty if the kind is none of this package's.
func Resource(kind string) string {
	return map[string]string{
		AWS: "awsmachineclasses", Alicloud: "alicloudmachineclasses", Azure: "azuremachineclasses",
		GCP: "gcpmachineclasses", OpenStack: "openstackmachineclasses", Packet: "packetmachineclasses",
	}[kind]
}

// New returns an empty object of a kind, nil if the kind is none of this package's.
func New(kind string) runtime.Object {
	switch kind {
	case AWS:
		return &AWSMachineClass{}
	case Alicloud:
		return &AlicloudMachineClass{}
	case Azure:
		return &AzureMachineClass{}
	case GCP:
		return &GCPMachineClass{}
	case OpenStack:
		return &OpenStackMachineClass{}
	case Packet:
		return &PacketMachineClass{}
	default:
		return nil
	}
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&AWSMachineClass{}, &AWSMachineClassList{},
		&AlicloudMachineClass{}, &AlicloudMachineClassList{},
		&AzureMachineClass{}, &AzureMachineClassList{},
		&GCPMachineClass{}, &GCPMachineClassList{},
		&OpenStackMachineClass{}, &OpenStackMachineClassList{},
		&PacketMachineClass{}, &PacketMachineClassList{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
