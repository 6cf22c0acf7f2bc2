// Package cluster reconciles MillwrightClusters. It reports the control plane endpoint and the failure domains of a
// Cluster. A MillwrightCluster has no infrastructure of its own, so it has no finalizer.
package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/controlplane"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/inputs"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Its scheme must have Cluster API's kinds. Required.
	Client client.Client
	// Live reads Secrets from the API server. Required.
	Live client.Reader
	// Events records events for users. Required.
	Events record.EventRecorder
	// Clock is required.
	Clock clock.PassiveClock
	// Concurrency is the number of objects that are reconciled at the same time.
	Concurrency int
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have. If empty, all objects are
	// reconciled.
	WatchFilter string
	// DomainsAsMap reports whether Cluster API reads failure domains in the format of contract v1beta1, which is a map
	// by their names. The zero value means that of v1beta2, which is a list.
	DomainsAsMap bool
	// Drivers list failure domains. Required.
	Drivers *registry.Registry
	// Run runs a call to the driver, like tasks.Runner.Go. Required.
	Run func(task func(ctx context.Context)) bool
	// Wake is called when the driver has responded. Required.
	Wake func(types.NamespacedName)
	// TaskEvents is the source of the events that Wake triggers.
	TaskEvents source.Source
}

// Controller reconciles MillwrightClusters. Create one with New.
type Controller struct {
	Options
	edge   edge.Reconciler[*infrav1.MillwrightCluster]
	inputs inputs.Reader
	memory expectations.Memory[memory]
}

// New returns a Controller.
func New(opts Options) *Controller {
	c := &Controller{
		Options: opts,
		inputs:  inputs.Reader{Cache: opts.Client, Live: opts.Live, Field: "spec.failureDomainsFrom"},
	}
	c.edge = edge.Reconciler[*infrav1.MillwrightCluster]{
		Reader: c.Client, Kind: &infrav1.MillwrightCluster{}, Pass: c.pass, Forget: c.forget, Events: c.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightcluster").
		For(&infrav1.MillwrightCluster{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.watched))).
		Watches(&core.Cluster{}, mapped(c.ofCluster), builder.WithPredicates(clusterChanges())).
		Watches(&infrav1.MillwrightMachine{}, mapped(c.ofControlPlane), builder.WithPredicates(addressChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(c.ofClass), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(c.TaskEvents).
		WatchesRawSource(tasks.Registrations(c.Drivers, c.ofDriver)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightClusters: %w", err)
	}
	return nil
}

func (c *Controller) watched(object client.Object) bool { return core.Watched(c.WatchFilter, object) }

func (c *Controller) ofCluster(_ context.Context, object client.Object) []reconcile.Request {
	return object.(*core.Cluster).Spec.InfrastructureRef.Requests(object.GetNamespace(), infrav1.Kind(infrav1.MillwrightClusterKind))
}

// ofControlPlane returns the MillwrightCluster of a control plane machine.
func (c *Controller) ofControlPlane(ctx context.Context, object client.Object) []reconcile.Request {
	if !controlPlane(object) {
		return nil
	}
	cluster, err := core.FindCluster(ctx, c.Client, object.GetNamespace(), object.GetLabels()[core.LabelCluster])
	if err != nil || cluster == nil {
		return nil
	}
	return c.ofCluster(ctx, cluster)
}

// ofDriver returns the MillwrightClusters whose failure domains come from a driver that was registered, and lets
// their calls be retried immediately.
func (c *Controller) ofDriver(ctx context.Context, name string) []reconcile.Request {
	requests := core.Requests(ctx, c.Client, &infrav1.MillwrightClusterList{}, func(object client.Object) bool {
		from := object.(*infrav1.MillwrightCluster).Spec.FailureDomainsFrom
		return from != nil && from.Driver == name
	})
	for _, request := range requests {
		c.memory.Find(request.NamespacedName).retryNow(c.Clock.Now())
	}
	return requests
}

func controlPlane(object client.Object) bool {
	_, ok := object.GetLabels()[core.LabelControlPlane]
	return ok
}

func clusterChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.(*core.Cluster).Spec != e.ObjectNew.(*core.Cluster).Spec
	}}
}

// addressChanges selects changes of the addresses of control plane machines.
func addressChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			return controlPlane(e.Object) && len(e.Object.(*infrav1.MillwrightMachine).Status.Addresses) > 0
		},
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*infrav1.MillwrightMachine), e.ObjectNew.(*infrav1.MillwrightMachine)
			return controlPlane(after) && (!controlPlane(before) || len(before.Status.Addresses) != len(after.Status.Addresses))
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// scope is the state of one reconcile pass, which its steps share.
type scope struct {
	// infra is the object with the changes of the steps. stored is the object as the API server has it.
	infra, stored *infrav1.MillwrightCluster
	// cluster is set by awaitOwner.
	cluster *core.Cluster
	now     metav1.Time
}

// Reconcile runs the steps of a MillwrightCluster.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, infra *infrav1.MillwrightCluster) (time.Duration, error) {
	if core.ExternallyManaged(infra) || !c.watched(infra) || !infra.DeletionTimestamp.IsZero() {
		c.forget(client.ObjectKeyFromObject(infra))
		return 0, nil
	}
	s := &scope{infra: infra, stored: infra.DeepCopy(), now: metav1.NewTime(c.Clock.Now())}
	outcome := flow.Run(ctx, s, []flow.Step[*scope]{
		{Name: "AwaitOwner", Run: c.awaitOwner},
		{Name: "RespectPause", Run: c.respectPause},
		{Name: "Provision", Run: c.provision},
		{Name: "FindEndpoint", Run: c.findEndpoint},
		{Name: "FindFailureDomains", Run: c.findFailureDomains},
	})
	if err := c.persist(ctx, s); err != nil && outcome.Err == nil {
		outcome.Err = err
	}
	return edge.Result(ctx, outcome)
}

func (s *scope) set(kind string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.infra.Status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: messages.Shorten(message, 2*maxMessage), LastTransitionTime: s.now,
	})
}

// awaitOwner finds the Cluster. If there is none, nothing is written.
func (c *Controller) awaitOwner(ctx context.Context, s *scope) flow.Result {
	cluster, err := core.FindCluster(ctx, c.Client, s.infra.Namespace, core.Owner(s.infra, core.ClusterKind))
	switch {
	case err != nil:
		return flow.Fail(err)
	case cluster == nil:
		return flow.Stop("no Cluster owns the object")
	}
	s.cluster = cluster
	return flow.Continue()
}

func (c *Controller) respectPause(_ context.Context, s *scope) flow.Result {
	if core.Paused(s.cluster, s.infra) {
		s.set(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused, "The Cluster or this object is paused")
		return flow.Stop("the object is paused")
	}
	s.set(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused, "")
	return flow.Continue()
}

// provision reports, for both contracts, that machines can be created.
func (c *Controller) provision(_ context.Context, s *scope) flow.Result {
	s.infra.Status.Ready = true
	s.infra.Status.Initialization = &infrav1.Initialization{Provisioned: new(true)}
	s.set(infrav1.ConditionReady, metav1.ConditionTrue, infrav1.ReasonProvisioned, "")
	return flow.Continue()
}

// findEndpoint sets the endpoint to the address of the oldest control plane machine that has one, unless a user or
// the Cluster has set the endpoint or a load balancer will set it.
func (c *Controller) findEndpoint(ctx context.Context, s *scope) flow.Result {
	if s.infra.Spec.ControlPlaneEndpoint == nil && !s.cluster.Spec.ControlPlaneEndpoint.Known() {
		if balancer := s.infra.Spec.ControlPlaneLoadBalancer; balancer != nil {
			s.set(infrav1.ConditionControlPlaneEndpointKnown, metav1.ConditionFalse, infrav1.ReasonWaitingForLoadBalancer,
				fmt.Sprintf("Load balancer %s has not set the endpoint yet", cmp.Or(balancer.Name, infrav1.DefaultLoadBalancer)))
			return flow.Continue() // the change of the object causes an event
		}
		host, err := c.firstAddress(ctx, s)
		if err != nil {
			return flow.Fail(err)
		}
		if host == "" {
			s.set(infrav1.ConditionControlPlaneEndpointKnown, metav1.ConditionFalse, infrav1.ReasonWaitingForControlPlane,
				"No endpoint is set, and no control plane machine has an address yet")
			return flow.Continue() // the address causes an event
		}
		s.infra.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: host, Port: controlplane.Port(s.infra)}
	}
	s.set(infrav1.ConditionControlPlaneEndpointKnown, metav1.ConditionTrue, infrav1.ReasonEndpointKnown, "")
	return flow.Continue()
}

// firstAddress returns an address of the oldest control plane machine that has one; "" if there is none.
func (c *Controller) firstAddress(ctx context.Context, s *scope) (string, error) {
	machines, err := controlplane.Machines(ctx, c.Client, s.infra.Namespace, s.cluster.Name)
	if err != nil {
		return "", err
	}
	if len(machines) == 0 {
		return "", nil
	}
	first := slices.MinFunc(machines, func(a, b infrav1.MillwrightMachine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return controlplane.ExternalAddress(&first), nil
}

// persist writes the spec and then the status, if they changed.
func (c *Controller) persist(ctx context.Context, s *scope) error {
	if changed := s.infra.DeepCopy(); !equality.Semantic.DeepEqual(s.stored.Spec, changed.Spec) {
		if err := c.Client.Patch(ctx, changed, expectations.Locked(s.stored)); err != nil {
			return fmt.Errorf("patching MillwrightCluster %s: %w", s.infra.Name, err)
		}
		s.infra.ObjectMeta, s.infra.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
		changed.Status, s.stored = s.stored.Status, changed
	}
	key := client.ObjectKeyFromObject(s.infra)
	// The first write of this process includes failure domains, since an earlier one may have used the other format.
	rewrite := len(s.infra.Status.FailureDomains) > 0 && !c.memory.Of(key).isWritten()
	if !rewrite && equality.Semantic.DeepEqual(s.stored.Status, s.infra.Status) {
		return nil
	}
	patch := statusPatch{before: s.stored, asMap: c.DomainsAsMap, rewrite: rewrite}
	if err := c.Client.Status().Patch(ctx, s.infra, patch); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("patching the status of MillwrightCluster %s: %w", s.infra.Name, err)
	}
	c.memory.Of(key).setWritten()
	return nil
}
