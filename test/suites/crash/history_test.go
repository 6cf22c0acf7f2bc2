package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// moment is the set of objects that exist at one time.
type moment struct {
	machines       map[string]*v1alpha1.Machine
	sets           map[string]*v1alpha1.MachineSet
	infrastructure map[string]*infrav1.MillwrightMachine
	// classes are recorded only if the scenario requires that.
	classes map[string]*v1alpha1.MachineClass
}

// rule checks the transition from one moment to the next.
type rule func(r *run, was, is moment) error

// history contains every state of a namespace's Machines and MachineSets, or MillwrightMachines, that can have
// been observed since it was started.
type history struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	changes []change
	// began is the version of the first moment.
	began uint64
	err   error
}

// change is an object as it was written, or its last state before it was deleted.
type change struct {
	version uint64
	object  client.Object
	gone    bool
}

// observe starts a history if the scenario has a rule for it.
func (r *run) observe(ctx context.Context) error {
	if r.scenario.always == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	h := &history{cancel: cancel}
	r.history = h
	watcher, err := client.NewWithWatch(r.control.Admin, client.Options{Scheme: scheme, Mapper: r.control.Client.RESTMapper()})
	if err != nil {
		return err
	}
	for _, list := range r.scenario.kept() {
		if err := h.follow(ctx, watcher, list, r.control.Namespace); err != nil {
			return fmt.Errorf("watching %T: %w", list, err)
		}
	}
	return nil
}

// kept are the kinds that are recorded.
func (s scenario) kept() []client.ObjectList {
	if s.clusterAPI {
		return []client.ObjectList{&infrav1.MillwrightMachineList{}}
	}
	kinds := []client.ObjectList{&v1alpha1.MachineList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineDeploymentList{}}
	if s.classes {
		kinds = append(kinds, &v1alpha1.MachineClassList{})
	}
	return kinds
}

// follow reads the existing objects of a kind, and then every change.
func (h *history) follow(ctx context.Context, c client.WithWatch, list client.ObjectList, namespace string) error {
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	objects, err := objectsOf(list)
	if err != nil {
		return err
	}
	for _, object := range objects {
		h.began = max(h.began, h.add(object, false))
	}
	from := &client.ListOptions{Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
	events, err := c.Watch(ctx, list, from)
	if err != nil {
		return err
	}
	h.wait.Go(func() {
		defer events.Stop()
		for event := range events.ResultChan() {
			switch event.Type {
			case watch.Added, watch.Modified, watch.Deleted:
				h.add(event.Object.(client.Object), event.Type == watch.Deleted)
			default:
				if ctx.Err() != nil {
					return // the watch reports its end this way
				}
				h.fail(fmt.Errorf("watching %T: %w", list, apierrors.FromObject(event.Object)))
			}
		}
		if ctx.Err() == nil {
			h.fail(fmt.Errorf("watching %T: it ended", list))
		}
	})
	return nil
}

func objectsOf(list client.ObjectList) ([]client.Object, error) {
	var objects []client.Object
	items, err := meta.ExtractList(list)
	for _, item := range items {
		objects = append(objects, item.(client.Object))
	}
	return objects, err
}

// add records a change, and returns its version.
func (h *history) add(object client.Object, gone bool) uint64 {
	version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		h.fail(err)
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, change{version, object, gone})
	return version
}

func (h *history) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = errors.Join(h.err, err)
}

// knows reports whether the history contains the current state of an object.
func (h *history) knows(object client.Object) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.changes, func(c change) bool {
		return !c.gone && c.object.GetUID() == object.GetUID() && c.object.GetResourceVersion() == object.GetResourceVersion()
	})
}

// length returns the number of changes. A nil history has none.
func (h *history) length() int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.changes)
}

// complete checks that the history contains everything that exists.
func complete(ctx context.Context, r *run) error {
	if r.history == nil {
		return nil
	}
	for _, list := range r.scenario.kept() {
		if err := r.list(ctx, list); err != nil {
			return err
		}
		objects, err := objectsOf(list)
		if err != nil {
			return err
		}
		for _, object := range objects {
			if !r.history.knows(object) {
				return fmt.Errorf("%s is not in the history as it is", object.GetName())
			}
		}
	}
	return nil
}

// end stops the history. It may have been stopped before.
func (h *history) end() {
	h.cancel()
	h.wait.Wait()
}

// judge stops the history, and checks every moment since the beginning against a rule. The API server numbers all
// writes of its store, so changes of several kinds can be put in order.
func (h *history) judge(r *run, check rule) error {
	h.end()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortStableFunc(h.changes, func(a, b change) int { return cmp.Compare(a.version, b.version) })
	var is moment
	for i, c := range h.changes {
		was := is
		is = was.after(c)
		if c.version <= h.began {
			continue
		}
		if err := check(r, was, is); err != nil {
			return fmt.Errorf("%w, with version %d of %s, after\n%s", err, c.version, c.object.GetName(), messages(h.changes[max(0, i-longestStory):i+1]))
		}
	}
	return h.err
}

// longestStory is the number of changes that are printed before one that violates a rule.
const longestStory = 60

// messages formats changes for people.
func messages(changes []change) string {
	var text strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&text, "%d %s", c.version, c.object.GetName())
		switch object := c.object.(type) {
		case *v1alpha1.Machine:
			fmt.Fprintf(&text, " %q", object.Status.CurrentStatus.Phase)
		case *v1alpha1.MachineSet:
			fmt.Fprintf(&text, " wants %d, has %d, generation %d of %d, annotations %v",
				object.Spec.Replicas, object.Status.Replicas, object.Status.ObservedGeneration, object.Generation, object.Annotations)
		case *v1alpha1.MachineDeployment:
			fmt.Fprintf(&text, " wants %d of class %s, paused %t, status %+v", object.Spec.Replicas, object.Spec.Template.Spec.Class.Name, object.Spec.Paused, object.Status)
		}
		if !c.object.GetDeletionTimestamp().IsZero() {
			text.WriteString(", being deleted")
		}
		if c.gone {
			text.WriteString(", gone")
		}
		text.WriteString("\n")
	}
	return text.String()
}

// after returns the moment after a change.
func (m moment) after(c change) moment {
	switch object := c.object.(type) {
	case *v1alpha1.Machine:
		m.machines = changed(m.machines, object, c.gone)
	case *v1alpha1.MachineSet:
		m.sets = changed(m.sets, object, c.gone)
	case *v1alpha1.MachineClass:
		m.classes = changed(m.classes, object, c.gone)
	case *infrav1.MillwrightMachine:
		m.infrastructure = changed(m.infrastructure, object, c.gone)
	}
	return m
}

func changed[O client.Object](objects map[string]O, object O, gone bool) map[string]O {
	objects = maps.Clone(objects)
	if objects == nil {
		objects = map[string]O{}
	}
	if gone {
		delete(objects, object.GetName())
	} else {
		objects[object.GetName()] = object
	}
	return objects
}
