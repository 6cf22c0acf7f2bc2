// Package machineclass keeps MachineClasses, and the Secrets that they refer to, from being
// deleted while they are needed.
//
// A class is used by the Machines that refer to it, and by the deployments and sets, of any
// size, whose templates refer to it, or which fall back to it. The sets without replicas that a rollout left behind do
// not count: Gardener deletes the classes of former templates and expects them to go.
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

// New returns the controller of MachineClasses. The client's reads come from the cache. Events are about MachineClasses.
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

// NewForSecrets returns the controller of the Secrets of MachineClasses. The client's reads come
// from the cache. Events are about Secrets.
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

// found reports whether the cache has an object of the list's kind that matches.
func found(ctx context.Context, c client.Client, list client.ObjectList, options ...client.ListOption) (bool, error) {
	if err := c.List(ctx, list, append(options, client.Limit(1), client.UnsafeDisableDeepCopy)...); err != nil {
		return false, fmt.Errorf("listing %T: %w", list, err)
	}
	return meta.LenList(list) > 0, nil
}

// classInUse reports whether anything uses a class. Machines come first: most classes have one,
// and then nothing else is listed.
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
	return !leftBehind(object) && slices.Contains(classesOf(object), class)
}

// leftBehind reports whether an object is a set of a deployment that has no replicas. If it
// is the newest one, the deployment itself refers to the class.
func leftBehind(object client.Object) bool {
	set, ok := object.(*v1alpha1.MachineSet)
	return ok && set.Spec.Replicas == 0 && metav1.GetControllerOfNoCopy(set) != nil
}

// referenceOf returns the reference to a class of a Machine, or of the template of a set or
// deployment.
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

// settle is how long events of Machines are collected before their class is reconciled: a class may
// have thousands, and they come and go many at a time.
const settle = 100 * time.Millisecond

// machineEvents enqueues the class of a Machine.
func machineEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wake := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range classOf(ctx, object) {
				q.AddAfter(request, settle)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { wake(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { wake(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(ctx, q, e.Object) },
	}
}

// classesOf returns the names of the classes that an object refers to, those that it falls back to
// included.
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
		return referenceOf(e.ObjectOld) != referenceOf(e.ObjectNew) || !slices.Equal(classesOf(e.ObjectOld), classesOf(e.ObjectNew)) || leftBehind(e.ObjectOld) != leftBehind(e.ObjectNew)
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
			continue // the cache holds one namespace only; the status of the Machine says what is wrong
		}
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests
}
