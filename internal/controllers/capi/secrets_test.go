package capi

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/controllers/capi/finalizers"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

// withCredentials makes the driver need the Secret "cloud" of the object.
func withCredentials(g *given) {
	g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
	g.more = append(g.more, secret(g.infra.Namespace, "cloud", map[string]string{"token": "old"}))
}

// withClass makes the driver need the Secret "cloud" of a class.
func withClass(g *given) {
	g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
	class := newClass(g.infra.Namespace)
	class.SecretRef = &corev1.SecretReference{Namespace: g.infra.Namespace, Name: "cloud"}
	g.more = append(g.more, class, secret(g.infra.Namespace, "cloud", nil))
}

// cloud returns the Secret "cloud", or nil if it does not exist.
func (h *harness) cloud() *corev1.Secret {
	h.Helper()
	secret := &corev1.Secret{}
	err := h.client.Get(h.Context(), types.NamespacedName{Namespace: h.Key.Namespace, Name: "cloud"}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		h.Fatal(err)
	}
	return secret
}

func (h *harness) wantProtected(want bool) {
	h.Helper()
	secret := h.cloud()
	if got := secret != nil && controllerutil.ContainsFinalizer(secret, infrav1.SecretFinalizer); got != want {
		h.Errorf("the Secret has the finalizer: %t, want %t", got, want)
	}
}

// loseSecret removes the Secret in spite of its finalizer.
func (h *harness) loseSecret() {
	h.Helper()
	secret := h.cloud()
	secret.Finalizers = nil
	if err := h.client.Update(h.Context(), secret); err != nil {
		h.Fatal(err)
	}
	h.remove(secret)
}

// TestSecret_FinalizerUntilVMIsGone checks that the Secret has the finalizer from before the first call until the VM is gone, for
// both kinds of reference.
func TestSecret_FinalizerUntilVMIsGone(t *testing.T) {
	for name, with := range map[string]func(*given){"credentials": withCredentials, "class": withClass} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, with)
			for len(h.Tasks) == 0 {
				h.Pass()
			}
			h.wantProtected(true)
			h.Settle()
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}})
			h.wantProtected(true)
			h.restart()
			h.ignoreDeletes(true)
			h.delete()
			h.Settle()
			h.wantProtected(true)
			h.ignoreDeletes(false)
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 || h.cloud() != nil {
				t.Errorf("gone %t, VMs %v, Secret %v", h.gone(), h.Driver.VMs(), h.cloud())
			}
		})
	}
}

// TestSecret_FinalizerUntilLastUserIsGone checks that the finalizer stays until the last object that needs the Secret is gone, even
// if that one never had a VM.
func TestSecret_FinalizerUntilLastUserIsGone(t *testing.T) {
	h := newHarness(t, withCredentials)
	h.Settle()
	other := newGiven(h.Key.Namespace, h.Clock.Now()).infra
	other.Name, other.UID, other.OwnerReferences = "other", "other-uid", nil
	other.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
	other.Finalizers = []string{infrav1.Finalizer}
	h.create(other)
	h.delete()
	h.Settle()
	if !h.gone() {
		t.Error("the object still exists")
	}
	h.wantProtected(true)
	h.remove(other)
	if _, err := h.controller.Reconcile(t.Context(), ctrlRequestOf(other)); err != nil {
		t.Fatal(err)
	}
	h.wantProtected(false)
}

// TestSecret_FinalizerRemovedAfterCrash checks for each write that neither the object nor the Secret remains after a
// crash at that write.
func TestSecret_FinalizerRemovedAfterCrash(t *testing.T) {
	for crashAt := 1; ; crashAt++ {
		h := newHarness(t, withCredentials)
		h.Settle()
		h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}})
		h.delete()
		writes, crashed := 0, false
		h.Refuse = func(lockstep.Write) error {
			if writes++; writes < crashAt {
				return nil
			}
			crashed = true
			return errDown
		}
		for range 20 {
			if _, err := h.controller.Reconcile(t.Context(), ctrlRequest(h)); errors.Is(err, errDown) {
				break
			}
			h.Call()
		}
		h.Refuse = nil
		h.restart()
		h.Settle()
		if !h.gone() || h.cloud() != nil || len(h.Driver.VMs()) != 0 {
			t.Errorf("crash at write %d: gone %t, Secret %v, VMs %v", crashAt, h.gone(), h.cloud(), h.Driver.VMs())
		}
		if !crashed {
			if crashAt < 4 {
				t.Errorf("a deletion has %d writes", crashAt-1)
			}
			return
		}
	}
}

// TestSecret_FinalizerRemovedWithStaleCache checks that the finalizer is removed when two objects are deleted at the same time,
// even if the cache still shows the other one. An object that has just begun to need the Secret keeps the finalizer.
func TestSecret_FinalizerRemovedWithStaleCache(t *testing.T) {
	h := newHarness(t, withCredentials)
	h.Settle()
	cached := h.infra()
	stale := interceptor.NewClient(h.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if machines, ok := list.(*infrav1.MillwrightMachineList); ok {
				machines.Items = []infrav1.MillwrightMachine{*cached}
				return nil
			}
			return c.List(ctx, list, options...)
		},
	})
	key := client.ObjectKeyFromObject(h.cloud())
	secrets := finalizers.NewForSecrets(stale, h.client, func(*infrav1.MillwrightMachine) bool { return true }, nil)
	expect := func(when string, want bool) {
		t.Helper()
		if err := settle(t, secrets, key); err != nil {
			t.Fatal(err)
		}
		t.Log(when)
		h.wantProtected(want)
	}
	expect("the object has a VM", true)
	secrets.Note(cached, false)
	expect("the object no longer needs the Secret", false)
	cached.UID = "another"
	expect("another object with the same name has a VM", true)
	cached.Finalizers = nil
	expect("the other object has no finalizer", false)
	secrets.Note(cached, true)
	expect("the other object has just begun to need the Secret", true)
}

// settle runs one reconcile of the controller of Secrets.
func settle(t *testing.T, secrets *finalizers.Secrets, key types.NamespacedName) error {
	t.Helper()
	_, err := secrets.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	return err
}

// TestSecret_OfOtherManagerIsUnchanged checks that the Secrets of objects of another manager are not changed.
func TestSecret_OfOtherManagerIsUnchanged(t *testing.T) {
	h := newHarness(t, withCredentials, func(g *given) {
		g.infra.Spec.Driver, g.infra.Finalizers = "other", []string{infrav1.Finalizer}
		g.infra.Annotations = map[string]string{infrav1.AnnotationCreationBegun: ""}
	})
	if err := settle(t, h.controller.Secrets, client.ObjectKeyFromObject(h.cloud())); err != nil {
		t.Fatal(err)
	}
	h.wantProtected(false)
	secret := h.cloud()
	secret.Finalizers = []string{infrav1.SecretFinalizer}
	if err := h.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := settle(t, h.controller.Secrets, client.ObjectKeyFromObject(secret)); err != nil {
		t.Fatal(err)
	}
	h.wantProtected(true)
}

// TestSecret_ChangeTriggersRetry checks that the controller reads the Secret regularly, but calls the driver before
// the next retry only if the Secret has changed.
func TestSecret_ChangeTriggersRetry(t *testing.T) {
	for name, tc := range map[string]struct {
		with   func(*given)
		method fake.Method
	}{
		"creation with credentials": {withCredentials, fake.CreateMachine},
		"creation with a class":     {withClass, fake.CreateMachine},
		"deletion":                  {withCredentials, fake.DeleteMachine},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.with)
			if tc.method == fake.DeleteMachine {
				h.Settle()
				h.delete()
			}
			h.Driver.Fail(tc.method, slices.Repeat([]codes.Code{codes.PermissionDenied}, 4)...)
			h.Settle()
			calls := len(h.Driver.Calls(tc.method))
			for range 4 {
				result := h.Settle()
				if result.RequeueAfter > slowRetry {
					t.Fatalf("requeued after %v", result.RequeueAfter)
				}
				h.Clock.Step(result.RequeueAfter)
			}
			if now := len(h.Driver.Calls(tc.method)); now != calls {
				t.Errorf("%d calls within %v", now-calls, 4*slowRetry)
			}
			h.Driver.ForgetFailures()
			secret := h.cloud()
			secret.Data = map[string][]byte{"token": []byte("new")}
			if err := h.client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			h.Settle()
			if now := len(h.Driver.Calls(tc.method)); now != calls+1 {
				t.Errorf("%d calls with the new Secret, want 1", now-calls)
			}
		})
	}
}
