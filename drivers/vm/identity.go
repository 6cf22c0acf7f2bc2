package vm

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
)

// prefix is that of our labels and annotations.
const prefix = "driver.millwright.dev/"

// Labels of VirtualMachines that the driver made, for selecting them. A value that is no
// valid label value is replaced by a hash of it. They are not trusted: see
// [AnnotationIdentity].
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
	// LabelCluster is NAME of the tag kubernetes.io/cluster/NAME.
	LabelCluster = prefix + "cluster"
	// LabelRole is ROLE of the tag kubernetes.io/role/ROLE.
	LabelRole = prefix + "role"
)

const (
	// AnnotationIdentity holds, as a JSON object, what a VirtualMachine and its Secret
	// were made for: installation, API group, namespace, machine. Objects without it are
	// never touched.
	AnnotationIdentity = prefix + "identity"
	// AnnotationTags holds the tags of the class as a JSON object: most of them cannot
	// be keys of labels.
	AnnotationTags = prefix + "tags"
)

// apiGroupOf is the API group that a class stands for. It becomes part of names, so only known
// groups are used.
func apiGroupOf(class *v1alpha1.MachineClass) string {
	if driver.APIGroup(class) == driver.APIGroupClusterAPI {
		return driver.APIGroupClusterAPI
	}
	return v1alpha1.GroupName
}

// identity is what a VM was made for. No two living machines share one, and a machine
// that is restored from a backup has the one that it had before.
type identity struct {
	Installation string `json:"installation"`
	APIGroup     string `json:"apiGroup"`
	Namespace    string `json:"namespace"`
	Machine      string `json:"machine"`
}

const (
	longestName = 63 // of a label's value and of a DNS label
	hashLength  = 12 // 60 bits
)

// name is that of the VirtualMachine and of its Secret: as much of the machine's name as
// fits, for people, and a hash of everything.
func (i identity) name() string {
	hash := hashOf(i.Installation, i.APIGroup, i.Namespace, i.Machine)
	readable := strings.ReplaceAll(i.Machine, ".", "-")
	readable = readable[:min(len(readable), longestName-hashLength-1)]
	return strings.TrimRight(readable, "-") + "-" + hash
}

// annotation is the identity as it stands on objects.
func (i identity) annotation() string {
	text, err := json.Marshal(i)
	if err != nil {
		panic(err) // four texts can always be written
	}
	return string(text)
}

// labels are those that a list of the class's VMs is filtered by, and the machine.
func (i identity) labels() map[string]string {
	return map[string]string{
		LabelInstallation: labelValue(i.Installation),
		LabelAPIGroup:     i.APIGroup,
		LabelNamespace:    labelValue(i.Namespace),
		LabelMachine:      labelValue(i.Machine),
	}
}

// identityOf reads the identity of an object. It is there only if the object's name
// agrees: a copy that a user made of one of our objects is the user's.
func identityOf(name string, annotations map[string]string) (identity, bool) {
	var i identity
	text, ok := annotations[AnnotationIdentity]
	if !ok || json.Unmarshal([]byte(text), &i) != nil {
		return identity{}, false
	}
	return i, i.name() == name
}

// labelValue is text, or a hash where that cannot be the value of a label.
func labelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	return "sha256-" + hashOf(text)
}

// hashOf is a short hash of texts, fit for names. It is persisted: it must not change.
func hashOf(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		// Names and namespaces have no such byte; an installation is the first text, so
		// that nothing in it can be taken for another.
		hash.Write([]byte(text))
		hash.Write([]byte{0})
	}
	encoded := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash.Sum(nil))
	return strings.ToLower(encoded[:hashLength])
}

const providerIDScheme = "millwright:///"

func providerID(vm *vmv1alpha1.VirtualMachine) string {
	return providerIDScheme + vm.Namespace + "/" + vm.Spec.UUID
}

// splitProviderID returns the parts of an ID that this driver could have given.
func splitProviderID(id string) (namespace, uuid string, ok bool) {
	rest, ok := strings.CutPrefix(id, providerIDScheme)
	if !ok {
		return "", "", false
	}
	namespace, uuid, ok = strings.Cut(rest, "/")
	return namespace, uuid, ok && len(validation.IsDNS1123Label(namespace)) == 0 && uuid != "" && !strings.Contains(uuid, "/")
}
