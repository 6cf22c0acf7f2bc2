// Package unmanaged marks nodes without a Machine.
//
// If a node has had no Machine for the creation timeout, the controller sets MCM's annotation for unmanaged nodes
// and removes our finalizer. It removes the annotation when the node has a Machine again.
package unmanaged

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// Options configure a Controller.
type Options struct {
	// Machines reads from the cache of the control cluster.
	Machines client.Reader
	// Target is the cluster that nodes join.
	Target target.Interface
	// Events records events on nodes, in the cluster that they join.
	Events record.EventRecorder
	Clock  clock.PassiveClock
	// Grace is how long a node may have no Machine: the creation timeout. It begins with the node's
	// creation, or with the start of this process if that is later, since Machines may be restored into
	// an empty control plane.
	Grace time.Duration
}

// Controller reconciles Nodes. Create one with New.
type Controller struct {
	Options
	edge      edge.Reconciler[*corev1.Node]
	begun     time.Time
	beginOnce sync.Once
}

// New creates a Controller.
func New(opts Options) *Controller {
	c := &Controller{Options: opts}
	c.edge = edge.Reconciler[*corev1.Node]{
		Reader: opts.Target.Client(), Kind: &corev1.Node{}, ReadOnly: true, Pass: c.pass, Events: opts.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("unmanagednode").
		Watches(&v1alpha1.Machine{}, handler.EnqueueRequestsFromMapFunc(nodeOf), builder.WithPredicates(linkChanges())).
		WatchesRawSource(c.Target.Watch(&corev1.Node{}, &handler.EnqueueRequestForObject{}, markChanges())).
		WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of unmanaged nodes: %w", err)
	}
	return nil
}

func nodeOf(_ context.Context, object client.Object) []reconcile.Request {
	name := object.(*v1alpha1.Machine).NodeName()
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
}

func linkChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.(*v1alpha1.Machine).NodeName() != e.ObjectNew.(*v1alpha1.Machine).NodeName()
	}}
}

func markChanges() predicate.Predicate {
	const key = v1alpha1.AnnotationKeyNotManaged
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetAnnotations()[key] != e.ObjectNew.GetAnnotations()[key] ||
			!slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

// Reconcile marks a node as unmanaged, or removes the mark.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c.beginOnce.Do(func() { c.begun = c.Clock.Now() })
	if !c.Target.Ready() {
		return ctrl.Result{}, nil // the watch delivers all nodes once it is
	}
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, found *corev1.Node) (time.Duration, error) {
	machines := &v1alpha1.MachineList{}
	if err := c.Machines.List(ctx, machines, client.MatchingFields{fieldindex.MachineByNode: found.Name}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("finding the machine of node %s: %w", found.Name, err)
	}
	if len(machines.Items) > 0 {
		if _, marked := found.Annotations[v1alpha1.AnnotationKeyNotManaged]; !marked {
			return 0, nil // the usual case
		}
		return 0, c.patch(ctx, found, func(n *corev1.Node) { delete(n.Annotations, v1alpha1.AnnotationKeyNotManaged) })
	}
	since := found.CreationTimestamp.Time
	if c.begun.After(since) {
		since = c.begun
	}
	if left := since.Add(c.Grace).Sub(c.Clock.Now()); left > 0 {
		return left, nil
	}
	return 0, c.patch(ctx, found, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationKeyNotManaged, "1")
		noderef.Release(n)
	})
}

// patch changes a node. It needs no optimistic lock, since the change replaces nothing that others write.
func (c *Controller) patch(ctx context.Context, found *corev1.Node, change func(*corev1.Node)) error {
	changed := found.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(found, changed) {
		return nil
	}
	if err := c.Target.Client().Patch(ctx, changed, client.StrategicMergeFrom(found)); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("marking node %s: %w", found.Name, err)
	}
	return nil
}
