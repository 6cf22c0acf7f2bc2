package podspec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// annotationNetworks requests network interfaces for a Pod: "Kubernetes Network Custom Resource Definition De-facto
// Standard", section 4.1.
const annotationNetworks = "k8s.v1.cni.cncf.io/networks"

// attachment is an element of the annotation's list.
type attachment struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Interface string `json:"interface"`
}

// capabilityNetRaw permits packet sockets.
const capabilityNetRaw corev1.Capability = "NET_RAW"

// addNetworks requests interfaces of the Pod for the networks of the VM, and permits the hypervisor to use them. Refusal
// must have permitted the networks.
func addNetworks(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) error {
	if len(vm.Spec.Networks) == 0 {
		return nil
	}
	var attachments []attachment
	for i := range vm.Spec.Networks {
		of := attachmentOf(vm, &vm.Spec.Networks[i])
		attachments = append(attachments, attachment{Name: of.Name, Namespace: of.Namespace, Interface: podInterface(i)})
	}
	text, err := json.Marshal(attachments)
	if err != nil {
		return fmt.Errorf("encoding the networks of pod %s: %w", pod.Name, err)
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationNetworks, string(text))
	capabilities := pod.Spec.Containers[0].SecurityContext.Capabilities
	capabilities.Add = append(capabilities.Add, capabilityNetRaw)
	return nil
}

// attachmentOf returns the NetworkAttachmentDefinition of a VM's network.
func attachmentOf(vm *v1alpha1.VirtualMachine, of *v1alpha1.Network) types.NamespacedName {
	if namespace, name, found := strings.Cut(of.Multus.NetworkName, "/"); found {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	return types.NamespacedName{Namespace: vm.Namespace, Name: of.Multus.NetworkName}
}

// podInterface returns the name that Multus, by default, gives the Pod's interface for the network with this index.
func podInterface(index int) string { return "net" + strconv.Itoa(index+1) }

func networkInterfaces(vm *v1alpha1.VirtualMachine) []*vmpb.NetworkInterface {
	var interfaces []*vmpb.NetworkInterface
	for i := range vm.Spec.Networks {
		of := &vm.Spec.Networks[i]
		interfaces = append(interfaces, &vmpb.NetworkInterface{Name: of.Name, Interface: podInterface(i), Mac: of.MACAddress})
	}
	return interfaces
}
