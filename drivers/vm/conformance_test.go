package vm_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// No rule needs a running guest, so the VirtualMachines only get a host.
func TestConformance(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	w.UserWith(t, "config/rbac/driver-vm-hosts-role.yaml", updateRole)
	w.hosts()
	class := func(changes object) *v1alpha1.MachineClass { return w.newClass(changes) }
	conformance.Run(t, func(*testing.T) conformance.Provider {
		return conformance.Provider{
			Driver: w.Driver, Class: class(nil), Secret: w.secret,
			Variants: conformance.Variants{
				Changed: class(object{"size": "medium"}),
				Updated: class(object{"size": "medium", "migrateStrategy": "Cold"}),
				Classes: map[conformance.Refusal]*v1alpha1.MachineClass{
					conformance.Invalid:    class(object{"vmPool": ""}),
					conformance.OutOfRange: class(object{"cpus": 1000}),
				},
				BadSecret: &corev1.Secret{Data: map[string][]byte{"kubeconfig": []byte("no kubeconfig")}},
			},
			Hooks: conformance.Hooks{
				Restart: func() (driver.Driver, error) { return w.with(w.options).Driver, nil },
				Instances: func(context.Context) (ids []string, err error) {
					for _, v := range w.vms() {
						ids = append(ids, "millwright:///"+v.Namespace+"/"+v.Spec.UUID)
					}
					return ids, nil
				},
			},
		}
	})
}
