package podspec

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestPods_PortOfOverlayIsRefused checks that the ports of a VM do not take the port of the network between guests.
func TestPods_PortOfOverlayIsRefused(t *testing.T) {
	settings := Settings{Image: "hypervisor:1", Overlay: Overlay{Port: 8462}}
	for name, test := range map[string]struct {
		port    v1alpha1.Port
		refused bool
	}{
		"another UDP port": {v1alpha1.Port{Port: 8463, Protocol: corev1.ProtocolUDP}, false},
		"over TCP":         {v1alpha1.Port{Port: 8462}, false},
		"over UDP":         {v1alpha1.Port{Port: 8462, Protocol: corev1.ProtocolUDP}, true},
	} {
		vm := servedVM()
		vm.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80}, test.port}
		if message := Refusal(vm, settings); strings.HasPrefix(message, "spec.ports[1]: ") != test.refused || !test.refused && message != "" {
			t.Errorf("%s: got %q", name, message)
		}
	}
}

// TestPods_SecretsOfControllerAreRefused checks that no guest gets a Secret of the VM controller: there are no Pods in its
// namespace, and no Pod mounts the key of the authority as user data.
func TestPods_SecretsOfControllerAreRefused(t *testing.T) {
	settings := Settings{Image: "hypervisor:1", Namespace: "system"}
	source, err := Pod(servedVM(), settings)
	if err != nil {
		t.Fatal(err)
	}
	stolen := source.DeepCopy()
	for i := range stolen.Spec.Volumes {
		if secret := stolen.Spec.Volumes[i].Secret; secret != nil {
			secret.SecretName = AuthoritySecret
		}
	}
	inSystem := func(vm *v1alpha1.VirtualMachine) { vm.Namespace = "system" }
	withKey := func(vm *v1alpha1.VirtualMachine) { vm.Spec.UserData.SecretRef.Name = AuthoritySecret }
	unchanged := func(*v1alpha1.VirtualMachine) {}
	for name, test := range map[string]struct {
		change  func(*v1alpha1.VirtualMachine)
		build   func(*v1alpha1.VirtualMachine) (*corev1.Pod, error)
		refused bool
	}{
		"a Pod":                          {unchanged, func(vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) { return Pod(vm, settings) }, false},
		"a Pod in the namespace":         {inSystem, func(vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) { return Pod(vm, settings) }, true},
		"a target in the namespace":      {inSystem, func(vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) { return Target(vm, source, settings) }, true},
		"a disk server in the namespace": {inSystem, func(vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) { return DiskServer(vm, nil, settings) }, true},
		"a Pod with the key":             {withKey, func(vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) { return Pod(vm, settings) }, true},
		"a target with the key":          {unchanged, func(vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) { return Target(vm, stolen, settings) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			vm := servedVM()
			vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "a-x", TargetPodName: "a-z"}
			test.change(vm)
			_, err := test.build(vm)
			if _, refused := errors.AsType[*RefusedError](err); refused != test.refused || !refused && err != nil {
				t.Errorf("got %v, want a refusal: %t", err, test.refused)
			}
		})
	}
}
