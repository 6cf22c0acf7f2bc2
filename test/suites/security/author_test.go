package security

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// author returns a client for a user with exactly the permissions of one manifest below testdata.
func (m *managed) author(of string) client.Client {
	m.t.Helper()
	c, err := client.New(m.NamedUserWith(m.t, "author-of-"+of, "test/suites/security/testdata/"+of+".yaml"), client.Options{Scheme: env.NewScheme()})
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// on returns a Pod of an author on a node.
func (m *managed) on(node, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: m.meta(name)}
	pod.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	return pod
}

// keeping are the ways in which Pods might be thought to keep a node.
var keeping = map[string]func(*corev1.Pod){
	"never-ends": func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1 << 40) },
	"finalizer":  func(p *corev1.Pod) { p.Finalizers = []string{"example.com/stay"} },
	"daemon": func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "none", UID: "none", Controller: ptr.To(true)}}
	},
	"mirror":   func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
	"critical": func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" },
	"no-evict": func(p *corev1.Pod) {
		p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
	},
	"tolerates": func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
	"no-volume": func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "there-is-none"}}}}
	},
}

// TestPod_AuthorCannotKeepNode checks that a node is removed with its Machine soon after the drain timeout, whatever Pods a
// user puts on the node, even during the drain. The user's Pods on the node of another Machine are kept.
func TestPod_AuthorCannotKeepNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	author := m.author("pods")
	machine, other := m.machine("left", pool), m.machine("kept", pool)
	machine.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: 3 * time.Second}}
	m.create(m.admin, machine, other)
	m.running(machine)
	m.running(other)
	for name, change := range keeping {
		for _, of := range []*v1alpha1.Machine{machine, other} {
			pod := m.on(of.Labels[v1alpha1.NodeLabelKey], name+"-on-"+of.Name)
			change(pod)
			m.create(author, pod)
		}
	}
	before, pods := m.seen(other), m.podsOn(other)
	m.delete(machine)
	late := 0
	m.eventually("the Machine is gone", func() bool {
		late++
		_ = author.Create(t.Context(), m.on(machine.Name, fmt.Sprintf("late-%d", late))) // as long as the node exists
		return client.IgnoreNotFound(m.admin.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)) == nil &&
			m.admin.Get(t.Context(), client.ObjectKeyFromObject(machine), machine) != nil
	})
	m.gone(m.admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Name}})
	if diff := cmp.Diff(before, m.seen(other)); diff != "" {
		t.Errorf("another Machine changed (-was +is):\n%s", diff)
	}
	if diff := cmp.Diff(pods, m.podsOn(other)); diff != "" {
		t.Errorf("Pods on another node changed (-was +is):\n%s", diff)
	}
}

// podsOn returns the Pods on a Machine's node, with whether they are being deleted.
func (m *managed) podsOn(machine *v1alpha1.Machine) map[string]bool {
	m.t.Helper()
	list, found := &corev1.PodList{}, map[string]bool{}
	if err := m.admin.List(m.t.Context(), list, client.InNamespace(m.Namespace)); err != nil {
		m.t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.Spec.NodeName == machine.Labels[v1alpha1.NodeLabelKey] {
			found[pod.Name] = pod.DeletionTimestamp != nil
		}
	}
	return found
}

// taking are the ways in which a Machine might be thought to take a node without a Machine, or what belongs to
// another Machine.
var taking = map[string]func(machine, other *v1alpha1.Machine, node string){
	"the VM": func(m, other *v1alpha1.Machine, _ string) { m.Spec.ProviderID = other.Spec.ProviderID },
	"the node, by label": func(m, other *v1alpha1.Machine, _ string) {
		label(m, v1alpha1.NodeLabelKey, other.Labels[v1alpha1.NodeLabelKey])
	},
	"a node without a Machine":    func(m, _ *v1alpha1.Machine, node string) { label(m, v1alpha1.NodeLabelKey, node) },
	"a node of the Machine's own": func(m, _ *v1alpha1.Machine, node string) { m.Name = node },
	"the node, by force": func(m, other *v1alpha1.Machine, _ string) {
		label(m, v1alpha1.NodeLabelKey, other.Labels[v1alpha1.NodeLabelKey])
		label(m, v1alpha1.LabelKeyForceDeletion, "True")
	},
	"VM and node": func(m, other *v1alpha1.Machine, _ string) {
		m.Spec.ProviderID = other.Spec.ProviderID
		label(m, v1alpha1.NodeLabelKey, other.Labels[v1alpha1.NodeLabelKey])
		label(m, v1alpha1.LabelKeyForceDeletion, "True")
	},
	"marks of the node": func(m, other *v1alpha1.Machine, _ string) {
		m.Spec.NodeTemplateSpec.Labels = map[string]string{v1alpha1.LabelKeyMachineName: other.Name}
		m.Spec.NodeTemplateSpec.Annotations = map[string]string{v1alpha1.AnnotationKeyTriggerDeletion: other.Name}
	},
	"a class elsewhere": func(m, _ *v1alpha1.Machine, _ string) { m.Spec.Class.Name = "../kube-system/" + pool },
	"another place": func(m, _ *v1alpha1.Machine, _ string) {
		m.Annotations = map[string]string{driver.AnnotationLocation: "../../" + pool}
	},
	"all that autoscalers": func(m, other *v1alpha1.Machine, _ string) {
		m.Annotations = map[string]string{v1alpha1.AnnotationKeyTriggerDeletion: other.Name, v1alpha1.AnnotationKeyMachinePriority: "-1"}
	},
}

func label(machine *v1alpha1.Machine, key, value string) {
	metav1.SetMetaDataLabel(&machine.ObjectMeta, key, value)
}

// TestMachine_AuthorCannotAffectOthers checks that, whatever Machines a user creates and deletes, a node without a Machine, and
// what belongs to another Machine, are not affected, including their Pods.
func TestMachine_AuthorCannotAffectOthers(t *testing.T) {
	tier.All(t)
	t.Parallel()
	all := guests(t)
	author := all.author("machines")
	other := all.machine("other", pool)
	unjoined := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.NodeLabelKey: "plane-of-" + all.Namespace}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: unjoined.Labels[v1alpha1.NodeLabelKey]}}
	all.create(all.admin, other, node)
	t.Cleanup(func() { _ = all.admin.Delete(context.Background(), node) }) // best-effort cleanup
	all.running(other)
	all.create(all.admin, all.on(other.Labels[v1alpha1.NodeLabelKey], "on-other"), all.on(node.Name, "on-plane"))
	before := all.seen(other)
	number := 0
	t.Run("all", func(t *testing.T) {
		for what, take := range taking {
			number++
			machine := all.machine(fmt.Sprintf("taker-%d", number), pool)
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				m := all.in(t)
				take(machine, other, node.Name)
				m.comesAndGoes(author, machine)
			})
		}
	})
	if diff := cmp.Diff(before, all.seen(other)); diff != "" {
		t.Errorf("another Machine changed (-was +is):\n%s", diff)
	}
	found := &corev1.Node{}
	if err := all.admin.Get(t.Context(), client.ObjectKeyFromObject(node), found); err != nil || found.UID != node.UID || found.Spec.Unschedulable || len(found.Spec.Taints) > len(node.Spec.Taints) {
		t.Errorf("the node without a Machine is %+v: %v", found, err)
	}
	want := map[string]bool{"on-other": false, "on-plane": false}
	got := all.podsOn(other)
	for name, deleted := range all.podsOn(unjoined) {
		got[name] = deleted
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Pods (-want +got; true: being deleted):\n%s", diff)
	}
	if !all.hasVM("other") {
		t.Error("another Machine's VM is gone")
	}
}

// comesAndGoes creates a Machine of an author, and deletes it when the manager has reconciled it.
func (m *managed) comesAndGoes(author client.Client, machine *v1alpha1.Machine) {
	m.t.Helper()
	m.create(author, machine)
	m.eventually("the manager has looked at it", func() bool {
		return m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(machine), machine) == nil && machine.Status.LastOperation.Description != ""
	})
	m.must(author.Delete(m.t.Context(), machine))
	m.eventually("it goes, or waits for a decision", func() bool {
		err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(machine), machine)
		last := machine.Status.LastOperation
		return client.IgnoreNotFound(err) == nil && (err != nil || last.Type == v1alpha1.MachineOperationDelete && last.State == v1alpha1.MachineStateFailed)
	})
}

// hasVM reports whether a Machine has a VM.
func (m *managed) hasVM(machine string) bool {
	m.t.Helper()
	vms, err := m.cloud.VMs()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, vm := range vms {
		if vm.Machine == machine {
			return true
		}
	}
	return false
}

// spoiling are changes of a class by a user who can write only classes.
var spoiling = map[string]func(class *v1alpha1.MachineClass){
	"another provider": func(c *v1alpha1.MachineClass) { c.Provider = "aws" },
	"no Secret":        func(c *v1alpha1.MachineClass) { c.SecretRef = nil },
	"a Secret of others": func(c *v1alpha1.MachineClass) {
		c.SecretRef = &corev1.SecretReference{Namespace: metav1.NamespaceSystem, Name: pool}
	},
	"credentials of others": func(c *v1alpha1.MachineClass) {
		c.CredentialsSecretRef = &corev1.SecretReference{Namespace: metav1.NamespaceSystem, Name: pool}
	},
	"nonsense": func(c *v1alpha1.MachineClass) { c.ProviderSpec.Raw = []byte(`{"x":["y"]}`) },
	"another cluster": func(c *v1alpha1.MachineClass) {
		c.ProviderSpec.Raw = []byte(`{"tags":{"kubernetes.io/cluster/other":"1"}}`)
	},
	"agreed to lose orphans": func(c *v1alpha1.MachineClass) {
		c.Annotations = map[string]string{"safety.millwright.dev/remove-orphans-up-to": "1000"}
	},
	"no finalizer": func(c *v1alpha1.MachineClass) { c.Finalizers = nil },
}

// TestMachineClass_EditKeepsVM checks that, however the class of a running Machine is edited, even while the Machine is
// being deleted, its VM exists as long as the Machine, and is deleted with it when the class is repaired.
func TestMachineClass_EditKeepsVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	all := guests(t)
	author := all.author("classes")
	number := 0
	for what, spoil := range spoiling {
		number++
		name := fmt.Sprintf("class-%d", number)
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := all.in(t)
			m.tampered(name, func(class, _ client.Object) {
				spoil(class.(*v1alpha1.MachineClass))
				m.must(author.Update(t.Context(), class))
			})
		})
	}
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		m := all.in(t)
		m.tampered("class-deleted", func(class, _ client.Object) {
			m.must(author.Delete(t.Context(), class))
			m.must(client.IgnoreNotFound(author.Patch(t.Context(), class, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))))
		})
	})
}

func (m *managed) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// TestSecret_EditKeepsVM checks the same for the Secret of a class.
func TestSecret_EditKeepsVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	all := guests(t)
	author := all.author("secrets")
	number := 0
	for what, spoil := range map[string]func(*corev1.Secret){
		"empty":        func(s *corev1.Secret) { s.Data = nil },
		"binary":       func(s *corev1.Secret) { s.Data["userData"] = []byte("\x00\xff<<BOOTSTRAP_TOKEN>>\x1b[2J") },
		"huge":         func(s *corev1.Secret) { s.Data["userData"] = bytes.Repeat([]byte("<<BOOTSTRAP_TOKEN>>"), 40_000) },
		"kubeconfig":   func(s *corev1.Secret) { s.Data["kubeconfig"] = []byte(strings.Repeat("- ", 1000)) },
		"immutable":    func(s *corev1.Secret) { s.Immutable = ptr.To(true) },
		"no finalizer": func(s *corev1.Secret) { s.Finalizers = nil },
		"other keys":   func(s *corev1.Secret) { s.Data = map[string][]byte{"user-data": nil, "x..": {0}, "kubeconfig": nil} },
		"many values": func(s *corev1.Secret) {
			for i := range 30_000 {
				s.Data[fmt.Sprint(i)] = fmt.Appendf(nil, "%05d", i)
			}
		},
	} {
		number++
		name := fmt.Sprintf("secret-%d", number)
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := all.in(t)
			m.tampered(name, func(_, secret client.Object) {
				spoil(secret.(*corev1.Secret))
				m.must(author.Update(t.Context(), secret))
			})
		})
	}
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		m := all.in(t)
		m.tampered("secret-deleted", func(_, secret client.Object) {
			m.must(author.Delete(t.Context(), secret))
			m.must(client.IgnoreNotFound(author.Patch(t.Context(), secret, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))))
		})
	})
}

// tampered spoils the objects that a running Machine needs, deletes the Machine, and then repairs them.
func (m *managed) tampered(name string, spoil func(class, secret client.Object)) {
	m.t.Helper()
	good := m.class(name, `{}`)
	m.create(m.admin, good...)
	machine, later := m.machine(name, name), m.machine(name+"-later", name)
	m.create(m.admin, machine)
	m.running(machine)
	secret, class := &corev1.Secret{ObjectMeta: m.meta(name)}, &v1alpha1.MachineClass{ObjectMeta: m.meta(name)}
	for _, object := range []client.Object{secret, class} {
		m.eventually("it is held", func() bool {
			return m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(object), object) == nil && len(object.GetFinalizers()) > 0
		})
	}
	spoil(class, secret)
	m.create(m.admin, later)
	m.eventually("the manager has looked at it", func() bool {
		return m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(later), later) == nil && later.Status.LastOperation.Description != ""
	})
	if !m.hasVM(machine.Name) {
		m.t.Error("the Machine was not deleted, and its VM is gone")
	}
	m.delete(machine)
	m.eventually("the Machine's deletion has begun", func() bool { // or complete
		err := m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(machine), machine)
		return apierrors.IsNotFound(err) || err == nil && machine.Status.LastOperation.Type == v1alpha1.MachineOperationDelete
	})
	m.delete(later)
	m.repaired(good)
	m.gone(m.admin, machine)
	m.gone(m.admin, later)
	if m.hasVM(machine.Name) || m.hasVM(later.Name) {
		m.t.Error("a VM is left without its Machine")
	}
}

// repaired restores the original objects.
func (m *managed) repaired(good []client.Object) {
	m.t.Helper()
	for _, object := range good {
		m.eventually("it is repaired", func() bool {
			fresh := object.DeepCopyObject().(client.Object)
			fresh.SetResourceVersion("")
			fresh.SetUID("")
			if m.admin.Create(m.t.Context(), fresh) == nil {
				return true
			}
			now := object.DeepCopyObject().(client.Object)
			if m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(object), now) != nil || !now.GetDeletionTimestamp().IsZero() {
				return false
			}
			if now, is := now.(*corev1.Secret); is && now.Immutable != nil {
				return true // its data are the original ones
			}
			fresh.SetResourceVersion(now.GetResourceVersion())
			fresh.SetFinalizers(now.GetFinalizers())
			return m.admin.Update(m.t.Context(), fresh) == nil
		})
	}
}
