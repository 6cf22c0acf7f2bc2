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

// withCredentials has the driver need the Secret "cloud".
func withCredentials(g *given) {
	g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
	g.more = append(g.more, secret(g.infra.Namespace, "cloud", map[string]string{"token": "old"}))
}

// withClass has the driver need the Secret "cloud" of a class.
func withClass(g *given) {
	g.infra.Spec.ProviderSpec, g.infra.Spec.MachineClassRef = nil, &infrav1.LocalReference{Name: "small"}
	class := newClass(g.infra.Namespace)
	class.SecretRef = &corev1.SecretReference{Namespace: g.infra.Namespace, Name: "cloud"}
	g.more = append(g.more, class, secret(g.infra.Namespace, "cloud", nil))
}

// cloud reads the Secret; nil if it is gone.
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

func (h *harness) wantHeld(want bool) {
	h.Helper()
	secret := h.cloud()
	if got := secret != nil && controllerutil.ContainsFinalizer(secret, infrav1.SecretFinalizer); got != want {
		h.Errorf("the Secret is held: %t, want %t", got, want)
	}
}

// lose removes the Secret, whatever holds it.
func (h *harness) lose() {
	h.Helper()
	secret := h.cloud()
	secret.Finalizers = nil
	if err := h.client.Update(h.Context(), secret); err != nil {
		h.Fatal(err)
	}
	h.remove(secret)
}

// TestSecretsAreHeld: from before the first call until the VM is gone, whichever way the
// driver gets them.
func TestSecretsAreHeld(t *testing.T) {
	for name, with := range map[string]func(*given){"credentials": withCredentials, "class": withClass} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, with)
			for len(h.Tasks) == 0 {
				h.Pass()
			}
			h.wantHeld(true)
			h.Settle()
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}})
			h.wantHeld(true)
			h.restart()
			h.ignoreDeletes(true)
			h.delete()
			h.Settle()
			h.wantHeld(true)
			h.ignoreDeletes(false)
			h.SettleAfter(time.Hour)
			if !h.gone() || len(h.Driver.VMs()) != 0 || h.cloud() != nil {
				t.Errorf("gone %t, VMs %v, Secret %v", h.gone(), h.Driver.VMs(), h.cloud())
			}
		})
	}
}

// TestSecretsGoWithTheLast: not with one of several that need them, and also with one that
// never had a VM.
func TestSecretsGoWithTheLast(t *testing.T) {
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
		t.Error("it stays")
	}
	h.wantHeld(true)
	h.remove(other)
	if _, err := h.controller.Reconcile(t.Context(), ctrlRequestOf(other)); err != nil {
		t.Fatal(err)
	}
	h.wantHeld(false)
}

// TestSecretsAreLetGoAfterEachCrash: whatever write a manager dies at, neither the object
// nor the Secret is left.
func TestSecretsAreLetGoAfterEachCrash(t *testing.T) {
	for fatal := 1; ; fatal++ {
		h := newHarness(t, withCredentials)
		h.Settle()
		h.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}})
		h.delete()
		writes, died := 0, false
		h.Refuse = func(lockstep.Write) error {
			if writes++; writes < fatal {
				return nil
			}
			died = true
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
			t.Errorf("died at write %d: gone %t, Secret %v, VMs %v", fatal, h.gone(), h.cloud(), h.Driver.VMs())
		}
		if !died {
			if fatal < 4 {
				t.Errorf("a deletion has %d writes", fatal-1)
			}
			return
		}
	}
}

// TestStaleCacheHoldsNoSecret: of two that go at the same time, the later one sees that the
// other has let go, even if the cache does not show it; and one that has just begun to need
// the Secret keeps it.
func TestStaleCacheHoldsNoSecret(t *testing.T) {
	h := newHarness(t, withCredentials)
	h.Settle()
	held := h.infra()
	stale := interceptor.NewClient(h.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if machines, ok := list.(*infrav1.MillwrightMachineList); ok {
				machines.Items = []infrav1.MillwrightMachine{*held}
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
		h.wantHeld(want)
	}
	expect("it has a VM", true)
	secrets.Note(held, false)
	expect("it has let go", false)
	held.UID = "another"
	expect("another one of its name has a VM", true)
	held.Finalizers = nil
	expect("that one is not ours to look after", false)
	secrets.Note(held, true)
	expect("that one needs it, since just now", true)
}

// settle runs the controller of Secrets for one of them.
func settle(t *testing.T, secrets *finalizers.Secrets, key types.NamespacedName) error {
	t.Helper()
	_, err := secrets.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	return err
}

// TestSecretsOfOthersAreNotHeld: another manager sees to the Secrets of its own.
func TestSecretsOfOthersAreNotHeld(t *testing.T) {
	h := newHarness(t, withCredentials, func(g *given) {
		g.infra.Spec.Driver, g.infra.Finalizers = "other", []string{infrav1.Finalizer}
		g.infra.Annotations = map[string]string{infrav1.AnnotationCreationBegun: ""}
	})
	if err := settle(t, h.controller.Secrets, client.ObjectKeyFromObject(h.cloud())); err != nil {
		t.Fatal(err)
	}
	h.wantHeld(false)
	secret := h.cloud()
	secret.Finalizers = []string{infrav1.SecretFinalizer}
	if err := h.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := settle(t, h.controller.Secrets, client.ObjectKeyFromObject(secret)); err != nil {
		t.Fatal(err)
	}
	h.wantHeld(true)
}

// TestRepairedSecretIsTriedSoon: it is looked at every now and then, and the driver is asked
// no sooner for that, unless it did change.
func TestRepairedSecretIsTriedSoon(t *testing.T) {
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
					t.Fatalf("looks again after %v", result.RequeueAfter)
				}
				h.Clock.Step(result.RequeueAfter)
			}
			if now := len(h.Driver.Calls(tc.method)); now != calls {
				t.Errorf("asked %d times within %v", now-calls, 4*slowRetry)
			}
			h.Driver.ForgetFailures()
			secret := h.cloud()
			secret.Data = map[string][]byte{"token": []byte("new")}
			if err := h.client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			h.Settle()
			if now := len(h.Driver.Calls(tc.method)); now != calls+1 {
				t.Errorf("asked %d times with the new Secret", now-calls)
			}
		})
	}
}
