// Package legacyclass migrates legacy machine classes, such as AWSMachineClass, to MachineClasses.
//
// If a Machine, set or deployment refers to a legacy object, the driver converts the object to a MachineClass of the
// same name. Rollouts do not compare the kind of a class, so no Machine is replaced. Each step detects what remains to
// be done, since the process may terminate after any of them.
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

// Options configure a Controller. All fields except Policy are required.
type Options struct {
	// Client is the client of the control cluster. It reads from the cache.
	Client client.Client
	// Cache is the cache itself. It is needed because the client reads unstructured objects from the API server.
	Cache client.Reader
	// Drivers contains the manager's drivers. Those that implement driver.ClassMigrator migrate classes.
	Drivers *registry.Registry
	// Kinds are the legacy kinds that the API server serves.
	Kinds []string
	// Events records events on the objects of these kinds.
	Events record.EventRecorder
	// Clock is the clock of the back-off.
	Clock clock.PassiveClock
	// Policy determines when a failed call is retried.
	Policy timeouts.Policy
}

// Controller migrates the objects of all kinds that the API server serves.
type Controller struct {
	Options
	kinds map[string]*kindState
}

// kindState is the controller's state for one kind.
type kindState struct {
	edge   edge.Reconciler[*unstructured.Unstructured]
	memory expectations.Memory[memory]
}

// New creates a Controller.
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

// SetupWithManager registers one controller for each kind, and indexes of the objects that refer to classes.
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
		{Name: "CreateClass", Run: c.createClass},
		{Name: "SwitchReferences", Run: c.switchReferences},
		{Name: "HandOverSecrets", Run: c.handOverSecrets},
		{Name: "MarkMigrated", Run: c.markMigrated},
	})
	if outcome.Err != nil {
		outcome.Err = fmt.Errorf("migrating %s: %w", s.identity(), outcome.Err)
	}
	return edge.Result(ctx, outcome)
}

// scope is the state of one pass. The steps of the pass share it.
type scope struct {
	kind string
	key  client.ObjectKey
	// object is a copy of the legacy object in the cache.
	object *unstructured.Unstructured
	// class is the MachineClass of the same name; nil if there is none. It is the cache's object.
	class *v1alpha1.MachineClass
	// users contains the objects that refer to the legacy object. They are the cache's objects.
	users []client.Object
	// about contains the inputs of an outcome that are known so far.
	about inputs
}

func newScope(object *unstructured.Unstructured) *scope {
	return &scope{kind: object.GetKind(), key: client.ObjectKeyFromObject(object), object: object}
}

// identity returns the kind and name of the object.
func (s *scope) identity() string { return s.kind + " " + s.key.String() }

func (s *scope) migrated() bool {
	_, marked := s.object.GetAnnotations()[legacy.AnnotationMigrated]
	return marked
}

// begun reports whether the MachineClass was created from the object.
func (s *scope) begun() bool {
	return s.class != nil && s.class.Annotations[legacy.AnnotationMigratedFrom] == s.kind
}

// empty returns an empty object of a kind. It is unstructured, since one object that does not match its Go type would
// prevent the others from being read.
func empty(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(kind))
	return object
}
