package drain

import (
	"context"
	"encoding/json"
	"errors"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var errUnavailable = errors.New("the API server is unavailable")

// evictions records the evicted pods.
type evictions struct {
	Evictor
	pods []types.NamespacedName
}

func (e *evictions) Evict(_ context.Context, pod types.NamespacedName, _ types.UID) error {
	e.pods = append(e.pods, pod)
	return nil
}

func emptyNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestDrainer_DeletesOnlyIfForced checks that a drain evicts, and that a forced one deletes that very pod without a
// grace period.
func TestDrainer_DeletesOnlyIfForced(t *testing.T) {
	for force, deleted := range map[Force]int{NotForced: 0, ForceRequested: 1} {
		d, evicted := drainerOver(t, emptyNode("node"), onNode("a", nil)), &evictions{}
		var deletions []client.DeleteOptions
		d.Client = interceptor.NewClient(d.Client.(client.WithWatch), interceptor.Funcs{
			Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
				deletions = append(deletions, *(&client.DeleteOptions{}).ApplyOptions(opts))
				return nil
			},
		})
		d.Evictor, d.Wake = evicted, func(types.NamespacedName) {}
		d.Run = func(task func(context.Context)) bool { task(t.Context()); return true }
		if _, err := d.Drain(t.Context(), Request{Node: "node", Since: start, Timeout: time.Hour, Force: force}); err != nil {
			t.Fatal(err)
		}
		if len(deletions) != deleted || len(evicted.pods) != 1-deleted {
			t.Fatalf("force %q: %d deletions, %d evictions", force, len(deletions), len(evicted.pods))
		}
		for _, options := range deletions {
			if *options.GracePeriodSeconds != 0 || *options.Preconditions.UID != "a" {
				t.Errorf("deletion with %+v", options)
			}
		}
	}
}

// TestDrainer_RequestUnderWayIsNotRepeated checks that a pass starts nothing for a pod whose eviction is under way.
func TestDrainer_RequestUnderWayIsNotRepeated(t *testing.T) {
	d := drainerOver(t, emptyNode("node"), onNode("a", nil))
	d.Run = func(func(context.Context)) bool { return true }
	for pass, want := range []int{1, 0} {
		report, err := d.Drain(t.Context(), Request{Node: "node", Since: start, Timeout: time.Hour})
		if err != nil || len(report.Started) != want {
			t.Errorf("pass %d starts %+v, %v; want %d requests", pass, report.Started, err, want)
		}
	}
}

// TestNote_Forced checks what is recorded of a forced deletion. A forced deletion is never refused by a budget.
func TestNote_Forced(t *testing.T) {
	withCause := func(err *apierrors.StatusError) *apierrors.StatusError {
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
		return err
	}
	refusal := withCause(apierrors.NewTooManyRequests("no", 1))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no"))
	for name, tc := range map[string]struct {
		force   bool
		err     error
		removed bool
		grace   time.Duration
		failure error
	}{
		"evicted":                     {false, nil, false, time.Minute, nil},
		"deleted":                     {true, nil, true, 0, nil},
		"deletion refused":            {true, refusal, false, time.Minute, refusal},
		"forbidden because of budget": {false, withCause(forbidden), false, time.Minute, forbidden},
	} {
		d, l := drainerOver(t), newDrainState("node", start)
		p := &progress{pod: pod{grace: time.Minute}, calling: true}
		l.pods["a"] = p
		d.note(l, operation{pod: pod{uid: "a"}, force: tc.force}, tc.err)
		if p.removed != tc.removed || p.grace != tc.grace || p.refused || !errors.Is(p.failure, tc.failure) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestDeleteAttachments_OfANode(t *testing.T) {
	attached := emptyNode("node")
	attached.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
	attachment := func(name, node string) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
	}
	deleting := attachment("deleting", "node")
	deleting.DeletionTimestamp, deleting.Finalizers = &metav1.Time{Time: start}, []string{"example.org/attacher"}
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "volumeattachments"}, "a")
	for name, tc := range map[string]struct {
		objects           []client.Object
		get, list, remove error
		done              bool
		want              error
		deleted           []string
	}{
		"attached":             {objects: []client.Object{attached, attachment("a", "node"), attachment("b", "other")}, deleted: []string{"a"}},
		"some being deleted":   {objects: []client.Object{attached, attachment("a", "node"), deleting}, deleted: []string{"a"}},
		"all being deleted":    {objects: []client.Object{attached, deleting}, done: true},
		"nothing attached":     {objects: []client.Object{emptyNode("node"), attachment("a", "node")}, done: true},
		"no node":              {objects: []client.Object{attachment("a", "node")}, done: true},
		"unreadable node":      {objects: []client.Object{attached}, get: errUnavailable, want: errUnavailable},
		"unreadable list":      {objects: []client.Object{attached}, list: errUnavailable, want: errUnavailable},
		"failing deletion":     {objects: []client.Object{attached, attachment("a", "node")}, remove: errUnavailable, want: errUnavailable, deleted: []string{"a"}},
		"gone in the meantime": {objects: []client.Object{attached, attachment("a", "node")}, remove: gone, deleted: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := drainerOver(t, tc.objects...)
			var deleted []string
			d.Client = interceptor.NewClient(d.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
					if tc.get != nil {
						return tc.get
					}
					return c.Get(ctx, key, object, opts...)
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if tc.list != nil {
						return tc.list
					}
					return c.List(ctx, list, opts...)
				},
				Delete: func(_ context.Context, _ client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
					if options := (&client.DeleteOptions{}).ApplyOptions(opts); *options.Preconditions.UID != object.GetUID() {
						t.Errorf("deletion of %s with %+v", object.GetName(), options)
					}
					deleted = append(deleted, object.GetName())
					return tc.remove
				},
			})
			done, err := d.DeleteAttachments(t.Context(), "node")
			if done != tc.done || !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("done %t, %v; want %t, %v", done, err, tc.done, tc.want)
			}
			if diff := cmp.Diff(tc.deleted, deleted); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEvictor_ErrorOfAProxy checks that a pod is deleted only if the API server does not have evictions, and not
// because a proxy fails.
func TestEvictor_ErrorOfAProxy(t *testing.T) {
	var methods []string
	server := httptest.NewServer(http.HandlerFunc(func(h http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method)
		http.Error(h, "bad gateway", http.StatusBadGateway)
	}))
	defer server.Close()
	core := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL}).CoreV1().RESTClient()
	err := NewEvictor(core).Evict(t.Context(), types.NamespacedName{Namespace: "ns", Name: "a"}, "uid")
	if diff := cmp.Diff([]string{http.MethodPost}, methods); diff != "" || err == nil {
		t.Errorf("error %v, requests (-want +got):\n%s", err, diff)
	}
}

// TestEvictor_Left checks that pods of one node or of all nodes are listed.
func TestEvictor_Left(t *testing.T) {
	var selectors []string
	server := httptest.NewServer(http.HandlerFunc(func(h http.ResponseWriter, r *http.Request) {
		selectors = append(selectors, r.URL.Query().Get("fieldSelector"))
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{*onNode("a", nil)}}
		if r.URL.Query().Get("limit") == "1" {
			list.Continue = "more"
		}
		h.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(h).Encode(list)
	}))
	defer server.Close()
	evictor := NewEvictor(kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL}).CoreV1().RESTClient())
	for node, limit := range map[string]int64{"": 1, "node": 0} {
		selectors = nil
		pods, more, err := evictor.Left(t.Context(), node, limit)
		if err != nil || len(pods) != 1 || more != (limit == 1) {
			t.Errorf("node %q: %d pods, more %t, %v", node, len(pods), more, err)
		}
		want := map[string]string{"": "", "node": "spec.nodeName=node"}[node]
		if diff := cmp.Diff([]string{want}, selectors); diff != "" {
			t.Errorf("node %q: field selectors (-want +got):\n%s", node, diff)
		}
	}
}
