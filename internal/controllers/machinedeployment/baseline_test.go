package machinedeployment

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// successor is a process that begins with a cache in which some objects are older than they are,
// or missing, until it catches up.
func (s *server) successor(older ...client.Object) (catchUp func()) {
	behind := true
	options := s.Options
	options.Client = interceptor.NewClient(s.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, object, opts...)
			for _, was := range older {
				if was, ok := was.(*v1alpha1.MachineDeployment); ok && behind && was.Name == key.Name {
					was.DeepCopyInto(object.(*v1alpha1.MachineDeployment))
				}
			}
			return err
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			sets, ok := list.(*v1alpha1.MachineSetList)
			for i := 0; ok && behind && i < len(sets.Items); i++ {
				for _, was := range older {
					if was, ok := was.(*v1alpha1.MachineSet); ok && was.Name == sets.Items[i].Name {
						was.DeepCopyInto(&sets.Items[i])
					}
				}
			}
			return err
		},
	})
	s.Controller = New(options)
	return func() { behind = false }
}

// sizes are what the sets ask for.
func (s *server) sizes() map[string]int32 {
	sizes := map[string]int32{}
	for name, set := range s.all() {
		sizes[name] = set.Spec.Replicas
	}
	return sizes
}

// TestASuccessorWithAnOldCache does nothing until the cache shows what the process before it saw
// and did: otherwise it would undo that, or go beyond the bounds of a rollout.
func TestASuccessorWithAnOldCache(t *testing.T) {
	check := func(t *testing.T, s *server, catchUp func(), then map[string]int32) {
		t.Helper()
		before := s.sizes()
		for range 3 {
			if s.pass(t).RequeueAfter == 0 {
				t.Error("it does not look again")
			}
		}
		if diff := cmp.Diff(before, s.sizes()); diff != "" {
			t.Errorf("with the old cache: want - got +\n%s", diff)
		}
		catchUp()
		for range 3 {
			s.pass(t)
		}
		if diff := cmp.Diff(then, s.sizes()); diff != "" {
			t.Errorf("with the new cache: want - got +\n%s", diff)
		}
	}
	t.Run("the deployment was scaled up", func(t *testing.T) {
		s := newServer(newDeployment(5), setOf("a", 5, withUID))
		s.Target = nil
		s.pass(t)
		was := s.deployment()
		s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 10 })
		s.pass(t)
		check(t, s, s.successor(was), map[string]int32{"pool-a": 10})
	})
	t.Run("a set was taken from, and then another template wanted", func(t *testing.T) {
		s := newServer(newDeployment(4, class("c"), rolling("0", "1")), setOf("a", 2, withUID), setOf("b", 2, withUID), setOf("c", 0, withUID, ofRevision("3")))
		s.Target = nil
		was := s.all()["pool-a"]
		s.pass(t)
		if diff := cmp.Diff(map[string]int32{"pool-a": 1, "pool-b": 2, "pool-c": 0}, s.sizes()); diff != "" {
			t.Fatalf("want - got +\n%s", diff)
		}
		s.change(class("a"))
		check(t, s, s.successor(was), map[string]int32{"pool-a": 1, "pool-b": 2, "pool-c": 0})
	})
	t.Run("a set is missing", func(t *testing.T) {
		s := newServer(newDeployment(4, class("c"), rolling("1", "0")), setOf("a", 4, withUID), setOf("b", 1, withUID), setOf("c", 0, withUID, ofRevision("3")))
		s.Target = nil
		s.hidden = []string{"pool-b"}
		check(t, s, func() { s.hidden = nil }, map[string]int32{"pool-a": 3, "pool-b": 1, "pool-c": 0})
	})
	t.Run("a set was missing, and is gone", func(t *testing.T) {
		s := newServer(newDeployment(4), setOf("a", 3, withUID), setOf("b", 0, withUID, func(set *v1alpha1.MachineSet) { set.Finalizers = nil }))
		s.Target = nil
		s.hidden = []string{"pool-b"}
		s.pass(t)
		must(s.live.Delete(t.Context(), s.all()["pool-b"]))
		for range 2 {
			s.pass(t)
		}
		if diff := cmp.Diff(map[string]int32{"pool-a": 4}, s.sizes()); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	})
}

// TestTheAPIServerIsAskedOnce for each namespace, and once more if it does not answer.
func TestTheAPIServerIsAskedOnce(t *testing.T) {
	s := newServer(newDeployment(3), newDeployment(3, func(d *v1alpha1.MachineDeployment) {
		d.Name, d.UID, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = "other", "uid-of-other", map[string]string{"name": "other"}, map[string]string{"name": "other"}
	}))
	s.Target = nil
	var lists int
	away := errors.New("away")
	s.Live = interceptor.NewClient(s.live, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			if away != nil {
				return away
			}
			return c.List(ctx, list, opts...)
		},
	})
	if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, away) || len(s.writes) > 0 {
		t.Fatalf("got the error %v and the writes %q", err, s.writes)
	}
	lists, away = 0, nil
	other := request
	other.Name = "other"
	for range 3 {
		s.pass(t)
		if _, err := s.Reconcile(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if lists != 2 {
		t.Errorf("%d lists, want one of deployments and one of sets", lists)
	}
}
