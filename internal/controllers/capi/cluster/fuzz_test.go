package cluster

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/absurd"
)

// FuzzReconcile checks that, with arbitrary objects and responses of the driver, every reconcile returns, nothing is
// written after the last change, a given endpoint stays, and all messages are printable.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil), "a", false)
		f.Add([]byte(nil), data, "b\x1b[2J", true)
		f.Add(data, data, "\x8e", false)
		f.Add(data, data, strings.Repeat("x", 300), false)
	})
	f.Fuzz(func(t *testing.T, infraData, otherData []byte, text string, fails bool) {
		h := newHarness(t, func(g *given) {
			g.infra.Spec.ControlPlaneEndpoint = nil
			absurd.Objects(infraData, g.infra)
			g.machine("m", 0, map[string]string{core.LabelControlPlane: ""}, infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"})
			absurd.Objects(otherData, g.cluster, g.machines[0])
		})
		h.lister.names = []string{text, "a", text}
		if fails {
			h.lister.err = errors.New(text)
		}
		before := h.infra()
		last := ""
		for range 6 {
			last = h.infra().ResourceVersion
			absurd.Within("a reconcile", func() {
				_, _ = h.controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: h.key}) // an error is acceptable
				for _, task := range h.tasks {
					task(t.Context())
				}
				h.tasks = nil
			})
			h.clock.Step(time.Second)
		}
		after := h.infra()
		if after.ResourceVersion != last {
			t.Error("every reconcile writes")
		}
		checkChanges(t, before, after)
		absurd.Within("an event", func() {
			core.Requests(t.Context(), h.client, &infrav1.MillwrightClusterList{}, func(client.Object) bool { return true })
		})
	})
}

// checkChanges checks that only the controller's fields have changed, and that its messages are printable.
func checkChanges(t *testing.T, before, after *infrav1.MillwrightCluster) {
	t.Helper()
	messages := map[string]bool{}
	for _, condition := range before.Status.Conditions {
		messages[condition.Message] = true
	}
	for _, condition := range after.Status.Conditions {
		bad := strings.ContainsFunc(condition.Message, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) })
		if !messages[condition.Message] && (bad || len(condition.Message) > 4096) {
			t.Errorf("condition %s has a message of %d bytes: %.300q", condition.Type, len(condition.Message), condition.Message)
		}
	}
	if before.Spec.ControlPlaneEndpoint == nil {
		after.Spec.ControlPlaneEndpoint = nil
	}
	if diff := cmp.Diff(asJSON(t, before.Spec), asJSON(t, after.Spec)); diff != "" {
		t.Errorf("the spec changed (-before +after):\n%s", diff)
	}
	before.ResourceVersion, after.ResourceVersion = "", ""
	if diff := cmp.Diff(before.ObjectMeta, after.ObjectMeta); diff != "" {
		t.Errorf("the metadata changed (-before +after):\n%s", diff)
	}
}

// asJSON encodes and decodes a value as JSON, so that 1e9 and 1e+9 are equal.
func asJSON(t *testing.T, value any) (decoded any) {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(encoded, &decoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return decoded
}
