package tasks_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

func TestWaker(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	named := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	woken := func() []string {
		var names []string
		for queue.Len() > 0 {
			request, _ := queue.Get()
			if request.Namespace != "ns" {
				t.Errorf("unexpected request %v", request)
			}
			names = append(names, request.Name)
			queue.Done(request)
		}
		return names
	}

	var waker tasks.Waker
	waker.Wake(named("early"))
	waker.Wake(named("too"))
	waker.Wake(named("early"))
	if queue.Len() != 0 {
		t.Fatal("a request was queued before the controller started")
	}
	if err := waker.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	if got := woken(); !slices.Equal(got, []string{"early", "too"}) {
		t.Errorf("requests at the start: %v", got)
	}
	waker.Wake(named("late"))
	if got := woken(); !slices.Equal(got, []string{"late"}) {
		t.Errorf("requests afterwards: %v", got)
	}
}
