package fake_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/fake"
)

func TestConformance(t *testing.T) {
	for name, initialize := range map[string]bool{"initialized": false, "with initialization": true} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(*testing.T) conformance.Provider {
				d := fake.New(fake.Config{RequireInitialize: initialize, Accounts: true, SeparateAPIGroups: true})
				return conformance.Provider{
					Driver: d, Class: conformingClass("class", `{}`), Uninitialized: initialize,
					Variants: conformance.Variants{
						Changed: conformingClass("changed", `{"zone":"b"}`), Updated: withTags(conformingClass("class", `{}`)), OtherCluster: conformingClass("other", `{}`),
						OtherAccount: &corev1.Secret{Data: map[string][]byte{"account": []byte("other")}},
					},
					Hooks: conformance.Hooks{
						Restart: func() (driver.Driver, error) { return d, nil },
						Instances: func(context.Context) (ids []string, err error) {
							for _, vm := range d.VMs() {
								ids = append(ids, vm.ProviderID)
							}
							return ids, nil
						},
					},
				}
			})
		})
	}
}

// conformingClass returns a class. The VMs of each class belong to a separate cluster.
func conformingClass(name, spec string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, ProviderSpec: runtime.RawExtension{Raw: []byte(spec)},
	}
}

func withTags(class *v1alpha1.MachineClass) *v1alpha1.MachineClass {
	class.ProviderSpec.Raw = []byte(`{"cpus":2,"tags":{"team":"blue"}}`)
	return class
}
