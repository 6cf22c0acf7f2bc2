package capi

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
)

const credentials = "account"

// newAccountsHarness returns a harness whose credentials select an account of the provider.
func newAccountsHarness(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, func(g *given) {
		g.infra.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: credentials}
		g.more = append(g.more, secret(g.infra.Namespace, credentials, map[string]string{"account": "first"}))
	})
	h.Driver.Configure(func(config *fake.Config) { config.Accounts = true })
	return h
}

// setAccount changes the account that the credentials select.
func (h *harness) setAccount(account string) {
	h.Helper()
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Key.Namespace, Name: credentials}}
	change(h, object, func(s *corev1.Secret) { s.Data["account"] = []byte(account) })
	h.Clock.Step(time.Hour)
}

// TestDeletion_NotFoundInOtherAccount checks that a NotFound from another account does not end the deletion of a VM.
func TestDeletion_NotFoundInOtherAccount(t *testing.T) {
	for name, test := range map[string]struct {
		act func(*harness)
		vms int // that remain
	}{
		"account restored": {func(h *harness) { h.setAccount("first") }, 0},
		"VM moved":         {func(h *harness) { h.Driver.Move("second"); h.Clock.Step(time.Hour) }, 0},
		"location removed": {func(h *harness) {
			h.changeInfra(func(m *infrav1.MillwrightMachine) { delete(m.Annotations, driver.AnnotationLocation) })
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newAccountsHarness(t)
			h.Settle()
			if at := driver.Location(h.infra()); at != "account first" {
				t.Fatalf("location %q", at)
			}
			h.setAccount("second")
			h.delete()
			h.Settle()
			h.restart()
			h.Settle()
			if h.gone() {
				t.Fatal("the object is gone, but its VM still exists")
			}
			h.wantReady(metav1.ConditionFalse, infrav1.ReasonDeletionFailed, "the VM may be in account first")
			test.act(h)
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != test.vms {
				t.Errorf("gone %t, %d VMs remain, want %d", h.gone(), len(h.Driver.VMs()), test.vms)
			}
		})
	}
}

// TestCreation_OtherAccountCreatesNoSecondVM checks that no second VM is created when the response to a creation is lost and the
// credentials then select another account.
func TestCreation_OtherAccountCreatesNoSecondVM(t *testing.T) {
	h := newAccountsHarness(t)
	h.Driver.FailAfter(fake.CreateMachine, codes.DeadlineExceeded)
	h.UntilCalled(fake.CreateMachine)
	h.setAccount("second")
	h.restart()
	h.Settle()
	if n := len(h.Driver.VMs()); n != 1 {
		t.Fatalf("%d VMs", n)
	}
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonCreationFailed, "the VM may be in account first")
	h.setAccount("first")
	h.Settle()
	if id := h.infra().Spec.ProviderID; id == "" || len(h.Driver.VMs()) != 1 {
		t.Errorf("provider ID %q, %d VMs", id, len(h.Driver.VMs()))
	}
}
