package capi

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/managedfields"
	testingclock "k8s.io/utils/clock/testing"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// FuzzReconcile checks that, with arbitrary objects and errors of the driver, every reconcile returns, no second VM is
// created, and no VM is deleted whose owner is not being deleted.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil), "")
		f.Add(data, []byte(nil), "no \x1b[2J quota")
		f.Add([]byte(nil), data, "")
	})
	f.Fuzz(func(t *testing.T, infraData, otherData []byte, failure string) {
		clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		g := newGiven(fixture.Namespace, clock.Now())
		absurd.Objects(infraData, g.infra)
		absurd.Objects(otherData, g.machine, g.cluster, g.bootstrap)
		c := fakeclient.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
			WithObjects(g.objects()...).WithStatusSubresource(&infrav1.MillwrightMachine{}).Build()
		h := newHarnessOf(t, clock, fixture.Namespace, c)
		for range strings.Count(failure, " ") {
			h.Driver.FailWith(fake.CreateMachine, errors.New(failure))
		}
		deletions := 0
		const reconciles = 8
		for range reconciles {
			absurd.Within("a reconcile", func() {
				_, _ = h.Reconciler.Reconcile(t.Context(), h.Request()) // an error is acceptable
				h.Call()
			})
			clock.Step(30 * time.Second)
			deletions = max(deletions, len(h.deleted()))
		}
		if n := len(h.Driver.VMs()); n > 1 {
			t.Errorf("there are %d VMs", n)
		}
		if keep := g.infra.DeletionTimestamp == nil && g.machine.DeletionTimestamp == nil; keep && (deletions > 0 || h.gone()) {
			t.Errorf("the object was not deleted, but there were %d DeleteMachine calls; writes:\n%s", deletions, h.LastWrites())
		}
		if !h.gone() {
			checkTexts(t, g.infra, h.infra())
		}
	})
}

// checkTexts checks that every condition message that the controller wrote is printable and not too long.
func checkTexts(t *testing.T, given, found *infrav1.MillwrightMachine) {
	t.Helper()
	before := map[string]bool{}
	for _, condition := range given.Status.Conditions {
		before[condition.Message] = true
	}
	for _, condition := range found.Status.Conditions {
		bad := strings.ContainsFunc(condition.Message, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) })
		if !before[condition.Message] && (bad || len(condition.Message) > 4096) {
			t.Errorf("condition %s has a message of %d bytes: %.300q", condition.Type, len(condition.Message), condition.Message)
		}
	}
}
