package machineset

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// changed is what users do to a set.
func changed(change setChange) func(*server) {
	return func(s *server) {
		set := s.set()
		change(set)
		set.Generation++
		must(s.live.Update(testContext, set))
	}
}

// rest passes until nothing is left to do, with a cache in step.
func (s *server) rest(t *testing.T, c *Controller) {
	t.Helper()
	for range 4 {
		pass(t, c)
		for name, machine := range s.all() {
			if !active(machine) {
				s.vanish(name)
			}
		}
		s.catchUp()
	}
}

// TestANewProcessWaitsForTheSet: the process before it acted on a set that its cache does not show
// yet, though it shows all Machines. What is right for the set as it was must not be done again.
func TestANewProcessWaitsForTheSet(t *testing.T) {
	for reason, change := range map[string]func(*server){
		"scaled up":   changed(func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 5 }),
		"scaled down": changed(func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 1 }),
		"another node template": changed(withTemplate(func(spec *v1alpha1.MachineSpec) {
			spec.NodeTemplateSpec.Labels = map[string]string{"new": "label"}
		})),
		"another selector": changed(func(set *v1alpha1.MachineSet) {
			set.Spec.Template.Labels = map[string]string{"name": "other"}
			set.Spec.Selector.MatchLabels = set.Spec.Template.Labels
		}),
		"frozen, and scaled down": changed(func(set *v1alpha1.MachineSet) {
			frozenSet(set)
			set.Spec.Replicas = 1
		}),
		"deleted": func(s *server) { must(s.live.Delete(testContext, s.set())) },
	} {
		t.Run(reason, func(t *testing.T) {
			s := newServer(newSet(3, heldBy("example.com/backup")))
			before := s.newController()
			s.rest(t, before)
			old := s.set()
			change(s)
			s.rest(t, before)

			s.shownSet, s.writes = old, nil
			after := s.newController()
			for range 3 {
				if result, err := after.Reconcile(t.Context(), request); err != nil || result.RequeueAfter == 0 {
					t.Errorf("it does not wait: %+v, %v", result, err)
				}
			}
			if len(s.writes) > 0 {
				t.Errorf("it acts on a set that was changed: %q", s.writes)
			}
			s.shownSet = nil
			s.scale(2)
			s.rest(t, after)
			if status := s.set().Status; status.ObservedGeneration != s.set().Generation {
				t.Errorf("when the cache shows the set, nothing is done: %+v", status)
			}
			if s.setLists != 2 {
				t.Errorf("%d lists of sets by two processes", s.setLists)
			}
		})
	}
}

// TestASetOfTheSameNameIsNotTheOneThatWas: the cache shows one that is gone, and has been for
// longer than this process is there.
func TestASetOfTheSameNameIsNotTheOneThatWas(t *testing.T) {
	s := newServer(newSet(2, func(set *v1alpha1.MachineSet) { set.UID, set.ResourceVersion = "another", "1005" }))
	s.shownSet = newSet(3, func(set *v1alpha1.MachineSet) { set.ResourceVersion = "1003" })
	c := s.newController()
	pass(t, c)
	if len(s.writes) > 0 {
		t.Errorf("it acts for the one that is gone: %q", s.writes)
	}
	s.shownSet = nil
	s.rest(t, c)
	if n := s.activeCount(); n != 2 {
		t.Errorf("%d machines, want two", n)
	}
}

// TestAnOutageAtTheStart: however many sets there are, the server is asked for all at once and not
// again at once. When it answers, each set is worked on.
func TestAnOutageAtTheStart(t *testing.T) {
	const sets = 20
	objects := []client.Object{machine("theirs", stray, unlabelled)}
	var requests []ctrl.Request
	for i := range sets {
		set := namedSet(fmt.Sprintf("pool-%d", i))
		set.UID, set.Spec.Replicas = types.UID(set.Name), 1
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": set.Name}}
		set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
		objects, requests = append(objects, set), append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(set)})
	}
	for _, kind := range []string{"MachineSetList", "MachineList"} {
		t.Run(kind, func(t *testing.T) {
			s := newServer(objects...)
			c := s.newController()
			live, asked, away := c.Live, 0, true
			c.Live = interceptor.NewClient(s.live, interceptor.Funcs{
				List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if list.GetObjectKind().GroupVersionKind().Kind == kind {
						if asked++; away {
							return errLost
						}
					}
					return live.List(ctx, list, opts...)
				},
			})
			for second := 1; second <= 3; second++ {
				for _, request := range append(requests, requests...) {
					if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, errLost) {
						t.Fatalf("got the error %v, so it is not tried again", err)
					}
				}
				if asked != second {
					t.Fatalf("%d lists in %d seconds", asked, second)
				}
				s.clock.SetTime(s.clock.Now().Add(time.Second))
			}
			if len(s.writes) > 0 {
				t.Errorf("it acts without knowing what was before: %q", s.writes)
			}
			away = false
			for _, request := range requests {
				if _, err := c.Reconcile(t.Context(), request); err != nil {
					t.Errorf("got the error %v", err)
				}
			}
			if diff := cmp.Diff([]int{sets + 1, 4}, []int{s.activeCount(), asked}); diff != "" {
				t.Errorf("machines and lists: want - got +\n%s", diff)
			}
		})
	}
}
