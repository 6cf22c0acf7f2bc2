package security

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// marks is what a guest writes to its Node. A nil value removes a key.
type marks struct {
	Labels      map[string]any `json:"labels,omitempty"`
	Annotations map[string]any `json:"annotations,omitempty"`
}

func annotation(key, value string) func(string) marks {
	return func(string) marks { return marks{Annotations: map[string]any{key: value}} }
}

// hostile contains everything that controllers of Machines read from Nodes, or might be thought to read. OTHER is
// the name of another Machine. The selection for an update is not included: the health of a node that is updated
// does not count until the update has timed out, as in MCM.
var hostile = map[string]func(other string) marks{
	"has no Machine":               annotation(v1alpha1.AnnotationKeyNotManaged, "1"),
	"is not to be scaled down":     annotation(v1alpha1.AnnotationKeyScaleDownDisabled, "true"),
	"was protected by the manager": annotation(v1alpha1.AnnotationKeyScaleDownDisabledByMCM, "true"),
	"goes last":                    annotation(v1alpha1.AnnotationKeyMachinePriority, "1000"),
	"was preserved":                annotation(v1alpha1.AnnotationKeyLastAppliedPreserve, "now"),
	"is of Cluster API":            annotation("cluster.x-k8s.io/machine", "theirs"),
	"has a record of nonsense":     annotation(v1alpha1.AnnotationKeyLastAppliedNodeTemplate, "{"),
	"is being deleted":             annotation(v1alpha1.AnnotationKeyMarkedForDeletionTime, "2020-01-01T00:00:00Z"),
	"is in a reserve":              annotation(v1alpha1.AnnotationKeyExcessReplicas, "100"),
	"is emptied for an hour":       annotation(v1alpha1.AnnotationKeyDrainSince, "2020-01-01T00:00:00Z"),
	"was updated": func(string) marks {
		return marks{Labels: map[string]any{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateSuccessful}}
	},
	"could not be updated": func(string) marks {
		return marks{
			Labels:      map[string]any{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateFailed},
			Annotations: map[string]any{v1alpha1.AnnotationKeyMachineUpdateFailedReason: strings.Repeat("\u009b", 50_000)},
		}
	},
	"wants another to go": func(other string) marks {
		return marks{Annotations: map[string]any{v1alpha1.AnnotationKeyTriggerDeletion: other}}
	},
	"is another":                   func(other string) marks { return marks{Labels: map[string]any{v1alpha1.LabelKeyMachineName: other}} },
	"is of a Machine that is gone": func(string) marks { return marks{Labels: map[string]any{v1alpha1.LabelKeyMachineName: "gone"}} },
	"is of no Machine":             func(string) marks { return marks{Labels: map[string]any{v1alpha1.LabelKeyMachineName: nil}} },
}

// guests is a cluster with a manager that replaces unhealthy Machines after a second.
func guests(t *testing.T) *managed {
	t.Helper()
	m := &managed{Env: env.New(t), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	m.admin = m.Client
	access := m.UserWith(t, controlRole, targetRole)
	m.create(m.admin, m.class(pool, `{}`)...)
	m.manage(manager.Config{Control: access, Target: access, Settings: manager.Settings{MachineSettings: manager.MachineSettings{Health: machine.Health{Timeout: time.Second, MaxReplacements: intstr.FromInt32(1)}}}})
	return m
}

// in makes failures fail another test.
func (m *managed) in(t *testing.T) *managed {
	inner := &managed{Env: m.Env, t: t, admin: m.admin, cloud: m.cloud}
	return inner
}

// set creates a MachineSet of two Machines that can be preserved for seconds, and returns the Machines when they
// are Running.
func (m *managed) set(name string) (selector client.MatchingLabels, machines []v1alpha1.Machine) {
	m.t.Helper()
	selector = client.MatchingLabels{"name": name}
	set := &v1alpha1.MachineSet{ObjectMeta: m.meta(name)}
	set.Spec = v1alpha1.MachineSetSpec{Replicas: 2, Selector: &metav1.LabelSelector{MatchLabels: selector}}
	set.Spec.Template = v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector}, Spec: m.machine("", pool).Spec}
	set.Spec.Template.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachinePreserveTimeout: &metav1.Duration{Duration: 5 * time.Second}}
	m.create(m.admin, set)
	return selector, m.two(selector)
}

// two waits until a MachineSet has two running Machines, and returns them.
func (m *managed) two(selector client.MatchingLabels) []v1alpha1.Machine {
	m.t.Helper()
	machines := &v1alpha1.MachineList{}
	m.eventually("two Machines run", func() bool {
		if err := m.admin.List(m.t.Context(), machines, client.InNamespace(m.Namespace), selector); err != nil || len(machines.Items) != 2 {
			return false
		}
		for i := range machines.Items {
			if machines.Items[i].Status.CurrentStatus.Phase != v1alpha1.MachineRunning || !machines.Items[i].DeletionTimestamp.IsZero() {
				return false
			}
		}
		return true
	})
	return machines.Items
}

// guest writes to a Machine's Node with the permissions of its kubelet.
func (m *managed) guest(of *v1alpha1.Machine, what marks) {
	m.t.Helper()
	node := of.Labels[v1alpha1.NodeLabelKey]
	access, err := m.ControlPlane.UserConfig("system:node:"+node, "system:nodes")
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := client.New(access, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		m.t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": what})
	if err != nil {
		m.t.Fatal(err)
	}
	if err := c.Patch(m.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch)); err != nil {
		m.t.Fatalf("a kubelet may not write %s: %v", patch, err)
	}
}

// seen is the state of a Machine and its Node that must not change, whatever another guest does.
type seen struct {
	Machine *v1alpha1.Machine
	Node    metav1.ObjectMeta
	Spec    corev1.NodeSpec
}

func (m *managed) seen(machine *v1alpha1.Machine) seen {
	m.t.Helper()
	s, node := seen{Machine: &v1alpha1.Machine{}}, &corev1.Node{}
	if err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(machine), s.Machine); err != nil {
		m.t.Fatal(err)
	}
	if err := m.admin.Get(m.t.Context(), client.ObjectKey{Name: s.Machine.Labels[v1alpha1.NodeLabelKey]}, node); err != nil {
		m.t.Fatal(err)
	}
	s.Node, s.Spec = node.ObjectMeta, node.Spec
	for _, meta := range []*metav1.ObjectMeta{&s.Machine.ObjectMeta, &s.Node} {
		meta.ManagedFields, meta.ResourceVersion = nil, ""
	}
	return s
}

// TestGuest_CannotPreventReplacement checks that an unhealthy guest is replaced whatever it writes to its Node, and that nothing
// happens to another Machine or its Node.
func TestGuest_CannotPreventReplacement(t *testing.T) {
	tier.All(t)
	t.Parallel()
	all, number := guests(t), 0
	t.Run("all", func(t *testing.T) {
		for name, write := range hostile {
			number++
			set := fmt.Sprintf("set-%d", number)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m := all.in(t)
				selector, machines := m.set(set)
				guest, other := &machines[0], &machines[1]
				before := m.seen(other)
				m.guest(guest, write(other.Name))
				if _, err := m.cloud.SetNodeReady(guest.Name, corev1.ConditionFalse); err != nil {
					t.Fatal(err)
				}
				m.gone(m.admin, guest)
				m.two(selector)
				if diff := cmp.Diff(before, m.seen(other)); diff != "" {
					t.Errorf("another Machine changed (-was +is):\n%s", diff)
				}
			})
		}
	})
}

// TestGuest_PreservationExpires checks that such a guest is kept while it is unhealthy, but not longer than its
// preservation timeout.
func TestGuest_PreservationExpires(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	selector, machines := m.set("preserved")
	guest, other := &machines[0], &machines[1]
	before := m.seen(other)
	m.guest(guest, annotation(v1alpha1.AnnotationKeyPreserve, "now")(""))
	m.eventually("it is preserved", func() bool {
		return m.admin.Get(t.Context(), client.ObjectKeyFromObject(guest), guest) == nil && guest.Status.CurrentStatus.PreserveExpiryTime != nil
	})
	expiry := guest.Status.CurrentStatus.PreserveExpiryTime.Time
	m.ready(guest, corev1.ConditionFalse, v1alpha1.MachineFailed)
	m.eventually("it goes", func() bool {
		err := m.admin.Get(t.Context(), client.ObjectKeyFromObject(guest), guest)
		return apierrors.IsNotFound(err) || err == nil && !guest.DeletionTimestamp.IsZero()
	})
	if time.Now().Before(expiry) {
		t.Errorf("it goes at %s, and was preserved until %s", time.Now(), expiry)
	}
	m.gone(m.admin, guest)
	m.two(selector)
	if diff := cmp.Diff(before, m.seen(other)); diff != "" {
		t.Errorf("another Machine changed (-was +is):\n%s", diff)
	}
}

// TestGuest_CannotPreventDeletion checks that the VM and the Node of a guest are deleted with its Machine, whatever the guest
// writes to its Node.
func TestGuest_CannotPreventDeletion(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	others := m.machine("other", pool)
	m.create(m.admin, others)
	m.running(others)
	number := 0
	t.Run("all", func(t *testing.T) {
		all := map[string]func(string) marks{"is preserved": annotation(v1alpha1.AnnotationKeyPreserve, "now")}
		for name, write := range hostile {
			all[name] = write
		}
		for name, write := range all {
			number++
			machine := m.machine(fmt.Sprintf("guest-%d", number), pool)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m := m.in(t)
				m.create(m.admin, machine)
				m.running(machine)
				m.guest(machine, write(others.Name))
				m.delete(machine)
				m.gone(m.admin, machine)
				node := &corev1.Node{}
				if err := m.admin.Get(t.Context(), client.ObjectKey{Name: machine.Name}, node); !apierrors.IsNotFound(err) {
					t.Errorf("its node is there, with %v and %v: %v", node.Labels, node.Annotations, err)
				}
			})
		}
	})
	m.running(others)
}

// TestGuest_CannotRemoveTemplateLabels checks that a guest that changes the record of what the manager applied to its Node
// cannot remove the labels and taints of its template. As with MCM, which has the same record, it can cause the
// removal of those that others have added.
func TestGuest_CannotRemoveTemplateLabels(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	machine := m.machine("recorded", pool)
	ours := corev1.Taint{Key: "example.com/ours", Effect: corev1.TaintEffectNoSchedule}
	theirs := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}
	const restricted = "node-restriction.kubernetes.io/trusted"
	machine.Spec.NodeTemplateSpec.Labels = map[string]string{restricted: "no"}
	machine.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{ours}
	m.create(m.admin, machine)
	m.running(machine)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Labels[v1alpha1.NodeLabelKey]}}
	read := func() bool { return m.admin.Get(t.Context(), client.ObjectKeyFromObject(node), node) == nil }
	m.eventually("the node has its template", func() bool { return read() && hasTaint(node, ours) && node.Labels[restricted] == "no" })
	before := node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, theirs)
	if err := m.admin.Patch(t.Context(), node, client.StrategicMergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(v1alpha1.NodeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{restricted: "yes"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{ours, theirs}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.guest(machine, annotation(v1alpha1.AnnotationKeyLastAppliedNodeTemplate, string(record))(""))
	m.eventually("the record is written again", func() bool {
		return read() && node.Annotations[v1alpha1.AnnotationKeyLastAppliedNodeTemplate] != string(record)
	})
	if !hasTaint(node, ours) || node.Labels[restricted] != "no" {
		t.Errorf("the template is lost: labels %v, taints %v", node.Labels, node.Spec.Taints)
	}
	if hasTaint(node, theirs) {
		t.Errorf("a taint of others stays: correct docs/contributing/threat-model.md. Taints %v", node.Spec.Taints)
	}
}

func hasTaint(node *corev1.Node, like corev1.Taint) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&like) })
}
