package vm

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// prefix is the prefix of the driver's labels and annotations.
const prefix = "driver.millwright.dev/"

// Labels of the driver's VirtualMachines, for selectors. A string that is not a valid label value is replaced by
// its hash; see [AnnotationIdentity] for the original.
const (
	// LabelInstallation is Options.Installation.
	LabelInstallation = prefix + "installation"
	// LabelAPIGroup is the API group of the machine: machine.sapcloud.io, or
	// infrastructure.millwright.dev for Cluster API.
	LabelAPIGroup = prefix + "api-group"
	// LabelNamespace is the namespace of the Machine.
	LabelNamespace = prefix + "namespace"
	// LabelMachine is the name of the Machine.
	LabelMachine = prefix + "machine"
	// LabelCluster is NAME in the key of the tag kubernetes.io/cluster/NAME.
	LabelCluster = prefix + "cluster"
	// LabelRole is ROLE in the key of the tag kubernetes.io/role/ROLE.
	LabelRole = prefix + "role"
)

const (
	// AnnotationIdentity is a JSON object with the installation, API group, namespace and name of the machine of a
	// VirtualMachine and its Secret, and with the version of this format. The driver does not change objects without
	// this annotation.
	AnnotationIdentity = prefix + "identity"
	// AnnotationTags is a JSON object with the tags of the class. Most of them are not valid labels.
	AnnotationTags = prefix + "tags"
)

// apiGroupOf returns the API group of a class's machines. It is part of names, so unknown groups count as
// machine.sapcloud.io.
func apiGroupOf(class *v1alpha1.MachineClass) string {
	if driver.APIGroup(class) == driver.APIGroupClusterAPI {
		return driver.APIGroupClusterAPI
	}
	return v1alpha1.GroupName
}

// identity identifies the machine of a VM. It is unique among existing machines, and does not change if a machine
// is restored from a backup.
type identity struct {
	Installation string `json:"installation"`
	APIGroup     string `json:"apiGroup"`
	Namespace    string `json:"namespace"`
	Machine      string `json:"machine"`
}

// identityVersion is the version of the stored identities. Version 1 had no field for the version. In version 0, the
// API group was called face and had other values, which are part of the name.
const identityVersion = 2

// storedIdentity is the content of [AnnotationIdentity].
type storedIdentity struct {
	identity
	Version int `json:"version"`
	// Face is set only in version 0.
	Face string `json:"face,omitempty"`
}

// faces are the values of the API groups in version 0.
var faces = map[string]string{v1alpha1.GroupName: "machine", driver.APIGroupClusterAPI: "capi"}

const (
	longestName = 63 // limit of label values and DNS labels
	hashLength  = 12 // 60 bits
)

// name returns the name of the VirtualMachine and its Secret: as much of the machine's name as fits, followed by a
// hash of the identity.
func (i identity) name() string { return i.nameIn(i.APIGroup) }

// earlierName returns the name of a VirtualMachine whose identity has version 0.
func (i identity) earlierName() string { return i.nameIn(faces[i.APIGroup]) }

// nameIn returns the name with a value that stands for the API group.
func (i identity) nameIn(group string) string {
	hash := hashOf(i.Installation, group, i.Namespace, i.Machine)
	readable := strings.ReplaceAll(i.Machine, ".", "-")
	readable = readable[:min(len(readable), longestName-hashLength-1)]
	return strings.TrimRight(readable, "-") + "-" + hash
}

// annotation returns the value of [AnnotationIdentity].
func (i identity) annotation() string {
	text, err := json.Marshal(storedIdentity{identity: i, Version: identityVersion})
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return string(text)
}

func (i identity) labels() map[string]string {
	return map[string]string{
		LabelInstallation: labelValue(i.Installation),
		LabelAPIGroup:     i.APIGroup,
		LabelNamespace:    labelValue(i.Namespace),
		LabelMachine:      labelValue(i.Machine),
	}
}

// identityOf returns the identity of an object, and whether it matches the name of the object. If a user copied the
// object, it does not match, and the object belongs to the user.
func identityOf(object metav1.Object) (identity, bool) {
	var stored storedIdentity
	if json.Unmarshal([]byte(object.GetAnnotations()[AnnotationIdentity]), &stored) != nil || stored.Version > identityVersion {
		return identity{}, false
	}
	i := stored.identity
	if stored.Version == 0 && i.APIGroup == "" {
		for group, face := range faces {
			if face == stored.Face {
				i.APIGroup = group
			}
		}
		return i, i.APIGroup != "" && i.earlierName() == object.GetName()
	}
	return i, i.name() == object.GetName()
}

// checkVersion returns an error if a later program stored the identity of a VirtualMachine. The VM may belong to any
// machine, so that a second VM might be created for that machine, or the VM might not be deleted with it.
func checkVersion(vm *vmv1alpha1.VirtualMachine) error {
	var stored storedIdentity
	if json.Unmarshal([]byte(vm.Annotations[AnnotationIdentity]), &stored) != nil || stored.Version <= identityVersion {
		return nil
	}
	return status.Error(codes.FailedPrecondition, fmt.Sprintf(
		"VirtualMachine %s/%s has an identity of version %d, but this driver knows only versions up to %d; use the newer driver",
		vm.Namespace, vm.Name, stored.Version, identityVersion))
}

// MachineOf returns the Machine for which this or another installation created a VirtualMachine. Use it only for
// display. It returns the zero value if no driver created the VirtualMachine.
func MachineOf(vm *vmv1alpha1.VirtualMachine) types.NamespacedName {
	var of identity
	if err := json.Unmarshal([]byte(vm.Annotations[AnnotationIdentity]), &of); err != nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: of.Namespace, Name: of.Machine}
}

// labelValue returns text, or its hash if text is not a valid label value.
func labelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	return "sha256-" + hashOf(text)
}

// hashOf returns a short hash for names. It is stored, so it must never change.
func hashOf(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		// Names and namespaces do not contain the byte 0. An installation may contain it and is therefore the first
		// text.
		hash.Write([]byte(text))
		hash.Write([]byte{0})
	}
	encoded := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash.Sum(nil))
	return strings.ToLower(encoded[:hashLength])
}

const providerIDScheme = "millwright:///"

// ProviderID returns the provider ID of the Node of a VM. The VM must have a UUID.
func ProviderID(vm *vmv1alpha1.VirtualMachine) string {
	return ProviderIDPrefix(vm.Namespace) + vm.Spec.UUID
}

// ProviderIDPrefix returns what the provider IDs of all VMs in a namespace begin with.
func ProviderIDPrefix(namespace string) string { return providerIDScheme + namespace + "/" }

// splitProviderID returns the parts of a provider ID of this driver.
func splitProviderID(id string) (namespace, uuid string, ok bool) {
	rest, ok := strings.CutPrefix(id, providerIDScheme)
	if !ok {
		return "", "", false
	}
	namespace, uuid, ok = strings.Cut(rest, "/")
	return namespace, uuid, ok && len(validation.IsDNS1123Label(namespace)) == 0 && uuid != "" && !strings.Contains(uuid, "/")
}
