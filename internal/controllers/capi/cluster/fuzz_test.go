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

// FuzzReconcile: whatever the objects contain and the driver says, passes end and settle, a given
// endpoint stays, and what is written can be read.
func FuzzReconcile(f *testing.F) {
	absurd.Seed(f, func(data []byte) {
		f.Add(data, []byte(nil), "a", false)
		f.Add([]byte(nil), data, "b\x1b[2J", true)
		f.Add(data, data, "\x8e", false)
		f.Add(data, data, strings.Repeat("x", 300), false)
	})
	f.Fuzz(func(t *testing.T, ofInfra, ofOthers []byte, said string, fails bool) {
		h := newHarness(t, func(g *given) {
			g.infra.Spec.ControlPlaneEndpoint = nil
			absurd.Objects(ofInfra, g.infra)
			g.machine("m", 0, map[string]string{core.LabelControlPlane: ""}, infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"})
			absurd.Objects(ofOthers, g.cluster, g.machines[0])
		})
		h.lister.names = []string{said, "a", said}
		if fails {
			h.lister.err = errors.New(said)
		}
		before := h.infra()
		last := ""
		for range 6 {
			last = h.infra().ResourceVersion
			absurd.Within("a pass", func() {
				_, _ = h.controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: h.key}) // an error is fine
				for _, task := range h.tasks {
					task(t.Context())
				}
				h.tasks = nil
			})
			h.clock.Step(time.Second)
		}
		after := h.infra()
		if after.ResourceVersion != last {
			t.Error("it is written again and again")
		}
		checkChanges(t, before, after)
		absurd.Within("an event", func() {
			core.Requests(t.Context(), h.client, &infrav1.MillwrightClusterList{}, func(client.Object) bool { return true })
		})
	})
}

// checkChanges reports changes of what is not the controller's, and texts that nobody can read.
func checkChanges(t *testing.T, before, after *infrav1.MillwrightCluster) {
	t.Helper()
	known := map[string]bool{}
	for _, condition := range before.Status.Conditions {
		known[condition.Message] = true
	}
	for _, condition := range after.Status.Conditions {
		bad := strings.ContainsFunc(condition.Message, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) })
		if !known[condition.Message] && (bad || len(condition.Message) > 4096) {
			t.Errorf("condition %s has a message of %d bytes: %.300q", condition.Type, len(condition.Message), condition.Message)
		}
	}
	if before.Spec.ControlPlaneEndpoint == nil {
		after.Spec.ControlPlaneEndpoint = nil
	}
	if diff := cmp.Diff(asJSON(t, before.Spec), asJSON(t, after.Spec)); diff != "" {
		t.Errorf("the spec changed (-was +is):\n%s", diff)
	}
	before.ResourceVersion, after.ResourceVersion = "", ""
	if diff := cmp.Diff(before.ObjectMeta, after.ObjectMeta); diff != "" {
		t.Errorf("the metadata changed (-was +is):\n%s", diff)
	}
}

// asJSON is a value as JSON says it, where 1e9 and 1e+9 are one.
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
