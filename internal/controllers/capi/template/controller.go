// Package template tells autoscalers, which scale from zero, what nodes made from a
// MillwrightMachineTemplate are like.
package template

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/translate"
)

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Required.
	Client client.Client
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have.
	// Empty: all are looked after.
	WatchFilter string
}

// Controller reconciles MillwrightMachineTemplates. Make one with New.
type Controller struct{ Options }

// New makes a Controller.
func New(opts Options) *Controller { return &Controller{opts} }

// byClass is an index of the cache.
const byClass = "millwrightmachinetemplate.class"

// SetupWithManager registers the controller, its index and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	index := func(object client.Object) []string {
		if ref := object.(*infrav1.MillwrightMachineTemplate).Spec.Template.Spec.MachineClassRef; ref != nil {
			return []string{ref.Name}
		}
		return nil
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &infrav1.MillwrightMachineTemplate{}, byClass, index); err != nil {
		return fmt.Errorf("adding the index %s: %w", byClass, err)
	}
	watched := func(object client.Object) bool { return core.Watched(c.WatchFilter, object) }
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachinetemplate").
		For(&infrav1.MillwrightMachineTemplate{}, builder.WithPredicates(predicate.NewPredicateFuncs(watched))).
		Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(c.ofClass), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&core.Cluster{}, handler.EnqueueRequestsFromMapFunc(c.ofCluster), builder.WithPredicates(pauseChanges())).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachineTemplates: %w", err)
	}
	return nil
}

// ofClass finds the templates that refer to a class.
func (c *Controller) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	list := &infrav1.MillwrightMachineTemplateList{}
	if err := c.Client.List(ctx, list, client.InNamespace(object.GetNamespace()), client.MatchingFields{byClass: object.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// ofCluster finds the templates of a Cluster.
func (c *Controller) ofCluster(ctx context.Context, object client.Object) []reconcile.Request {
	list := &infrav1.MillwrightMachineTemplateList{}
	if err := c.Client.List(ctx, list, client.InNamespace(object.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if template := &list.Items[i]; clusterOf(template) == object.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(template)})
		}
	}
	return requests
}

// clusterOf names the Cluster; empty if nothing does.
func clusterOf(template *infrav1.MillwrightMachineTemplate) string {
	return cmp.Or(template.Labels[core.LabelCluster], core.Owner(template, core.ClusterKind))
}

func pauseChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.(*core.Cluster).Spec.Paused != e.ObjectNew.(*core.Cluster).Spec.Paused
		},
	}
}

// paused reports whether the template or its Cluster is to be left alone.
func (c *Controller) paused(ctx context.Context, template *infrav1.MillwrightMachineTemplate) (bool, error) {
	name := clusterOf(template)
	if name == "" {
		return core.Paused(nil, template), nil
	}
	cluster := &core.Cluster{}
	err := c.Client.Get(ctx, types.NamespacedName{Namespace: template.Namespace, Name: name}, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return core.Paused(nil, template), nil
	case err != nil:
		return false, fmt.Errorf("reading Cluster %s: %w", name, err)
	}
	return core.Paused(cluster, template), nil
}

// Reconcile brings the status of a template up to date.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	template := &infrav1.MillwrightMachineTemplate{}
	if err := c.Client.Get(ctx, req.NamespacedName, template); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !template.DeletionTimestamp.IsZero() || !core.Watched(c.WatchFilter, template) {
		return ctrl.Result{}, nil
	}
	if paused, err := c.paused(ctx, template); err != nil || paused {
		return ctrl.Result{}, err
	}
	class, err := c.class(ctx, template)
	if err != nil {
		return ctrl.Result{}, err
	}
	changed := template.DeepCopy()
	changed.Status = translate.TemplateStatus(class, template.Spec.Template.Spec.NodeTemplate)
	if equality.Semantic.DeepEqual(template.Status, changed.Status) {
		return ctrl.Result{}, nil
	}
	if err := c.Client.Status().Patch(ctx, changed, client.MergeFrom(template)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("patching the status of MillwrightMachineTemplate %s: %w", template.Name, err)
	}
	return ctrl.Result{}, nil
}

// class finds what the template's class says of its nodes; nil if there is no class, or it
// says nothing.
func (c *Controller) class(ctx context.Context, template *infrav1.MillwrightMachineTemplate) (*v1alpha1.NodeTemplate, error) {
	ref := template.Spec.Template.Spec.MachineClassRef
	if ref == nil {
		return nil, nil
	}
	class := &v1alpha1.MachineClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: template.Namespace, Name: ref.Name}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	return class.NodeTemplate, nil
}
