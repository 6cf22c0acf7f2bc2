// Package machineclass prevents the deletion of MachineClasses, and of the Secrets that they refer to, while they are
// in use.
//
// A class is in use if a Machine refers to it, or if a deployment or set of any size refers to it in its template or
// lists it as a fallback. Old sets of a deployment without replicas do not count, because Gardener deletes the classes
// of previous templates and expects them to be removed.
package machineclass

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/inuse"
)

// New returns the controller of MachineClasses. The client must read from the cache. events records events on
// MachineClasses.
func New(c client.Client, events record.EventRecorder) *inuse.Controller {
	return inuse.New(inuse.Options{
		Name: "machineclass", Client: c, Kind: &v1alpha1.MachineClass{}, Finalizer: v1alpha1.FinalizerMCM, Events: events,
		InUse: func(ctx context.Context, key client.ObjectKey) (bool, error) { return classInUse(ctx, c, key) },
		Watch: func(b *builder.Builder) {
			b.Watches(&v1alpha1.Machine{}, machineEvents(), builder.WithPredicates(referenceChanges()))
			for _, kind := range []client.Object{&v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}} {
				b.Watches(kind, handler.EnqueueRequestsFromMapFunc(classOf), builder.WithPredicates(referenceChanges()))
			}
		},
	})
}

// NewForSecrets returns the controller of the Secrets of MachineClasses. The client must read from the cache. events
// records events on Secrets.
func NewForSecrets(c client.Client, events record.EventRecorder) *inuse.Controller {
	return inuse.New(inuse.Options{
		Name: "secret", Client: c, Kind: &corev1.Secret{}, Finalizer: v1alpha1.FinalizerSecret, Events: events,
		InUse: func(ctx context.Context, key client.ObjectKey) (bool, error) {
			return found(ctx, c, &v1alpha1.MachineClassList{}, client.MatchingFields{fieldindex.ClassBySecret: key.String()})
		},
		Watch: func(b *builder.Builder) {
			b.Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(secretsOf), builder.WithPredicates(secretChanges()))
		},
		Filter: predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return !slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
		}},
	})
}

// found reports whether the cache contains a matching object of the list's kind.
func found(ctx context.Context, c client.Client, list client.ObjectList, options ...client.ListOption) (bool, error) {
	if err := c.List(ctx, list, append(options, client.Limit(1), client.UnsafeDisableDeepCopy)...); err != nil {
		return false, fmt.Errorf("listing %T: %w", list, err)
	}
	return meta.LenList(list) > 0, nil
}

// classInUse reports whether a class is in use. It lists Machines first, since most classes have one, and then it
// need not list other kinds.
func classInUse(ctx context.Context, c client.Client, class client.ObjectKey) (bool, error) {
	namespace := client.InNamespace(class.Namespace)
	if used, err := found(ctx, c, &v1alpha1.MachineList{}, namespace, client.MatchingFields{fieldindex.MachineByClass: class.Name}); err != nil || used {
		return used, err
	}
	for _, list := range []client.ObjectList{&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}} {
		if err := c.List(ctx, list, namespace, client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("listing the users of class %s: %w", class.Name, err)
		}
		used := false
		err := meta.EachListItem(list, func(object runtime.Object) error {
			used = used || uses(object.(client.Object), class.Name)
			return nil
		})
		if err != nil || used {
			return used, err
		}
	}
	return false, nil
}

// uses reports whether a deployment or set will create Machines of the class.
func uses(object client.Object, class string) bool {
	return !isOldSet(object) && slices.Contains(classesOf(object), class)
}

// isOldSet reports whether an object is a set of a deployment and has no replicas. If it is the newest set, the
// deployment itself refers to the class.
func isOldSet(object client.Object) bool {
	set, ok := object.(*v1alpha1.MachineSet)
	return ok && set.Spec.Replicas == 0 && metav1.GetControllerOfNoCopy(set) != nil
}

// referenceOf returns the class reference of a Machine, or of the template of a set or deployment.
func referenceOf(object client.Object) v1alpha1.ClassSpec {
	switch object := object.(type) {
	case *v1alpha1.Machine:
		return object.Spec.Class
	case *v1alpha1.MachineSet:
		return object.Spec.Template.Spec.Class
	case *v1alpha1.MachineDeployment:
		return object.Spec.Template.Spec.Class
	default:
		return v1alpha1.ClassSpec{}
	}
}

// settleTime is how long events of Machines are collected before their class is reconciled. A class may have thousands
// of Machines, many of which change together.
const settleTime = 100 * time.Millisecond

// machineEvents enqueues the class of a Machine.
func machineEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range classOf(ctx, object) {
				q.AddAfter(request, settleTime)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, q, e.Object) },
	}
}

// classesOf returns the names of the classes that an object refers to, including its fallback classes.
func classesOf(object client.Object) []string {
	ref := referenceOf(object)
	if ref.Kind != v1alpha1.MachineClassKind {
		return nil
	}
	switch object := object.(type) {
	case *v1alpha1.MachineSet:
		return scarcity.OfSet(object)
	case *v1alpha1.MachineDeployment:
		return append([]string{ref.Name}, scarcity.Listed(object)...)
	default:
		return []string{ref.Name}
	}
}

func classOf(_ context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, name := range classesOf(object) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: name}})
	}
	return requests
}

func referenceChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return referenceOf(e.ObjectOld) != referenceOf(e.ObjectNew) || !slices.Equal(classesOf(e.ObjectOld), classesOf(e.ObjectNew)) || isOldSet(e.ObjectOld) != isOldSet(e.ObjectNew)
	}}
}

func secretChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(fieldindex.SecretsOf(e.ObjectOld.(*v1alpha1.MachineClass)), fieldindex.SecretsOf(e.ObjectNew.(*v1alpha1.MachineClass)))
	}}
}

func secretsOf(_ context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range fieldindex.SecretsOf(object.(*v1alpha1.MachineClass)) {
		if key.Namespace != object.GetNamespace() {
			continue // the cache contains one namespace only; the Machine's status reports the problem
		}
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests
}
