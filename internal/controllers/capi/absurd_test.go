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

// FuzzReconcile: whatever the objects contain and the provider says, passes end, and there is no
// second VM, nor is one deleted whose owner nobody deleted.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil), "")
		f.Add(data, []byte(nil), "no \x1b[2J quota")
		f.Add([]byte(nil), data, "")
	})
	f.Fuzz(func(t *testing.T, ofInfra, ofOthers []byte, failure string) {
		clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		g := newGiven(fixture.Namespace, clock.Now())
		absurd.Objects(ofInfra, g.infra)
		absurd.Objects(ofOthers, g.machine, g.cluster, g.bootstrap)
		c := fakeclient.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
			WithObjects(g.objects()...).WithStatusSubresource(&infrav1.MillwrightMachine{}).Build()
		h := newHarnessOf(t, clock, fixture.Namespace, c)
		for range strings.Count(failure, " ") {
			h.Driver.FailWith(fake.CreateMachine, errors.New(failure))
		}
		deletedAt := 0
		const passes = 8
		for range passes {
			absurd.Within("a pass", func() {
				_, _ = h.Reconciler.Reconcile(t.Context(), h.Request()) // an error is fine
				h.Call()
			})
			clock.Step(30 * time.Second)
			deletedAt = max(deletedAt, len(h.deleted()))
		}
		if n := len(h.Driver.VMs()); n > 1 {
			t.Errorf("there are %d VMs", n)
		}
		if wanted := g.infra.DeletionTimestamp == nil && g.machine.DeletionTimestamp == nil; wanted && (deletedAt > 0 || h.gone()) {
			t.Errorf("nobody deleted it, but there are %d calls to delete; writes:\n%s", deletedAt, h.LastWrites())
		}
		if !h.gone() {
			checkTexts(t, g.infra, h.infra())
		}
	})
}

// checkTexts reports texts that the controller wrote and nobody can read.
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
