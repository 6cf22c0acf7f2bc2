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
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var (
	ctx  = context.Background()
	pool = client.ObjectKey{Namespace: fixture.Namespace, Name: fixture.Pool}
)

// kinds are the kinds that the cache updates independently.
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

// harness is an API server with a MachineDeployment, both controllers, and their shared cache.
type harness struct {
	live client.WithWatch
	// shown is the cache's content of a kind.
	shown map[string]moment
	indexers
	clock *clocktesting.FakePassiveClock

	deployments *machinedeployment.Controller
	sets        *machineset.Controller

	// mu is held by writes, because the MachineSet controller writes concurrently.
	mu sync.Mutex
	// made counts created objects, and writes counts all writes.
	made, writes int
	// deleted are the names of the Machines that a MachineSet has deleted.
	deleted []string
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// indexers are the cache's indexes by name.
type indexers map[string]client.IndexerFunc

func (i indexers) IndexField(_ context.Context, _ client.Object, field string, extract client.IndexerFunc) error {
	i[field] = extract
	return nil
}

// moment is the cache's content of a kind.
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

// newHarness returns a harness whose MachineDeployment has its Machines, all of them Running.
func newHarness(replicas int32) *harness {
	scheme := runtime.NewScheme()
	must(v1alpha1.AddToScheme(scheme))
	h := &harness{shown: map[string]moment{}, indexers: indexers{}, clock: clocktesting.NewFakePassiveClock(fixture.Noon)}
	must(fieldindex.Add(ctx, h.indexers))
	h.live = fakeclient.NewBuilder(scheme).WithObjects(fixture.Deployment(replicas)).
		WithStatusSubresource(&v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}).Build()
	h.restart()
	must(h.rest())
	return h
}

// restart starts new processes with a new cache.
func (h *harness) restart() {
	for _, kind := range kinds {
		h.show(kind)
	}
	shared := interceptor.NewClient(h.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if shown, ok := h.shown[kindOf(object)]; ok {
				return shown.get(key, object)
			}
			return c.Get(ctx, key, object, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if shown, ok := h.shown[kindOf(list)]; ok {
				return shown.list(list, opts)
			}
			return c.List(ctx, list, opts...)
		},
		Create: h.create,
		Patch:  h.patch,
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.writes++
			return c.SubResource(sub).Patch(ctx, object, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.writes++
			err := c.Delete(ctx, object, opts...)
			if _, isMachine := object.(*v1alpha1.Machine); isMachine && err == nil {
				h.deleted = append(h.deleted, object.GetName())
			}
			return err
		},
	})
	events := &record.FakeRecorder{}
	h.deployments = machinedeployment.New(machinedeployment.Options{Client: shared, Live: h.live, Events: events, Clock: h.clock, Concurrency: 1})
	h.sets = machineset.New(machineset.Options{Client: shared, Live: h.live, Events: events, Clock: h.clock, Concurrency: 1})
}

func (h *harness) create(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made, h.writes = h.made+1, h.writes+1
	object.SetUID(types.UID(fmt.Sprintf("uid-%d", h.made)))
	object.SetCreationTimestamp(metav1.NewTime(h.clock.Now()))
	object.SetGeneration(1)
	if object.GetName() == "" {
		object.SetName(fmt.Sprintf("m-%02d", h.made)) // the same in every run
	}
	return c.Create(ctx, object, opts...)
}

// patch increments the generation of an object whose specification changes.
func (h *harness) patch(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes++
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
	return nil // the generation of other kinds does not matter
}

// show updates the cache of a kind.
func (h *harness) show(kind string) {
	var objects []client.Object
	switch kind {
	case kinds[0]:
		objects = append(objects, h.deployment())
	case kinds[1]:
		for _, set := range h.allSets() {
			objects = append(objects, set)
		}
	case kinds[2]:
		for _, machine := range h.machines() {
			objects = append(objects, machine)
		}
	}
	h.shown[kind] = moment{objects, h.indexers}
}

func (h *harness) deployment() *v1alpha1.MachineDeployment {
	deployment := &v1alpha1.MachineDeployment{}
	must(h.live.Get(ctx, pool, deployment))
	return deployment
}

func (h *harness) allSets() []*v1alpha1.MachineSet {
	list := &v1alpha1.MachineSetList{}
	must(h.live.List(ctx, list))
	var sets []*v1alpha1.MachineSet
	for i := range list.Items {
		sets = append(sets, &list.Items[i])
	}
	return sets
}

// machines returns all Machines, sorted by name.
func (h *harness) machines() []*v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	must(h.live.List(ctx, list))
	var machines []*v1alpha1.Machine
	for i := range list.Items {
		machines = append(machines, &list.Items[i])
	}
	return machines
}

func (h *harness) machine(name string) *v1alpha1.Machine {
	all := h.machines()
	if at := slices.IndexFunc(all, func(m *v1alpha1.Machine) bool { return m.Name == name }); at >= 0 {
		return all[at]
	}
	return nil
}

func (h *harness) passDeployment() error {
	_, err := h.deployments.Reconcile(ctx, ctrl.Request{NamespacedName: pool})
	return err
}

func (h *harness) passSets() error {
	for _, set := range h.allSets() {
		if _, err := h.sets.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(set)}); err != nil {
			return err
		}
	}
	return nil
}

// change applies a user's change to the MachineDeployment.
func (h *harness) change(change func(*v1alpha1.MachineDeployment)) {
	deployment := h.deployment()
	change(deployment)
	deployment.Generation++
	must(h.live.Update(ctx, deployment))
}

// phase changes the phase of an existing Machine.
func (h *harness) phase(name string, phase v1alpha1.MachinePhase) {
	machine := h.machine(name)
	h.writes++
	machine.Status.CurrentStatus.Phase = phase
	must(h.live.Update(ctx, machine))
}

// vanish completes the deletion of a Machine.
func (h *harness) vanish(machine *v1alpha1.Machine) {
	h.writes++
	machine.Finalizers = nil
	must(h.live.Update(ctx, machine))
}

// rest runs passes until nothing is written. Deleted Machines are removed, and finally new ones join.
func (h *harness) rest() error {
	for _, join := range []bool{false, true} {
		for round, writes := 0, -1; writes != h.writes; round++ {
			if round == 100 {
				return errors.New("there is no end of writing")
			}
			writes = h.writes
			h.step()
			for _, kind := range kinds {
				h.show(kind)
			}
			if err := errors.Join(h.passDeployment(), h.passSets()); err != nil {
				return err
			}
			for _, machine := range h.machines() {
				switch {
				case !machine.DeletionTimestamp.IsZero():
					h.vanish(machine)
				case join && machine.Status.CurrentStatus.Phase == "":
					h.phase(machine.Name, v1alpha1.MachineRunning)
				}
			}
		}
	}
	return nil
}

func (h *harness) step() { h.clock.SetTime(h.clock.Now().Add(time.Second)) }
