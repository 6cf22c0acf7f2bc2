// Package nodecertificate approves the certificate signing requests with which nodes of Machines join.
//
// The controller decides on requests that were made with the bootstrap token of a Machine. It approves a request for
// the certificate of that Machine's node and nothing else, and denies any other request. It ignores requests that were
// not made with such a token.
package nodecertificate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// machineByToken is the index of Machines by the IDs that their bootstrap tokens may have.
const machineByToken = "nodecertificate.token"

// Reasons of events on a Machine.
const (
	// reasonDenied means that a request was denied.
	reasonDenied = "NodeCertificateDenied"
	// reasonIgnored means that the guest makes more requests than the controller decides on.
	reasonIgnored = "NodeCertificateRequestsIgnored"
)

// Options configure a Controller.
type Options struct {
	// Machines reads from the cache of the control cluster.
	Machines client.Reader
	// Target is the cluster that nodes join.
	Target target.Interface
	// Tokens issued the bootstrap tokens of the Machines.
	Tokens *bootstrap.Tokens
	// Reserved reports whether a node name is reserved, so that no Machine may use it. If nil, no name is
	// reserved.
	Reserved func(node string) bool
	// Events records events on Machines.
	Events record.EventRecorder
	Clock  clock.PassiveClock
}

// Controller reconciles CertificateSigningRequests. Create one with New.
type Controller struct {
	Options
	edge   edge.Reconciler[*certificatesv1.CertificateSigningRequest]
	limits *limits
}

// New creates a Controller.
func New(opts Options) *Controller {
	c := &Controller{Options: opts, limits: newLimits()}
	c.edge = edge.Reconciler[*certificatesv1.CertificateSigningRequest]{
		Reader: opts.Target.Client(), Kind: &certificatesv1.CertificateSigningRequest{}, ReadOnly: true, Pass: c.pass,
		Events: opts.Events,
	}
	return c
}

// SetupWithManager registers the controller, its watches, and its index.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	byToken := func(object client.Object) []string { return c.Tokens.IDs(client.ObjectKeyFromObject(object)) }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Machine{}, machineByToken, byToken); err != nil {
		return fmt.Errorf("adding the index %s: %w", machineByToken, err)
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("nodecertificate").
		Watches(&v1alpha1.Machine{}, handler.EnqueueRequestsFromMapFunc(c.waitingFor), builder.WithPredicates(nodeNamed())).
		WatchesRawSource(c.Target.Watch(&certificatesv1.CertificateSigningRequest{}, &handler.EnqueueRequestForObject{}, undecided())).
		WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of node certificates: %w", err)
	}
	return nil
}

// nodeNamed selects changes to the node's name, which requests may wait for.
func nodeNamed() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.(*v1alpha1.Machine).NodeName() != e.ObjectNew.(*v1alpha1.Machine).NodeName()
		},
	}
}

func undecided() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		return pending(object.(*certificatesv1.CertificateSigningRequest))
	})
}

// pending reports whether a request for a kubelet's certificate was made with a bootstrap token and is undecided.
func pending(request *certificatesv1.CertificateSigningRequest) bool {
	return !isDecided(request) && tokenID(request) != "" && request.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName
}

func isDecided(request *certificatesv1.CertificateSigningRequest) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
	})
}

// tokenID returns the ID of the bootstrap token with which the request was made. It is empty if none was used. The API
// server sets the user name.
func tokenID(request *certificatesv1.CertificateSigningRequest) string {
	id, ok := strings.CutPrefix(request.Spec.Username, bootstrap.UserPrefix)
	if !ok {
		return ""
	}
	return id
}

// Reconcile decides on a request.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (time.Duration, error) {
	if !pending(request) {
		return 0, nil
	}
	id := tokenID(request)
	machines, err := c.mayOwn(ctx, id)
	if err != nil || len(machines) == 0 {
		return 0, err
	}
	// The limit is before the first request to the API server.
	if limited := c.limits.admit(id, request.UID, c.Clock.Now()); !limited.admitted {
		if limited.exceeded {
			c.Events.Eventf(&machines[0], corev1.EventTypeWarning, reasonIgnored, "The guest requests too many certificates with its bootstrap token: after %d, one is decided in %v, and others are ignored", maxOfToken, tokenInterval)
		}
		return limited.after, nil
	}
	owner, err := c.ownerOf(ctx, id, machines)
	if err != nil || owner == nil {
		return 0, err
	}
	facts, err := c.gather(ctx, *owner, request)
	if err != nil || facts.machine == nil {
		return 0, err
	}
	decision := decide(facts)
	if decision.kind == "" {
		return 0, nil // the event of the Machine triggers the next pass
	}
	return 0, c.write(ctx, request, facts.machine, decision)
}

// mayOwn returns the Machines whose token may have the ID.
func (c *Controller) mayOwn(ctx context.Context, id string) ([]v1alpha1.Machine, error) {
	machines := &v1alpha1.MachineList{}
	if err := c.Machines.List(ctx, machines, client.MatchingFields{machineByToken: id}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("finding the machine of bootstrap token %s: %w", id, err)
	}
	return machines.Items, nil
}

// ownerOf returns the name of the Machine whose token has the ID, or nil if there is none. It reads the token, since
// IDs may collide.
func (c *Controller) ownerOf(ctx context.Context, id string, machines []v1alpha1.Machine) (*types.NamespacedName, error) {
	for i := range machines {
		key := client.ObjectKeyFromObject(&machines[i])
		if issued, err := c.Tokens.Issued(ctx, key, id); err != nil || issued {
			return &key, err
		}
	}
	return nil, nil
}

// gather reads the facts for a decision. The Machine is nil if it no longer exists.
func (c *Controller) gather(ctx context.Context, key types.NamespacedName, request *certificatesv1.CertificateSigningRequest) (facts, error) {
	machine := &v1alpha1.Machine{}
	if err := c.Machines.Get(ctx, key, machine, client.UnsafeDisableDeepCopy); err != nil {
		return facts{}, client.IgnoreNotFound(err)
	}
	f := facts{request: &request.Spec, machine: machine}
	name := machine.NodeName()
	if name == "" {
		return f, nil
	}
	f.reserved = c.Reserved != nil && c.Reserved(name)
	var err error
	if f.conflicting, err = c.conflicting(ctx, machine, name); err != nil {
		return facts{}, err
	}
	node := &corev1.Node{}
	switch err := c.Target.Client().Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy); {
	case err == nil:
		f.node = node
	case !apierrors.IsNotFound(err):
		return facts{}, fmt.Errorf("reading node %s: %w", name, err)
	}
	return f, nil
}

// conflicting returns another Machine that names the node, or nil if there is none.
func (c *Controller) conflicting(ctx context.Context, ours *v1alpha1.Machine, node string) (*v1alpha1.Machine, error) {
	machines := &v1alpha1.MachineList{}
	if err := c.Machines.List(ctx, machines, client.MatchingFields{fieldindex.MachineByNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("finding the machines of node %s: %w", node, err)
	}
	for i := range machines.Items {
		if other := &machines.Items[i]; other.UID != ours.UID {
			return other, nil
		}
	}
	return nil, nil
}

// write writes the decision, unless another client was first.
func (c *Controller) write(ctx context.Context, request *certificatesv1.CertificateSigningRequest, machine *v1alpha1.Machine, d decision) error {
	decided := request.DeepCopy()
	decided.Status.Conditions = append(decided.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: d.kind, Status: corev1.ConditionTrue, Reason: d.reason, Message: d.message,
		LastUpdateTime: metav1.NewTime(c.Clock.Now()),
	})
	if err := apierror.IgnoreGone(c.Target.Client().SubResource("approval").Update(ctx, decided)); err != nil {
		// The request is in the target cluster, where Events records nothing.
		return edge.About(machine, fmt.Errorf("deciding on certificate signing request %s: %w", request.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("decided on a certificate signing request", "decision", d.kind, "reason", d.reason, "machine", client.ObjectKeyFromObject(machine))
	if d.kind == certificatesv1.CertificateDenied {
		c.Events.Event(machine, corev1.EventTypeWarning, reasonDenied, d.message)
	}
	return nil
}

// waitingFor returns the undecided requests that were made with the token of a Machine. It lists all requests, since a
// cluster has few of them and a Machine gets the name of its node only once.
func (c *Controller) waitingFor(ctx context.Context, machine client.Object) []reconcile.Request {
	if !c.Target.Ready() {
		return nil
	}
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := c.Target.Client().List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // reads of the cache fail only when the process terminates
	}
	ids := c.Tokens.IDs(client.ObjectKeyFromObject(machine))
	var requests []reconcile.Request
	for i := range list.Items {
		if request := &list.Items[i]; pending(request) && slices.Contains(ids, tokenID(request)) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: request.Name}})
		}
	}
	return requests
}
