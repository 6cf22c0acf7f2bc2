package security

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestRBAC_ClusterAPIManagerNeedsItsPermissions checks that the lifecycle of MillwrightMachines needs every permission of
// the shipped role, unless there is a documented reason.
func TestRBAC_ClusterAPIManagerNeedsItsPermissions(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := &managed{Env: env.New(t), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	coretest.Install(t, m.Admin)
	scheme := manager.Scheme()
	core.AddToScheme(scheme, core.V1Beta2)
	var err error
	if m.admin, err = client.New(m.Admin, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	control := m.UserWith(t, capiRole)
	m.control.Record(control)
	m.create(m.admin, m.class(pool, `{"tags":{"kubernetes.io/cluster/c":"1"}}`)...)
	m.manage(manager.Config{Control: control, Settings: manager.Settings{APIs: []manager.API{manager.APICAPI}}})
	m.cloud.Fail(sim.Fault{Method: sim.CreateMachine, Codes: []codes.Code{codes.Internal}, Times: 1})
	infra := m.infrastructure()
	m.orphan()
	m.delete(infra)
	m.gone(m.admin, infra)
	m.control.Check(t, map[string]string{
		"update secretfinalizers.infrastructure.millwright.dev": "required by policy/secret-finalizers.yaml",
	}, capiRole)
}

// infrastructure creates a cluster with a machine, and waits until it is ready.
func (m *managed) infrastructure() *infrav1.MillwrightMachine {
	m.t.Helper()
	owner := m.coreMachine("machine")
	of := &core.Cluster{ObjectMeta: m.meta("cluster")}
	of.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightClusterKind, Name: "cluster"}
	of.Status.Initialization.InfrastructureProvisioned = true
	m.create(m.admin, owner, of, &corev1.Secret{ObjectMeta: m.meta("data"), Data: map[string][]byte{core.BootstrapData: []byte("b")}})

	infra := m.infra("machine", owner)
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: m.meta("template")}
	template.Spec.Template.Spec = *infra.Spec.DeepCopy()
	template.Spec.Template.Spec.NodeTemplate = &infrav1.NodeTemplate{Architecture: "amd64"}
	shared := &infrav1.MillwrightCluster{ObjectMeta: m.meta("cluster")}
	shared.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: of.Name, UID: of.UID}}
	m.create(m.admin, infra, template, shared)
	read := func(object client.Object) bool {
		return m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(object), object) == nil
	}
	m.eventually("the machine is ready", func() bool { return read(infra) && infra.Status.Ready })
	m.eventually("the template has its capacity", func() bool { return read(template) && template.Status.NodeInfo != nil })
	m.eventually("the cluster has an endpoint", func() bool { return read(shared) && shared.Spec.ControlPlaneEndpoint != nil })
	return infra
}

// coreMachine returns a machine of Cluster API. The manager finds it by its reference.
func (m *managed) coreMachine(name string) *core.Machine {
	machine := &core.Machine{ObjectMeta: m.meta(name)}
	machine.Spec.ClusterName = "cluster"
	machine.Spec.Bootstrap.DataSecretName = new("data")
	machine.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightMachineKind, Name: name}
	return machine
}

// infra returns the infrastructure of a machine.
func (m *managed) infra(name string, of *core.Machine) *infrav1.MillwrightMachine {
	infra := &infrav1.MillwrightMachine{ObjectMeta: m.meta(name)}
	infra.Labels = map[string]string{core.LabelCluster: of.Spec.ClusterName, core.LabelControlPlane: ""}
	infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.MachineKind, Name: of.Name, UID: of.UID}}
	infra.Spec = infrav1.MillwrightMachineSpec{Driver: "sim", MachineClassRef: &infrav1.LocalReference{Name: pool}}
	return infra
}
