package machine

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

const device = "example.com/device"

// virtual returns a node template with that many virtual devices, or without virtual capacity if devices is zero.
func virtual(devices int64) *v1alpha1.NodeTemplate {
	template := &v1alpha1.NodeTemplate{
		Capacity:     corev1.ResourceList{"cpu": resource.MustParse("1"), "gpu": resource.MustParse("0"), "memory": resource.MustParse("1Gi")},
		InstanceType: "t", Region: "r", Zone: "z",
	}
	if devices > 0 {
		template.VirtualCapacity = corev1.ResourceList{device: *resource.NewQuantity(devices, resource.DecimalSI)}
	}
	return template
}

func (h *harness) devices() int64 {
	h.Helper()
	quantity := h.node().Status.Capacity[device]
	return quantity.Value()
}

// TestMachine_VirtualCapacityFollowsClass checks that the node keeps the virtual capacity of the class when the class or the node
// changes, and that no write is repeated.
func TestMachine_VirtualCapacityFollowsClass(t *testing.T) {
	h := newHarness(t)
	class := func(edit func(*v1alpha1.MachineClass)) { change(h, newClass(h.Key.Namespace), edit) }
	class(func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(2) })
	h.running()
	if got := h.devices(); got != 2 {
		t.Fatalf("%d devices, want 2", got)
	}
	n := h.node()
	n.Status.Capacity[device] = resource.MustParse("7")
	n.Status.Capacity["cpu"] = resource.MustParse("4")
	if err := h.target.client.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	h.Settle()
	if cpu := h.node().Status.Capacity.Cpu().Value(); h.devices() != 2 || cpu != 4 {
		t.Errorf("%d devices and %d cpu, want 2 and 4", h.devices(), cpu)
	}
	class(func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(3) })
	h.Settle()
	if got := h.devices(); got != 3 {
		t.Errorf("%d devices, want 3", got)
	}
	h.Writes = nil
	h.Settle()
	if len(h.Writes) != 0 {
		t.Errorf("writes without a change:\n%s", h.LastWrites())
	}
	class(func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(0) })
	h.Settle()
	if diff := h.TakeWrites(); !slices.Equal(diff, []string{"patch status of Node", "patch Node"}) {
		t.Errorf("writes %v, want the annotation that records the capacity removed after the capacity", diff)
	}
	if _, left := h.node().Status.Capacity[device]; left || h.node().Annotations[v1alpha1.AnnotationKeyLastAppliedVirtualCapacity] != "" {
		t.Errorf("capacity %v, annotations %v", h.node().Status.Capacity, h.node().Annotations)
	}
}

// TestMachine_VirtualCapacityIsKeptWithoutClass checks that the node's capacity does not change if the class does not exist.
func TestMachine_VirtualCapacityIsKeptWithoutClass(t *testing.T) {
	h := newHarness(t)
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(2) })
	h.running()
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
	h.remove(newClass(h.Key.Namespace))
	h.Settle()
	if got := h.devices(); got != 2 || len(h.Writes) != 0 {
		t.Errorf("%d devices, writes:\n%s", got, h.LastWrites())
	}
}

// TestMachine_NodeDriftIsReverted checks that the next pass reverts changes to the parts of the node that the template sets,
// in one write. The change of the node itself triggers the pass.
func TestMachine_NodeDriftIsReverted(t *testing.T) {
	template := func(m *v1alpha1.Machine) {
		m.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": "a"}, Annotations: map[string]string{"note": "b"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: "a", Effect: corev1.TaintEffectNoSchedule}}},
		}
	}
	for name, drift := range map[string]func(n *corev1.Node){
		"label removed":     func(n *corev1.Node) { delete(n.Labels, "pool") },
		"label changed":     func(n *corev1.Node) { n.Labels["pool"] = "b" },
		"name removed":      func(n *corev1.Node) { delete(n.Labels, v1alpha1.LabelKeyMachineName) },
		"annotation gone":   func(n *corev1.Node) { delete(n.Annotations, "note") },
		"taint removed":     func(n *corev1.Node) { n.Spec.Taints = nil },
		"taint changed":     func(n *corev1.Node) { n.Spec.Taints[0].Value = "b" },
		"finalizer removed": func(n *corev1.Node) { n.Finalizers = nil },
		"all of them": func(n *corev1.Node) {
			n.Labels, n.Annotations["note"], n.Spec.Taints, n.Finalizers = nil, "c", nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.running(template)
			before, drifted := h.node(), h.node()
			drift(drifted)
			if !nodeChanges().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: drifted}) {
				t.Fatal("the change of the node is ignored")
			}
			change(h, h.node(), drift)
			h.Settle()
			n := h.node()
			if n.Labels["pool"] != "a" || n.Labels[v1alpha1.LabelKeyMachineName] != machineName || n.Annotations["note"] != "b" ||
				len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Value != "a" || len(n.Finalizers) != 1 {
				t.Errorf("labels %v, annotations %v, taints %v, finalizers %v", n.Labels, n.Annotations, n.Spec.Taints, n.Finalizers)
			}
			if got := h.TakeWrites(); !slices.Equal(got, []string{"patch Node"}) {
				t.Errorf("writes %v, want one", got)
			}
		})
	}
}

// awaitingDrainer is a drainer that waits for events of other objects.
type awaitingDrainer struct {
	fakeDrainer
	volume, namespace string
	machine           client.ObjectKey
}

func (d *awaitingDrainer) Awaiting(volume string) []client.ObjectKey {
	if volume == d.volume {
		return []client.ObjectKey{d.machine}
	}
	return nil
}

func (d *awaitingDrainer) Refused(namespace string) []client.ObjectKey {
	if namespace == d.namespace {
		return []client.ObjectKey{d.machine}
	}
	return nil
}

// TestWatches_DrainEventsTriggerDeletedMachines checks that events of Pods and volumes trigger passes only over Machines that are being
// deleted.
func TestWatches_DrainEventsTriggerDeletedMachines(t *testing.T) {
	running, dying := mate("running", "a", v1alpha1.MachineRunning), mate("dying", "a", v1alpha1.MachineTerminating)
	now := metav1.Now()
	running.Labels[v1alpha1.NodeLabelKey], dying.Labels[v1alpha1.NodeLabelKey] = "node-r", "node-d"
	dying.DeletionTimestamp, dying.Finalizers = &now, []string{v1alpha1.FinalizerMCM}
	indexed := indexer{fakeclient.NewClientBuilder().WithScheme(scheme)}
	if err := fieldindex.Add(t.Context(), indexed); err != nil {
		t.Fatal(err)
	}
	c := New(Options{Client: indexed.WithObjects(&running, &dying).Build()})
	c.Drain.Drainer = &awaitingDrainer{volume: "pv", namespace: "shop", machine: client.ObjectKey{Namespace: "shoot", Name: "other"}}
	pod := func(node string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}} }
	attachment := func(node, volume string) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
		if volume != "" {
			a.Spec.Source.PersistentVolumeName = &volume
		}
		return a
	}
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	cases := map[string]struct {
		got, want []string
	}{
		"pod of a running one":        {woken(c.drainer.events().OfPod(t.Context(), pod("node-r"))), nil},
		"pod of a deleted one":        {woken(c.drainer.events().OfPod(t.Context(), pod("node-d"))), []string{"dying"}},
		"volumes of a running one":    {woken(c.drainer.events().OfNode(t.Context(), node("node-r"))), nil},
		"volumes of a deleted one":    {woken(c.drainer.events().OfNode(t.Context(), node("node-d"))), []string{"dying"}},
		"attachment to a deleted one": {woken(c.drainer.events().OfAttachment(t.Context(), attachment("node-d", "other"))), []string{"dying"}},
		"attachment that is awaited":  {woken(c.drainer.events().OfAttachment(t.Context(), attachment("node-r", "pv"))), []string{"other"}},
		"attachment of no volume":     {woken(c.drainer.events().OfAttachment(t.Context(), attachment("node-r", ""))), nil},
		"budget that refused":         {woken(c.drainer.events().OfBudget(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}})), []string{"other"}},
		"budget of another namespace": {woken(c.drainer.events().OfBudget(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bank"}})), nil},
		"class of all machines":       {woken(c.mapper().ofClass(t.Context(), newClass("shoot"))), []string{"dying", "running"}},
	}
	for name, tc := range cases {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: requests %v, want %v", name, tc.got, tc.want)
		}
	}
}

// TestPredicates_CapacityAndVolumes checks that only relevant changes pass the predicates.
func TestPredicates_CapacityAndVolumes(t *testing.T) {
	two, three := newClass("n"), newClass("n")
	two.NodeTemplate, three.NodeTemplate = virtual(2), virtual(3)
	labelled := two.DeepCopy()
	labelled.Generation++
	labelled.NodeTemplate.Zone = "elsewhere"
	attached := &corev1.Node{Status: corev1.NodeStatus{VolumesAttached: []corev1.AttachedVolume{{Name: "a"}}}}
	cases := map[string]struct{ passes, want bool }{
		"capacity":          {capacityChanges().Update(event.UpdateEvent{ObjectOld: two, ObjectNew: three}), true},
		"capacity, at last": {capacityChanges().Update(event.UpdateEvent{ObjectOld: newClass("n"), ObjectNew: two}), true},
		"something else":    {capacityChanges().Update(event.UpdateEvent{ObjectOld: two, ObjectNew: labelled}), false},
		"attached":          {drain.VolumeChanges().Update(event.UpdateEvent{ObjectOld: &corev1.Node{}, ObjectNew: attached}), true},
		"heartbeat":         {drain.VolumeChanges().Update(event.UpdateEvent{ObjectOld: attached, ObjectNew: attached.DeepCopy()}), false},
	}
	for name, tc := range cases {
		if tc.passes != tc.want {
			t.Errorf("%s: passes = %v, want %v", name, tc.passes, tc.want)
		}
	}
}
