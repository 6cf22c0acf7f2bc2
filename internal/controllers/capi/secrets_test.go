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
	"github.com/millwright-dev/millwright/internal/controllers/capi/finalizers"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
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
func (w *world) cloud() *corev1.Secret {
	w.Helper()
	secret := &corev1.Secret{}
	err := w.client.Get(w.Context(), types.NamespacedName{Namespace: w.namespace, Name: "cloud"}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		w.Fatal(err)
	}
	return secret
}

func (w *world) wantHeld(want bool) {
	w.Helper()
	secret := w.cloud()
	if got := secret != nil && controllerutil.ContainsFinalizer(secret, infrav1.SecretFinalizer); got != want {
		w.Errorf("the Secret is held: %t, want %t", got, want)
	}
}

// lose removes the Secret, whatever holds it.
func (w *world) lose() {
	w.Helper()
	secret := w.cloud()
	secret.Finalizers = nil
	if err := w.client.Update(w.Context(), secret); err != nil {
		w.Fatal(err)
	}
	w.remove(secret)
}

// TestSecretsAreHeld: from before the first call until the VM is gone, whichever way the
// driver gets them.
func TestSecretsAreHeld(t *testing.T) {
	for name, with := range map[string]func(*given){"credentials": withCredentials, "class": withClass} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, with)
			for len(w.tasks) == 0 {
				w.pass()
			}
			w.wantHeld(true)
			w.settle()
			w.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			w.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}})
			w.wantHeld(true)
			w.restart()
			w.driver.stays = true
			w.delete()
			w.settle()
			w.wantHeld(true)
			w.driver.stays = false
			w.settleAfter(time.Hour)
			if !w.gone() || len(w.driver.vms) != 0 || w.cloud() != nil {
				t.Errorf("gone %t, VMs %v, Secret %v", w.gone(), w.driver.vms, w.cloud())
			}
		})
	}
}

// TestSecretsGoWithTheLast: not with one of several that need them, and also with one that
// never had a VM.
func TestSecretsGoWithTheLast(t *testing.T) {
	w := newWorld(t, withCredentials)
	w.settle()
	other := newGiven(w.namespace, w.clock.Now()).infra
	other.Name, other.UID, other.OwnerReferences = "other", "other-uid", nil
	other.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
	other.Finalizers = []string{infrav1.Finalizer}
	w.create(other)
	w.delete()
	w.settle()
	if !w.gone() {
		t.Error("it stays")
	}
	w.wantHeld(true)
	w.remove(other)
	if _, err := w.controller.Reconcile(t.Context(), ctrlRequestOf(other)); err != nil {
		t.Fatal(err)
	}
	w.wantHeld(false)
}

// TestSecretsAreLetGoAfterEachCrash: whatever write a manager dies at, neither the object
// nor the Secret is left.
func TestSecretsAreLetGoAfterEachCrash(t *testing.T) {
	for fatal := 1; ; fatal++ {
		w := newWorld(t, withCredentials)
		w.settle()
		w.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}})
		w.delete()
		writes, died := 0, false
		w.refuse = func(string) error {
			if writes++; writes < fatal {
				return nil
			}
			died = true
			return errDown
		}
		for range 20 {
			if _, err := w.controller.Reconcile(t.Context(), ctrlRequest(w)); errors.Is(err, errDown) {
				break
			}
			w.call()
		}
		w.refuse = nil
		w.restart()
		w.settle()
		if !w.gone() || w.cloud() != nil || len(w.driver.vms) != 0 {
			t.Errorf("died at write %d: gone %t, Secret %v, VMs %v", fatal, w.gone(), w.cloud(), w.driver.vms)
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
	w := newWorld(t, withCredentials)
	w.settle()
	held := w.infra()
	stale := interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if machines, ok := list.(*infrav1.MillwrightMachineList); ok {
				machines.Items = []infrav1.MillwrightMachine{*held}
				return nil
			}
			return c.List(ctx, list, options...)
		},
	})
	key := client.ObjectKeyFromObject(w.cloud())
	secrets := finalizers.NewForSecrets(stale, w.client, func(*infrav1.MillwrightMachine) bool { return true })
	expect := func(when string, want bool) {
		t.Helper()
		if err := settle(t, secrets, key); err != nil {
			t.Fatal(err)
		}
		t.Log(when)
		w.wantHeld(want)
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
	w := newWorld(t, withCredentials, func(g *given) {
		g.infra.Spec.Driver, g.infra.Finalizers = "other", []string{infrav1.Finalizer}
		g.infra.Annotations = map[string]string{infrav1.AnnotationCreationBegun: ""}
	})
	if err := settle(t, w.controller.Secrets, client.ObjectKeyFromObject(w.cloud())); err != nil {
		t.Fatal(err)
	}
	w.wantHeld(false)
	secret := w.cloud()
	secret.Finalizers = []string{infrav1.SecretFinalizer}
	if err := w.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := settle(t, w.controller.Secrets, client.ObjectKeyFromObject(secret)); err != nil {
		t.Fatal(err)
	}
	w.wantHeld(true)
}

// TestRepairedSecretIsTriedSoon: it is looked at every now and then, and the driver is asked
// no sooner for that, unless it did change.
func TestRepairedSecretIsTriedSoon(t *testing.T) {
	for name, tc := range map[string]struct {
		with   func(*given)
		method instance.Method
	}{
		"creation with credentials": {withCredentials, instance.MethodCreate},
		"creation with a class":     {withClass, instance.MethodCreate},
		"deletion":                  {withCredentials, instance.MethodDelete},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tc.with)
			if tc.method == instance.MethodDelete {
				w.settle()
				w.delete()
			}
			w.driver.fails(tc.method, slices.Repeat([]codes.Code{codes.PermissionDenied}, 4)...)
			w.settle()
			calls := w.driver.made(tc.method)
			for range 4 {
				result := w.settle()
				if result.RequeueAfter > slowRetry {
					t.Fatalf("looks again after %v", result.RequeueAfter)
				}
				w.clock.Step(result.RequeueAfter)
			}
			if now := w.driver.made(tc.method); now != calls {
				t.Errorf("asked %d times within %v", now-calls, 4*slowRetry)
			}
			w.driver.failures[tc.method] = nil
			secret := w.cloud()
			secret.Data = map[string][]byte{"token": []byte("new")}
			if err := w.client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			w.settle()
			if now := w.driver.made(tc.method); now != calls+1 {
				t.Errorf("asked %d times with the new Secret", now-calls)
			}
		})
	}
}
