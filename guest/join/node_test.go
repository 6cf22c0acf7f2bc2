package join

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/guest/kube"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// server responds from a table of "METHOD PATH", and records its requests.
type server struct {
	mu        sync.Mutex
	responses map[string]response
	requests  []string
	bodies    map[string]json.RawMessage
}

type response struct {
	code int
	body string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.Method + " " + r.URL.Path
	s.requests = append(s.requests, key)
	s.bodies[key], _ = io.ReadAll(r.Body)
	reply, ok := s.responses[key]
	if !ok {
		reply = response{http.StatusNotFound, `{"message":"not found"}`}
	}
	w.WriteHeader(reply.code)
	_, _ = io.WriteString(w, reply.body)
}

// serve returns a node named "one" of a new server.
func serve(t *testing.T, responses map[string]response) (*server, *node) {
	t.Helper()
	s := &server{responses: responses, bodies: map[string]json.RawMessage{}}
	return s, serveBy(t, s)
}

// serveBy returns a node named "one" of a server with the handler.
func serveBy(t *testing.T, handler http.Handler) *node {
	t.Helper()
	listening := httptest.NewTLSServer(handler)
	t.Cleanup(listening.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: listening.Certificate().Raw})
	client, err := kube.New(kube.Access{Server: listening.URL, Authority: authority})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &node{
		client: client, uid: "uid-1",
		data: userdata.UserData{NodeName: "one", ProviderID: "millwright:///default/u"},
		info: Machine{Addresses: []string{"10.77.0.16", "fd00::16"}, BootID: "this"},
		logf: t.Logf, restart: func() { t.Error("the machine was restarted") },
	}
}

var now = time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)

const ready = `"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"},` +
	`{"type":"DiskPressure","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]`

func TestRegister_AdoptsOwnNode(t *testing.T) {
	s, n := serve(t, map[string]response{
		"POST /api/v1/nodes":             {http.StatusConflict, `{}`},
		"GET /api/v1/nodes/one":          {http.StatusOK, `{"metadata":{"uid":"uid-2"},"status":{` + ready + `}}`},
		"PATCH /api/v1/nodes/one":        {http.StatusOK, `{}`},
		"PATCH /api/v1/nodes/one/status": {http.StatusOK, `{}`},
	})
	if err := n.register(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if n.uid != "uid-2" {
		t.Errorf("UID = %s, want that of the existing node", n.uid)
	}
	var patch struct {
		Status struct {
			Addresses  []address
			Conditions []condition
		}
	}
	if err := json.Unmarshal(s.bodies["PATCH /api/v1/nodes/one/status"], &patch); err != nil {
		t.Fatal(err)
	}
	wantAddresses := []address{
		{Type: "Hostname", Address: "one"}, {Type: "InternalIP", Address: "10.77.0.16"},
		{Type: "InternalIP", Address: "fd00::16"}, {Patch: "replace"},
	}
	if diff := cmp.Diff(wantAddresses, patch.Status.Addresses); diff != "" {
		t.Errorf("addresses (-want +got)\n%s", diff)
	}
	// Conditions that did not change keep their transition time.
	for _, c := range patch.Status.Conditions {
		want := "2026-11-21T05:00:00Z"
		if c.Type == "Ready" {
			want = "2026-01-01T00:00:00Z"
		}
		if c.Transition != want {
			t.Errorf("transition of %s = %s, want %s", c.Type, c.Transition, want)
		}
	}
}

func TestRegister_RejectsNodeOfOtherMachine(t *testing.T) {
	s, n := serve(t, map[string]response{
		"POST /api/v1/nodes":    {http.StatusConflict, `{}`},
		"GET /api/v1/nodes/one": {http.StatusOK, `{"spec":{"providerID":"millwright:///default/other"}}`},
	})
	if err := n.register(t.Context(), now); err == nil {
		t.Error("register succeeded")
	}
	if diff := cmp.Diff([]string{"POST /api/v1/nodes", "GET /api/v1/nodes/one"}, s.requests); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
}

// TestNode_IsNotRecreatedAfterDeletion: neither the status nor the Lease is recreated.
func TestNode_IsNotRecreatedAfterDeletion(t *testing.T) {
	s, n := serve(t, nil)
	beat := &lease{client: n.client, node: n, version: "1"}
	for _, err := range []error{n.keepStatus(t.Context(), now), beat.renew(t.Context(), now)} {
		if !kube.IsStatus(err, http.StatusNotFound) {
			t.Errorf("error = %v, want not found", err)
		}
	}
	for _, request := range s.requests {
		if request[:4] == "POST" {
			t.Errorf("request %s was sent", request)
		}
	}
}

func TestLease_IsAdoptedAndRenewed(t *testing.T) {
	const path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/one"
	s, n := serve(t, map[string]response{
		"GET " + path: {http.StatusOK, `{"metadata":{"resourceVersion":"7"}}`},
		"PUT " + path: {http.StatusOK, `{"metadata":{"resourceVersion":"8"}}`},
	})
	beat := &lease{client: n.client, node: n}
	for range 2 {
		if err := beat.renew(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"GET " + path, "PUT " + path, "PUT " + path}, s.requests); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
	var sent struct {
		Metadata metadata
		Spec     leaseSpec
	}
	if err := json.Unmarshal(s.bodies["PUT "+path], &sent); err != nil {
		t.Fatal(err)
	}
	if want := (leaseSpec{"one", leaseSeconds, "2026-11-21T05:00:00.000000Z"}); sent.Spec != want || sent.Metadata.ResourceVersion != "8" {
		t.Errorf("sent %+v, want %+v at version 8", sent, want)
	}
}

// TestRetry: a failure is logged once per change, and retried after growing pauses. Only a rejection of the
// certificate stops the retries.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged []string
		j := &Joiner{Logf: func(format string, arguments ...any) { logged = append(logged, arguments[0].(string)) }}
		unavailable := &kube.StatusError{Code: http.StatusServiceUnavailable}
		refused := &kube.StatusError{Code: http.StatusUnauthorized}
		tries := 0
		begin := time.Now()
		err := j.untilRefused(t.Context(), func() error {
			if tries++; tries <= 8 {
				return unavailable
			}
			return refused
		})
		if !kube.IsStatus(err, http.StatusUnauthorized) {
			t.Errorf("untilRefused = %v, want the rejection", err)
		}
		// 1+2+4+8+15+15+15+15 s, each reduced by up to a quarter.
		if took := time.Since(begin); took < 56*time.Second || took > 75*time.Second {
			t.Errorf("eight pauses took %s", took)
		}
		if diff := cmp.Diff([]string{unavailable.Error()}, logged); diff != "" {
			t.Errorf("log (-want +got)\n%s", diff)
		}
	})
}

func TestRetry_ReturnsWhenContextIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	j := &Joiner{Logf: func(string, ...any) { cancel() }}
	if err := j.retry(ctx, func() error { return io.EOF }); err != context.Canceled {
		t.Errorf("retry = %v, want context.Canceled", err)
	}
}

// TestStatus_IsRewritten: the status is written when it is outdated, and when the status of the Node differs.
func TestStatus_IsRewritten(t *testing.T) {
	ours, err := json.Marshal(conditions(now))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		conditions string
		age        time.Duration
		want       bool
	}{
		"Same":    {string(ours), statusInterval - time.Second, false},
		"Old":     {string(ours), statusInterval, true},
		"Unknown": {strings.ReplaceAll(string(ours), `"True"`, `"Unknown"`), time.Second, true},
		"Missing": {`[]`, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := serve(t, map[string]response{
				"GET /api/v1/nodes/one":          {http.StatusOK, `{"status":{"conditions":` + test.conditions + `}}`},
				"PATCH /api/v1/nodes/one/status": {http.StatusOK, `{}`},
			})
			n.reported = now.Add(-test.age)
			if err := n.keepStatus(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			if patched := s.bodies["PATCH /api/v1/nodes/one/status"] != nil; patched != test.want {
				t.Errorf("the status was written: %t, want %t", patched, test.want)
			}
			if test.want && n.reported != now {
				t.Errorf("written at %s, want %s", n.reported, now)
			}
		})
	}
}
