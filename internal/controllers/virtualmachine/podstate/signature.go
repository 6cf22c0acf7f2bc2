package podstate

import (
	"crypto/hmac"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// annotationSignature is the signature of a Pod by the VM controller.
const annotationSignature = "vm.metropolis.monogon.dev/signature"

// Signer signs the Pods that a VM controller creates. Users who can create Pods can give one an owner reference to a
// VM, but they cannot sign it. A signature is valid for one name, and not for a later Pod of that name; therefore, the
// UID in the status of the VM takes precedence as soon as it is known.
type Signer struct {
	// MAC returns a message authentication code of a text, with a key that only VM controllers have. If nil, Pods are
	// not signed, and the owner reference counts.
	MAC func(text string) string
}

// Sign signs a Pod before it is created.
func (s Signer) Sign(pod *corev1.Pod) {
	if s.MAC != nil {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationSignature, s.signature(pod))
	}
}

// Created reports whether a VM controller created a Pod of a VM: the status of the VM has its UID, or the Pod is signed.
// The status does not have the UID if the controller crashed immediately after it had created the Pod, and if the status
// was lost.
func (s Signer) Created(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	if !Owns(vm, pod) {
		return false
	}
	for _, created := range recorded(&vm.Status) {
		if created.uid == pod.UID && created.uid != "" {
			return true
		}
	}
	return s.signed(pod)
}

// MayIdentify reports whether the process in a Pod may act as a hypervisor or disk server of a VM. Unlike Created, it
// requires the UID of the Pod unless the status has none for its name yet, or was lost.
func (s Signer) MayIdentify(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	if !Owns(vm, pod) {
		return false
	}
	unknown := vm.Status.ActivePodName == ""
	for _, created := range recorded(&vm.Status) {
		switch {
		case created.name != pod.Name:
		case created.uid != "":
			return created.uid == pod.UID
		default:
			unknown = true
		}
	}
	return unknown && s.signed(pod)
}

// record is the name of a Pod of a VM, which is reserved before the Pod exists, and its UID; empty before it is known.
type record struct {
	name string
	uid  types.UID
}

// recorded returns the Pods in the status of a VM.
func recorded(status *v1alpha1.VirtualMachineStatus) []record {
	records := []record{{status.ActivePodName, status.ActivePodUID}}
	if status.Migration != nil {
		records = append(records, record{status.Migration.TargetPodName, status.Migration.TargetPodUID})
	}
	if status.DiskServer != nil {
		records = append(records, record{status.DiskServer.PodName, status.DiskServer.PodUID})
	}
	return records
}

func (s Signer) signed(pod *corev1.Pod) bool {
	return s.MAC == nil || hmac.Equal([]byte(pod.Annotations[annotationSignature]), []byte(s.signature(pod)))
}

// signature returns the signature of a Pod. Names and UIDs do not contain the separator.
func (s Signer) signature(pod *corev1.Pod) string {
	return s.MAC(strings.Join([]string{"pod", pod.Namespace, pod.Name, string(Owner(pod))}, "\n"))
}
