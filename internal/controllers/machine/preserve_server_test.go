package machine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// recorded is a Machine and its node as recorded from MCM.
type recorded struct {
	machine *v1alpha1.Machine
	node    *corev1.Node
}

// readRecorded reads a recorded state from testdata/preservation.
func readRecorded(t *testing.T, state, name string) recorded {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "preservation", state+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(content, &list); err != nil {
		t.Fatal(err)
	}
	found := recorded{&v1alpha1.Machine{}, &corev1.Node{}}
	for _, item := range list.Items {
		kind := metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(item, &kind); err != nil {
			t.Fatal(err)
		}
		into := any(found.machine)
		if kind.Kind == "Node" {
			into = found.node
		}
		if kind.Name != name {
			continue
		}
		if err := json.Unmarshal(item, into); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// facts returns the fields that a preservation changes.
func (r recorded) facts() map[string]any {
	of := map[string]any{
		"annotations of the machine": r.machine.Annotations, "annotations of the node": r.node.Annotations,
		"status": r.machine.Status.CurrentStatus,
		"taints": r.node.Spec.Taints, "unschedulable": r.node.Spec.Unschedulable,
		"condition of the machine": noderef.Condition(r.machine.Status.Conditions, v1alpha1.NodePreserved),
		"condition of the node":    noderef.Condition(r.node.Status.Conditions, v1alpha1.NodePreserved),
		"operation":                r.machine.Status.LastOperation.State,
	}
	return of
}

// TestPreservation_MatchesRecordingsOfMCM checks that from the recorded states of MCM, Millwright reaches the states that
// followed, field by field.
func TestPreservation_MatchesRecordingsOfMCM(t *testing.T) {
	const one, two = "scaled-7d4c5-2mmbx", "scaled-7d4c5-6g5jw"
	const annotated, unknown, preserved, stopping = "27-preserve-when-failed-annotated", "28-preserve-when-failed", "29-preserve-now", "30-preserve-stopped"
	at := func(clock string) time.Time {
		parsed, err := time.Parse(time.RFC3339, "2026-11-21T"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, test := range map[string]struct {
		machine  string
		from, to string
		value    string
		begins   time.Time
		after    time.Duration
	}{
		"annotated, running":  {one, annotated, annotated, "when-failed", at("01:57:06"), 0},
		"failed":              {one, unknown, preserved, "when-failed", at("01:57:59"), 15 * time.Second},
		"preserved now":       {two, unknown, preserved, "now", at("01:58:09"), 0},
		"stopped":             {two, preserved, stopping, "", at("01:58:15"), 0},
		"taken over":          {one, preserved, stopping, "when-failed", at("01:58:15"), 0},
		"taken over, stopped": {two, stopping, stopping, "", at("01:58:16"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			given, want := readRecorded(t, test.from, test.machine), readRecorded(t, test.to, test.machine)
			setPreserve(given.machine, test.value)
			h := newHarness(t)
			h.Key, h.Clock = types.NamespacedName{Namespace: given.machine.Namespace, Name: test.machine}, testingclock.NewFakeClock(test.begins)
			h.begin(newFake(given.machine), newFake(given.node))
			h.controller.PreserveTimeout, h.controller.Health.Timeout = 3*time.Minute, 15*time.Second
			h.Settle()
			h.SettleAfter(test.after)
			got := recorded{h.machine(), &corev1.Node{}}
			if err := h.target.client.Get(t.Context(), client.ObjectKey{Name: test.machine}, got.node); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.facts(), got.facts()); diff != "" {
				t.Errorf("after MCM (-) and after Millwright (+):\n%s", diff)
			}
			if test.from == test.to && len(h.Writes) > 0 {
				t.Errorf("unexpected writes:\n%s", h.LastWrites())
			}
		})
	}
}

// TestPreservation_LifecycleOnServer checks a whole preservation with a real API server, which has resource versions and
// validation.
func TestPreservation_LifecycleOnServer(t *testing.T) {
	h := newServerHarness(t)
	h.controller.PreserveTimeout = preserveTimeout
	h.running()
	h.preserveNode("when-failed")
	h.Settle()
	h.wantKept(kept{Node: "when-failed", Last: "when-failed"})
	h.fail()
	h.wantKept(kept{Node: "when-failed", Last: "when-failed", Expiry: "72h0m0s", Scale: "true", Tainted: true, Condition: byUser, Message: drained})

	for _, expiry := range []any{"soon", "2026-02-30T00:00:00Z", 7, map[string]any{}} {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"currentStatus": map[string]any{"preserveExpiryTime": expiry}}})
		if err != nil {
			t.Fatal(err)
		}
		err = h.control.Status().Patch(t.Context(), h.machine(), client.RawPatch(types.MergePatchType, patch))
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("the API server accepts the expiry %v: %v", expiry, err)
		}
	}
	far := metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
	machine := h.machine()
	machine.Status.CurrentStatus.PreserveExpiryTime = &far
	if err := h.control.Status().Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	h.Settle()
	if got := h.machine().Status.CurrentStatus.PreserveExpiryTime; !got.Equal(&far) {
		t.Errorf("preserved until %v, want %v", got, far)
	}

	machine = h.machine()
	machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: h.Clock.Now().Add(-time.Hour).Truncate(time.Second)}
	if err := h.control.Status().Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	h.Settle()
	h.wantKept(kept{Condition: stopped})

	h.join(preservedAnd(h, ready)...)
	h.Settle()
	h.preserve("now")
	h.Settle()
	h.wantKept(kept{Own: "now", Expiry: "72h0m0s", Scale: "true", Condition: byUser})
	h.Writes = nil
	h.Clock.Step(time.Minute)
	h.Settle()
	if len(h.Writes) != 0 {
		t.Errorf("unexpected writes:\n%s", h.LastWrites())
	}
	h.preserve("false")
	h.Settle()
	h.wantKept(kept{Own: "false", Condition: stopped})
}
