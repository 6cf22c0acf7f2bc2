package join

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/guest/userdata"
)

// fakeNode is a Node of an API server, with the fields that an in-place update uses.
type fakeNode struct {
	labels        map[string]string
	reason, since string
	boot          string
	restarts      int
}

// ServeHTTP responds to the requests of a guest.
func (f *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var patch struct {
		Metadata struct{ Labels map[string]string }
		Status   struct{ NodeInfo map[string]string }
	}
	switch r.Method {
	case http.MethodPost:
		w.WriteHeader(http.StatusConflict)
	case http.MethodPatch:
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if patch.Status.NodeInfo != nil {
			f.boot = patch.Status.NodeInfo["bootID"]
		}
		if result := patch.Metadata.Labels[updateResult]; result != "" {
			f.labels = map[string]string{updateResult: result}
		}
	}
	there := existing{Metadata: metadata{Labels: f.labels}}
	there.Status.NodeInfo.BootID = f.boot
	there.Status.Conditions = append(conditions(now), condition{Type: inPlaceUpdate, Status: "True", Reason: f.reason, Transition: f.since})
	_ = json.NewEncoder(w).Encode(there)
}

// starts starts the guest, which checks its Node once. The boot is over when the guest restarts.
func (f *fakeNode) starts(t *testing.T, id string) {
	t.Helper()
	n := serveBy(t, f)
	n.data, n.info.BootID = userdata.UserData{NodeName: "one"}, id
	n.restart = func() { f.restarts++ }
	if err := n.register(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if f.restarts > 0 {
			return
		}
		if err := n.keepStatus(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUpdate_RestartsGuestOnce: a guest restarts once when its Node is ready for an update, and then reports success.
func TestUpdate_RestartsGuestOnce(t *testing.T) {
	type state struct {
		Result   string
		Restarts int
	}
	for name, test := range map[string]struct {
		node fakeNode
		boot string
		want state
	}{
		"drained":                        {fakeNode{boot: "this", reason: readyForUpdate, since: "5"}, "this", state{"", 1}},
		"restarted":                      {fakeNode{boot: "last", reason: readyForUpdate, since: "5"}, "this", state{updateSuccessful, 0}},
		"not drained":                    {fakeNode{boot: "this", reason: "SelectedForUpdate", since: "5"}, "this", state{"", 0}},
		"not drained before it restarts": {fakeNode{boot: "last", reason: "SelectedForUpdate", since: "5"}, "this", state{"", 0}},
		"reported":                       {fakeNode{boot: "last", reason: readyForUpdate, since: "5", labels: map[string]string{updateResult: "failed"}}, "this", state{"failed", 0}},
	} {
		t.Run(name, func(t *testing.T) {
			f := test.node
			f.starts(t, test.boot)
			if diff := cmp.Diff(test.want, state{f.labels[updateResult], f.restarts}); diff != "" {
				t.Errorf("after a boot (-want +got)\n%s", diff)
			}
		})
	}
}

// TestUpdate_OncePerBoot: one boot performs only one update; the next update restarts the guest again.
func TestUpdate_OncePerBoot(t *testing.T) {
	f := &fakeNode{boot: "0", reason: readyForUpdate}
	for update := 1; update <= 3; update++ {
		f.labels, f.since, f.restarts = nil, fmt.Sprint(update), 0
		n := serveBy(t, f)
		n.info.BootID, n.restart = f.boot, func() { f.restarts++ }
		n.restartedFor = fmt.Sprint(update - 1)
		if err := n.keepStatus(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if f.restarts != 1 || f.labels != nil {
			t.Errorf("update %d: got %d restarts, labels %v", update, f.restarts, f.labels)
		}
		f.restarts = 0
		f.starts(t, fmt.Sprint(update))
		if f.restarts != 0 || f.labels[updateResult] != updateSuccessful {
			t.Errorf("update %d after its boot: got %d restarts, labels %v", update, f.restarts, f.labels)
		}
	}
}
