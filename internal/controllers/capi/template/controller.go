// Package template writes the status of MillwrightMachineTemplates: the capacity and platform of their nodes, for
// autoscalers that scale from zero.
package template

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Required.
	Client client.Client
	// Events records events on templates. Required.
	Events record.EventRecorder
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have. If empty, all objects are
	// reconciled.
	WatchFilter string
}

// Controller reconciles MillwrightMachineTemplates. Create one with New.
type Controller struct {
	Options
	edge edge.Reconciler[*infrav1.MillwrightMachineTemplate]
}

// New returns a Controller.
func New(opts Options) *Controller {
	c := &Controller{Options: opts}
	c.edge = edge.Reconciler[*infrav1.MillwrightMachineTemplate]{
		Reader: opts.Client, Kind: &infrav1.MillwrightMachineTemplate{}, Pass: c.pass, Events: opts.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	watched := func(object client.Object) bool { return core.Watched(c.WatchFilter, object) }
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachinetemplate").
		For(&infrav1.MillwrightMachineTemplate{}, builder.WithPredicates(predicate.NewPredicateFuncs(watched))).
		Watches(&v1alpha1.MachineClass{}, mapped(c.ofClass), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&core.Cluster{}, mapped(c.ofCluster), builder.WithPredicates(pauseChanges())).
		WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachineTemplates: %w", err)
	}
	return nil
}

func (c *Controller) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	return c.templates(ctx, object.GetNamespace(), func(template *infrav1.MillwrightMachineTemplate) bool {
		ref := template.Spec.Template.Spec.MachineClassRef
		return ref != nil && ref.Name == object.GetName()
	})
}

func (c *Controller) ofCluster(ctx context.Context, object client.Object) []reconcile.Request {
	return c.templates(ctx, object.GetNamespace(), func(template *infrav1.MillwrightMachineTemplate) bool {
		return core.ClusterName(template) == object.GetName()
	})
}

// templates returns requests for the selected templates in a namespace. It lists all templates, because there are
// only a few.
func (c *Controller) templates(ctx context.Context, namespace string, keep func(*infrav1.MillwrightMachineTemplate) bool) []reconcile.Request {
	return core.Requests(ctx, c.Client, &infrav1.MillwrightMachineTemplateList{},
		func(object client.Object) bool { return keep(object.(*infrav1.MillwrightMachineTemplate)) }, client.InNamespace(namespace))
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

// Reconcile updates the status of a template.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, template *infrav1.MillwrightMachineTemplate) (time.Duration, error) {
	if !template.DeletionTimestamp.IsZero() || !core.Watched(c.WatchFilter, template) {
		return 0, nil
	}
	cluster, err := core.FindCluster(ctx, c.Client, template.Namespace, core.ClusterName(template))
	if err != nil || core.Paused(cluster, template) {
		return 0, err
	}
	node, err := c.nodeTemplate(ctx, template)
	if err != nil {
		return 0, err
	}
	changed := template.DeepCopy()
	changed.Status = inputs.TemplateStatus(node, template.Spec.Template.Spec.NodeTemplate)
	if equality.Semantic.DeepEqual(template.Status, changed.Status) {
		return 0, nil
	}
	if err := c.Client.Status().Patch(ctx, changed, client.MergeFrom(template)); apierror.IgnoreGone(err) != nil {
		return 0, fmt.Errorf("patching the status of MillwrightMachineTemplate %s: %w", template.Name, err)
	}
	return 0, nil
}

// nodeTemplate returns the node template of the template's class; nil if there is none.
func (c *Controller) nodeTemplate(ctx context.Context, template *infrav1.MillwrightMachineTemplate) (*v1alpha1.NodeTemplate, error) {
	ref := template.Spec.Template.Spec.MachineClassRef
	if ref == nil {
		return nil, nil
	}
	class, err := inputs.Reader{Cache: c.Client}.Class(ctx, template.Namespace, ref)
	if missing := (*inputs.Error)(nil); errors.As(err, &missing) {
		return nil, nil
	}
	return class.NodeTemplate, err
}
