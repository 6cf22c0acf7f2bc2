package machineset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// server is an API server with a cache that shows Machines only on request. The cache shows the current set unless
// the test holds an old one.
type server struct {
	client.Client // the controllers' client: writes to the server, reads from the cache
	live          client.WithWatch
	clock         *clocktesting.FakePassiveClock
	events        *recorder

	// overshoot is the option of new controllers.
	overshoot *Overshoot

	mu sync.Mutex
	// shown contains the Machines in the cache, by name.
	shown map[string]*v1alpha1.Machine
	// shownSet is the set in the cache. If nil, the cache shows the current set.
	shownSet *v1alpha1.MachineSet
	// shownDeployment is the deployment in the cache. If nil, the cache shows the current deployment.
	shownDeployment *v1alpha1.MachineDeployment
	// happens, if set, is called before each creation and deletion that succeeds.
	happens func(verb string, object client.Object)
	// respond, if set, decides about a write before it happens. The writer gets the error; done reports whether the
	// write happens nevertheless.
	respond func(verb string, object client.Object) (err error, done bool)
	// unread, if set, is the error of reads of Machines that bypass the cache.
	unread error
	// writes contains the requested writes as "verb kind name", in order.
	writes []string
	// lists counts the lists of Machines that bypass the cache.
	lists int
	uids  int
	// numbers contains resource versions that increase over time for all Machines, like those of a real server.
	// The keys are UID and version of the fake client, and the reverse.
	numbers map[string]int
	fakes   map[int]string
}

// indexes adds the indexes of the cache to a fake client.
type indexes struct{ *fake.ClientBuilder }

func (i indexes) IndexField(_ context.Context, object client.Object, field string, extract client.IndexerFunc) error {
	i.WithIndex(object, field, extract)
	return nil
}

func newServer(objects ...client.Object) *server {
	s := &server{
		shown: map[string]*v1alpha1.Machine{}, numbers: map[string]int{}, fakes: map[int]string{}, clock: clocktesting.NewFakePassiveClock(noon), events: &recorder{},
	}
	scheme := runtime.NewScheme()
	must(v1alpha1.AddToScheme(scheme))
	builder := fakeclient.NewBuilder(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.MachineSet{})
	must(fieldindex.Add(context.Background(), indexes{builder}))
	numbered := func(ctx context.Context, c client.Reader, object client.Object, err error) error {
		machine := &v1alpha1.Machine{}
		if _, ok := object.(*v1alpha1.Machine); ok && err == nil && c.Get(ctx, client.ObjectKeyFromObject(object), machine) == nil {
			s.number(machine)
		}
		return err
	}
	s.live = interceptor.NewClient(builder.Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			return numbered(ctx, c, object, c.Create(ctx, object, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.UpdateOption) error {
			return numbered(ctx, c, object, c.Update(ctx, object, opts...))
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return numbered(ctx, c, object, c.Patch(ctx, object, patch, opts...))
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			return numbered(ctx, c, object, c.Delete(ctx, object, opts...))
		},
	})
	machines := s.all()
	for _, name := range slices.Sorted(maps.Keys(machines)) { // a fixed order
		s.number(machines[name])
	}
	s.Client = interceptor.NewClient(s.live, interceptor.Funcs{
		Get:    s.get,
		List:   s.list,
		Create: s.create,
		Delete: s.delete,
		Patch:  s.patch,
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return s.write("patch "+sub, object, func() error { return c.SubResource(sub).Patch(ctx, object, patch, opts...) })
		},
	})
	s.catchUp()
	return s
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newController returns the controller of a new process.
func (s *server) newController() *Controller {
	reader := interceptor.NewClient(s.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if _, ok := object.(*v1alpha1.Machine); ok && s.unread != nil {
				return s.unread
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			s.lists++
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			machines := list.(*metav1.PartialObjectMetadataList)
			for i := range machines.Items {
				machines.Items[i].ResourceVersion = s.number(&machines.Items[i])
			}
			list.SetResourceVersion(strconv.Itoa(len(s.numbers)))
			return nil
		},
	})
	return New(Options{Client: s.Client, Live: reader, Events: s.events, Clock: s.clock, Concurrency: 1, Overshoot: s.overshoot})
}

// number returns the increasing resource version of a Machine.
func (s *server) number(machine client.Object) string {
	key := string(machine.GetUID()) + "/" + machine.GetResourceVersion()
	if s.numbers[key] == 0 {
		s.numbers[key] = len(s.numbers) + 1
		s.fakes[s.numbers[key]] = machine.GetResourceVersion()
	}
	return strconv.Itoa(s.numbers[key])
}

// write calls respond, and carries out the write unless respond prevents it.
func (s *server) write(verb string, object client.Object, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1alpha1.")
	s.writes = append(s.writes, strings.TrimSpace(fmt.Sprintf("%s %s %s", verb, kind, object.GetName())))
	if s.respond != nil {
		if err, done := s.respond(verb, object); err != nil {
			if done { // the writer does not know whether the write happened
				_ = do()
			}
			return err
		}
	}
	return do()
}

func (s *server) create(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	return s.write("create", object, func() error {
		s.uids++
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", s.uids)))
		object.SetName(fmt.Sprintf("%s%04d", object.GetGenerateName(), s.uids)) // a fixed name
		s.notify("create", object)
		return c.Create(ctx, object, opts...)
	})
}

func (s *server) delete(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
	options := &client.DeleteOptions{}
	options.ApplyOptions(opts)
	return s.write("delete", object, func() error {
		// The fake client ignores UIDs, and does not know the increasing versions.
		is := &v1alpha1.Machine{}
		if options.Preconditions != nil && c.Get(ctx, client.ObjectKeyFromObject(object), is) == nil {
			version := options.Preconditions.ResourceVersion
			if is.UID != *options.Preconditions.UID || version != nil && s.number(is) != *version {
				return apierrors.NewConflict(resource, object.GetName(), errors.New("the object was replaced or changed"))
			}
		}
		s.notify("delete", object)
		return c.Delete(ctx, object)
	})
}

func (s *server) patch(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return s.write("patch", object, func() error {
		machine, ok := object.(*v1alpha1.Machine)
		if ok {
			patch = s.locked(machine, patch)
		}
		err := c.Patch(ctx, object, patch, opts...)
		if err == nil && ok {
			machine.ResourceVersion = s.number(machine)
		}
		return err
	})
}

// locked returns a patch of a Machine with the resource version that the fake client knows.
func (s *server) locked(machine *v1alpha1.Machine, patch client.Patch) client.Patch {
	data, err := patch.Data(machine)
	must(err)
	number, _ := strconv.Atoi(machine.ResourceVersion)
	now, was := []byte(`"resourceVersion":"`+s.fakes[number]+`"`), []byte(`"resourceVersion":"`+machine.ResourceVersion+`"`)
	return client.RawPatch(patch.Type(), bytes.ReplaceAll(data, was, now))
}

func (s *server) notify(verb string, object client.Object) {
	if s.happens != nil {
		s.happens(verb, object)
	}
}

// get reads from the cache.
func (s *server) get(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if set, ok := object.(*v1alpha1.MachineSet); ok && s.shownSet != nil {
		s.shownSet.DeepCopyInto(set)
		return nil
	}
	if deployment, ok := object.(*v1alpha1.MachineDeployment); ok && s.shownDeployment != nil {
		s.shownDeployment.DeepCopyInto(deployment)
		return nil
	}
	return c.Get(ctx, key, object, opts...)
}

// list reads from the cache.
func (s *server) list(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	machines, ok := list.(*v1alpha1.MachineList)
	if !ok {
		return c.List(ctx, list, opts...)
	}
	options := &client.ListOptions{}
	options.ApplyOptions(opts)
	controller, _ := options.FieldSelector.RequiresExactMatch(fieldindex.ByController)
	for _, name := range slices.Sorted(maps.Keys(s.shown)) { // a fixed order
		machine, owner := s.shown[name], fieldindex.Orphan
		if len(machine.OwnerReferences) > 0 {
			owner = string(machine.OwnerReferences[0].UID)
		}
		if owner == controller {
			machines.Items = append(machines.Items, *machine)
			machines.Items[len(machines.Items)-1].ResourceVersion = s.number(machine)
		}
	}
	return nil
}

// all returns the existing Machines, by name.
func (s *server) all() map[string]*v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	must(s.live.List(context.Background(), list))
	all := map[string]*v1alpha1.Machine{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

// activeCount counts the Machines that are not being deleted.
func (s *server) activeCount() int {
	n := 0
	for _, machine := range s.all() {
		if counts.Active(machine) {
			n++
		}
	}
	return n
}

// catchUp updates the cache.
func (s *server) catchUp() {
	s.shown = s.all()
}

// show updates one Machine in the cache.
func (s *server) show(name string) {
	if machine := s.all()[name]; machine != nil {
		s.shown[name] = machine
	} else {
		delete(s.shown, name)
	}
}

func (s *server) set() *v1alpha1.MachineSet {
	set := &v1alpha1.MachineSet{}
	must(s.live.Get(context.Background(), client.ObjectKey{Namespace: fixture.Namespace, Name: pool}, set))
	return set
}

// scale changes the replicas of the set.
func (s *server) scale(replicas int32) {
	set := s.set()
	set.Spec.Replicas = replicas
	set.Generation++
	must(s.live.Update(context.Background(), set))
}

// vanish completes the deletion of a Machine like the machine controller.
func (s *server) vanish(name string) {
	machine := s.all()[name]
	machine.Finalizers = nil
	must(s.live.Update(context.Background(), machine))
}

// recorder stores events as "reason: text".
type recorder struct {
	record.EventRecorder
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Event(_ runtime.Object, _, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, reason+": "+message)
}

func (r *recorder) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(object, kind, reason, format, args...)
}

func (r *recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

var (
	testContext = context.Background()
	kind        = v1alpha1.SchemeGroupVersion.WithKind("Machine").GroupKind()
	resource    = v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource()
)
