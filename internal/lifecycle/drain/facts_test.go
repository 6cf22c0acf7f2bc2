package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// builder adds indexes to a fake client like the indexer of a cache.
type builder struct{ *fake.ClientBuilder }

func (b builder) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	b.WithIndex(object, field, values)
	return nil
}

// drainerOver creates a Drainer whose cache contains the objects, and which starts no tasks.
func drainerOver(t *testing.T, objects ...client.Object) *Drainer {
	t.Helper()
	b := builder{fake.NewClientBuilder().WithObjects(objects...)}
	if err := AddIndexes(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return New(Options{
		Client: b.Build(), Clock: clock.RealClock{}, Run: func(func(context.Context)) bool { return false }, Identify: CSIHandle,
	})
}

func onNode(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main"}}}}
	if change != nil {
		change(p)
	}
	stripped, err := StripPod(p) // all fields that are read must be kept
	if err != nil {
		panic(err)
	}
	return stripped.(*corev1.Pod)
}

func owned(kind, apiVersion string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, APIVersion: apiVersion, Name: "x", UID: "x", Controller: ptr.To(true)}}
	}
}

func claiming(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "volume-" + name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
	}
}

func ephemeral(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
}

func claim(name, volume string, owner types.UID) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	c.Spec.VolumeName = volume
	if owner != "" {
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", APIVersion: "v1", Name: string(owner), UID: owner, Controller: ptr.To(true)}}
	}
	return c
}

func persistent(name string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{VolumeHandle: "handle-" + name}
	return pv
}

func TestFacts_Gather(t *testing.T) {
	d := drainerOver(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
		onNode("bare", nil),
		onNode("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "other" }),
		onNode("unscheduled", func(p *corev1.Pod) { p.Spec.NodeName = "" }),
		onNode("daemon", owned("DaemonSet", "apps/v1")),
		onNode("replica", owned("ReplicaSet", "apps/v1")),
		onNode("own-daemon", owned("DaemonSet", "apps.kruise.io/v1alpha1")),
		onNode("mirror", func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x", "more": "y"}
		}),
		onNode("urgent", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](7) }),
		onNode("finished", func(p *corev1.Pod) { claiming("data")(p); p.Status.Phase = corev1.PodSucceeded }),
		onNode("data", claiming("data", "data", "no-claim", "no-volume", "unbound")),
		onNode("mine", ephemeral),
		onNode("foreign", ephemeral),
		onNode("shared", claiming("shared")),
		claim("data", "pv-data", ""), claim("no-volume", "pv-gone", ""), claim("unbound", "", ""), claim("shared", "pv-shared", ""),
		claim("mine-scratch", "pv-mine", "mine"), claim("foreign-scratch", "pv-foreign", "somebody"),
		persistent("pv-data", corev1.ReadWriteOnce), persistent("pv-mine", corev1.ReadWriteOnce),
		persistent("pv-foreign", corev1.ReadWriteOnce), persistent("pv-shared", corev1.ReadWriteMany),
	)
	f, err := d.gather(t.Context(), Request{Node: "node"}, known{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	volumes := map[string][]string{}
	for _, p := range f.pods {
		got = append(got, p.key.Name)
		if len(p.volumes) > 0 {
			volumes[p.key.Name] = p.volumes
		}
	}
	if diff := cmp.Diff([]string{"urgent", "bare", "data", "finished", "foreign", "mine", "replica", "shared"}, got); diff != "" {
		t.Errorf("pods that leave (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]string{"data": {"pv-data"}, "mine": {"pv-mine"}, "shared": {"pv-shared"}}, volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if v := f.volumes["pv-data"]; v.id != "handle-pv-data" || v.multi || !f.volumes["pv-shared"].multi {
		t.Errorf("volumes: %+v", f.volumes)
	}
	if f, err := d.gather(t.Context(), Request{Node: "gone"}, known{}); f != nil || err != nil {
		t.Errorf("facts of a node that is gone: %v, %v", f, err)
	}
}

func TestGather_AttachmentsOnOtherNodes(t *testing.T) {
	attachment := func(name, volume, node string, attached bool) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
		a.Spec.NodeName, a.Spec.Source.PersistentVolumeName, a.Status.Attached = node, &volume, attached
		return a
	}
	inline := attachment("inline", "", "other", true)
	inline.Spec.Source.PersistentVolumeName = nil
	d := drainerOver(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, inline,
		attachment("1", "here", "node", true), attachment("2", "coming", "other", false), attachment("3", "there", "other", true))
	f, err := d.gather(t.Context(), Request{Node: "node"}, known{volumes: []string{"here", "coming", "there"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"here": false, "coming": false, "there": true}, f.elsewhere); diff != "" {
		t.Error(diff)
	}
}

func TestAttachedAs(t *testing.T) {
	for _, tc := range []struct {
		name corev1.UniqueVolumeName
		id   string
		want bool
	}{
		{"kubernetes.io/csi/disk.example.org^vol-1", "vol-1", true},
		{"kubernetes.io/csi/disk.example.org^/subscriptions/x/disks/vol-1", "vol-1", true},
		{"kubernetes.io/csi/disk.example.org^/subscriptions/x/disks/vol-1", "/subscriptions/x/disks/vol-1", true},
		{"kubernetes.io/vsphere-volume/[store] a/x.vmdk", "[store] a/x.vmdk", true},
		{"kubernetes.io/vsphere-volume/[store] a/xyvmdk", "[store] a/x.vmdk", false},
		{"kubernetes.io/csi/disk.example.org^vol-1", "ol-1", false},
		{"kubernetes.io/csi/disk.example.org^vol-10", "vol-1", false},
		{"kubernetes.io/csi/disk.example.org^vol-1", "vol-.", false},
		{"vol-1", "vol-1", true},
		{"kubernetes.io/csi/disk.example.org^", "", false},
		{"kubernetes.io/csi/disk.example.org^", "vol-1", false},
	} {
		if got := attachedAs(tc.name, tc.id); got != tc.want {
			t.Errorf("%q is attached as %q: %v, want %v", tc.id, tc.name, got, tc.want)
		}
	}
}

func TestBudgetOf(t *testing.T) {
	made := func(name string, selector *metav1.LabelSelector, status policyv1.PodDisruptionBudgetStatus) policyv1.PodDisruptionBudget {
		pdb := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Generation: 2}, Status: status}
		pdb.Spec.Selector = selector
		return pdb
	}
	all, others := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	invalid := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}
	stuck := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, ExpectedPods: 3, CurrentHealthy: 3}
	with := func(change func(*policyv1.PodDisruptionBudgetStatus)) policyv1.PodDisruptionBudgetStatus {
		status := stuck
		change(&status)
		return status
	}
	type B = policyv1.PodDisruptionBudgetStatus
	cases := map[string]struct {
		reason              string
		budgets             []policyv1.PodDisruptionBudget
		want                string
		misconfigured, free bool
	}{
		"none":               {"", nil, "", false, false},
		"others":             {"", []policyv1.PodDisruptionBudget{made("a", others, stuck)}, "", false, false},
		"no selector":        {"nil matches nothing", []policyv1.PodDisruptionBudget{made("a", nil, stuck)}, "", false, false},
		"stuck":              {"all are healthy and none may be evicted", []policyv1.PodDisruptionBudget{made("a", all, stuck)}, "a", true, false},
		"not yet seen":       {"", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.ObservedGeneration = 1 }))}, "a", false, false},
		"one is not healthy": {"it will allow evictions again", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.CurrentHealthy = 2 }))}, "a", false, false},
		"covers nothing":     {"", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.ExpectedPods = 0 }))}, "a", false, false},
		"just disrupted":     {"", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.DisruptedPods = map[string]metav1.Time{"x": {}} }))}, "a", false, false},
		"allowed before":     {"", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.ObservedGeneration, s.DisruptionsAllowed = 1, 1 }))}, "a", false, false},
		"invalid selector":   {"it matches nothing", []policyv1.PodDisruptionBudget{made("a", invalid, stuck)}, "", false, false},
		"two allow":          {"the first is named", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.DisruptionsAllowed = 1 })), made("b", all, with(func(s *B) { s.DisruptionsAllowed = 1 }))}, "a", false, true},
		"allows":             {"", []policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.DisruptionsAllowed = 1 }))}, "a", false, true},
		"the one that refuses": {
			"of several budgets, the first that allows no eviction is returned",
			[]policyv1.PodDisruptionBudget{made("a", all, with(func(s *B) { s.DisruptionsAllowed = 1 })), made("b", all, stuck), made("c", all, B{})}, "b", true, false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := budgetOf(map[string]string{"app": "mine"}, withSelectors(tc.budgets))
			if got == nil {
				got = &policyv1.PodDisruptionBudget{}
			}
			if got.Name != tc.want || Misconfigured(got) != tc.misconfigured || Allows(got) != tc.free {
				t.Errorf("%s: %+v", tc.reason, got)
			}
		})
	}
}

// TestGather_BudgetCostIsLinear checks, by the number of allocations, that the selectors of the budgets are converted once, not
// for each Pod.
func TestGather_BudgetCostIsLinear(t *testing.T) {
	for _, size := range []int{500, 5000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			budgets := make([]policyv1.PodDisruptionBudget, size)
			for i := range budgets {
				budgets[i].Namespace, budgets[i].Name = "ns", fmt.Sprint(i)
				budgets[i].Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}}
			}
			d := New(Options{Client: listing{budgets: budgets}})
			allocations := func(pods int) float64 {
				f, refused := &facts{budgets: map[types.UID]*policyv1.PodDisruptionBudget{}}, map[types.UID]bool{}
				for i := range pods {
					p := pod{uid: types.UID(fmt.Sprint(i)), labels: map[string]string{"app": fmt.Sprint(i)}}
					p.key.Namespace = "ns"
					f.pods, refused[p.uid] = append(f.pods, p), true
				}
				return testing.AllocsPerRun(1, func() {
					if err := d.gatherBudgets(t.Context(), f, refused); err != nil || len(f.budgets) != pods || f.budgets["0"].Name != "0" {
						t.Errorf("%d budgets, %v", len(f.budgets), err)
					}
				})
			}
			if one, many := allocations(1), allocations(100); many > one+100 {
				t.Errorf("%v allocations for one Pod, %v for 100", one, many)
			}
		})
	}
}

// listing is a cache that shows a list of budgets.
type listing struct {
	client.Client
	budgets []policyv1.PodDisruptionBudget
}

func (l listing) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*policyv1.PodDisruptionBudgetList).Items = l.budgets
	return nil
}

func TestForceFor(t *testing.T) {
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, ago time.Duration) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(start.Add(-ago))}}
	}
	const long, short = 5*time.Minute + time.Second, 5 * time.Minute
	cases := map[string]struct {
		requested  bool
		conditions []corev1.NodeCondition
		want       Force
		due        time.Duration
	}{
		"nothing known":     {false, nil, NotForced, 0},
		"label":             {true, nil, ForceRequested, 0},
		"ready":             {false, condition(corev1.NodeReady, corev1.ConditionTrue, long), NotForced, 0},
		"not ready, long":   {false, condition(corev1.NodeReady, corev1.ConditionFalse, long), ForceNotReady, 0},
		"unknown, long":     {false, condition(corev1.NodeReady, corev1.ConditionUnknown, long), ForceNotReady, 0},
		"not ready, short":  {false, condition(corev1.NodeReady, corev1.ConditionFalse, short), NotForced, time.Second},
		"writable":          {false, condition(readonlyFilesystem, corev1.ConditionFalse, long), NotForced, 0},
		"read-only, long":   {false, condition(readonlyFilesystem, corev1.ConditionTrue, long), ForceReadonlyFilesystem, 0},
		"read-only, short":  {false, condition(readonlyFilesystem, corev1.ConditionTrue, short), NotForced, time.Second},
		"something else":    {false, condition("DiskPressure", corev1.ConditionTrue, long), NotForced, 0},
		"read-only unknown": {false, condition(readonlyFilesystem, corev1.ConditionUnknown, long), ForceReadonlyFilesystem, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := ForceFor(tc.requested, tc.conditions, start); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if got := ForceDue(tc.conditions, start); got != tc.due {
				t.Errorf("due in %v, want %v", got, tc.due)
			}
		})
	}
}

func TestEviction_RetryLimit(t *testing.T) {
	for _, tc := range []struct {
		retries int32
		timeout time.Duration
		want    int
	}{{360, 2 * time.Hour, 360}, {360, time.Minute, 3}, {2, time.Hour, 2}, {-1, time.Hour, 0}, {5, -time.Hour, 0}} {
		if got := New(Options{}).rules(Request{MaxEvictRetries: tc.retries, Timeout: tc.timeout}).retries; got != tc.want {
			t.Errorf("%d within %v: %d, want %d", tc.retries, tc.timeout, got, tc.want)
		}
	}
}

func TestDrainer_WithoutLeadership(t *testing.T) {
	// This process lost its leadership, so tasks are not accepted.
	d := drainerOver(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, onNode("a", nil))
	req := Request{Node: "node", Since: time.Now(), Timeout: time.Hour}
	for range 2 { // the first pass must not affect the second
		report, err := d.Drain(t.Context(), req)
		if err != nil || report.Done || len(report.Started) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
	}
}

func TestPodChanges(t *testing.T) {
	plain := onNode("a", nil)
	leaving := onNode("a", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} })
	unbound := onNode("a", func(p *corev1.Pod) { p.Spec.NodeName = "" })
	labelled := onNode("a", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
	ended := onNode("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	another := onNode("a", func(p *corev1.Pod) { p.UID = "another" })
	changes := PodChanges()
	for name, tc := range map[string]struct {
		was, is *corev1.Pod
		want    bool
	}{
		"leaves": {plain, leaving, true}, "bound": {unbound, plain, true}, "ended": {plain, ended, true}, "replaced": {plain, another, true},
		"labelled": {plain, labelled, false}, "same": {plain, plain, false}, "unbound": {unbound, unbound, false},
	} {
		if got := changes.Update(event.UpdateEvent{ObjectOld: tc.was, ObjectNew: tc.is}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !changes.Delete(event.DeleteEvent{Object: plain}) || changes.Delete(event.DeleteEvent{Object: unbound}) || !changes.Create(event.CreateEvent{Object: plain}) {
		t.Error("want events of pods with a node, and no others")
	}
}

func TestVolumesDiffer(t *testing.T) {
	node := func(names ...corev1.UniqueVolumeName) *corev1.Node {
		n := &corev1.Node{}
		for _, name := range names {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
		}
		return n
	}
	for name, tc := range map[string]struct {
		was, is *corev1.Node
		want    bool
	}{
		"same": {node("a", "b"), node("b", "a"), false}, "more": {node("a"), node("a", "b"), true},
		"less": {node("a", "b"), node("a"), true}, "other": {node("a"), node("b"), true},
	} {
		if got := VolumesDiffer(tc.was, tc.is); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestEvictor(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	refusal := apierrors.NewTooManyRequests("later", 10)
	refusal.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	cases := map[string]struct {
		reason   string
		response *apierrors.StatusError // nil for "404 page not found"
		is       func(error) bool
		want     []string
	}{
		"refused":     {"a Retry-After does not cause a pause", refusal, apierrors.IsTooManyRequests, []string{"POST eviction"}},
		"pod missing": {"", apierrors.NewNotFound(pods, "a"), apierrors.IsNotFound, []string{"POST eviction"}},
		"unsupported": {"an old API server deletes", nil, func(err error) bool { return err == nil }, []string{"POST eviction", "DELETE a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(h http.ResponseWriter, r *http.Request) {
				got = append(got, r.Method+" "+r.URL.Path[len(r.URL.Path)-map[bool]int{true: 8, false: 1}[r.Method == http.MethodPost]:])
				switch {
				case r.Method == http.MethodDelete:
					respondWith(h, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK})
				case tc.response == nil:
					http.NotFound(h, r)
				default:
					h.Header().Set("Retry-After", "10")
					respondWith(h, &tc.response.ErrStatus)
				}
			}))
			defer server.Close()
			core := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL}).CoreV1().RESTClient()
			err := NewEvictor(core).Evict(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, "uid")
			if !tc.is(err) {
				t.Errorf("%s: error %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: requests (-want +got)\n%s", tc.reason, diff)
			}
			if tc.response == refusal && !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
				t.Error("the cause is lost")
			}
		})
	}
}

func respondWith(h http.ResponseWriter, status *metav1.Status) {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	h.Header().Set("Content-Type", "application/json")
	h.WriteHeader(int(status.Code))
	_ = json.NewEncoder(h).Encode(status)
}

func TestNote(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	refusal := apierrors.NewTooManyRequests("no", 0)
	refusal.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	overload := apierrors.NewTooManyRequests("busy", 1)
	cases := map[string]struct {
		reason        string
		err           error
		sent, refused bool
		failed        error
	}{
		"evicted":  {"", nil, true, false, nil},
		"gone":     {"another client deleted it", apierrors.NewNotFound(pods, "a"), true, false, nil},
		"another":  {"another pod has the name", apierrors.NewConflict(pods, "a", errors.New("uid")), true, false, nil},
		"refused":  {"", refusal, false, true, nil},
		"overload": {"an overloaded API server does not report on budgets", overload, false, false, overload},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d, l := drainerOver(t), newDrainState("node", start)
			l.pods["a"] = &progress{calling: true}
			d.note(l, operation{pod: pod{uid: "a"}}, tc.err)
			p := l.pods["a"]
			if p.calling || !p.sent.IsZero() != tc.sent || p.refused != tc.refused || !errors.Is(p.failure, tc.failed) {
				t.Errorf("%s: %+v", tc.reason, p)
			}
		})
	}
}

// observing calls a function before each read, with the type that is read. An error of it is returned. The key of a
// list is empty.
func observing(of client.Client, read func(kind string, key client.ObjectKey) error) client.Client {
	return interceptor.NewClient(of.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if err := read(fmt.Sprintf("%T", object), key); err != nil {
				return err
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := read(fmt.Sprintf("%T", list), client.ObjectKey{}); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
	})
}

// sharedVolume is a node with two pods that share a volume, and a budget.
func sharedVolume() []client.Object {
	return []client.Object{
		emptyNode("node"), onNode("a", claiming("data", "unbound")), onNode("b", claiming("data")), onNode("c", nil),
		claim("data", "pv-data", ""), claim("unbound", "", ""), persistent("pv-data", corev1.ReadWriteOnce),
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pdb"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}},
	}
}

// afterRefusals is what is known after the evictions of a and b were refused.
func afterRefusals() known {
	return known{refused: map[types.UID]bool{"a": true, "b": true}, volumes: []string{"pv-data"}}
}

// TestGather_Errors checks that an object that cannot be read does not count as absent.
func TestGather_Errors(t *testing.T) {
	for _, kind := range []string{
		"*v1.Node", "*v1.PodList", "*v1.PersistentVolumeClaim", "*v1.PersistentVolume", "*v1.PodDisruptionBudgetList", "*v1.VolumeAttachmentList",
	} {
		d := drainerOver(t, sharedVolume()...)
		d.Client = failing(d.Client, kind)
		if f, err := d.gather(t.Context(), Request{Node: "node"}, afterRefusals()); !errors.Is(err, errUnavailable) {
			t.Errorf("%s cannot be read: %+v, %v", kind, f, err)
		}
	}
	d := drainerOver(t, sharedVolume()...)
	d.Identify = func(context.Context, types.NamespacedName, *corev1.PersistentVolume) (string, bool, error) {
		return "", false, errUnavailable
	}
	if f, err := d.gather(t.Context(), Request{Node: "node"}, known{}); !errors.Is(err, errUnavailable) {
		t.Errorf("a volume cannot be identified: %+v, %v", f, err)
	}
}

// TestGather_ReadsOnce checks that a volume is identified once for all its pods, that the budgets of a namespace are
// listed once and only for pods whose eviction was refused, and that no volume is read for an unbound claim.
func TestGather_ReadsOnce(t *testing.T) {
	d := drainerOver(t, sharedVolume()...)
	reads := map[string]int{}
	d.Client = observing(d.Client, func(kind string, key client.ObjectKey) error {
		if reads[kind]++; kind == "*v1.PersistentVolume" && key.Name == "" {
			t.Error("a volume without a name is read")
		}
		return nil
	})
	d.Identify = func(context.Context, types.NamespacedName, *corev1.PersistentVolume) (string, bool, error) {
		reads["identify"]++
		return "id", false, nil
	}
	f, err := d.gather(t.Context(), Request{Node: "node"}, afterRefusals())
	if err != nil {
		t.Fatal(err)
	}
	if reads["identify"] != 1 || reads["*v1.PodDisruptionBudgetList"] != 1 {
		t.Errorf("reads: %v", reads)
	}
	if len(f.budgets) != 2 || f.budgets["a"].Name != "pdb" || f.budgets["b"].Name != "pdb" {
		t.Errorf("budgets: %v", f.budgets)
	}
}

func TestPodFacts_Termination(t *testing.T) {
	leaving := &metav1.Time{Time: start}
	for name, tc := range map[string]struct {
		deleted *metav1.Time
		seconds *int64
		grace   time.Duration
		killed  bool
	}{
		"running":                         {nil, nil, 30 * time.Second, false},
		"running, with a deletion period": {nil, ptr.To[int64](0), 30 * time.Second, false},
		"leaving":                         {leaving, ptr.To[int64](5), 5 * time.Second, false},
		"leaving, no deletion period":     {leaving, nil, 30 * time.Second, false},
		"killed":                          {leaving, ptr.To[int64](0), 0, true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: tc.deleted, DeletionGracePeriodSeconds: tc.seconds}}
		if got := podFacts(p); got.grace != tc.grace || got.killed != tc.killed || got.leaving != (tc.deleted != nil) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestClaimsOf_OtherVolumes checks that a volume without a claim counts for nothing.
func TestClaimsOf_OtherVolumes(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
	if names, own := claimsOf(p); len(names) > 0 || len(own) > 0 {
		t.Errorf("%v, %v", names, own)
	}
}

func TestMultiAttach(t *testing.T) {
	for mode, want := range map[corev1.PersistentVolumeAccessMode]bool{
		corev1.ReadWriteOnce: false, corev1.ReadWriteOncePod: false, corev1.ReadOnlyMany: true, corev1.ReadWriteMany: true,
	} {
		if got := multiAttach(persistent("pv", mode)); got != want {
			t.Errorf("%s: %t", mode, got)
		}
	}
}
