// Package credentials holds the Secrets that MillwrightMachines need.
package credentials

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Indexes of MillwrightMachines in the cache: by the names of the MachineClass and of the Secret
// that they refer to.
const (
	ByClass  = "millwrightmachine.class"
	BySecret = "millwrightmachine.secret"
)

// Secrets keeps Secrets from going while a MillwrightMachine needs them: without its
// credentials no driver could delete a VM. They are neither listed nor watched, so what is
// put on one here is also taken off here: before the last object goes that needs it.
type Secrets struct {
	// client reads from the cache, live from the API server.
	client client.Client
	live   client.Reader
	// ours reports whether a MillwrightMachine is for this manager.
	ours func(*infrav1.MillwrightMachine) bool

	// mu is held from when it is found out who needs a Secret until that is written.
	mu sync.Mutex
	// known is what the cache may not show yet, by object.
	known map[types.NamespacedName]need
}

// need reports whether a MillwrightMachine needs its Secrets.
type need struct {
	of   types.UID
	does bool
}

// New returns Secrets. Client reads from the cache and writes, live reads from the API server,
// and ours reports whether a MillwrightMachine is for this manager.
func New(client client.Client, live client.Reader, ours func(*infrav1.MillwrightMachine) bool) *Secrets {
	return &Secrets{client: client, live: live, ours: ours}
}

// OfMachine names the Secrets without which the driver could not be asked about the VM.
// Bootstrap data are none of them: they are for creations only.
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

// OfClass names the Secrets of a class. One in another namespace is not used.
func OfClass(class *v1alpha1.MachineClass) []types.NamespacedName {
	return slices.DeleteFunc(fieldindex.SecretsOf(class), func(key types.NamespacedName) bool { return key.Namespace != class.Namespace })
}

// Released reports whether a MillwrightMachine has let go of its Secrets.
func (s *Secrets) Released(machine *infrav1.MillwrightMachine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[client.ObjectKeyFromObject(machine)]
	return ok && known.of == machine.UID && !known.does
}

// Note remembers whether a MillwrightMachine needs its Secrets.
func (s *Secrets) Note(machine *infrav1.MillwrightMachine, does bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[types.NamespacedName]need{}
	}
	s.known[client.ObjectKeyFromObject(machine)] = need{machine.UID, does}
}

// Forget drops what is known of a MillwrightMachine that is gone.
func (s *Secrets) Forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
}

// SettleAll notes whether a MillwrightMachine needs its Secrets, and has them held or not
// accordingly.
func (s *Secrets) SettleAll(ctx context.Context, machine *infrav1.MillwrightMachine, does bool) error {
	keys, err := s.OfMachine(ctx, machine)
	if err != nil {
		return err
	}
	s.Note(machine, does)
	for _, key := range keys {
		if err := s.Settle(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// Settle puts the finalizer on a Secret that is needed, and takes it off one that is not. It
// fails with a conflict if somebody else writes the Secret meanwhile.
func (s *Secrets) Settle(ctx context.Context, key types.NamespacedName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	secret := &corev1.Secret{}
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
	var news bool
	switch {
	case !needed:
		news = controllerutil.RemoveFinalizer(changed, infrav1.SecretFinalizer)
	case hold && secret.DeletionTimestamp.IsZero(): // what goes can get no finalizer any more
		news = controllerutil.AddFinalizer(changed, infrav1.SecretFinalizer)
	}
	if !news {
		return nil
	}
	if err := s.client.Patch(ctx, changed, expectations.Locked(secret)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("finalizer of Secret %s: %w", key.Name, err)
	}
	return nil
}

// needed reports whether anybody needs a Secret, and whether one does for whose Secrets this
// manager has to see. To be called under the lock.
func (s *Secrets) needed(ctx context.Context, key types.NamespacedName) (needed, hold bool, err error) {
	users, err := s.users(ctx, key)
	if err != nil {
		return false, false, err
	}
	for i := range users {
		user := &users[i]
		known, ok := s.known[client.ObjectKeyFromObject(user)]
		switch ok = ok && known.of == user.UID; {
		case ok && !known.does, !ok && !holds(user):
			continue
		}
		needed, hold = true, hold || ok || s.ours(user) && marks.Begun(user)
	}
	return needed, hold, nil
}

// holds reports whether an object is one that we have to do something for before it goes.
func holds(machine *infrav1.MillwrightMachine) bool {
	return controllerutil.ContainsFinalizer(machine, infrav1.Finalizer) && !marks.InstanceGone(machine)
}

// users are the MillwrightMachines that refer to a Secret, or to a class that does.
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
			return nil, fmt.Errorf("finding who needs Secret %s: %w", key.Name, err)
		}
		users = append(users, list.Items...)
	}
	return users, nil
}
