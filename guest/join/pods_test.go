package join

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/guest/kube"
)

const (
	podPath   = "/api/v1/namespaces/default/pods/web"
	deleted   = `,"deletionTimestamp":"2026-11-21T05:00:00Z","deletionGracePeriodSeconds":30`
	abandoned = `,"deletionTimestamp":"2026-11-21T05:00:00Z","deletionGracePeriodSeconds":0`
)

// seenPod returns an event of a watch.
func seenPod(kind, metadata, phase, reason string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"namespace":"default","name":"web","uid":"u1"%s},"status":{"phase":%q,"reason":%q}}}`,
		kind, metadata, phase, reason)
}

// follow lets the guest handle one event, and returns the requests.
func follow(t *testing.T, event string, code int) (*server, error) {
	t.Helper()
	s, n := serve(t, map[string]response{
		"GET /api/v1/pods":             {http.StatusOK, event},
		"PATCH " + podPath + "/status": {code, `{}`},
		"DELETE " + podPath:            {code, `{}`},
	})
	answering := newPods(n.client, "one", t.Logf)
	return s, answering.follow(t.Context())
}

func TestPod_RequestsAreHandled(t *testing.T) {
	for name, test := range map[string]struct{ event, request, body string }{
		"New": {
			seenPod("ADDED", "", "Pending", ""), "PATCH " + podPath + "/status",
			`{"metadata":{"uid":"u1"},"status":{"reason":"GuestRunsNoPods","message":"the guest does not run Pods: this Pod never started"}}`,
		},
		"Known":     {event: seenPod("MODIFIED", "", "Pending", "GuestRunsNoPods")},
		"OfOthers":  {event: seenPod("MODIFIED", "", "Running", "")},
		"Finished":  {event: seenPod("MODIFIED", "", "Succeeded", "")},
		"Gone":      {event: seenPod("DELETED", deleted, "Failed", "")},
		"Abandoned": {event: seenPod("MODIFIED", abandoned, "Failed", "")},
		"ToEnd": {
			seenPod("MODIFIED", deleted, "Running", ""), "PATCH " + podPath + "/status",
			`{"metadata":{"uid":"u1"},"status":{"phase":"Failed","reason":"GuestRunsNoPods","message":"the guest does not run Pods: this Pod never started"}}`,
		},
		"Ended":     {seenPod("MODIFIED", deleted, "Failed", ""), "DELETE " + podPath, `{"gracePeriodSeconds":0,"preconditions":{"uid":"u1"}}`},
		"Succeeded": {seenPod("ADDED", deleted, "Succeeded", ""), "DELETE " + podPath, `{"gracePeriodSeconds":0,"preconditions":{"uid":"u1"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := follow(t, test.event, http.StatusOK)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"GET /api/v1/pods"}
			if test.request != "" {
				want = append(want, test.request)
			}
			if diff := cmp.Diff(want, s.requests); diff != "" {
				t.Fatalf("requests (-want +got)\n%s", diff)
			}
			if test.request != "" {
				if diff := cmp.Diff(parsed(t, []byte(test.body)), parsed(t, s.bodies[test.request])); diff != "" {
					t.Errorf("%s (-want +got)\n%s", test.request, diff)
				}
			}
		})
	}
}

func parsed(t *testing.T, text []byte) any {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

// TestPod_OfOtherUIDIsIgnored: a Pod that is gone, or was replaced by another Pod of the same name, is not a
// failure.
func TestPod_OfOtherUIDIsIgnored(t *testing.T) {
	seen := &pod{Status: podStatus{Phase: "Running"}}
	seen.Metadata.Namespace, seen.Metadata.Name, seen.Metadata.Deleted = "default", "web", "2026-11-21T05:00:00Z"
	for code, want := range map[int]bool{http.StatusNotFound: false, http.StatusConflict: false, http.StatusForbidden: true} {
		_, n := serve(t, map[string]response{"PATCH " + podPath + "/status": {code, `{}`}})
		if err := newPods(n.client, "one", t.Logf).respond(t.Context(), seen); (err != nil) != want {
			t.Errorf("status %d: got error %v", code, err)
		}
	}
}

// TestPod_FailedRequestIsRetried: a failed request for a Pod stops the watch after a pause. Other Pods are handled in
// the meantime.
func TestPod_FailedRequestIsRetried(t *testing.T) {
	requests, pauses := make(chan string, 10), make(chan func(), 10)
	n := serveBy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Method + " " + r.URL.Path
		switch r.Method {
		case http.MethodGet:
			if got := r.URL.Query().Get("fieldSelector"); got != "spec.nodeName=one" {
				t.Errorf("got field selector %q", got)
			}
			_, _ = fmt.Fprintln(w, seenPod("ADDED", deleted, "Failed", ""), seenPod("ADDED", "", "Pending", ""))
			w.(http.Flusher).Flush()
			<-r.Context().Done() // the watch stays open
		case http.MethodDelete:
			w.WriteHeader(http.StatusForbidden)
		case http.MethodPatch:
			(<-pauses)()
		}
	}))
	answering := newPods(n.client, "one", t.Logf)
	answering.later = func(f func()) { pauses <- f }
	if err := answering.follow(t.Context()); !kube.IsStatus(err, http.StatusForbidden) {
		t.Errorf("follow = %v, want the failed response", err)
	}
	for _, want := range []string{"GET /api/v1/pods", "DELETE " + podPath, "PATCH " + podPath + "/status"} {
		if got := <-requests; got != want {
			t.Errorf("got request %s, want %s", got, want)
		}
	}
}
