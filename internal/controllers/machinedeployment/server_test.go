package machinedeployment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// server is an API server whose cache can hide sets.
type server struct {
	*Controller
	live   client.WithWatch
	hidden []string
	// refuse, if set, may return an error for a write.
	refuse func(verb string, object client.Object) error
	writes []string
	lines  []string
	// target is the target cluster, which may be unavailable.
	target client.WithWatch
	away   bool
}

// targetOf implements Target for a server.
type targetOf struct{ *server }

func (t targetOf) Client() client.Client { return t.target }
func (t targetOf) Ready() bool           { return !t.away }
func (t targetOf) Watch(client.Object, handler.EventHandler, ...predicate.Predicate) source.Source {
	panic("no watches are set up")
}

// indexes adds the indexes of the cache to a fake client.
type indexes struct{ *fake.ClientBuilder }

func newServer(objects ...client.Object) *server {
	scheme := runtime.NewScheme()
	must(v1alpha1.AddToScheme(scheme))
	builder := fakeclient.NewBuilder(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{})
	must(fieldindex.Add(context.Background(), indexes{builder}))
	s := &server{live: builder.Build()}
	cached := interceptor.NewClient(s.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if slices.Contains(s.hidden, key.Name) {
				return apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource(), key.Name)
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if sets, ok := list.(*v1alpha1.MachineSetList); ok {
				sets.Items = slices.DeleteFunc(sets.Items, func(set v1alpha1.MachineSet) bool { return slices.Contains(s.hidden, set.Name) })
			}
			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if options := (&client.CreateOptions{}).ApplyOptions(opts); len(options.DryRun) > 0 {
				return s.dryRun(object, func() error { return c.Create(ctx, object, opts...) })
			}
			return s.write("create", object, func() error {
				object.SetUID("uid-of-" + object.GetUID())
				return c.Create(ctx, object, opts...)
			})
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return s.write("patch", object, func() error { return c.Patch(ctx, object, patch, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return s.write("patch "+sub, object, func() error { return c.SubResource(sub).Patch(ctx, object, patch, opts...) })
		},
	})
	s.target = newTarget(s)
	s.Controller = New(Options{Client: cached, Live: s.live, Events: recorder{server: s}, Clock: clocktesting.NewFakePassiveClock(fixture.Noon), Concurrency: 1, Target: targetOf{s}, ProtectNodes: true})
	return s
}

// newTarget returns a target cluster without nodes. Its writes are recorded with the others.
func newTarget(s *server) client.WithWatch {
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	var mu sync.Mutex // nodes are patched concurrently
	return interceptor.NewClient(fakeclient.NewBuilder(scheme).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			mu.Lock()
			defer mu.Unlock()
			return s.write("patch node", object, func() error { return c.Patch(ctx, object, patch, opts...) })
		},
	})
}

// dryRun runs a creation without storing the object.
func (s *server) dryRun(object client.Object, do func() error) error {
	if s.refuse != nil {
		if err := s.refuse("create", object); err != nil {
			return err
		}
	}
	return do()
}

func (s *server) write(verb string, object client.Object, do func() error) error {
	s.writes = append(s.writes, verb+" "+object.GetName())
	if s.refuse != nil {
		if err := s.refuse(verb, object); err != nil {
			return err
		}
	}
	return do()
}

// recorder stores events as "reason: text".
type recorder struct {
	record.EventRecorder
	server *server
}

func (r recorder) Event(_ runtime.Object, _, reason, message string) {
	r.server.lines = append(r.server.lines, reason+": "+message)
}

// pass runs one reconcile, which must succeed.
func (s *server) pass(t *testing.T) ctrl.Result {
	t.Helper()
	result, err := s.Reconcile(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func (s *server) deployment() *v1alpha1.MachineDeployment {
	deployment := &v1alpha1.MachineDeployment{}
	must(s.live.Get(context.Background(), request.NamespacedName, deployment))
	return deployment
}

func (s *server) change(changes ...change) {
	deployment := s.deployment()
	for _, change := range changes {
		change(deployment)
	}
	deployment.Generation++
	must(s.live.Update(context.Background(), deployment))
}

func (s *server) all() map[string]*v1alpha1.MachineSet {
	list := &v1alpha1.MachineSetList{}
	must(s.live.List(context.Background(), list))
	all := map[string]*v1alpha1.MachineSet{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

// only returns the only existing set.
func (s *server) only(t *testing.T) *v1alpha1.MachineSet {
	t.Helper()
	all := s.all()
	if len(all) != 1 {
		t.Fatalf("sets %q, want one", slices.Sorted(maps.Keys(all)))
	}
	for _, set := range all {
		return set
	}
	panic("unreachable")
}

func (s *server) progress() v1alpha1.MachineDeploymentCondition {
	for _, condition := range s.deployment().Status.Conditions {
		if condition.Type == v1alpha1.MachineDeploymentProgressing {
			return condition
		}
	}
	return v1alpha1.MachineDeploymentCondition{}
}

var request = ctrl.Request{NamespacedName: client.ObjectKey{Namespace: fixture.Namespace, Name: fixture.Pool}}

func (i indexes) IndexField(_ context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	i.WithIndex(object, field, extract)
	return nil
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (r recorder) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(object, kind, reason, format, args...)
}

func (r recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}
