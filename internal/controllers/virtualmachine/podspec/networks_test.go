package podspec

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// TestPods_NetworksArePermitted checks that a VM gets no Pod if the operator has not permitted its network, and that the
// target of a migration gets the same interfaces as the source.
func TestPods_NetworksArePermitted(t *testing.T) {
	settings := Settings{Image: "hypervisor:1", Attachments: []string{"networks/storage", "default/office"}}
	for name, permitted := range map[string]bool{
		"networks/storage": true, "office": true, "default/office": true,
		"storage": false, "networks/office": false, "networks/storage2": false, "other/storage": false, "/storage": false, "networks/storage/": false,
	} {
		vm := servedVM()
		vm.Namespace = "default"
		vm.Spec.Networks = []v1alpha1.Network{{Name: "a", Multus: v1alpha1.MultusNetwork{NetworkName: "office"}}, {Name: "b", Multus: v1alpha1.MultusNetwork{NetworkName: name}}}
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "a-x", TargetPodName: "a-z"}
		all := settings
		all.Attachments = append([]string{attachmentOf(vm, &vm.Spec.Networks[1]).String()}, settings.Attachments...)
		source, err := Pod(vm, all)
		if err != nil {
			t.Fatal(err)
		}
		for what, build := range map[string]func() (*corev1.Pod, error){
			"first": func() (*corev1.Pod, error) { return Pod(vm, settings) }, "target": func() (*corev1.Pod, error) { return Target(vm, source, settings) },
		} {
			pod, err := build()
			if _, refused := errors.AsType[*RefusedError](err); refused == permitted || refused != (pod == nil) {
				t.Errorf("%s on network %q: %v, %v", what, name, pod, err)
			}
			if pod != nil && pod.Annotations[annotationNetworks] != source.Annotations[annotationNetworks] {
				t.Errorf("%s on network %q: got %s", what, name, pod.Annotations[annotationNetworks])
			}
		}
	}
}

// TestPods_OnlyNetworksAddCapabilities checks that Pods have the capability NET_RAW only if their hypervisor uses it.
func TestPods_OnlyNetworksAddCapabilities(t *testing.T) {
	settings := Settings{Image: "hypervisor:1", Attachments: []string{"default/office"}, Options: Options{User: 65532}}
	vm := servedVM()
	vm.Namespace = "default"
	plain, err := Pod(vm, settings)
	if err != nil {
		t.Fatal(err)
	}
	vm.Spec.Networks = []v1alpha1.Network{{Name: "a", Multus: v1alpha1.MultusNetwork{NetworkName: "office"}}}
	attached, err := Pod(vm, settings)
	if err != nil {
		t.Fatal(err)
	}
	server, err := DiskServer(vm, nil, settings)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pod *corev1.Pod
		is  bool
	}{"no networks": {plain, false}, "networks": {attached, true}, "disk server": {server, false}} {
		of := c.pod.Spec.Containers[0].SecurityContext
		_, annotated := c.pod.Annotations[annotationNetworks]
		if has := len(of.Capabilities.Add) > 0; has != c.is || annotated != c.is {
			t.Errorf("%s: capabilities %v, annotations %v", name, of.Capabilities.Add, c.pod.Annotations)
		}
		if *of.AllowPrivilegeEscalation || of.Capabilities.Drop[0] != "ALL" {
			t.Errorf("%s: %+v", name, of)
		}
	}
}
