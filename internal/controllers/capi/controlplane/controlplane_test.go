package controlplane

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
)

func machine(name string, change ...func(*infrav1.MillwrightMachine)) *infrav1.MillwrightMachine {
	m := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, Labels: map[string]string{core.LabelCluster: "a", core.LabelControlPlane: ""},
	}}
	m.Status.Addresses = []infrav1.MachineAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	for _, change := range change {
		change(m)
	}
	return m
}

func TestMachines(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader := fakeclient.NewBuilder(scheme).WithObjects(
		machine("one"), machine("two"),
		machine("starting", func(m *infrav1.MillwrightMachine) { m.Status.Addresses = nil }),
		machine("named", func(m *infrav1.MillwrightMachine) { m.Status.Addresses[0].Type = corev1.NodeHostName }),
		machine("deleting", func(m *infrav1.MillwrightMachine) {
			m.Finalizers, m.DeletionTimestamp = []string{"example.com/stays"}, &metav1.Time{Time: time.Unix(1, 0)}
		}),
		machine("worker", func(m *infrav1.MillwrightMachine) { delete(m.Labels, core.LabelControlPlane) }),
		machine("other", func(m *infrav1.MillwrightMachine) { m.Labels[core.LabelCluster] = "b" }),
		machine("elsewhere", func(m *infrav1.MillwrightMachine) { m.Namespace = "other" }),
	).Build()
	found, err := Machines(t.Context(), reader, "ns", "a")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range found {
		names = append(names, m.Name)
	}
	if diff := cmp.Diff([]string{"one", "two"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAddresses(t *testing.T) {
	all := []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeInternalIP, corev1.NodeExternalIP}
	for name, test := range map[string]struct {
		addresses          []corev1.NodeAddressType
		internal, external corev1.NodeAddressType
	}{
		"all":            {all, corev1.NodeInternalIP, corev1.NodeExternalIP},
		"DNS names only": {all[:3], corev1.NodeInternalDNS, corev1.NodeExternalDNS},
		"internal only":  {[]corev1.NodeAddressType{corev1.NodeInternalDNS, corev1.NodeInternalIP}, corev1.NodeInternalIP, corev1.NodeInternalIP},
		"host name only": {all[:1], "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := machine("one")
			m.Status.Addresses = nil
			for _, kind := range test.addresses {
				m.Status.Addresses = append(m.Status.Addresses, infrav1.MachineAddress{Type: kind, Address: string(kind)}, infrav1.MachineAddress{Type: kind, Address: "second"})
			}
			if got := InternalAddress(m); got != string(test.internal) {
				t.Errorf("internal address %q, want %q", got, test.internal)
			}
			if got := ExternalAddress(m); got != string(test.external) {
				t.Errorf("external address %q, want %q", got, test.external)
			}
		})
	}
}

func TestPort(t *testing.T) {
	infra := &infrav1.MillwrightCluster{}
	if got := Port(infra); got != 6443 {
		t.Errorf("the default is %d, want 6443", got)
	}
	infra.Spec.ControlPlanePort = 443
	if got := Port(infra); got != 443 {
		t.Errorf("got %d, want 443", got)
	}
}
