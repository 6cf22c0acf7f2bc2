package byname

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

var (
	ctx  = context.Background()
	pool = client.ObjectKey{Namespace: "default", Name: "pool"}
	noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

// kinds are those that the cache shows each at a moment of its own.
var kinds = []string{"deployments", "sets", "machines"}

func kindOf(object runtime.Object) string {
	switch object.(type) {
	case *v1alpha1.MachineDeployment, *v1alpha1.MachineDeploymentList:
		return kinds[0]
	case *v1alpha1.MachineSet, *v1alpha1.MachineSetList:
		return kinds[1]
	case *v1alpha1.Machine, *v1alpha1.MachineList:
		return kinds[2]
	}
	return ""
}

// world is an API server with a deployment, both controllers, and the cache that they share.
type world struct {
	live client.WithWatch
	// shown is what the cache has of a kind.
	shown map[string]moment
	indexers
	clock *clocktesting.FakePassiveClock

	deployments *machinedeployment.Controller
	sets        *machineset.Controller

	// mu is held by writes: sets make several at the same time.
	mu sync.Mutex
	// made and writes count what is created, and all that is written.
	made, writes int
	// deleted are the names of the Machines that a set has deleted.
	deleted []string
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// indexers are the cache's indexes, by their names.
type indexers map[string]client.IndexerFunc

func (i indexers) IndexField(_ context.Context, _ client.Object, field string, extract client.IndexerFunc) error {
	i[field] = extract
	return nil
}

// moment is what a cache has of a kind.
type moment struct {
	objects []client.Object
	indexers
}

func (m moment) get(key client.ObjectKey, into client.Object) error {
	for _, object := range m.objects {
		if client.ObjectKeyFromObject(object) == key {
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(object.DeepCopyObject()).Elem())
			return nil
		}
	}
	return apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource(kindOf(into)).GroupResource(), key.Name)
}

func (m moment) list(into client.ObjectList, opts []client.ListOption) error {
	options := &client.ListOptions{}
	options.ApplyOptions(opts)
	var found []runtime.Object
	for _, object := range m.objects {
		matches := true
		if options.FieldSelector != nil {
			for _, field := range options.FieldSelector.Requirements() {
				matches = matches && slices.Contains(m.indexers[field.Field](object), field.Value)
			}
		}
		if matches {
			found = append(found, object.DeepCopyObject())
		}
	}
	return meta.SetList(into, found)
}

// newWorld is one in which the deployment has its Machines, all of which are Running.
func newWorld(replicas int32) *world {
	labels := map[string]string{"name": pool.Name}
	deployment := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: pool.Name, UID: "uid-of-pool", Generation: 1},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "a"}},
			},
		},
	}
	scheme := runtime.NewScheme()
	must(v1alpha1.AddToScheme(scheme))
	w := &world{shown: map[string]moment{}, indexers: indexers{}, clock: clocktesting.NewFakePassiveClock(noon)}
	must(fieldindex.Add(ctx, w.indexers))
	w.live = fake.NewClientBuilder().WithScheme(scheme).WithObjects(deployment).
		WithStatusSubresource(&v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}).Build()
	w.restart()
	must(w.rest())
	return w
}

// restart begins new processes, whose cache is filled anew.
func (w *world) restart() {
	for _, kind := range kinds {
		w.show(kind)
	}
	shared := interceptor.NewClient(w.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if shown, ok := w.shown[kindOf(object)]; ok {
				return shown.get(key, object)
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if shown, ok := w.shown[kindOf(list)]; ok {
				return shown.list(list, opts)
			}
			return c.List(ctx, list, opts...)
		},
		Create: w.create,
		Patch:  w.patch,
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.writes++
			return c.SubResource(sub).Patch(ctx, object, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.writes++
			err := c.Delete(ctx, object, opts...)
			if _, isMachine := object.(*v1alpha1.Machine); isMachine && err == nil {
				w.deleted = append(w.deleted, object.GetName())
			}
			return err
		},
	})
	events := &record.FakeRecorder{}
	w.deployments = machinedeployment.New(machinedeployment.Options{Client: shared, Live: w.live, Events: events, Clock: w.clock, Concurrency: 1})
	w.sets = machineset.New(machineset.Options{Client: shared, Live: w.live, Events: events, Clock: w.clock, Concurrency: 1})
}

func (w *world) create(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made, w.writes = w.made+1, w.writes+1
	object.SetUID(types.UID(fmt.Sprintf("uid-%d", w.made)))
	object.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
	object.SetGeneration(1)
	if object.GetName() == "" {
		object.SetName(fmt.Sprintf("m-%02d", w.made)) // the same in every run
	}
	return c.Create(ctx, object, opts...)
}

// patch gives an object whose specification changes another generation.
func (w *world) patch(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	was := object.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), was); err != nil {
		return err
	}
	if err := c.Patch(ctx, object, patch, opts...); err != nil || equality.Semantic.DeepEqual(spec(was), spec(object)) {
		return err
	}
	object.SetGeneration(was.GetGeneration() + 1)
	return c.Update(ctx, object)
}

func spec(object client.Object) any {
	switch object := object.(type) {
	case *v1alpha1.MachineSet:
		return object.Spec
	case *v1alpha1.MachineDeployment:
		return object.Spec
	}
	return nil // of others the generation says nothing
}

// show has the cache show a kind as it is now.
func (w *world) show(kind string) {
	var objects []client.Object
	switch kind {
	case kinds[0]:
		objects = append(objects, w.deployment())
	case kinds[1]:
		for _, set := range w.allSets() {
			objects = append(objects, set)
		}
	case kinds[2]:
		for _, machine := range w.machines() {
			objects = append(objects, machine)
		}
	}
	w.shown[kind] = moment{objects, w.indexers}
}

func (w *world) deployment() *v1alpha1.MachineDeployment {
	deployment := &v1alpha1.MachineDeployment{}
	must(w.live.Get(ctx, pool, deployment))
	return deployment
}

func (w *world) allSets() []*v1alpha1.MachineSet {
	list := &v1alpha1.MachineSetList{}
	must(w.live.List(ctx, list))
	var sets []*v1alpha1.MachineSet
	for i := range list.Items {
		sets = append(sets, &list.Items[i])
	}
	return sets
}

// machines are all that there are, in the order of their names.
func (w *world) machines() []*v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	must(w.live.List(ctx, list))
	var machines []*v1alpha1.Machine
	for i := range list.Items {
		machines = append(machines, &list.Items[i])
	}
	return machines
}

func (w *world) machine(name string) *v1alpha1.Machine {
	all := w.machines()
	if at := slices.IndexFunc(all, func(m *v1alpha1.Machine) bool { return m.Name == name }); at >= 0 {
		return all[at]
	}
	return nil
}

func (w *world) passDeployment() error {
	_, err := w.deployments.Reconcile(ctx, ctrl.Request{NamespacedName: pool})
	return err
}

func (w *world) passSets() error {
	for _, set := range w.allSets() {
		if _, err := w.sets.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(set)}); err != nil {
			return err
		}
	}
	return nil
}

// change does something to the deployment as a user does.
func (w *world) change(change func(*v1alpha1.MachineDeployment)) {
	deployment := w.deployment()
	change(deployment)
	deployment.Generation++
	must(w.live.Update(ctx, deployment))
}

// phase gives a Machine that is there another phase.
func (w *world) phase(name string, phase v1alpha1.MachinePhase) {
	machine := w.machine(name)
	w.writes++
	machine.Status.CurrentStatus.Phase = phase
	must(w.live.Update(ctx, machine))
}

// vanish ends the deletion of a Machine.
func (w *world) vanish(machine *v1alpha1.Machine) {
	w.writes++
	machine.Finalizers = nil
	must(w.live.Update(ctx, machine))
}

// rest lets everybody do what is left to do. Machines leave, and in the end new ones join.
func (w *world) rest() error {
	for _, join := range []bool{false, true} {
		for round, writes := 0, -1; writes != w.writes; round++ {
			if round == 100 {
				return errors.New("there is no end of writing")
			}
			writes = w.writes
			w.step()
			for _, kind := range kinds {
				w.show(kind)
			}
			if err := errors.Join(w.passDeployment(), w.passSets()); err != nil {
				return err
			}
			for _, machine := range w.machines() {
				switch {
				case !machine.DeletionTimestamp.IsZero():
					w.vanish(machine)
				case join && machine.Status.CurrentStatus.Phase == "":
					w.phase(machine.Name, v1alpha1.MachineRunning)
				}
			}
		}
	}
	return nil
}

func (w *world) step() { w.clock.SetTime(w.clock.Now().Add(time.Second)) }
