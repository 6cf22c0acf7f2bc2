package security

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// waitTimeout limits operations that take seconds.
const waitTimeout = env.WaitTimeout

// managed is a control and a target cluster with a manager that has the shipped roles.
type managed struct {
	*env.Env
	t     *testing.T
	admin client.Client // in the control cluster
	cloud *sim.Cloud
	// provider wraps the simulated provider. It may be nil.
	provider func(*sim.Driver) driver.Driver
	// control and target are the permissions that the manager used.
	control, target env.Used
}

// manage runs a manager until the end of the test.
func (m *managed) manage(config manager.Config) {
	m.t.Helper()
	ctrl.SetLogger(logr.Discard())
	config.Namespace = m.Namespace
	if config.Half != manager.HalfSets {
		simulated := sim.New(sim.Config{Cloud: m.cloud, Nodes: m.Target.Client})
		var responses driver.Driver = simulated
		if m.provider != nil {
			responses = m.provider(simulated)
		}
		config.Drivers = registry.Only("sim", responses)
		config.Runnables = []ctrlmanager.Runnable{simulated}
	}
	config.ConcurrentSyncs, config.CreationTimeout = 5, 20*time.Minute
	config.Orphans = manager.Orphans{Period: 300 * time.Millisecond}
	config.Overshoot = machineset.Overshoot{Up: 2, Down: 1}
	config.Drain = manager.Drain{Strategy: drain.Serial}
	config.Election = manager.Election{Enabled: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	config.Log = logr.Discard()
	ctx, stop := context.WithCancel(context.Background()) // the test's context is canceled before the cleanup
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx, config) }()
	m.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			m.t.Errorf("the manager ends with %v", err)
		}
	})
}

func (m *managed) create(c client.Client, objects ...client.Object) {
	m.t.Helper()
	for _, object := range objects {
		if err := c.Create(m.t.Context(), object); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *managed) patch(object client.Object, merge string) {
	m.t.Helper()
	if err := m.admin.Patch(m.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(merge))); err != nil {
		m.t.Fatal(err)
	}
}

func (m *managed) delete(object client.Object) {
	m.t.Helper()
	if err := m.admin.Delete(m.t.Context(), object); err != nil {
		m.t.Fatal(err)
	}
}

func (m *managed) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.Namespace, Name: name}
}

// eventually waits for a condition.
func (m *managed) eventually(what string, check func() bool) {
	m.t.Helper()
	gomega.NewWithT(m.t).Eventually(check).WithTimeout(waitTimeout).Should(gomega.BeTrue(), what)
}

func (m *managed) gone(c client.Client, object client.Object) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("%T %s is gone", object, object.GetName()), func() bool {
		return apierrors.IsNotFound(c.Get(m.t.Context(), client.ObjectKeyFromObject(object), object))
	})
}

// running waits for a Machine with a node.
func (m *managed) running(machine *v1alpha1.Machine) {
	m.t.Helper()
	m.phase(machine, v1alpha1.MachineRunning)
}

func (m *managed) phase(machine *v1alpha1.Machine, want v1alpha1.MachinePhase) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("Machine %s is %s", machine.Name, want), func() bool {
		return m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(machine), machine) == nil && machine.Status.CurrentStatus.Phase == want
	})
}

const pool = "pool"

// class creates a class with its Secret.
func (m *managed) class(name, providerSpec string) []client.Object {
	return []client.Object{
		&corev1.Secret{ObjectMeta: m.meta(name), Data: map[string][]byte{"userData": []byte("<<BOOTSTRAP_TOKEN>>")}},
		&v1alpha1.MachineClass{
			ObjectMeta: m.meta(name), Provider: "sim", SecretRef: &corev1.SecretReference{Namespace: m.Namespace, Name: name},
			ProviderSpec: runtime.RawExtension{Raw: []byte(providerSpec)},
		},
	}
}

func (m *managed) machine(name, class string) *v1alpha1.Machine {
	machine := &v1alpha1.Machine{ObjectMeta: m.meta(name)}
	machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}
	return machine
}

// occupied creates a Pod with a volume on a node.
func (m *managed) occupied(node string) {
	m.t.Helper()
	name := "on-" + node
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + m.Namespace}}
	volume.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: name}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: m.Target.Namespace, Name: name}}
	claim.Spec.AccessModes, claim.Spec.VolumeName = volume.Spec.AccessModes, volume.Name
	claim.Spec.Resources.Requests = volume.Spec.Capacity
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + m.Namespace}}
	attachment.Spec = storagev1.VolumeAttachmentSpec{Attacher: "csi.example.org", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name}}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: m.Target.Namespace, Name: name}}
	budget.Spec.MinAvailable, budget.Spec.Selector = ptr.To(intstr.FromInt32(0)), &metav1.LabelSelector{MatchLabels: map[string]string{"none": ""}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Target.Namespace, Name: name}}
	pod.Spec = corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: ptr.To[int64](0),
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}},
	}
	m.create(m.Target.Client, volume, claim, attachment, budget, pod)
	m.attached(node, volume)
}

// attached sets the status of a volume as the kubelet and the attach-detach controller would. The volume is
// detached when its attachment is deleted.
func (m *managed) attached(node string, volume *corev1.PersistentVolume) {
	m.t.Helper()
	of := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	patch := fmt.Sprintf(`{"status":{"volumesAttached":[{"name":"kubernetes.io/csi/csi.example.org^%s","devicePath":""}]}}`, volume.Spec.CSI.VolumeHandle)
	if err := m.Target.Client.Status().Patch(m.t.Context(), of, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		m.t.Fatal(err)
	}
}

// TestRBAC_ManagerNeedsItsPermissions checks that the lifecycle of Machines needs every permission of the shipped roles,
// unless there is a documented reason.
func TestRBAC_ManagerNeedsItsPermissions(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := &managed{Env: env.NewPair(t), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	m.admin = m.Client
	if err := m.Target.ControlPlane.AllowJoining(t.Context()); err != nil {
		t.Fatal(err)
	}
	control, target := m.UserWith(t, controlRole), m.Target.UserWith(t, targetRole, approver)
	m.control.Record(control)
	m.target.Record(target)
	m.create(m.admin, slices.Concat(m.class(pool, `{}`), m.class("next", `{}`), m.class("silent", `{"join":"never"}`))...)
	m.older()
	m.manage(manager.Config{Control: control, Target: target, Settings: manager.Settings{MachineSettings: manager.MachineSettings{ApproveNodeCertificates: true}}})

	m.migrates()
	m.joins()
	m.lives()
	m.replicas()

	const ownerReferences = "asked for by the admission plug-in OwnerReferencesPermissionEnforcement, which does not run here"
	m.control.Check(t, map[string]string{
		"update machinedeployments/finalizers.machine.sapcloud.io": ownerReferences,
		"update machinesets/finalizers.machine.sapcloud.io":        ownerReferences,
	}, controlRole)
	m.target.Check(t, map[string]string{
		"create bootstraptokens.machine.millwright.dev": "required by policy/bootstrap-tokens.yaml",
		"approve signers.certificates.k8s.io":           "asked for by the admission plug-in CertificateApproval, when a request is approved",
		"patch events":                                  "client-go patches an event that is repeated, as in the control cluster; none is here",
	}, targetRole, approver)
}

// joins requests the certificate of the node of a Machine, as its guest does.
func (m *managed) joins() {
	m.t.Helper()
	machine := m.machine("joins", "silent")
	m.create(m.admin, machine)
	tokens := &corev1.SecretList{}
	m.eventually("the Machine knows its node, and has a token", func() bool {
		if err := m.Target.Client.List(m.t.Context(), tokens, client.InNamespace(metav1.NamespaceSystem), client.MatchingFields{"type": string(corev1.SecretTypeBootstrapToken)}); err != nil {
			return false
		}
		return len(tokens.Items) == 1 && m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(machine), machine) == nil && machine.Labels[v1alpha1.NodeLabelKey] != ""
	})
	access, err := m.Target.ControlPlane.UserConfig("system:bootstrap:"+string(tokens.Items[0].Data["token-id"]), "system:bootstrappers")
	if err != nil {
		m.t.Fatal(err)
	}
	guest, err := client.New(access, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		m.t.Fatal(err)
	}
	request := fixture.NodeRequest(m.t, machine.Labels[v1alpha1.NodeLabelKey])
	m.create(guest, request)
	m.eventually("the request is approved", func() bool {
		err := m.Target.Client.Get(m.t.Context(), client.ObjectKeyFromObject(request), request)
		return err == nil && len(request.Status.Conditions) > 0 && request.Status.Conditions[0].Type == certificatesv1.CertificateApproved
	})
	m.delete(machine)
	m.gone(m.admin, machine)
}

// lives creates Machines, after a failure and normally, drains them, and drains them by force.
func (m *managed) lives() {
	m.t.Helper()
	m.cloud.Fail(sim.Fault{Method: sim.CreateMachine, Machine: "drained", Codes: []codes.Code{codes.Unavailable}, Times: 2})
	drained, forced := m.machine("drained", pool), m.machine("forced", pool)
	m.create(m.admin, drained, forced)
	for _, machine := range []*v1alpha1.Machine{drained, forced} {
		m.running(machine)
		m.occupied(machine.Labels[v1alpha1.NodeLabelKey])
	}
	for range 2 { // a repeated event is patched
		m.ready(drained, corev1.ConditionFalse, v1alpha1.MachineUnknown)
		m.ready(drained, corev1.ConditionTrue, v1alpha1.MachineRunning)
	}
	m.delete(drained)
	m.vacated(drained)
	m.gone(m.admin, drained)
	m.orphan()
	m.patch(forced, `{"metadata":{"labels":{"force-deletion":"True"}}}`)
	m.delete(forced)
	m.gone(m.admin, forced)
}

// ready sets the Ready condition of a Machine's node, and waits for the Machine's phase.
func (m *managed) ready(machine *v1alpha1.Machine, is corev1.ConditionStatus, want v1alpha1.MachinePhase) {
	m.t.Helper()
	if _, err := m.cloud.SetNodeReady(machine.Name, is); err != nil {
		m.t.Fatal(err)
	}
	m.phase(machine, want)
}

// vacated acts as the attach-detach controller: the volume is detached when its Pod is gone.
func (m *managed) vacated(machine *v1alpha1.Machine) {
	m.t.Helper()
	node := machine.Labels[v1alpha1.NodeLabelKey]
	m.gone(m.Target.Client, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Target.Namespace, Name: "on-" + node}})
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node + "-" + m.Namespace}}
	if err := m.Target.Client.Delete(m.t.Context(), attachment); err != nil {
		m.t.Fatal(err)
	}
	of := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := m.Target.Client.Status().Patch(m.t.Context(), of, client.RawPatch(types.MergePatchType, []byte(`{"status":{"volumesAttached":null}}`))); err != nil {
		m.t.Fatal(err)
	}
}

// orphan creates a VM whose Machine does not exist, in addition to the existing one.
func (m *managed) orphan() {
	m.t.Helper()
	vms, err := m.cloud.VMs()
	if err != nil || len(vms) != 1 {
		m.t.Fatalf("VMs: %v, %v", vms, err)
	}
	lost := vms[0]
	lost.Machine, lost.ProviderID, lost.Node = "lost", "", nil
	if _, err := m.cloud.Add(lost); err != nil {
		m.t.Fatal(err)
	}
	m.eventually("the orphan is gone", func() bool {
		vms, err := m.cloud.VMs()
		return err == nil && len(vms) == 1 && vms[0].Machine != "lost"
	})
}

// replicas lets a MachineDeployment adopt a MachineSet that has adopted a Machine, and deletes it.
func (m *managed) replicas() {
	m.t.Helper()
	labels := map[string]string{"name": pool}
	template := v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: m.machine("", pool).Spec}
	machine := m.machine("adopted", pool)
	machine.Labels = labels
	set := &v1alpha1.MachineSet{ObjectMeta: m.meta("adopted")}
	set.Labels = labels
	set.Spec = v1alpha1.MachineSetSpec{Replicas: 2, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}
	m.create(m.admin, machine, set)
	m.running(machine)
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: m.meta(pool)}
	deployment.Spec = v1alpha1.MachineDeploymentSpec{Replicas: 2, Selector: set.Spec.Selector, Template: *template.DeepCopy()}
	deployment.Spec.Template.Spec.Class.Name = "next"
	m.create(m.admin, deployment)
	m.eventually("the deployment is rolled out", func() bool {
		err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(deployment), deployment)
		return err == nil && deployment.Status.UpdatedReplicas == 2 && deployment.Status.AvailableReplicas == 2
	})
	m.delete(deployment)
	machines := &v1alpha1.MachineList{}
	m.eventually("all is gone", func() bool {
		err := m.admin.List(m.t.Context(), machines, client.InNamespace(m.Namespace))
		return err == nil && len(machines.Items) == 0
	})
	m.gone(m.admin, deployment)
}
