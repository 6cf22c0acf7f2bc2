package security

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestRBAC_SeparateProcessesNeedTheirPermissions checks that the lifecycle of Machines under two processes needs every permission of
// the roles of each, unless there is a documented reason. TestRBAC_ManagerNeedsItsPermissions checks the permissions of
// machine-controller in the target cluster, which are those of the single process. The two tests use the same
// node names in one cluster, so they do not run in parallel.
func TestRBAC_SeparateProcessesNeedTheirPermissions(t *testing.T) {
	tier.All(t)
	m := &managed{Env: env.NewPair(t), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	m.admin = m.Client
	if err := m.Target.ControlPlane.AllowJoining(t.Context()); err != nil {
		t.Fatal(err)
	}
	sets := manager.Config{
		Control: m.NamedUserWith(t, "sets", setsRole),
		Target:  m.Target.NamedUserWith(t, "sets", setsTargetRole),
		Settings: manager.Settings{
			Half: manager.HalfSets,
		},
	}
	machines := manager.Config{
		Control: m.NamedUserWith(t, "machines", machinesRole),
		Target:  m.Target.NamedUserWith(t, "machines", targetRole, approver),
		Settings: manager.Settings{
			Half:            manager.HalfMachines,
			MachineSettings: manager.MachineSettings{ApproveNodeCertificates: true},
		},
	}
	var ofSets, inTarget env.Used
	ofSets.Record(sets.Control)
	inTarget.Record(sets.Target)
	m.control.Record(machines.Control)
	m.create(m.admin, slices.Concat(m.class(pool, `{}`), m.class("next", `{}`), m.class("silent", `{"join":"never"}`))...)
	m.older()
	m.manage(machines)
	m.manage(sets)

	m.migrates()
	m.joins()
	m.lives()
	m.replicas()
	m.follows()
	m.scales()
	m.updates()

	const ownerReferences = "asked for by the admission plug-in OwnerReferencesPermissionEnforcement, which does not run here"
	ofSets.Check(t, map[string]string{
		"get machines.machine.sapcloud.io":                         "a Machine is read when its name is taken, so that a creation was sent twice: see TestMachineSet_DuplicateCreationRequest of the MachineSet controller",
		"update machinedeployments/finalizers.machine.sapcloud.io": ownerReferences,
		"update machinesets/finalizers.machine.sapcloud.io":        ownerReferences,
	}, setsRole)
	inTarget.Check(t, nil, setsTargetRole)
	m.control.Check(t, nil, machinesRole)
}

// follows deletes a node, and waits for the deletion of its Machine.
func (m *managed) follows() {
	m.t.Helper()
	machine := m.machine("follows", pool)
	m.create(m.admin, machine)
	m.running(machine)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Labels["node"]}}
	if err := m.Target.Client.Delete(m.t.Context(), node); err != nil {
		m.t.Fatal(err)
	}
	m.gone(m.admin, machine)
}

// updates updates nodes in place. The agents have their own permissions.
func (m *managed) updates() {
	m.t.Helper()
	m.create(m.admin, slices.Concat(m.class("updatable", `{"agent":"succeed","updateTime":"100ms"}`), m.class("updated", `{"agent":"succeed","updateTime":"100ms"}`))...)
	labels := map[string]string{"name": "updates"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: m.meta("updates")}
	deployment.Spec = v1alpha1.MachineDeploymentSpec{Replicas: 1, Selector: &metav1.LabelSelector{MatchLabels: labels}}
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			OrchestrationType: v1alpha1.OrchestrationTypeAuto, UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromInt32(0))},
		},
	}
	deployment.Spec.Template = v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: m.machine("", "updatable").Spec}
	m.create(m.admin, deployment)
	available := func(class string) {
		m.eventually("the Machine of the class "+class+" is available", func() bool {
			err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(deployment), deployment)
			return err == nil && deployment.Status.ObservedGeneration == deployment.Generation &&
				deployment.Status.UpdatedReplicas == 1 && deployment.Status.AvailableReplicas == 1 && deployment.Status.Replicas == 1
		})
	}
	available("updatable")
	m.patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"updated"}}}}}`)
	available("updated")
	m.delete(deployment)
	m.gone(m.admin, deployment)
}

// scales repeats events about a MachineDeployment and its MachineSet, which are patched then.
func (m *managed) scales() {
	m.t.Helper()
	labels := map[string]string{"name": "scales"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: m.meta("scales")}
	deployment.Spec = v1alpha1.MachineDeploymentSpec{Replicas: 1, Selector: &metav1.LabelSelector{MatchLabels: labels}}
	deployment.Spec.Template = v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: m.machine("", pool).Spec}
	m.create(m.admin, deployment)
	has := func(want int32) {
		m.eventually(fmt.Sprintf("the deployment has %d Machines", want), func() bool {
			err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(deployment), deployment)
			return err == nil && deployment.Status.ObservedGeneration == deployment.Generation && deployment.Status.Replicas == want
		})
	}
	has(1)
	for range 2 {
		m.patch(deployment, `{"spec":{"replicas":0}}`)
		has(0)
		m.patch(deployment, `{"spec":{"replicas":1}}`)
		has(1)
	}
	m.delete(deployment)
	m.gone(m.admin, deployment)
}
