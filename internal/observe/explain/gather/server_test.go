package gather

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) { env.Main(m) }

const uuid = "6f1c0000-0000-4000-8000-000000000001"

// server is a control cluster and a target cluster with objects, but without a manager.
type server struct {
	*env.Env
	t       *testing.T
	control client.Client
}

func newServer(t *testing.T) *server {
	e := env.NewPair(t)
	scheme := env.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return &server{Env: e, t: t, control: connect(t, e.Admin, scheme)}
}

func connect(t *testing.T, config *rest.Config, scheme *runtime.Scheme) client.Client {
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// put creates an object, and then its status.
func put[T client.Object](s *server, c client.Client, object T, status func(T)) T {
	s.t.Helper()
	if err := c.Create(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
	if status == nil {
		return object
	}
	status(object)
	if err := c.Status().Update(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
	return object
}

func (s *server) machine(name, node string, owner *v1alpha1.MachineSet, status func(*v1alpha1.Machine)) *v1alpha1.Machine {
	machine := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name, Finalizers: []string{v1alpha1.FinalizerMCM}, Labels: map[string]string{v1alpha1.NodeLabelKey: node}},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool-v1"}, ProviderID: "millwright:///" + s.Namespace + "/" + uuid},
	}
	if owner != nil {
		machine.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))}
	}
	return put(s, s.control, machine, status)
}

func (s *server) set() *v1alpha1.MachineSet {
	return put(s, s.control, &v1alpha1.MachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "pool-a"},
		Spec: v1alpha1.MachineSetSpec{
			Replicas: 1, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "a"}},
			Template: v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "a"}}},
		},
	}, nil)
}

func (s *server) event(kind, name, reason, cause, message, objects string) {
	s.t.Helper()
	put(s, s.control, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: s.Namespace, GenerateName: name + ".", Annotations: map[string]string{v1alpha1.EventAnnotationCause: cause, v1alpha1.EventAnnotationObjects: objects}},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: s.Namespace, Name: name},
		Type:           corev1.EventTypeNormal, Reason: reason, Message: message,
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}, nil)
}

func (s *server) explain(name string) report.Report {
	s.t.Helper()
	got, err := explainer{Reader{Control: s.control, Target: s.Target.Client}}.Machine(s.t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: name})
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

// wantWhy checks the causes and objects of the first findings.
func wantWhy(t *testing.T, findings []report.Finding, want ...report.Finding) {
	t.Helper()
	for i, w := range want {
		if i >= len(findings) || findings[i].Cause != w.Cause || findings[i].Object != w.Object {
			t.Errorf("finding %d is not %s of %q in %+v", i, w.Cause, w.Object, findings)
		}
	}
}

// TestMachine_ExplainsDrainOnServer checks a drain with real field selectors, PodDisruptionBudgets, events and two
// clusters.
func TestMachine_ExplainsDrainOnServer(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	set, node := s.set(), s.Namespace+"-node"
	machine := s.machine("pool-a-x7k2p", node, set, func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachineTerminating, LastUpdateTime: metav1.Now()}
		m.Status.LastOperation = v1alpha1.LastOperation{
			Type: v1alpha1.MachineOperationDelete, State: v1alpha1.MachineStateProcessing, LastUpdateTime: metav1.Now(),
			Description: "Draining, waiting for pod disruption budget to allow the eviction of pod db-0. " + messages.Drain,
		}
	})
	target := s.Target.Client
	put(s, target, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now()}}
	})
	for name, on := range map[string]string{"db-0": node, "db-1": "elsewhere"} {
		put(s, target, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Target.Namespace, Name: name, Labels: map[string]string{"app": "db"}},
			Spec:       corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "db", Image: "db"}}},
		}, nil)
	}
	put(s, target, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Target.Namespace, Name: "db"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}, func(b *policyv1.PodDisruptionBudget) {
		b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 2}
	})
	s.event("MachineSet", "pool-a", "SuccessfulDelete", v1alpha1.CauseNamedForDeletion, "Deleted 1 machine (pool-a-x7k2p): it was named for deletion", "pool-a-x7k2p")
	if err := s.control.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}

	got := s.explain(machine.Name)
	wantWhy(t, got.Why, report.Finding{Cause: report.DisruptionBudgetForbids, Object: "PodDisruptionBudget " + s.Target.Namespace + "/db"}, report.Finding{Cause: report.Draining})
	wantWhy(t, got.Replaced, report.Finding{Cause: v1alpha1.CauseNamedForDeletion})
	if got.Verdict != report.Deleting || got.Identity.Set != "pool-a" || len(got.Unread) != 0 || len(got.Why) != 2 {
		t.Errorf("got %+v", got)
	}
}

// TestMachine_NamesOwnerOfFinalizer checks that the report contains who set a finalizer, which the API server
// records.
func TestMachine_NamesOwnerOfFinalizer(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	machine := s.machine("held", "", nil, nil)
	before := machine.DeepCopy()
	machine.Finalizers = []string{"example.com/backup"}
	if err := s.control.Patch(t.Context(), machine, client.MergeFrom(before), client.FieldOwner("backup-operator")); err != nil {
		t.Fatal(err)
	}
	if err := s.control.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	got := s.explain("held")
	wantWhy(t, got.Why, report.Finding{Cause: report.Finalizer})
	if text := got.Why[0].Text; !strings.Contains(text, "set by backup-operator") {
		t.Errorf("the report does not contain who set the finalizer: %s", text)
	}
}

// TestMachine_ExplainsDeletedMachineFromEvents checks the report about a Machine that no longer exists. The events
// of its set still exist.
func TestMachine_ExplainsDeletedMachineFromEvents(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	s.set()
	s.event("Machine", "pool-a-x7k2p", "Deleted", "", "VM cloud:///vm-1 and its node are gone", "")
	s.event("MachineSet", "pool-a", "SuccessfulDelete", v1alpha1.CauseMachineFailed, "Deleted 2 machines (pool-a-other, pool-a-x7k2p): it failed: no capacity", "pool-a-other,pool-a-x7k2p")
	got := s.explain("pool-a-x7k2p")
	wantWhy(t, got.Replaced, report.Finding{Cause: v1alpha1.CauseMachineFailed})
	if got.Verdict != report.Gone || got.Identity.Set != "pool-a" || got.Since.IsZero() {
		t.Errorf("got %+v", got)
	}
	if other := s.explain("pool-a-never"); other.Verdict != report.NotFound {
		t.Errorf("a Machine that never existed: %+v", other)
	}
}

// TestMachine_DoesNotPrintSecret checks that the report does not contain the Secret's content, and that the VM is
// found by the provider ID.
func TestMachine_DoesNotPrintSecret(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	const hidden = "hunter2-do-not-print"
	put(s, s.control, &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "pool-v1"},
		Provider:   "vm", SecretRef: &corev1.SecretReference{Namespace: s.Namespace, Name: "cloud"},
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)},
	}, nil)
	secret := put(s, s.control, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "cloud"}, StringData: map[string]string{"password": hidden}}, nil)
	put(s, s.control, &vmv1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "vm"}, Spec: vmv1alpha1.VirtualMachineSpec{UUID: uuid},
	}, func(vm *vmv1alpha1.VirtualMachine) {
		vm.Status.Conditions = []metav1.Condition{{Type: vmv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Preparing", Message: "1 MiB of 2 MiB written", LastTransitionTime: metav1.Now()}}
	})
	s.machine("joins", "joins", nil, func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachinePending, LastUpdateTime: metav1.Now()}
	})
	got := s.explain("joins")
	wantWhy(t, got.Why, report.Finding{Cause: report.VirtualMachineNotReady, Object: "VirtualMachine " + s.Namespace + "/vm"}, report.Finding{Cause: report.NodeNotJoined})

	s.machine("new", "", nil, nil)
	got = s.explain("new")
	wantWhy(t, got.Why, report.Finding{Cause: v1alpha1.CauseInvalidClassInputs})
	var text bytes.Buffer
	if err := report.Print(&text, got); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(&text).Encode(got); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), hidden) || strings.Contains(text.String(), "password") {
		t.Errorf("the report contains the Secret's content:\n%s", &text)
	}

	if err := s.control.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if text := s.explain("new").Summary; !strings.Contains(text, `cloud" of MachineClass "pool-v1" not found`) {
		t.Errorf("after the deletion of the secret: %s", text)
	}
}

// TestMachine_ReportsUnreachableTarget checks that everything else is explained if the target cluster is
// unreachable.
func TestMachine_ReportsUnreachableTarget(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	s.machine("joins", "joins", nil, func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachinePending, LastUpdateTime: metav1.Now()}
	})
	unreachable := connect(t, &rest.Config{Host: "https://127.0.0.1:1", Timeout: 10 * time.Second}, env.NewScheme())
	got, err := explainer{Reader{Control: s.control, Target: unreachable}}.Machine(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: "joins"})
	if err != nil {
		t.Fatal(err)
	}
	wantWhy(t, got.Why, report.Finding{Cause: v1alpha1.CauseTargetUnavailable})
	if _, err := (explainer{Reader{Control: unreachable}}).Machine(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: "joins"}); err == nil {
		t.Error("no error without the control cluster")
	}
}

// TestMachine_ReportsUnreadableObjects checks that missing permissions are reported, and that everything else is
// explained.
func TestMachine_ReportsUnreadableObjects(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	s.machine("new", "new", nil, func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: v1alpha1.MachinePending, LastUpdateTime: metav1.Now()}
	})
	if _, err := (explainer{Reader{Control: connect(t, impersonated(s.Admin), env.NewScheme())}}).Machine(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: "new"}); err == nil {
		t.Error("no error for a user without permissions")
	}
	got, err := explainer{Reader{Control: s.control, Target: connect(t, impersonated(s.Target.Admin), env.NewScheme())}}.Machine(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: "new"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(got.Unread, func(text string) bool {
		return strings.Contains(text, "Node new") && strings.Contains(text, "forbidden")
	}) {
		t.Errorf("unread: %q", got.Unread)
	}
	wantWhy(t, got.Why, report.Finding{Cause: report.Other}) // neither an outage nor a missing node
}

func impersonated(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "viewer"}
	return config
}

// explainer wantUnread the facts that its Reader reads.
type explainer struct{ Reader }

func (x explainer) Machine(ctx context.Context, key types.NamespacedName) (report.Report, error) {
	facts, err := x.Reader.Machine(ctx, key)
	return explain.Machine(facts, time.Now()), err
}

func (x explainer) Deployment(ctx context.Context, key types.NamespacedName) (report.Report, error) {
	facts, err := x.Reader.Deployment(ctx, key)
	return pool.Explain(facts, time.Now()), err
}
