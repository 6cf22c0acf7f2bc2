// Package cluster tells Cluster API what the machines of a Cluster share: where its API
// servers are reached, and which failure domains the user and the driver know. Nothing is
// made for a MillwrightCluster, so that nothing holds its deletion either.
package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Its scheme knows Cluster API's kinds. Required.
	Client client.Client
	// Clock tells the time. Required.
	Clock clock.PassiveClock
	// Concurrency is how many objects are looked at at the same time.
	Concurrency int
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have.
	// Empty: all are looked after.
	WatchFilter string
	// FailureDomains tells that Cluster API reads failure domains in the form in which
	// they are written: that of contract v1beta2.
	FailureDomains bool
	// Asker asks the driver for failure domains. Required.
	Asker *Asker
	// TaskEnds is the source of events that the asker's Wake feeds.
	TaskEnds source.Source
}

// staleCache is how long a pass waits for the cache to show what another has written. The
// event of that write comes first.
const staleCache = time.Second

// Controller reconciles MillwrightClusters. Make one with New.
type Controller struct{ Options }

// New makes a Controller.
func New(opts Options) *Controller { return &Controller{opts} }

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightcluster").
		For(&infrav1.MillwrightCluster{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.watched))).
		Watches(&core.Cluster{}, mapped(c.ofCluster), builder.WithPredicates(clusterChanges())).
		Watches(&infrav1.MillwrightMachine{}, mapped(c.ofControlPlane), builder.WithPredicates(addressChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(c.ofClass), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(c.TaskEnds).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightClusters: %w", err)
	}
	return nil
}

func (c *Controller) watched(object client.Object) bool { return core.Watched(c.WatchFilter, object) }

// ofCluster finds the MillwrightCluster of a Cluster.
func (c *Controller) ofCluster(_ context.Context, object client.Object) []reconcile.Request {
	ref := object.(*core.Cluster).Spec.InfrastructureRef
	if !ref.Is(infrav1.Kind(infrav1.MillwrightClusterKind)) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: ref.Name}}}
}

// ofControlPlane finds the MillwrightCluster of a control plane machine.
func (c *Controller) ofControlPlane(ctx context.Context, object client.Object) []reconcile.Request {
	cluster := &core.Cluster{}
	key := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetLabels()[core.LabelCluster]}
	if !controlPlane(object) || key.Name == "" || c.Client.Get(ctx, key, cluster) != nil {
		return nil
	}
	return c.ofCluster(ctx, cluster)
}

func controlPlane(object client.Object) bool {
	_, ok := object.GetLabels()[core.LabelControlPlane]
	return ok
}

// clusterChanges lets through what a pass looks at.
func clusterChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*core.Cluster), e.ObjectNew.(*core.Cluster)
		return was.Spec != is.Spec
	}}
}

// addressChanges lets through that a control plane machine has got an address.
func addressChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			return controlPlane(e.Object) && len(e.Object.(*infrav1.MillwrightMachine).Status.Addresses) > 0
		},
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*infrav1.MillwrightMachine), e.ObjectNew.(*infrav1.MillwrightMachine)
			return controlPlane(is) && (!controlPlane(was) || len(was.Status.Addresses) != len(is.Status.Addresses))
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// scope is what the steps of one pass share.
type scope struct {
	// infra is what will be written, stored what the API server has.
	infra, stored *infrav1.MillwrightCluster
	// cluster is set by awaitOwner.
	cluster *core.Cluster
	now     metav1.Time
}

// Reconcile takes a MillwrightCluster one pass further.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	infra := &infrav1.MillwrightCluster{}
	if err := c.Client.Get(ctx, req.NamespacedName, infra); err != nil {
		if apierrors.IsNotFound(err) {
			c.Asker.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if _, managed := infra.Annotations[core.AnnotationManagedBy]; managed || !c.watched(infra) || !infra.DeletionTimestamp.IsZero() {
		c.Asker.Forget(req.NamespacedName)
		return ctrl.Result{}, nil
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
	if apierrors.IsConflict(outcome.Err) { // the event of the other's write is on its way
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	return ctrl.Result{RequeueAfter: outcome.After}, outcome.Err
}

func (s *scope) set(kind string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.infra.Status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: message, LastTransitionTime: s.now,
	})
}

// awaitOwner finds the Cluster. Before there is one, nothing is done at all.
func (c *Controller) awaitOwner(ctx context.Context, s *scope) flow.Result {
	name := core.Owner(s.infra, core.ClusterKind)
	if name == "" {
		return flow.Stop("no Cluster owns it")
	}
	cluster := &core.Cluster{}
	if err := c.Client.Get(ctx, types.NamespacedName{Namespace: s.infra.Namespace, Name: name}, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return flow.Stop("its Cluster does not exist")
		}
		return flow.Fail(fmt.Errorf("reading Cluster %s: %w", name, err))
	}
	s.cluster = cluster
	return flow.Continue()
}

func (c *Controller) respectPause(_ context.Context, s *scope) flow.Result {
	if core.Paused(s.cluster, s.infra) {
		s.set(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused, "The Cluster or this object is paused")
		return flow.Stop("it is paused")
	}
	s.set(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused, "")
	return flow.Continue()
}

// provision tells both contracts that machines can be made.
func (c *Controller) provision(_ context.Context, s *scope) flow.Result {
	s.infra.Status.Ready = true
	s.infra.Status.Initialization = &infrav1.Initialization{Provisioned: new(true)}
	s.set(infrav1.ConditionReady, metav1.ConditionTrue, infrav1.ReasonProvisioned, "")
	return flow.Continue()
}

// findEndpoint takes the endpoint that somebody gave, or else the first address that a
// control plane machine has got.
func (c *Controller) findEndpoint(ctx context.Context, s *scope) flow.Result {
	if s.infra.Spec.ControlPlaneEndpoint == nil && !s.cluster.Spec.ControlPlaneEndpoint.Known() {
		host, err := c.firstAddress(ctx, s)
		if err != nil {
			return flow.Fail(err)
		}
		if host == "" {
			s.set(infrav1.ConditionControlPlaneEndpointKnown, metav1.ConditionFalse, infrav1.ReasonWaitingForControlPlane,
				"No endpoint is given, and no control plane machine has an address yet")
			return flow.Continue() // the address brings an event
		}
		s.infra.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: host, Port: s.port()}
	}
	s.set(infrav1.ConditionControlPlaneEndpointKnown, metav1.ConditionTrue, infrav1.ReasonEndpointKnown, "")
	return flow.Continue()
}

func (s *scope) port() int32 {
	const standard = 6443 // also the schema's default, for objects that it has not seen
	if port := s.infra.Spec.ControlPlanePort; port != 0 {
		return port
	}
	return standard
}

// firstAddress is that of the control plane machine which was there first; empty if none
// has any.
func (c *Controller) firstAddress(ctx context.Context, s *scope) (string, error) {
	list := &infrav1.MillwrightMachineList{}
	err := c.Client.List(ctx, list, client.InNamespace(s.infra.Namespace),
		client.MatchingLabels{core.LabelCluster: s.cluster.Name}, client.HasLabels{core.LabelControlPlane}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("listing the control plane of Cluster %s: %w", s.cluster.Name, err)
	}
	var first *infrav1.MillwrightMachine
	for i := range list.Items {
		machine := &list.Items[i]
		if !machine.DeletionTimestamp.IsZero() || addressOf(machine) == "" {
			continue
		}
		if first == nil || older(machine, first) {
			first = machine
		}
	}
	if first == nil {
		return "", nil
	}
	return addressOf(first), nil
}

func older(a, b *infrav1.MillwrightMachine) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// addressOf is where a machine is reached best: from outside, if it can be.
func addressOf(machine *infrav1.MillwrightMachine) string {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeExternalDNS, corev1.NodeInternalIP, corev1.NodeInternalDNS} {
		for _, address := range machine.Status.Addresses {
			if address.Type == kind {
				return address.Address
			}
		}
	}
	return ""
}

// persist writes the spec, then the status, if they changed.
func (c *Controller) persist(ctx context.Context, s *scope) error {
	if changed := s.infra.DeepCopy(); !equality.Semantic.DeepEqual(s.stored.Spec, changed.Spec) {
		if err := c.Client.Patch(ctx, changed, locked(s.stored)); err != nil {
			return fmt.Errorf("patching MillwrightCluster %s: %w", s.infra.Name, err)
		}
		s.infra.ObjectMeta, s.infra.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
		changed.Status, s.stored = s.stored.Status, changed
	}
	if equality.Semantic.DeepEqual(s.stored.Status, s.infra.Status) {
		return nil
	}
	if err := c.Client.Status().Patch(ctx, s.infra, locked(s.stored)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patching the status of MillwrightCluster %s: %w", s.infra.Name, err)
	}
	return nil
}

func locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}
