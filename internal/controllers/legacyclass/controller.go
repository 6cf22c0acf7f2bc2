// Package legacyclass migrates legacy machine classes, such as AWSMachineClass, to
// MachineClasses.
//
// An object that a Machine, set or deployment refers to is migrated by the driver into a MachineClass
// of the same name. The kind is not part of what a rollout compares, so no Machine is replaced. Each
// step finds out for itself what is left to do: a process may end after any of them.
package legacyclass

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Options configure a Controller. All fields are required, but for Policy.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Cache is the cache itself: a client does not read objects without a Go type from it.
	Cache client.Reader
	// Drivers make MachineClasses, as far as they are driver.ClassMigrators.
	Drivers *registry.Registry
	// Kinds are the legacy kinds that the API server serves.
	Kinds []string
	// Events records events on the objects of these kinds.
	Events record.EventRecorder
	// Clock of the back-off.
	Clock clock.PassiveClock
	// Policy says how soon a failed call is tried again.
	Policy timeouts.Policy
}

// Controller migrates the objects of all kinds that the API server serves.
type Controller struct {
	Options
	kinds map[string]*kindState
}

// kindState is what the controller keeps for one kind.
type kindState struct {
	edge   edge.Reconciler[*unstructured.Unstructured]
	memory expectations.Memory[memory]
}

// New returns a controller.
func New(options Options) *Controller {
	c := &Controller{Options: options, kinds: map[string]*kindState{}}
	for _, kind := range c.Kinds {
		state := &kindState{}
		state.edge = edge.Reconciler[*unstructured.Unstructured]{
			Reader: c.Cache, Kind: empty(kind), Pass: c.pass, Forget: state.memory.Forget, Events: c.Events,
		}
		c.kinds[kind] = state
	}
	return c
}

// SetupWithManager registers one controller for each kind, and the indexes of what refers to them.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if len(c.Kinds) == 0 {
		return nil
	}
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	for _, kind := range c.Kinds {
		users := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
			return requestOf(kind, object)
		})
		b := ctrl.NewControllerManagedBy(mgr).Named("legacyclass-"+strings.ToLower(kind)).For(empty(kind)).
			WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()}).
			Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(sameName)).
			WatchesRawSource(tasks.Registrations(c.Drivers, c.waiting(kind)))
		for _, user := range []client.Object{&v1alpha1.Machine{}, &v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}} {
			b.Watches(user, users)
		}
		if err := b.Complete(&c.kinds[kind].edge); err != nil {
			return fmt.Errorf("setting up the controller of %s: %w", kind, err)
		}
	}
	return nil
}

// Reconcile migrates one object of a kind.
func (c *Controller) Reconcile(ctx context.Context, kind string, key client.ObjectKey) (ctrl.Result, error) {
	return c.kinds[kind].edge.Reconcile(ctx, ctrl.Request{NamespacedName: key})
}

func (c *Controller) pass(ctx context.Context, object *unstructured.Unstructured) (time.Duration, error) {
	s := newScope(object)
	s.about.generation = s.object.GetGeneration()
	outcome := flow.Run(ctx, s, []flow.Step[*scope]{
		{Name: "FindClass", Run: c.findClass},
		{Name: "FindUsers", Run: c.findUsers},
		{Name: "MakeClass", Run: c.makeClass},
		{Name: "SwitchReferences", Run: c.switchReferences},
		{Name: "HandOverSecrets", Run: c.handOverSecrets},
		{Name: "MarkMigrated", Run: c.markMigrated},
	})
	if outcome.Err != nil {
		outcome.Err = fmt.Errorf("migrating %s: %w", s.identity(), outcome.Err)
	}
	return edge.Result(ctx, outcome)
}

// scope is what the steps of a pass share.
type scope struct {
	kind string
	key  client.ObjectKey
	// object of the legacy kind, from the cache, whose copy it is.
	object *unstructured.Unstructured
	// class is the MachineClass of the same name, the cache's own; nil if there is none.
	class *v1alpha1.MachineClass
	// users refer to it. They are the cache's own.
	users []client.Object
	// about is what is known so far of what an outcome depends on.
	about inputs
}

func newScope(object *unstructured.Unstructured) *scope {
	return &scope{kind: object.GetKind(), key: client.ObjectKeyFromObject(object), object: object}
}

// identity names the object among those of all kinds.
func (s *scope) identity() string { return s.kind + " " + s.key.String() }

func (s *scope) migrated() bool {
	_, marked := s.object.GetAnnotations()[legacy.AnnotationMigrated]
	return marked
}

// begun reports whether the MachineClass was made from the object.
func (s *scope) begun() bool {
	return s.class != nil && s.class.Annotations[legacy.AnnotationMigratedFrom] == s.kind
}

// empty returns an empty object of a kind. It has no Go type: one that does not fit the type must not
// keep the others from being read.
func empty(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(kind))
	return object
}
