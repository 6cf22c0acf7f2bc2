package ui

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// capiObject returns an object of Cluster API. It is controlled by owner unless that is nil.
func capiObject(t *testing.T, version, kind, name string, owner client.Object, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetAPIVersion(capiGroup + "/" + version)
	object.SetKind(kind)
	object.SetNamespace("n")
	object.SetName(name)
	object.SetUID(types.UID("capi-" + kind + name))
	object.SetGeneration(2)
	if owner != nil {
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GetObjectKind().GroupVersionKind())})
	}
	return object
}

// The specs and the status of a pool that is being rolled out, in both versions.
var capiTexts = map[string]struct{ infrastructure, deployment string }{
	"v1beta2": {
		"{apiGroup: infrastructure.millwright.dev, kind: MillwrightMachine%s, name: %s}",
		`{spec: {clusterName: c, replicas: 4, rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 30%, maxUnavailable: 1}}}, template: {spec: {version: v1.36.0, infrastructureRef: INFRA}}},
		status: {observedGeneration: 2, replicas: 5, readyReplicas: 4, availableReplicas: 3, upToDateReplicas: 2, conditions: [
			{type: Available, status: "True", reason: Available, lastTransitionTime: "2026-01-01T00:00:00Z"},
			{type: RollingOut, status: "True", reason: RollingOut, message: "Rolling out 3 not up-to-date replicas\n* from old", lastTransitionTime: "2026-01-01T00:00:00Z"},
			{type: ScalingUp, status: "False", reason: NotScalingUp, lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`,
	},
	"v1beta1": {
		"{apiVersion: infrastructure.millwright.dev/v1alpha1, kind: MillwrightMachine%s, name: %s}",
		`{spec: {clusterName: c, replicas: 4, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 30%, maxUnavailable: 1}}, template: {spec: {version: v1.36.0, infrastructureRef: INFRA}}},
		status: {observedGeneration: 2, replicas: 5, readyReplicas: 4, availableReplicas: 3, updatedReplicas: 2, unavailableReplicas: 2, phase: ScalingUp, conditions: [
			{type: Available, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"},
			{type: MachineSetReady, status: "False", severity: Info, reason: RollingOut, message: "Rolling out 3 not up-to-date replicas * from old", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`,
	},
}

// capiPool returns a pool that is being rolled out: an old set with a machine that is Running and one that is being
// deleted, and a new one with a machine that cannot be created.
func capiPool(t *testing.T, version string) []client.Object {
	t.Helper()
	texts := capiTexts[version]
	infra := func(suffix, name string) string {
		return strings.NewReplacer("MillwrightMachine%s", "MillwrightMachine"+suffix, "name: %s", "name: "+name).Replace(texts.infrastructure)
	}
	template := "{spec: {replicas: R, template: {spec: {infrastructureRef: " + infra("Template", "t") + "}}}, status: {readyReplicas: 1, availableReplicas: 1}}"
	deployment := capiObject(t, version, "MachineDeployment", "pool", nil, strings.Replace(texts.deployment, "INFRA", infra("Template", "next"), 1))
	older := capiObject(t, version, "MachineSet", "pool-1", deployment, strings.Replace(template, "R", "1", 1))
	newer := capiObject(t, version, "MachineSet", "pool-0", deployment, strings.Replace(template, "R", "4", 1))
	older.SetAnnotations(map[string]string{capiRevision: "9"})
	newer.SetAnnotations(map[string]string{capiRevision: "10"})
	machine := func(name string, set client.Object, status string) *unstructured.Unstructured {
		return capiObject(t, version, "Machine", name, set, "{spec: {clusterName: c, providerID: 'sim:///"+name+"', version: v1.36.0, infrastructureRef: "+infra("", name)+"}, status: "+status+"}")
	}
	leaving := machine("pool-1-b", older, `{phase: Deleting, conditions: [{type: Deleting, status: "True", reason: DrainingNode, message: Drain not completed yet, lastTransitionTime: "2026-01-01T00:00:00Z"}]}`)
	leaving.SetFinalizers([]string{"machine.cluster.x-k8s.io"})
	leaving.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1767225600, 0)})
	foreign := capiObject(t, version, "Machine", "foreign", nil, "{spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, apiVersion: infrastructure.cluster.x-k8s.io/v1, name: x}}}")
	foreignPool := capiObject(t, version, "MachineDeployment", "foreign", nil, "{spec: {template: {spec: {infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1, name: x}}}}}")
	return []client.Object{
		deployment, older, newer, leaving, foreign, foreignPool,
		machine("pool-1-a", older, `{phase: Running, lastUpdated: "2026-01-01T00:00:00Z", nodeRef: {name: node-a}, conditions: [{type: Ready, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}]}`),
		machine("pool-0-a", newer, `{phase: Provisioning, conditions: [{type: InfrastructureReady, status: "False", reason: CreationFailed, message: no such image, lastTransitionTime: "2026-01-01T00:00:00Z"}, {type: Ready, status: "False", reason: NotReady, message: all, lastTransitionTime: "2026-01-01T00:00:00Z"}]}`),
	}
}

// TestModel_ShowsClusterAPIPool checks the rows of a pool of Cluster API in both versions, next to one of
// machine.sapcloud.io with the same names.
func TestModel_ShowsClusterAPIPool(t *testing.T) {
	for version := range capiTexts {
		t.Run(version, func(t *testing.T) {
			objects := capiPool(t, version)
			inWorld(t, append(objects, onePool()...), "", nil, func(w *world) {
				wantCAPIPool(w)
				for name, want := range map[string]MachineRow{
					"pool-1-a": {Phase: "Running", Since: 1767225600, Set: "pool-1", Node: "node-a", ProviderID: "sim:///pool-1-a", Version: "v1.36.0"},
					"pool-1-b": {Phase: "Deleting", Since: 1767225600, Set: "pool-1", ProviderID: "sim:///pool-1-b", Version: "v1.36.0", Code: "DrainingNode", Message: "Drain not completed yet"},
					"pool-0-a": {Phase: "Provisioning", Set: "pool-0", ProviderID: "sim:///pool-0-a", Version: "v1.36.0", Code: "CreationFailed", Message: "no such image", Failed: true},
				} {
					got, _ := shown[MachineRow](w, "capi-machine/n/"+name)
					got.Row = Row{}
					if got != want {
						t.Errorf("machine %s: %+v, want %+v", name, got, want)
					}
				}
				for _, id := range []string{"capi-machine/n/foreign", "capi-pool/n/foreign"} {
					if _, exists := shown[MachineRow](w, id); exists {
						t.Errorf("%s of another provider is shown", id)
					}
				}
				wantBothPools(w, objects[0])
			})
		})
	}
}

// wantCAPIPool checks the row of the pool of capiPool.
func wantCAPIPool(w *world) {
	w.t.Helper()
	pool, _ := shown[PoolRow](w, "capi-pool/n/pool")
	got := fmt.Sprint(pool.Replicas, pool.Most, pool.Least, pool.Revision, " ", pool.Outcome, pool.Observed, pool.Cluster, pool.Class, pool.Version, pool.Strategy)
	if want := fmt.Sprint(4, 6, 3, 10, " ", "Progressing", true, "c", "next", "v1.36.0", "RollingUpdate"); got != want {
		w.t.Errorf("pool: %s, want %s", got, want)
	}
	counts := pool.Pool
	got = fmt.Sprint(counts.Exist, counts.Leaving, counts.Available, counts.Ready, counts.Updated)
	for _, set := range counts.Sets {
		got += fmt.Sprintf(" %s %t", set.Name, set.Current)
	}
	if want := "2 1 3 4 2 pool-1 false pool-0 true"; got != want {
		w.t.Errorf("numbers: %s, want %s", got, want)
	}
	if len(pool.Waits) != 1 || pool.Waits[0].Text != "Rolling out 3 not up-to-date replicas * from old" {
		w.t.Errorf("waits: %+v", pool.Waits)
	}
}

// wantBothPools checks the set of capiPool, that the pool of machine.sapcloud.io is not mixed up with it, and that only
// the deleted one is no longer shown.
func wantBothPools(w *world, deployment client.Object) {
	w.t.Helper()
	set, _ := shown[SetRow](w, "capi-set/n/pool-0")
	if set.Pool != "pool" || set.Revision != "10" || set.Replicas != 4 {
		w.t.Errorf("set: %+v", set)
	}
	if other, _ := shown[PoolRow](w, "pool/n/pool"); other.Replicas != 3 || other.Pool.Exist != 2 {
		w.t.Errorf("pool of machine.sapcloud.io: %+v", other)
	}
	w.deleteAll([]client.Object{deployment})
	if _, exists := shown[PoolRow](w, "capi-pool/n/pool"); exists {
		w.t.Error("a deleted pool is shown")
	}
	if _, exists := shown[PoolRow](w, "pool/n/pool"); !exists {
		w.t.Error("the pool of machine.sapcloud.io is not shown")
	}
}

// TestModel_ReportsMissingClusterAPI checks that a cluster without Cluster API, and a user without permission, are shown,
// and that both see the other pools.
func TestModel_ReportsMissingClusterAPI(t *testing.T) {
	inWorld(t, onePool(), "", nil, func(w *world) {
		for _, kind := range []string{capiDeployments, capiSets, capiMachines} {
			w.wantAccess(kind, AccessAbsent, "")
		}
		if _, exists := shown[PoolRow](w, "pool/n/pool"); !exists {
			t.Error("no pool")
		}
	})
	refused := func(list client.ObjectList, _ string) error {
		if list.GetObjectKind().GroupVersionKind().Kind == "MachineList" {
			return errForbidden
		}
		return nil
	}
	inWorld(t, append(capiPool(t, "v1beta2"), onePool()...), "", refused, func(w *world) {
		w.wantAccess(capiMachines, AccessForbidden, "")
		w.wantAccess(capiDeployments, AccessOK, "")
		w.wantAccess("Machine", AccessOK, "")
		if pool, _ := shown[PoolRow](w, "capi-pool/n/pool"); pool.Pool.Exist != 5 {
			t.Errorf("the number of machines is not that of the status: %+v", pool.Pool)
		}
		w.refuse(func(client.ObjectList, string) error { return nil })
		w.pass(retryAccess + 5*time.Second)
		w.wantAccess(capiMachines, AccessOK, "")
		if pool, _ := shown[PoolRow](w, "capi-pool/n/pool"); pool.Pool.Exist != 2 {
			t.Errorf("machines are not counted: %+v", pool.Pool)
		}
	})
}

// TestClusterAPI_ComputesBounds checks the defaults and limits of a rolling update.
func TestClusterAPI_ComputesBounds(t *testing.T) {
	for name, tc := range map[string]struct {
		text        string
		surge, down int32
	}{
		"defaults":             {"{}", 1, 0},
		"both zero":            {"{strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}}", 0, 1},
		"percentages":          {"{rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}}}", 2, 1},
		"invalid":              {"{strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: x}}}", 1, 0},
		"deletion by the user": {"{strategy: {type: OnDelete}}", 0, 5},
	} {
		object := capiObject(t, "v1beta2", "MachineDeployment", "x", nil, "{spec: "+tc.text+"}")
		if _, surge, down := capiBounds(converted[capiDeployment](object), 5); surge != tc.surge || down != tc.down {
			t.Errorf("%s: surge %d, unavailable %d, want %d, %d", name, surge, down, tc.surge, tc.down)
		}
	}
}

// TestClusterAPI_KeepsObjectsItCannotRead checks that an object with unexpected fields is still shown.
func TestClusterAPI_KeepsObjectsItCannotRead(t *testing.T) {
	if got := converted[capiMachine](capiObject(t, "v1beta2", "Machine", "x", nil, "{spec: [1], status: text}")); got.Name != "x" || got.Status.Phase != "" {
		t.Errorf("%+v", got)
	}
}

// TestDetail_DescribesClusterAPIMachine checks that the page of a machine shows the conditions of its MillwrightMachine,
// and events on both, but not what the driver gets.
func TestDetail_DescribesClusterAPIMachine(t *testing.T) {
	const secret = "the-provider-spec"
	infrastructure := &infrav1.MillwrightMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "pool-0-a"},
		Spec:       infrav1.MillwrightMachineSpec{Driver: "sim", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"key":"` + secret + `"}`)}},
		Status: infrav1.MillwrightMachineStatus{LastKnownState: secret, Conditions: []metav1.Condition{
			{Type: "Ready", Status: "False", Reason: "CreationFailed", Message: "no such image"}, {Type: "Paused", Status: "False", Reason: "NotPaused"},
		}},
	}
	event := func(name, version, kind, on string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Reason: name, InvolvedObject: corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: "n", Name: on}}
	}
	objects := append(capiPool(t, "v1beta2"), infrastructure,
		event("on-machine", "cluster.x-k8s.io/v1beta2", "Machine", "pool-0-a"), event("on-infrastructure", infrav1.SchemeGroupVersion.String(), "MillwrightMachine", "pool-0-a"),
		event("on-other", "v1", "Pod", "pool-0-a"), event("on-pool", "cluster.x-k8s.io/v1beta1", "MachineDeployment", "pool"))
	s := newTestServer(t, newFakeClient(t, objects...))
	detail, err := s.capiMachineDetail(t.Context(), types.NamespacedName{Namespace: "n", Name: "pool-0-a"})
	if err != nil {
		t.Fatal(err)
	}
	if detail.Driver != "sim" || detail.Report.Verdict != "NotRunning" || len(detail.Conditions) != 2 {
		t.Errorf("%+v", detail)
	}
	if why := detail.Report.Why; len(why) != 1 || why[0].Text != "no such image" || why[0].Code != "CreationFailed" {
		t.Errorf("why: %+v", why)
	}
	var reasons []string
	for _, event := range detail.Report.Events {
		reasons = append(reasons, event.Reason)
	}
	if slices.Sort(reasons); !slices.Equal(reasons, []string{"on-infrastructure", "on-machine"}) {
		t.Errorf("events %v", reasons)
	}
	cookie := logIn(t, s)
	for _, path := range []string{"capi-machine?namespace=n&name=pool-0-a", "yaml?kind=capi-machine&namespace=n&name=pool-0-a", "capi-pool?namespace=n&name=pool"} {
		if w := call(s, "GET", "/api/"+path, "", "Cookie", cookie); w.Code != 200 || strings.Contains(w.Body.String(), secret) || !strings.Contains(w.Body.String(), "pool") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestDetail_ShowsNodeOfClusterAPIMachine checks that the page of a machine shows its node, but not another one of the
// same name.
func TestDetail_ShowsNodeOfClusterAPIMachine(t *testing.T) {
	node := func(providerID string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	}
	s := newTestServer(t, newFakeClient(t, append(capiPool(t, "v1beta2"), node("sim:///pool-1-a"))...))
	running, err := s.capiMachineDetail(t.Context(), types.NamespacedName{Namespace: "n", Name: "pool-1-a"})
	if err != nil || running.Node == nil || running.Report.Verdict != "Healthy" || len(running.Report.Unread) != 1 {
		t.Errorf("running machine without its infrastructure: %+v, %v", running, err)
	}
	if err := s.options.Control.Delete(t.Context(), node("")); err != nil {
		t.Fatal(err)
	}
	if err := s.options.Control.Create(t.Context(), node("another")); err != nil {
		t.Fatal(err)
	}
	if running, err = s.capiMachineDetail(t.Context(), types.NamespacedName{Namespace: "n", Name: "pool-1-a"}); err != nil || running.Node != nil {
		t.Errorf("another node of the same name is shown: %+v, %v", running.Node, err)
	}
	if gone, err := s.capiMachineDetail(t.Context(), types.NamespacedName{Namespace: "n", Name: "gone"}); err != nil || gone.Report.Verdict != "NotFound" {
		t.Errorf("a machine that does not exist: %+v, %v", gone, err)
	}
	if _, err := ClusterAPIKind(newFakeClient(t).RESTMapper(), "Machine"); !meta.IsNoMatchError(err) {
		t.Errorf("a cluster without Cluster API: %v", err)
	}
}
