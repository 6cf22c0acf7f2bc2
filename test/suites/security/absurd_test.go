package security

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachineClass_ExtremeQuantitiesDisturbNoOthers checks classes with quantities that MCM's CRDs store, and that Go cannot parse
// or takes hours to compute with. They do not delay other Machines, and can themselves be used and deleted.
func TestMachineClass_ExtremeQuantitiesDisturbNoOthers(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := &managed{Env: env.New(t, env.WithNumber(1)), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	m.admin = m.Client
	m.InstallMCMsCRDs(t)
	m.create(m.admin, append(m.class(pool, `{}`), m.class("absurd", `{}`)[0])...)
	absurd := map[string]string{"absurd": "1e1.5", "hours": "1e-2147483647"}
	for name, quantity := range absurd {
		class := &unstructured.Unstructured{Object: map[string]any{
			"provider": "sim", "providerSpec": map[string]any{}, "secretRef": map[string]any{"namespace": m.Namespace, "name": "absurd"},
			"nodeTemplate": map[string]any{
				"capacity":     map[string]any{"cpu": quantity, "gpu": "0", "memory": "1Gi"},
				"instanceType": "a", "region": "b", "zone": "c",
			},
		}}
		class.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.MachineClassKind))
		class.SetNamespace(m.Namespace)
		class.SetName(name)
		m.eventually("it is stored, as by MCM's CRDs", func() bool { return m.admin.Create(t.Context(), class) == nil })
	}
	access := m.UserWith(t, controlRole, targetRole)
	m.manage(manager.Config{Control: access, Target: access})
	good := m.machine("good", pool)
	m.create(m.admin, good)
	m.running(good)
	for name := range absurd {
		machine, class := m.machine("of-"+name, name), &v1alpha1.MachineClass{ObjectMeta: m.meta(name)}
		m.create(m.admin, machine)
		m.eventually("the class is held", func() bool {
			return m.admin.Get(t.Context(), client.ObjectKeyFromObject(class), class) == nil && slices.Contains(class.Finalizers, v1alpha1.FinalizerMCM)
		})
		if _, read := class.NodeTemplate.Capacity[corev1.ResourceCPU]; read || len(class.NodeTemplate.Capacity) != 2 {
			t.Errorf("class %s has the capacity %v", name, class.NodeTemplate.Capacity)
		}
		m.delete(class)
		m.delete(machine)
		m.gone(m.admin, machine)
		m.gone(m.admin, class)
	}
	m.running(good)
}
