package machinedeployment

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestMachineDeployment_OneWayOverlapIsReported checks that both deployments report the overlap.
func TestMachineDeployment_OneWayOverlapIsReported(t *testing.T) {
	s := newServer(fixture.Deployment(1), fixture.Deployment(1, narrow), fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.Name, d.UID = "far", "uid-of-far" }, apart))
	for name, want := range map[string]string{fixture.Pool: "narrow", "narrow": fixture.Pool, "far": ""} {
		key := client.ObjectKey{Namespace: fixture.Namespace, Name: name}
		if _, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		deployment := &v1alpha1.MachineDeployment{}
		must(s.live.Get(t.Context(), key, deployment))
		message := ""
		if at := conditionAt(deployment.Status, v1alpha1.MachineDeploymentSelectorOverlap); at >= 0 {
			message = deployment.Status.Conditions[at].Message
		}
		if want != "" {
			want = "spec.selector: the same machines are selected by " + want + ". Give each deployment a label of its own."
		}
		if message != want {
			t.Errorf("%s: message %q, want %q", name, message, want)
		}
	}
}

func (q *queue) Add(item reconcile.Request) { q.names = append(q.names, item.Name) }

// TestWatches_OverlapTriggersDeployments checks that a change enqueues the deployments that overlap with the old or the new
// version.
func TestWatches_OverlapTriggersDeployments(t *testing.T) {
	is, was := fixture.Deployment(1, narrow), fixture.Deployment(1, narrow)
	apart(is)
	s := newServer(fixture.Deployment(1), is, fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.Name, d.UID = "far", "uid-of-far" }, apart))
	handle := handler.EnqueueRequestsFromMapFunc(s.overlapping)
	for reason, test := range map[string]struct {
		happens func(*queue)
		want    []string
	}{
		"it begins":      {func(q *queue) { handle.Update(t.Context(), event.UpdateEvent{ObjectOld: is, ObjectNew: was}, q) }, []string{fixture.Pool}},
		"it is resolved": {func(q *queue) { handle.Update(t.Context(), event.UpdateEvent{ObjectOld: was, ObjectNew: is}, q) }, []string{fixture.Pool}},
		"it remains":     {func(q *queue) { handle.Update(t.Context(), event.UpdateEvent{ObjectOld: was, ObjectNew: was}, q) }, []string{fixture.Pool}},
		"there is none":  {func(q *queue) { handle.Update(t.Context(), event.UpdateEvent{ObjectOld: is, ObjectNew: is}, q) }, nil},
		"one is created": {func(q *queue) { handle.Create(t.Context(), event.CreateEvent{Object: was}, q) }, []string{fixture.Pool}},
		"one is deleted": {func(q *queue) { handle.Delete(t.Context(), event.DeleteEvent{Object: was}, q) }, []string{fixture.Pool}},
	} {
		q := &queue{}
		test.happens(q)
		slices.Sort(q.names)
		if diff := cmp.Diff(test.want, q.names); diff != "" {
			t.Errorf("%s: want - got +\n%s", reason, diff)
		}
	}
}

// narrow changes a deployment so that the selector of "pool" matches its machines, but not vice versa.
func narrow(d *v1alpha1.MachineDeployment) {
	d.Name, d.UID = "narrow", "uid-of-narrow"
	labels := map[string]string{"name": fixture.Pool, "zone": "a"}
	d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = labels, labels
}

// apart changes a deployment so that it is unrelated to "pool".
func apart(d *v1alpha1.MachineDeployment) {
	labels := map[string]string{"name": d.Name}
	d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = labels, labels
}

// queue records requests.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	names []string
}
