package security

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/bits"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// meddling is a change that a mutating webhook makes to objects of a kind: to new objects, to updates, or to
// both.
type meddling struct {
	resource  string // including a subresource
	operation admissionv1.Operation
	change    func(*unstructured.Unstructured)
}

func set(value any, fields ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(u.Object, value, fields...); err != nil {
			panic(err) // a mistake in this list
		}
	}
}

func unset(fields ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) { unstructured.RemoveNestedField(u.Object, fields...) }
}

// always makes a change to both new objects and updates.
func always(resource string, change func(*unstructured.Unstructured)) []meddling {
	return []meddling{{resource, admissionv1.Create, change}, {resource, admissionv1.Update, change}}
}

func once(resource string, change func(*unstructured.Unstructured)) []meddling {
	return []meddling{{resource, admissionv1.Create, change}}
}

var otherOwner = []any{map[string]any{
	"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": "another", "uid": "another", "controller": true,
}}

// meddlers are the changes that a webhook may make to a MachineDeployment, its MachineSets and its Machines.
var meddlers = map[string][]meddling{
	"labels of new Machines":    once("machines", unset("metadata", "labels")),
	"labels of Machines":        always("machines", unset("metadata", "labels")),
	"owners of new Machines":    once("machines", unset("metadata", "ownerReferences")),
	"owners of Machines":        always("machines", unset("metadata", "ownerReferences")),
	"other owners of Machines":  always("machines", set(otherOwner, "metadata", "ownerReferences")),
	"finalizers of Machines":    always("machines", unset("metadata", "finalizers")),
	"finalizers of sets":        always("machinesets", unset("metadata", "finalizers")),
	"finalizers of deployments": always("machinedeployments", unset("metadata", "finalizers")),
	"provider IDs":              always("machines", unset("spec", "providerID")),
	"provider IDs of others":    always("machines", set("sim:///other/other/1-x", "spec", "providerID")),
	"classes of new Machines":   once("machines", set("none", "spec", "class", "name")),
	"annotations of Machines":   always("machines", unset("metadata", "annotations")),
	"phases of Machines":        always("machines/status", set("Failed", "status", "currentStatus", "phase")),
	"status of Machines":        always("machines/status", unset("status")),
	"status of sets":            always("machinesets/status", unset("status")),
	"status of deployments":     always("machinedeployments/status", unset("status")),
	"replicas of new sets":      once("machinesets", set(int64(4), "spec", "replicas")),
	"replicas of sets":          always("machinesets", set(int64(4), "spec", "replicas")),
	"owners of new sets":        once("machinesets", unset("metadata", "ownerReferences")),
	"owners of sets":            always("machinesets", unset("metadata", "ownerReferences")),
	"labels of new sets":        once("machinesets", unset("metadata", "labels")),
	"annotations of sets":       always("machinesets", unset("metadata", "annotations")),
	"templates of new sets":     once("machinesets", set("none", "spec", "template", "spec", "class", "name")),
	"names of new sets":         once("machinesets", rename),
	"names of new Machines":     once("machines", rename),
}

func rename(u *unstructured.Unstructured) { u.SetName(u.GetName() + "-" + string(uuid.NewUUID())[:8]) }

// webhook is a mutating webhook. It changes each object as the meddler specifies whose number is in the prefix of
// the object's name.
type webhook struct {
	*managed
	meddlers map[string][]meddling // by the prefix of names
	// began is when the API server started to call the webhook.
	began time.Time

	mu sync.Mutex
	// created and written count by prefix and resource.
	created, written map[string]int
}

// prefix returns the part of a name that identifies the owner of an object, or an empty string.
func (w *webhook) prefix(name string) string {
	for prefix := range w.meddlers {
		if name == prefix || strings.HasPrefix(name, prefix+"-") {
			return prefix
		}
	}
	return ""
}

func (w *webhook) ServeHTTP(response http.ResponseWriter, r *http.Request) {
	review := &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(review.Request.Object.Raw, &object.Object); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if patch := w.meddle(review.Request, object); len(patch) > 0 {
		review.Response.Patch, review.Response.PatchType = patch, ptr.To(admissionv1.PatchTypeJSONPatch)
	}
	_ = json.NewEncoder(response).Encode(review)
}

// meddle counts the request, and returns the changed parts of an object.
func (w *webhook) meddle(request *admissionv1.AdmissionRequest, object *unstructured.Unstructured) []byte {
	resource := request.Resource.Resource
	if request.SubResource != "" {
		resource += "/" + request.SubResource
	}
	prefix := w.prefix(object.GetName())
	if !ptr.Deref(request.DryRun, false) {
		w.mu.Lock()
		w.written[prefix+" "+resource]++
		if request.Operation == admissionv1.Create {
			w.created[prefix+" "+resource]++
		}
		w.mu.Unlock()
	}
	var patch []map[string]any
	for _, m := range w.meddlers[prefix] {
		if m.resource == resource && m.operation == request.Operation {
			m.change(object)
			for _, part := range []string{"metadata", "spec", "status"} {
				if value, ok := object.Object[part]; ok {
					patch = append(patch, map[string]any{"op": "add", "path": "/" + part, "value": value})
				} else if part == "status" && strings.HasSuffix(resource, "/status") {
					patch = append(patch, map[string]any{"op": "add", "path": "/status", "value": map[string]any{}})
				}
			}
		}
	}
	if patch == nil {
		return nil
	}
	text, err := json.Marshal(patch)
	if err != nil {
		panic(err) // it was valid JSON
	}
	return text
}

// register makes the API server call the webhook until the returned function is called.
func (w *webhook) register() (remove func()) {
	w.t.Helper()
	server := httptest.NewTLSServer(w)
	w.t.Cleanup(server.Close)
	hook := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "meddler-" + w.Namespace}}
	hook.Webhooks = []admissionregistrationv1.MutatingWebhook{{
		Name: "meddler.example.com", AdmissionReviewVersions: []string{"v1"},
		SideEffects:   ptr.To(admissionregistrationv1.SideEffectClassNone),
		FailurePolicy: ptr.To(admissionregistrationv1.Ignore),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{
			URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.Namespace}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{APIGroups: []string{v1alpha1.GroupName}, APIVersions: []string{"v1alpha1"}, Resources: []string{
				"machines", "machines/status", "machinesets", "machinesets/status", "machinedeployments", "machinedeployments/status",
			}},
		}},
	}}
	w.create(w.admin, hook)
	removed := sync.OnceFunc(func() { _ = w.admin.Delete(context.Background(), hook) })
	w.t.Cleanup(removed)
	w.eventually("the API server asks the webhook", func() bool {
		probe := w.machine("probe", pool)
		probe.Labels = map[string]string{"probe": ""}
		w.must(w.admin.Create(w.t.Context(), probe, client.DryRunAll))
		return len(probe.Labels) == 0
	})
	w.began = time.Now()
	return removed
}

// deployment creates a MachineDeployment with desired Machines.
func (m *managed) deployment(name string, replicas int32) *v1alpha1.MachineDeployment {
	m.t.Helper()
	labels := map[string]string{"name": name}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: m.meta(name)}
	deployment.Spec = v1alpha1.MachineDeploymentSpec{Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}}
	deployment.Spec.Template = v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: m.machine("", pool).Spec}
	m.create(m.admin, deployment)
	return deployment
}

// machines returns the Machines of a MachineDeployment that are not being deleted, by phase.
func (m *managed) machines(deployment string) map[v1alpha1.MachinePhase]int {
	m.t.Helper()
	list, phases := &v1alpha1.MachineList{}, map[v1alpha1.MachinePhase]int{}
	m.must(m.admin.List(m.t.Context(), list, client.InNamespace(m.Namespace)))
	for _, machine := range list.Items {
		if strings.HasPrefix(machine.Name, deployment+"-") {
			phases[machine.Status.CurrentStatus.Phase]++
		}
	}
	return phases
}

// settled waits until a MachineDeployment has exactly that many running Machines.
func (m *managed) settled(what, deployment string, replicas int) {
	m.t.Helper()
	want := map[v1alpha1.MachinePhase]int{}
	if replicas > 0 {
		want[v1alpha1.MachineRunning] = replicas
	}
	gomega.NewWithT(m.t).Eventually(func() map[v1alpha1.MachinePhase]int { return m.machines(deployment) }).
		WithTimeout(2*waitTimeout).Should(gomega.Equal(want), what)
}

// sentences returns the events, conditions and last operations of the objects of a MachineDeployment.
func (m *managed) sentences(deployment string) []string {
	m.t.Helper()
	events, machines, deployments := &corev1.EventList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineDeploymentList{}
	for _, list := range []client.ObjectList{events, machines, deployments} {
		m.must(m.admin.List(m.t.Context(), list, client.InNamespace(m.Namespace)))
	}
	output := map[string]bool{}
	for _, event := range events.Items {
		if name := event.InvolvedObject.Name; name == deployment || strings.HasPrefix(name, deployment+"-") {
			output[event.InvolvedObject.Kind+" "+event.Reason+": "+event.Message] = true
		}
	}
	for _, machine := range machines.Items {
		if strings.HasPrefix(machine.Name, deployment+"-") {
			output["last operation: "+machine.Status.LastOperation.Description] = true
		}
	}
	for _, d := range deployments.Items {
		if d.Name == deployment {
			for _, condition := range d.Status.Conditions {
				output[string(condition.Type)+" "+condition.Reason+": "+condition.Message] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(output))
}

// messages reports whether one of them contains a text.
var messages = map[string]string{
	"labels of new Machines":   "which the selector",
	"labels of Machines":       "which the selector",
	"other owners of Machines": "is controlled by MachineSet \"another\"",
	"labels of new sets":       "from the mutating webhook that does this",
	"templates of new sets":    "from the mutating webhook that does this",
	"provider IDs":             "but the machine has no VM",
	"phases of Machines":       "times in a row",
	"classes of new Machines":  "MachineClass \"none\" not found",
}

// staying are changes that Machines keep after the webhook is gone: some must be repaired manually, and a status
// is written again only at the next event of its Machine or node.
var staying = []string{"classes of new Machines", "provider IDs of others", "status of Machines"}

// firstDelay is the initial back-off of the controllers. It doubles each time.
const firstDelay = 5 * time.Millisecond

// mostMade is how many objects of a kind may be created for one MachineDeployment in that time, considering the
// back-off. Each attempt may happen twice, after its delay and on an event of the previous one. The number grows
// slowly with the elapsed time, which is longer on slow machines.
func (w *webhook) mostMade() int { return 2 * bits.Len64(uint64(time.Since(w.began)/firstDelay)) }

// TestMutatingWebhook_CannotBreakInvariants checks that, whatever a webhook changes in new and updated objects, the number of created
// objects is bounded, no Machine has two VMs, the problem is reported, and other MachineDeployments reach their
// desired state. When the webhook is gone, everything reaches the desired state, and no VM remains after
// deletion.
func TestMutatingWebhook_CannotBreakInvariants(t *testing.T) {
	tier.All(t)
	t.Parallel()
	m := guests(t)
	w := &webhook{managed: m, created: map[string]int{}, written: map[string]int{}, meddlers: map[string][]meddling{
		"probe": once("machines", unset("metadata", "labels")),
	}}
	of := map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(meddlers)) {
		prefix := fmt.Sprintf("meddled%02d", i)
		of[prefix], w.meddlers[prefix] = name, meddlers[name]
	}
	witness := m.deployment("witness", 1)
	m.settled("before", "witness", 1)
	remove := w.register()
	for prefix := range of {
		m.deployment(prefix, 1)
	}
	for round := range 4 {
		replicas := 2 - round%2
		m.patch(witness, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		m.settled("amid the others", "witness", replicas)
	}
	for prefix, name := range of {
		m.eventually(name+" is reported", func() bool { return strings.Contains(strings.Join(m.sentences(prefix), "\n"), messages[name]) })
		w.fewMade(prefix, name)
	}
	remove()
	m.oneVMEach()
	for prefix, name := range of {
		if !slices.Contains(staying, name) {
			m.patch(&v1alpha1.MachineDeployment{ObjectMeta: m.meta(prefix)}, `{"spec":{"minReadySeconds":1}}`) // it is retried immediately
			m.settled(name+", when the webhook is gone", prefix, 1)
		}
	}
	m.oneVMEach()
	list := &v1alpha1.MachineDeploymentList{}
	m.must(m.admin.List(t.Context(), list, client.InNamespace(m.Namespace)))
	for i := range list.Items {
		m.delete(&list.Items[i])
	}
	m.eventually("no VM is left", func() bool {
		vms, err := m.cloud.VMs()
		m.must(err)
		return len(vms) == 0
	})
}

// fewMade fails the test if MachineSets or Machines of a MachineDeployment were created repeatedly.
func (w *webhook) fewMade(prefix, name string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	sets, machines := w.created[prefix+" machinesets"], w.created[prefix+" machines"]
	w.t.Logf("%s: made %d sets, %d machines; wrote %v", name, sets, machines, w.of(prefix))
	if max(sets, machines) > w.mostMade() && name != "phases of Machines" { // these are replaced when they have failed, as in MCM
		w.t.Errorf("%s: made %d sets, %d machines", name, sets, machines)
	}
}

// oneVMEach fails the test if a Machine ever had two VMs. The VM IDs contain a counter.
func (m *managed) oneVMEach() {
	m.t.Helper()
	vms, err := m.cloud.VMs()
	m.must(err)
	for _, vm := range vms {
		if !strings.Contains(vm.ProviderID, "/"+vm.Machine+"/1-") {
			m.t.Errorf("Machine %s had another VM before %s", vm.Machine, vm.ProviderID)
		}
	}
}

// of counts writes by resource. The caller holds the lock.
func (w *webhook) of(prefix string) map[string]int {
	of := map[string]int{}
	for key, n := range w.written {
		if p, resource, _ := strings.Cut(key, " "); p == prefix {
			of[resource] = n
		}
	}
	return of
}
