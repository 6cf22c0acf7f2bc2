package finalizers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/inuse"
)

// Secrets is the controller of the finalizers on Secrets. Secrets are neither listed nor watched, so the finalizer
// must be removed before the last object that needs the Secret is deleted. The controller of MillwrightMachines does
// that with SettleAll. This controller handles the other cases: a class refers to another Secret, a user has removed
// finalizers, or a cluster was moved here.
type Secrets struct {
	// client reads from the cache. live reads from the API server.
	client client.Client
	live   client.Reader
	// ours reports whether a MillwrightMachine belongs to this manager.
	ours func(*infrav1.MillwrightMachine) bool
	edge edge.Reconciler[*corev1.Secret]

	// mu is held from the listing of a Secret's users until its finalizer is written.
	mu sync.Mutex
	// known has what the cache may not show yet about each MillwrightMachine. mu guards its values.
	known expectations.Memory[need]
}

// need records whether a MillwrightMachine needs its Secrets.
type need struct {
	of     types.UID
	needed bool
}

// NewForSecrets returns the controller. client writes, and reads from a cache with Indexes. live reads from the API
// server. ours reports whether a MillwrightMachine belongs to this manager.
func NewForSecrets(client client.Client, live client.Reader, ours func(*infrav1.MillwrightMachine) bool, events record.EventRecorder) *Secrets {
	s := &Secrets{client: client, live: live, ours: ours}
	s.edge = edge.Reconciler[*corev1.Secret]{
		Kind: &corev1.Secret{}, Events: events,
		Pass: func(ctx context.Context, secret *corev1.Secret) (time.Duration, error) {
			return 0, s.settle(ctx, secret)
		},
	}
	return s
}

// SetupWithManager registers the controller and its watches.
func (s *Secrets) SetupWithManager(mgr ctrl.Manager) error {
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachine-secret").
		Watches(&infrav1.MillwrightMachine{}, mapped(s.ofMachine), builder.WithPredicates(s.machineChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(ofClass), builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return !slices.Equal(OfClass(e.ObjectOld.(*v1alpha1.MachineClass)), OfClass(e.ObjectNew.(*v1alpha1.MachineClass)))
		}})).
		WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()}).
		Complete(s)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachines' Secrets: %w", err)
	}
	return nil
}

func (s *Secrets) ofMachine(ctx context.Context, object client.Object) []reconcile.Request {
	keys, _ := s.OfMachine(ctx, object.(*infrav1.MillwrightMachine)) // an error means that the cache has stopped
	return requests(keys)
}

func ofClass(_ context.Context, object client.Object) []reconcile.Request {
	return requests(OfClass(object.(*v1alpha1.MachineClass)))
}

func requests(keys []types.NamespacedName) []reconcile.Request {
	requests := make([]reconcile.Request, len(keys))
	for i, key := range keys {
		requests[i].NamespacedName = key
	}
	return requests
}

// machineChanges selects the events that the controller of MillwrightMachines does not handle.
func (s *Secrets) machineChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return marks.Begun(e.Object.(*infrav1.MillwrightMachine)) },
		UpdateFunc: func(e event.UpdateEvent) bool { return !sameReference(e, ByClass) || !sameReference(e, BySecret) },
		DeleteFunc: func(e event.DeleteEvent) bool { return !s.released(e.Object.(*infrav1.MillwrightMachine)) },
	}
}

// Reconcile adds or removes the finalizer of a Secret.
func (s *Secrets) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return s.edge.Reconcile(ctx, req)
}

// OfMachine returns the Secrets that the driver needs for the VM. It does not return the bootstrap data, which only
// creations need.
func (s *Secrets) OfMachine(ctx context.Context, machine *infrav1.MillwrightMachine) ([]types.NamespacedName, error) {
	var keys []types.NamespacedName
	if ref := machine.Spec.CredentialsSecretRef; ref != nil {
		keys = append(keys, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name})
	}
	ref := machine.Spec.MachineClassRef
	if ref == nil {
		return keys, nil
	}
	class := &v1alpha1.MachineClass{}
	err := s.client.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: ref.Name}, class)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading MachineClass %s: %w", ref.Name, err)
	}
	return append(keys, OfClass(class)...), nil
}

// OfClass returns the Secrets of a class that are in its own namespace. Other Secrets are not used.
func OfClass(class *v1alpha1.MachineClass) []types.NamespacedName {
	return slices.DeleteFunc(fieldindex.SecretsOf(class), func(key types.NamespacedName) bool { return key.Namespace != class.Namespace })
}

// released reports whether a MillwrightMachine is known not to need its Secrets any more.
func (s *Secrets) released(machine *infrav1.MillwrightMachine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known.Find(client.ObjectKeyFromObject(machine))
	return known != nil && known.of == machine.UID && !known.needed
}

// Note records whether a MillwrightMachine needs its Secrets.
func (s *Secrets) Note(machine *infrav1.MillwrightMachine, needed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.known.Of(client.ObjectKeyFromObject(machine)) = need{machine.UID, needed}
}

// Forget drops the state of a deleted MillwrightMachine.
func (s *Secrets) Forget(key types.NamespacedName) { s.known.Forget(key) }

// SettleAll records whether a MillwrightMachine needs its Secrets, and updates the finalizers of all of them. It
// returns a conflict if another client writes one of them at the same time.
func (s *Secrets) SettleAll(ctx context.Context, machine *infrav1.MillwrightMachine, needed bool) error {
	keys, err := s.OfMachine(ctx, machine)
	if err != nil {
		return err
	}
	s.Note(machine, needed)
	for _, key := range keys {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := s.settle(ctx, secret); err != nil {
			return err
		}
	}
	return nil
}

// settle adds the finalizer to a Secret that is needed, or removes it from one that is not. It uses only the name of the
// given Secret, and reads the Secret again under the lock.
func (s *Secrets) settle(ctx context.Context, secret *corev1.Secret) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := client.ObjectKeyFromObject(secret)
	if err := s.live.Get(ctx, key, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Secret %s: %w", key.Name, err)
	}
	needed, hold, err := s.needed(ctx, key)
	if err != nil {
		return err
	}
	changed := secret.DeepCopy()
	if needed && !hold || !inuse.Set(changed, infrav1.SecretFinalizer, needed) {
		return nil
	}
	if err := s.client.Patch(ctx, changed, expectations.Locked(secret)); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("updating the finalizer of Secret %s: %w", key.Name, err)
	}
	return nil
}

// needed reports whether any MillwrightMachine needs a Secret. hold reports whether one of this manager's does. The
// caller must hold the lock.
func (s *Secrets) needed(ctx context.Context, key types.NamespacedName) (needed, hold bool, err error) {
	users, err := s.users(ctx, key)
	if err != nil {
		return false, false, err
	}
	for i := range users {
		user := &users[i]
		known := s.known.Find(client.ObjectKeyFromObject(user))
		ok := known != nil && known.of == user.UID
		switch {
		case ok && !known.needed, !ok && !holds(user):
			continue
		}
		needed, hold = true, hold || ok || s.ours(user) && marks.Begun(user)
	}
	return needed, hold, nil
}

// holds reports whether the VM of an object may have to be deleted before the object.
func holds(machine *infrav1.MillwrightMachine) bool {
	return controllerutil.ContainsFinalizer(machine, infrav1.Finalizer) && !marks.InstanceGone(machine)
}

// users returns the MillwrightMachines that refer to a Secret, either directly or through their class.
func (s *Secrets) users(ctx context.Context, key types.NamespacedName) ([]infrav1.MillwrightMachine, error) {
	classes := &v1alpha1.MachineClassList{}
	if err := s.client.List(ctx, classes, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the MachineClasses: %w", err)
	}
	fields := []client.MatchingFields{{BySecret: key.Name}}
	for i := range classes.Items {
		if slices.Contains(OfClass(&classes.Items[i]), key) {
			fields = append(fields, client.MatchingFields{ByClass: classes.Items[i].Name})
		}
	}
	var users []infrav1.MillwrightMachine
	for _, field := range fields {
		list := &infrav1.MillwrightMachineList{}
		if err := s.client.List(ctx, list, client.InNamespace(key.Namespace), field, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing the users of Secret %s: %w", key.Name, err)
		}
		users = append(users, list.Items...)
	}
	return users, nil
}
