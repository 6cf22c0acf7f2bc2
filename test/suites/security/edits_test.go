package security

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// chain is a MachineDeployment with the objects created for it.
type chain struct {
	deployment *v1alpha1.MachineDeployment
	set        *v1alpha1.MachineSet
	machine    *v1alpha1.Machine
	node       *corev1.Node
}

// chain returns the objects of a MachineDeployment of one Machine.
func (m *managed) chain(name string) chain {
	m.t.Helper()
	of := chain{deployment: &v1alpha1.MachineDeployment{ObjectMeta: m.meta(name)}}
	sets, machines := &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
	labels := client.MatchingLabels{"name": name}
	m.must(m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(of.deployment), of.deployment))
	for _, list := range []client.ObjectList{sets, machines} {
		m.must(m.admin.List(m.t.Context(), list, client.InNamespace(m.Namespace), labels))
	}
	if len(sets.Items) != 1 || len(machines.Items) != 1 {
		m.t.Fatalf("%s has %d sets and %d Machines", name, len(sets.Items), len(machines.Items))
	}
	of.set, of.machine = &sets.Items[0], &machines.Items[0]
	of.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: of.machine.Labels[v1alpha1.NodeLabelKey]}}
	m.must(m.admin.Get(m.t.Context(), client.ObjectKeyFromObject(of.node), of.node))
	return of
}

func (c chain) all() []client.Object { return []client.Object{c.deployment, c.set, c.machine, c.node} }

// edit is a manual edit of the objects of a MachineDeployment.
type edit func(m *managed, of chain)

// inMetadata writes the same metadata to all of them.
func inMetadata(change func(client.Object) map[string]any) edit {
	return func(m *managed, of chain) {
		for _, object := range of.all() {
			m.merge(object, map[string]any{"metadata": change(object)})
		}
	}
}

// inStatus writes to the status of one of them.
func inStatus(which func(chain) client.Object, status map[string]any) edit {
	return func(m *managed, of chain) {
		raw, err := json.Marshal(map[string]any{"status": status})
		m.must(err)
		m.must(m.admin.Status().Patch(m.t.Context(), which(of), client.RawPatch(types.MergePatchType, raw)))
	}
}

func (m *managed) merge(object client.Object, change map[string]any) {
	m.t.Helper()
	raw, err := json.Marshal(change)
	m.must(err)
	m.patch(object, string(raw))
}

func ofDeployment(c chain) client.Object { return c.deployment }
func ofSet(c chain) client.Object        { return c.set }
func ofMachine(c chain) client.Object    { return c.machine }

// operation is a status of a Machine.
func operation(phase v1alpha1.MachinePhase) edit {
	return inStatus(ofMachine, map[string]any{
		"currentStatus": map[string]any{"phase": phase, "lastUpdateTime": "1970-01-01T00:00:00Z"},
		"lastOperation": map[string]any{"type": "Delete", "state": "Successful", "description": "Set machine status to termination. Now, getting VM Status", "lastUpdateTime": "9999-12-31T23:59:59Z"},
	})
}

// ours are annotations that controllers read, except those that request preservation, deletion, or a pause.
var ours = []string{
	driver.AnnotationLocation, v1alpha1.AnnotationKeyMachinePriority, v1alpha1.AnnotationKeyLastAppliedNodeTemplate,
	v1alpha1.AnnotationKeyLastAppliedPreserve, v1alpha1.AnnotationKeyMarkedForDeletionTime, v1alpha1.AnnotationKeyDrainSince,
	v1alpha1.AnnotationKeyExcessReplicas, v1alpha1.AnnotationKeyNotManaged, v1alpha1.AnnotationKeyMachineUpdateFailedReason,
	"deployment.kubernetes.io/revision", "deployment.kubernetes.io/revision-history", "deployment.kubernetes.io/desired-replicas",
	"deployment.kubernetes.io/max-replicas", "machine.millwright.dev/made-from", "machine.millwright.dev/class-choices",
	"machine.millwright.dev/update-plan", "machine.millwright.dev/fallback-classes", "machine.millwright.dev/replacement",
	"node.machine.sapcloud.io/effective-creation-timeout", "node.machine.sapcloud.io/last-applied-virtual-capacity",
}

// annotated writes a value to all of them.
func annotated(value any) edit {
	all := map[string]any{}
	for _, key := range ours {
		all[key] = value
	}
	return inMetadata(func(client.Object) map[string]any { return map[string]any{"annotations": all} })
}

const most32, most64 = int64(1<<31 - 1), int64(1<<63 - 1)

// edits are the manual edits. They do not include the phase Failed, in which a Machine is replaced, and
// InPlaceUpdating, in which it waits until the update times out.
var edits = map[string]edit{
	"finalizers twice": inMetadata(func(o client.Object) map[string]any {
		return map[string]any{"finalizers": slices.Concat(o.GetFinalizers(), o.GetFinalizers())}
	}),
	"no finalizers": inMetadata(func(client.Object) map[string]any { return map[string]any{"finalizers": nil} }),
	"finalizers exchanged": inMetadata(func(client.Object) map[string]any {
		return map[string]any{"finalizers": []string{theirs}}
	}),
	"nonsense in annotations":    annotated("\x1b[2J{\u202e"),
	"nothing in annotations":     annotated(nil),
	"empty annotations":          annotated(""),
	"the highest in annotations": annotated(fmt.Sprint(most64)),
	"nearly all that annotations may have": inMetadata(func(client.Object) map[string]any {
		return map[string]any{"annotations": map[string]any{"example.com/x": strings.Repeat("x", 250<<10)}}
	}),
	"counts of a deployment": inStatus(ofDeployment, map[string]any{
		"observedGeneration": most64, "replicas": most32, "updatedReplicas": -1, "readyReplicas": most32, "availableReplicas": most32, "unavailableReplicas": -1,
		"collisionCount": most32, "conditions": nil, "failedMachines": nil,
	}),
	"counts of a set": inStatus(ofSet, map[string]any{
		"observedGeneration": most64, "replicas": most32, "fullyLabeledReplicas": most32, "readyReplicas": most32, "availableReplicas": most32, "machineSetCondition": nil, "failedMachines": nil,
	}),
	"no counts of a set": inStatus(ofSet, map[string]any{"observedGeneration": -1, "replicas": 0, "readyReplicas": 0, "availableReplicas": 0}),
	"no status":          inStatus(ofMachine, map[string]any{"currentStatus": nil, "lastOperation": nil, "conditions": nil}),
	"no conditions":      inStatus(ofMachine, map[string]any{"conditions": nil}),
	"conditions of others": inStatus(ofMachine, map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "False", "reason": "x", "message": strings.Repeat("\u009b", 10_000), "lastTransitionTime": "9999-12-31T23:59:59Z"},
		map[string]any{"type": "Ready", "status": "True"}, map[string]any{"type": "DiskPressure", "status": "True"},
	}}),
	"phase Running":     operation(v1alpha1.MachineRunning),
	"phase Pending":     operation(v1alpha1.MachinePending),
	"phase Terminating": operation(v1alpha1.MachineTerminating),
	"phase CrashLoop":   operation(v1alpha1.MachineCrashLoopBackOff),
	"phase Available":   operation(v1alpha1.MachineAvailable),
	"unknown phase":     operation("\u009b"),
}

// TestMachineDeployment_ConvergesAfterManualEdits checks that, whatever a user writes to the metadata and status of a MachineDeployment, its
// MachineSet, its Machine and its node, there is one Machine with one VM in the end, the number of writes is
// bounded, other objects are not affected, and everything can be deleted once foreign finalizers are removed.
func TestMachineDeployment_ConvergesAfterManualEdits(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	witness := m.deployment("witness", 1)
	of := map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(edits)) {
		prefix := fmt.Sprintf("edited%02d", i)
		of[prefix] = name
		m.deployment(prefix, 1)
	}
	m.settled("before", "witness", 1)
	other := m.machineOf("witness")
	before := m.seen(other)
	for prefix, name := range of {
		m.settled("before "+name, prefix, 1)
	}
	for prefix, name := range of {
		edits[name](m, m.chain(prefix))
	}
	for prefix, name := range of {
		m.settled(name, prefix, 1)
	}
	m.eventually("nothing is written on and on", func() bool {
		was := m.versions()
		for replicas := range 2 {
			m.patch(witness, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 2-replicas))
			m.settled("amid the others", "witness", 2-replicas)
		}
		return maps.Equal(was, m.versions())
	})
	m.oneVMEach()
	for prefix, name := range of {
		m.settled(name+", in the end", prefix, 1)
		for _, output := range m.sentences(prefix) {
			m.onlyText(name, output)
		}
	}
	if left := m.machineOf("witness"); left.Name == other.Name && m.seen(other).Machine.Spec.ProviderID != before.Machine.Spec.ProviderID {
		t.Error("another Machine has another VM")
	}
	for prefix := range of {
		m.delete(&v1alpha1.MachineDeployment{ObjectMeta: m.meta(prefix)})
	}
	m.eventually("no VM is left but that of the other", func() bool {
		vms, err := m.cloud.VMs()
		m.must(err)
		return len(vms) == 1
	})
	m.eventually("nothing is left when others release it", func() bool {
		left := append(m.edited("edited"), m.nodes("edited")...)
		for _, object := range left {
			m.release(object)
		}
		return len(left) == 0
	})
}

// machineOf returns a Machine of a MachineDeployment.
func (m *managed) machineOf(deployment string) *v1alpha1.Machine {
	m.t.Helper()
	list := &v1alpha1.MachineList{}
	m.must(m.admin.List(m.t.Context(), list, client.InNamespace(m.Namespace), client.MatchingLabels{"name": deployment}))
	if len(list.Items) == 0 {
		m.t.Fatalf("%s has no Machine", deployment)
	}
	return &list.Items[0]
}

// edited returns all objects of MachineDeployments whose names have the prefix.
func (m *managed) edited(prefix string) []client.Object {
	m.t.Helper()
	deployments, sets, machines := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
	for _, list := range []client.ObjectList{deployments, sets, machines} {
		m.must(m.admin.List(m.t.Context(), list, client.InNamespace(m.Namespace)))
	}
	var all []client.Object
	for i := range deployments.Items {
		all = append(all, &deployments.Items[i])
	}
	for i := range sets.Items {
		all = append(all, &sets.Items[i])
	}
	for i := range machines.Items {
		all = append(all, &machines.Items[i])
	}
	return slices.DeleteFunc(all, func(o client.Object) bool { return !strings.HasPrefix(o.GetName(), prefix) })
}

// nodes returns the nodes of Machines whose names have the prefix.
func (m *managed) nodes(prefix string) []client.Object {
	m.t.Helper()
	list, nodes := &corev1.NodeList{}, []client.Object{}
	m.must(m.admin.List(m.t.Context(), list))
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, prefix) {
			nodes = append(nodes, &list.Items[i])
		}
	}
	return nodes
}

// versions returns the versions of all edited objects.
func (m *managed) versions() map[string]string {
	versions := map[string]string{}
	for _, object := range m.edited("edited") {
		versions[fmt.Sprintf("%T %s", object, object.GetName())] = object.GetResourceVersion()
	}
	return versions
}

// theirs is a foreign finalizer.
const theirs = "example.com/theirs"

// release removes the foreign finalizer from an object.
func (m *managed) release(object client.Object) {
	m.t.Helper()
	before := object.DeepCopyObject().(client.Object)
	if !controllerutil.RemoveFinalizer(object, theirs) {
		return
	}
	err := m.admin.Patch(m.t.Context(), object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		m.t.Fatal(err)
	}
}
