package machine

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// TestPredicates_NodeChanges checks that heartbeats of kubelets trigger no passes.
func TestPredicates_NodeChanges(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	cases := map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"nothing":           {func(*corev1.Node) {}, false},
		"resource version":  {func(n *corev1.Node) { n.ResourceVersion = "2" }, false},
		"heartbeat":         {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = now }, false},
		"transition time":   {func(n *corev1.Node) { n.Status.Conditions[0].LastTransitionTime = now }, false},
		"message":           {func(n *corev1.Node) { n.Status.Conditions[0].Message = "posted" }, false},
		"order":             {func(n *corev1.Node) { slices.Reverse(n.Status.Conditions) }, false},
		"images":            {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }, false},
		"capacity":          {func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{} }, false},
		"other capacity":    {func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{device: resource.MustParse("1")} }, true},
		"cordon":            {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"managed fields":    {func(n *corev1.Node) { n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}} }, false},
		"condition":         {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, true},
		"condition, reason": {func(n *corev1.Node) { n.Status.Conditions[0].Reason = "Other" }, true},
		"condition gone":    {func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[:1] }, true},
		"condition new": {func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, condition("Terminating", "True"))
		}, true},
		"taint":       {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}} }, true},
		"label":       {func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }, true},
		"annotation":  {func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }, true},
		"finalizer":   {func(n *corev1.Node) { n.Finalizers = []string{"a"} }, true},
		"deletion":    {func(n *corev1.Node) { n.DeletionTimestamp = &now }, true},
		"provider ID": {func(n *corev1.Node) { n.Spec.ProviderID = "a" }, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			was := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1"},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready, condition("DiskPressure", "False")}},
			}
			is := was.DeepCopy()
			tc.change(is)
			if got := nodeChanges().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: is}); got != tc.want {
				t.Errorf("passes = %v, want %v", got, tc.want)
			}
		})
	}
	if !nodeChanges().Create(event.CreateEvent{Object: &corev1.Node{}}) || !nodeChanges().Delete(event.DeleteEvent{Object: &corev1.Node{}}) {
		t.Error("creations or deletions of nodes do not pass")
	}
}

// TestPredicates_ClassAndSecretChanges checks that changes to the content of a class or Secret, and to the
// finalizer of a class, trigger passes.
func TestPredicates_ClassAndSecretChanges(t *testing.T) {
	class, secret := newClass("n"), newSecret("n")
	updates := map[string]struct {
		passes bool
		want   bool
	}{
		"class, unchanged": {classChanges().Update(event.UpdateEvent{ObjectOld: class, ObjectNew: class.DeepCopy()}), false},
		"class, label": {classChanges().Update(event.UpdateEvent{ObjectOld: class, ObjectNew: edited(class, func(c *v1alpha1.MachineClass) {
			c.Labels = map[string]string{"a": "b"}
		})}), false},
		"class, content": {classChanges().Update(event.UpdateEvent{ObjectOld: class, ObjectNew: edited(class, func(c *v1alpha1.MachineClass) {
			c.Generation++
		})}), true},
		"class, finalizer": {classChanges().Update(event.UpdateEvent{ObjectOld: class, ObjectNew: edited(class, func(c *v1alpha1.MachineClass) {
			c.Finalizers = nil
		})}), true},
		"secret, finalizer": {secretChanges().Update(event.UpdateEvent{ObjectOld: secret, ObjectNew: edited(secret, func(s *corev1.Secret) {
			s.Finalizers = []string{v1alpha1.FinalizerSecret}
		})}), false},
		"secret, content": {secretChanges().Update(event.UpdateEvent{ObjectOld: secret, ObjectNew: edited(secret, func(s *corev1.Secret) {
			s.Data = nil
		})}), true},
	}
	for name, tc := range updates {
		if tc.passes != tc.want {
			t.Errorf("%s: passes = %v, want %v", name, tc.passes, tc.want)
		}
	}
}

func edited[O interface {
	client.Object
	DeepCopy() O
}](object O, edit func(O)) O {
	object = object.DeepCopy()
	edit(object)
	return object
}

// TestWatches_EventsTriggerMachines checks that an event about a node, class or Secret triggers passes only over the Machines that
// need it.
func TestWatches_EventsTriggerMachines(t *testing.T) {
	machine := func(name string, changes ...func(*v1alpha1.Machine)) *v1alpha1.Machine {
		m := newMachine("shoot", time.Now())
		m.Name = name
		for _, change := range changes {
			change(m)
		}
		return m
	}
	deleted := func(m *v1alpha1.Machine) {
		now := metav1.Now()
		m.DeletionTimestamp, m.Finalizers = &now, []string{v1alpha1.FinalizerMCM}
	}
	indexed := indexer{fakeclient.NewClientBuilder().WithScheme(scheme)}
	if err := fieldindex.Add(t.Context(), indexed); err != nil {
		t.Fatal(err)
	}
	credentials := newClass("shoot")
	credentials.Name, credentials.SecretRef = "other", nil
	credentials.CredentialsSecretRef = &corev1.SecretReference{Namespace: "shoot", Name: "credentials"}
	c := New(Options{Client: indexed.WithObjects(
		newClass("shoot"), credentials,
		machine("new"),
		machine("running", inPhase(v1alpha1.MachineRunning)),
		machine("failing", inPhase(v1alpha1.MachineCrashLoopBackOff)),
		machine("dying", inPhase(v1alpha1.MachineRunning), deleted),
		machine("preserved", inPhase(v1alpha1.MachineFailed), func(m *v1alpha1.Machine) { m.Status.CurrentStatus.PreserveExpiryTime = ptr.To(metav1.Now()) }),
		machine("elsewhere", func(m *v1alpha1.Machine) { m.Spec.Class.Name = "other" }),
	).Build()})

	secretNamed := func(name string) *corev1.Secret {
		s := newSecret("shoot")
		s.Name = name
		return s
	}
	cases := map[string]struct {
		got  []string
		want []string
	}{
		"node":           {woken(c.mapper().ofNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-shoot-running"}})), []string{"running"}},
		"strange node":   {woken(c.mapper().ofNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "strange"}})), nil},
		"class":          {woken(c.mapper().waitingForClass(t.Context(), newClass("shoot"))), []string{"dying", "failing", "new"}},
		"secret":         {woken(c.mapper().waitingForSecret(t.Context(), secretNamed(className))), []string{"dying", "failing", "new"}},
		"credentials":    {woken(c.mapper().waitingForSecret(t.Context(), secretNamed("credentials"))), []string{"elsewhere"}},
		"driver":         {woken(c.mapper().waitingForDriver(t.Context(), newClass("shoot").Provider)), []string{"dying", "elsewhere", "failing", "new", "preserved"}},
		"strange driver": {woken(c.mapper().waitingForDriver(t.Context(), "strange")), nil},
		"strange secret": {woken(c.mapper().waitingForSecret(t.Context(), secretNamed("strange"))), nil},
	}
	for name, tc := range cases {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: requests %v, want %v", name, tc.got, tc.want)
		}
	}
}

// indexer adds the indexes of the cache to a fake client.
type indexer struct{ *fakeclient.ClientBuilder }

func (i indexer) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(object, field, values)
	return nil
}

func woken(requests []reconcile.Request) []string {
	var names []string
	for _, request := range requests {
		names = append(names, request.Name)
	}
	slices.Sort(names)
	return names
}
