package takeover

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// moment is a MachineDeployment at the time of a recording.
type moment struct{ recording, deployment string }

// compared are the moments that were compared.
var compared sync.Map

// leftOut are the moments that are not compared, with the reason.
var leftOut = map[moment]string{}

// TestTakeover_HandBack repeats with our manager what was done with MCM, and compares the result at each recorded moment,
// as MCM would find it if it continued from there.
func TestTakeover_HandBack(t *testing.T) {
	tier.All(t)
	t.Parallel()
	t.Run("as recorded", func(t *testing.T) { // completes when all of them have
		together(t, map[string]func(*testing.T){
			"create, roll, become unhealthy, and go back while paused": firstRecording,
			"scale down by name": scaleDownByName,
			"in place":           inPlace,
			"no capacity":        noCapacity,
			"a broken provider":  brokenProvider,
		})
	})
	t.Run("no moment is forgotten", everyMoment)
}

// everyMoment checks that all moments were compared, or are left out for a reason.
func everyMoment(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: none is compared without a kube-apiserver")
	}
	for _, file := range recordings(t) {
		recording := strings.TrimSuffix(filepath.Base(file), ".json")
		for _, object := range read(t, file, "", "") {
			if object.GetKind() != "MachineDeployment" {
				continue
			}
			m := moment{recording, object.GetName()}
			_, done := compared.Load(m)
			if _, known := leftOut[m]; done == known {
				t.Errorf("%v: compared: %v, left out: %v", m, done, known)
			}
		}
	}
}

// firstRecording is that of the MachineDeployment "pool", at each of its moments.
func firstRecording(t *testing.T) {
	f := begin(t, "01-creating", "pool", (*provider).unjoined)
	f.same("01-creating")
	must(t, f.provider.joins(t.Context()))
	f.same("02-running")

	old := f.names()
	stop := f.beforeMarking(old...)
	f.roll("c2")
	first := stop.reached(t)
	f.sameBut("03-mid-rollout-old-terminating", statusOf(t, "02-running"))
	rest := slices.DeleteFunc(old, func(name string) bool { return name == first })
	pods := map[string]*corev1.Pod{}
	for _, node := range rest {
		pods[node] = f.occupy(node)
	}
	f.gate.goOn()
	f.sameBut("04-mid-rollout-draining", marked(t))
	second := f.leaving()
	last := slices.DeleteFunc(rest, func(name string) bool { return name == second })[0]
	stop = f.beforeMarking(last)
	f.vacate(pods[second])
	stop.reached(t)
	f.sameBut("05-rollout-ending-creation-timeout", statusOf(t, "02-running"))
	f.gate.goOn()
	f.sameBut("06-deleting-drain", marked(t))
	f.deleteLast(t, pods[last])
	f.same("10-rolled-out")
	f.goBackWhilePaused(t)
}

// deleteLast follows the deletion of the last old VM, which still has a Pod.
func (f *fleet) deleteLast(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	block := f.provider.Block(fake.DeleteMachine)
	f.vacate(pod)
	f.same("07-deleting-vm")
	stop := f.gate.before("PATCH", "/nodes/", "", pod.Spec.NodeName)
	block.Release()
	stop.reached(t)
	f.sameBut("08-deleting-node", statusOf(t, "07-deleting-vm"))
	stop = f.gate.before("PATCH", "/machines/", "", pod.Spec.NodeName)
	stop.reached(t)
	f.sameBut("09-deleting-finalizer", statusOf(t, "07-deleting-vm"))
	f.gate.goOn()
}

// goBackWhilePaused replaces an unhealthy Machine after the MachineDeployment was paused and its first class
// restored. What MCM did after a timeout, which takes too long here, is done manually: the MachineSet and the
// MachineDeployment observe the same.
func (f *fleet) goBackWhilePaused(t *testing.T) {
	t.Helper()
	sick := f.sicken(f.names()[0])
	f.same("11-unknown")
	f.same("12-unknown-and-replaced-creation")
	f.change(`{"spec":{"paused":true,"template":{"spec":{"class":{"name":"c1"}}}}}`)
	f.provider.unjoined()
	stop := f.beforeMarking(sick)
	must(t, f.Client.Delete(t.Context(), f.machine(sick)))
	stop.reached(t)
	f.sameBut("13-paused-failed-replaced", statusOf(t, "11-unknown"))
	f.gate.goOn()
}

// names returns the names of the Machines, which are also those of their nodes.
func (f *fleet) names() []string {
	f.t.Helper()
	var names []string
	for _, machine := range f.machines() {
		names = append(names, machine.Name)
	}
	return names
}

func (f *fleet) machine(name string) *v1alpha1.Machine {
	return &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}}
}

// leaving returns the Machine that is being deleted.
func (f *fleet) leaving() string {
	f.t.Helper()
	machines := f.machines()
	at := slices.IndexFunc(machines, func(m v1alpha1.Machine) bool { return !m.DeletionTimestamp.IsZero() })
	if at < 0 {
		f.t.Fatal("no Machine is being deleted")
	}
	return machines[at].Name
}

// beforeMarking stops before a node is marked as being deleted, which is the first write of a deletion.
func (f *fleet) beforeMarking(nodes ...string) *stop {
	return f.gate.before("PATCH", "/nodes/", "/status", nodes...)
}

// occupy creates a Pod on a node. It is not removed after eviction, because there is no kubelet.
func (f *fleet) occupy(node string) *corev1.Pod {
	f.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "on-" + node}}
	pod.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}}}
	must(f.t, f.Client.Create(f.t.Context(), pod))
	return pod
}

// vacate removes a Pod, like a kubelet that has terminated it.
func (f *fleet) vacate(pod *corev1.Pod) {
	f.t.Helper()
	must(f.t, f.Client.Delete(f.t.Context(), pod, client.GracePeriodSeconds(0)))
}

// roll changes the class of the MachineDeployment.
func (f *fleet) roll(class string) {
	f.t.Helper()
	f.change(fmt.Sprintf(`{"spec":{"template":{"spec":{"class":{"name":%q}}}}}`, class))
}

// sicken makes the node of a Machine silent. It returns the name of both.
func (f *fleet) sicken(name string) string {
	f.t.Helper()
	node := &corev1.Node{}
	must(f.t, f.Client.Get(f.t.Context(), client.ObjectKey{Name: name}, node))
	before := node.DeepCopy()
	node.Status.Conditions[0].Status, node.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
	must(f.t, f.Client.Status().Patch(f.t.Context(), node, client.MergeFrom(before)))
	return name
}

// scaleDownByName is the part of the second recording about the MachineDeployment "scaled".
func scaleDownByName(t *testing.T) {
	f := begin(t, "20-running", "scaled")
	f.same("20-running")
	names := f.names()
	named := names[1]
	stop := f.beforeMarking(named)
	now := time.Now().UTC().Format(time.RFC3339)
	f.change(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q}},"spec":{"replicas":3}}`,
		v1alpha1.AnnotationKeyTriggerDeletion, named+"~"+now, v1alpha1.AnnotationKeyLastReplicaChange, now))
	stop.reached(t)
	f.sameBut("21-scale-down-by-name-marked", statusOf(t, "20-running"), historyOfItself)
	f.gate.goOn()
	for _, moment := range []string{"22-scale-down-by-name-done", "23-inplace-candidates", "24-inplace-ready-for-update", "25-inplace-node-updated", "26-inplace-done"} {
		f.same(moment, historyOfItself)
	}
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(f.machine(named)), f.machine(named)); !apierrors.IsNotFound(err) {
		t.Errorf("the named machine: %v", err)
	}
	f.annotate(names[0], v1alpha1.AnnotationKeyPreserve, "when-failed")
	f.same("27-preserve-when-failed-annotated", historyOfItself)
	f.sicken(names[0])
	f.same("28-preserve-when-failed", historyOfItself)
	f.change(`{"spec":{"template":{"spec":{"healthTimeout":"1s"}}}}`)
	f.annotate(names[2], v1alpha1.AnnotationKeyPreserve, "now")
	f.same("29-preserve-now", failedSooner...)
	f.annotate(names[2], v1alpha1.AnnotationKeyPreserve, "")
	f.same("30-preserve-stopped", failedSooner...)
}

// failedSooner are the differences after a health timeout, which MCM had from a flag and which the template
// contains here.
var failedSooner = []string{
	historyOfItself, "MachineDeployment spec.template.spec.healthTimeout", "MachineSet spec.template.spec.healthTimeout", "Machine spec.healthTimeout",
}

// annotate annotates a Machine like a user. Without a value, the annotation is removed.
func (f *fleet) annotate(machine, key, value string) {
	f.t.Helper()
	text := strconv.Quote(value)
	if value == "" {
		text = "null"
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, key, text))
	must(f.t, f.Client.Patch(f.t.Context(), f.machine(machine), patch))
}

// inPlace is the part of the second recording about the MachineDeployment "inplace".
func inPlace(t *testing.T) {
	f := begin(t, "20-running", "inplace")
	for _, moment := range []string{"20-running", "21-scale-down-by-name-marked", "22-scale-down-by-name-done"} {
		f.same(moment)
	}
	f.selectFirst()
	f.same("23-inplace-candidates")
	f.gate.goOn()
	for range 2 {
		f.updates()
	}
	f.same("24-inplace-ready-for-update")
	f.gate.beforePatches(f.ofNodes("/status", v1alpha1.UpdateSuccessful))
	f.updates()
	f.sameBut("25-inplace-node-updated", labelledStatusOf(t, "24-inplace-ready-for-update", v1alpha1.LabelKeyNodeUpdateResult))
	f.gate.goOn()
	for _, moment := range []string{"26-inplace-done", "27-preserve-when-failed-annotated", "28-preserve-when-failed", "29-preserve-now", "30-preserve-stopped"} {
		f.same(moment)
	}
}

// selectFirst changes the class. The first node is selected after all are candidates in the status of their
// Machines, too. It stops before the node and the MachineDeployment report that the update continues.
func (f *fleet) selectFirst() {
	f.t.Helper()
	f.gate.beforePatches(f.ofNodes("", v1alpha1.LabelKeyNodeSelectedForUpdate))
	f.roll("c2")
	gomega.NewWithT(f.t).Eventually(func() bool {
		return !slices.ContainsFunc(f.machines(), func(machine v1alpha1.Machine) bool {
			return inplaceupdate.State(&machine) != v1alpha1.CandidateForUpdate
		})
	}).WithTimeout(waitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.BeTrue())
	arguments := f.ofNodes("/status", v1alpha1.SelectedForUpdate)
	arguments["machinedeployments/"+f.deployment.Name+"/status"] = v1alpha1.DeploymentReasonUpdated
	f.gate.beforePatches(arguments)
}

// ofNodes returns a value for each node of the fleet, or of a part of it.
func (f *fleet) ofNodes(part, item string) map[string]string {
	f.t.Helper()
	arguments := map[string]string{}
	for _, name := range f.names() {
		arguments["nodes/"+name+part] = item
	}
	return arguments
}

// updates acts as the agent of the node that is ready for its update.
func (f *fleet) updates() {
	f.t.Helper()
	gomega.NewWithT(f.t).Eventually(func() bool {
		return updateOne(f.t, f.Client, f.made)
	}).WithTimeout(waitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.BeTrue())
}

// updateOne acts as the agent of one of the given nodes, and reports whether the node was ready for its update.
func updateOne(t *testing.T, c client.Client, ours func(string) bool) bool {
	t.Helper()
	nodes := &corev1.NodeList{}
	must(t, c.List(t.Context(), nodes))
	ready := func(condition corev1.NodeCondition) bool {
		return condition.Type == v1alpha1.NodeInPlaceUpdate && condition.Reason == v1alpha1.ReadyForUpdate
	}
	at := slices.IndexFunc(nodes.Items, func(node corev1.Node) bool {
		return ours(node.Name) && node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == "" && slices.ContainsFunc(node.Status.Conditions, ready)
	})
	if at < 0 {
		return false
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful)
	must(t, c.Patch(t.Context(), &nodes.Items[at], client.RawPatch(types.MergePatchType, patch)))
	return true
}

// timedOut are the differences between Machines whose creation timed out here and there. MCM had the timeout from
// a flag; here, it is an annotation of a user.
var timedOut = []string{priorityAtOnce, "Machine metadata.annotations." + v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout}

// noCapacity is the part of the first recording about a MachineDeployment that gets no VMs. At some moments, the
// creation of its Machine had timed out, and the Machine was being replaced. It has neither a VM nor a node, so
// we write nothing after the first message of its deletion.
func noCapacity(t *testing.T) {
	f := begin(t, "02-running", "nocap")
	for _, moment := range []string{
		"01-creating", "02-running", "03-mid-rollout-old-terminating", "04-mid-rollout-draining",
		"06-deleting-drain", "07-deleting-vm", "08-deleting-node", "09-deleting-finalizer",
	} {
		f.same(moment, timedOut...)
	}
	f.giveUp()
	f.same("10-rolled-out", timedOut...)
	f.same("12-unknown-and-replaced-creation", timedOut...)
	for _, moment := range []string{"05-rollout-ending-creation-timeout", "11-unknown", "13-paused-failed-replaced"} {
		f.sameBut(moment, wantText(t, messages.Terminating), timedOut...)
	}
	f.gate.goOn()
	f.same("06-deleting-drain", timedOut...)
}

// brokenProvider is the same for a MachineDeployment whose provider returns only errors.
func brokenProvider(t *testing.T) {
	f := begin(t, "02-running", "broken")
	for _, moment := range []string{
		"01-creating", "02-running", "03-mid-rollout-old-terminating", "04-mid-rollout-draining",
		"05-rollout-ending-creation-timeout", "06-deleting-drain", "07-deleting-vm", "08-deleting-node",
		"09-deleting-finalizer", "10-rolled-out", "11-unknown",
	} {
		f.same(moment, timedOut...)
	}
	f.giveUp()
	f.sameBut("12-unknown-and-replaced-creation", wantText(t, messages.Terminating), timedOut...)
	f.gate.goOn()
	f.same("13-paused-failed-replaced", timedOut...)
}

// giveUp makes the only Machine time out, and stops before its finalizer is removed.
func (f *fleet) giveUp() {
	f.t.Helper()
	name := f.names()[0]
	stop := f.gate.before("PATCH", "/machines/", "", name)
	f.annotate(name, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, "1s")
	stop.reached(f.t)
	gomega.NewWithT(f.t).Expect(f.leaving()).To(gomega.Equal(name))
}
