package ui

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const testHost = "millwright-abc.localhost:7000"

// fakeClient is a fake client whose watches do not begin with the existing objects.
type fakeClient struct{ client.WithWatch }

// IsWatchListSemanticsUnSupported implements an interface of client-go.
func (fakeClient) IsWatchListSemanticsUnSupported() bool { return true }

func newFakeClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, vmv1alpha1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: capiGroup, Version: "v1beta2"}, {Group: capiGroup, Version: "v1beta1"}})
	for _, object := range objects {
		if object, ok := object.(*unstructured.Unstructured); ok { // a kind that the cluster has in addition
			mapper.Add(object.GroupVersionKind(), meta.RESTScopeNamespace)
		}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...)
	for name, of := range map[string]func(corev1.ObjectReference) string{
		"involvedObject.apiVersion": func(on corev1.ObjectReference) string { return on.APIVersion },
		"involvedObject.kind":       func(on corev1.ObjectReference) string { return on.Kind },
		"involvedObject.name":       func(on corev1.ObjectReference) string { return on.Name },
	} {
		builder.WithIndex(&corev1.Event{}, name, func(object client.Object) []string { return []string{of(object.(*corev1.Event).InvolvedObject)} })
	}
	builder.WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.(*corev1.Pod).Spec.NodeName} })
	return fakeClient{builder.Build()}
}

func newTestServer(t *testing.T, c client.WithWatch, actions ...Action) *Server {
	t.Helper()
	s, err := New(Options{Control: c, Target: c, Host: testHost, Actions: actions})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// call sends a request with the headers, which are pairs.
func call(s *Server, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+testHost+path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// logIn returns the cookie of the session as the value of a header.
func logIn(t *testing.T, s *Server) string {
	t.Helper()
	_, query, _ := strings.Cut(s.URL(), "?")
	w := call(s, "GET", "/?"+query, "")
	cookies := w.Result().Cookies()
	if w.Code != http.StatusOK || len(cookies) != 1 {
		t.Fatalf("login: %d, cookies %v", w.Code, cookies)
	}
	if c := cookies[0]; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" {
		t.Errorf("cookie %+v", c)
	}
	return cookies[0].Name + "=" + cookies[0].Value
}

// TestToken_WorksOnce checks that only the first request with the token gets a cookie, and that the token is not in the
// response.
func TestToken_WorksOnce(t *testing.T) {
	s := newTestServer(t, newFakeClient(t))
	link := s.URL()
	if w := call(s, "GET", "/?token=wrong", ""); w.Code != http.StatusForbidden || len(w.Result().Cookies()) > 0 {
		t.Errorf("wrong token: %d", w.Code)
	}
	logIn(t, s)
	_, query, _ := strings.Cut(link, "?")
	if w := call(s, "GET", "/?"+query, ""); w.Code != http.StatusForbidden || len(w.Result().Cookies()) > 0 || !strings.Contains(w.Body.String(), "already used") {
		t.Errorf("used token: %d %s", w.Code, w.Body)
	}
	if w := call(s, "GET", "/?token=", ""); w.Code != http.StatusForbidden {
		t.Errorf("empty token: %d", w.Code)
	}
}

// TestServer_RejectsForeignRequests checks that requests need the cookie, the host name of the link, and the origin of the
// page.
func TestServer_RejectsForeignRequests(t *testing.T) {
	s := newTestServer(t, newFakeClient(t))
	cookie, origin := logIn(t, s), "http://"+testHost
	for name, tc := range map[string]struct {
		method, path string
		headers      []string
		want         int
	}{
		"page":                        {"GET", "/", []string{"Cookie", cookie}, 200},
		"page without a cookie":       {"GET", "/", nil, 403},
		"script without a cookie":     {"GET", "/main.js", nil, 403},
		"wrong cookie":                {"GET", "/", []string{"Cookie", cookieName + "=x"}, 403},
		"API":                         {"GET", "/api/about", []string{"Cookie", cookie}, 200},
		"API without a cookie":        {"GET", "/api/about", []string{"Origin", origin}, 403},
		"other host":                  {"GET", "/", []string{"Cookie", cookie, "Host", "attacker.example:7000"}, 403},
		"address instead of the name": {"GET", "/", []string{"Cookie", cookie, "Host", "127.0.0.1:7000"}, 403},
		"other port":                  {"GET", "/", []string{"Cookie", cookie, "Host", "millwright-abc.localhost:7001"}, 403},
		"other origin":                {"GET", "/api/about", []string{"Cookie", cookie, "Origin", "http://attacker.example"}, 403},
		"origin on another port":      {"GET", "/api/about", []string{"Cookie", cookie, "Origin", "http://millwright-abc.localhost:7001"}, 403},
		"opaque origin":               {"GET", "/api/about", []string{"Cookie", cookie, "Origin", "null"}, 403},
		"request of another site":     {"GET", "/api/about", []string{"Cookie", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		"request of another port":     {"GET", "/api/about", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-site"}, 403},
		"script in another site":      {"GET", "/main.js", []string{"Cookie", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		"change without an origin":    {"POST", "/api/do", []string{"Cookie", cookie}, 403},
		"stream without an origin":    {"GET", "/api/stream", []string{"Cookie", cookie, "Upgrade", "websocket", "Connection", "Upgrade"}, 403},
		"stream of another origin":    {"GET", "/api/stream", []string{"Cookie", cookie, "Upgrade", "websocket", "Connection", "Upgrade", "Origin", "http://attacker.example"}, 403},
		"console of another origin":   {"GET", "/api/console", []string{"Cookie", cookie, "Upgrade", "websocket", "Connection", "Upgrade", "Origin", "http://attacker.example"}, 403},
		"POST to a file":              {"POST", "/main.js", []string{"Cookie", cookie, "Origin", origin}, 405},
		"unknown path":                {"GET", "/api/secrets", []string{"Cookie", cookie}, 404},
		"path outside":                {"GET", "/../server.go", []string{"Cookie", cookie}, 404},
	} {
		t.Run(name, func(t *testing.T) {
			if w := call(s, tc.method, tc.path, "{}", tc.headers...); w.Code != tc.want {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, tc.want)
			}
		})
	}
}

// TestServer_LimitsThePage checks the headers of every response, also of rejected requests.
func TestServer_LimitsThePage(t *testing.T) {
	s := newTestServer(t, newFakeClient(t))
	cookie := logIn(t, s)
	for _, path := range []string{"/", "/main.js", "/api/about", "/none"} {
		for _, headers := range [][]string{{"Cookie", cookie}, nil, {"Host", "attacker.example"}} {
			response := call(s, "GET", path, "", headers...)
			header := response.Header()
			policy := header.Get("Content-Security-Policy")
			for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
				if !strings.Contains(policy, part) {
					t.Errorf("%s %v: policy %q has no %s", path, headers, policy, part)
				}
			}
			if strings.Contains(policy, "unsafe") || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Referrer-Policy") != "no-referrer" || response.Code == http.StatusOK && header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s %v: %v", path, headers, header)
			}
		}
	}
	if policy := call(s, "GET", "/console.html", "", "Cookie", cookie).Header().Get("Content-Security-Policy"); strings.Contains(policy, "script-src 'self' 'unsafe") || !strings.Contains(policy, "default-src 'none'; script-src 'self';") {
		t.Errorf("console: %q", policy)
	}
}

// scaling is a server with one action, and what it did.
type scaling struct {
	t       *testing.T
	server  *Server
	cookie  string
	did     []Request
	failure error
}

func newScaling(t *testing.T) *scaling {
	t.Helper()
	s := &scaling{t: t}
	s.server = newTestServer(t, newFakeClient(t), Action{
		Name: "scale", Kind: "pool", Input: "replicas",
		Command: func(r Request) []string { return []string{"kubectl", "scale", r.Name, "--as", "it's me"} },
		Do: func(_ context.Context, r Request) (string, error) {
			s.did = append(s.did, r)
			return "scaled", s.failure
		},
	})
	s.cookie = logIn(t, s.server)
	return s
}

func (s *scaling) send(path, body string) (int, map[string]string) {
	s.t.Helper()
	w := call(s.server, "POST", "/api/"+path, body, "Cookie", s.cookie, "Origin", "http://"+testHost)
	result := map[string]string{}
	if err := json.Unmarshal(w.Body.Bytes(), &result); err != nil {
		s.t.Fatalf("%s: %v", w.Body, err)
	}
	return w.Code, result
}

// TestAction_IsPlannedBeforeItIsDone checks that a plan changes nothing, and that the error of an action is shown.
func TestAction_IsPlannedBeforeItIsDone(t *testing.T) {
	s := newScaling(t)
	const request = `{"action":"scale","namespace":"n","name":"pool","replicas":5}`
	if code, result := s.send("plan", request); code != 200 || result["command"] != `kubectl scale pool --as 'it'\''s me'` || len(s.did) > 0 {
		t.Errorf("plan: %d %v, did %v", code, result, s.did)
	}
	if code, result := s.send("do", request); code != 200 || result["done"] != "scaled" || len(s.did) != 1 || *s.did[0].Replicas != 5 || s.did[0].Namespace != "n" {
		t.Errorf("do: %d %v, did %v", code, result, s.did)
	}
	s.failure = errors.New("no permission")
	if code, result := s.send("do", request); code != http.StatusBadGateway || result["error"] != "no permission" {
		t.Errorf("failure: %d %v", code, result)
	}
}

// TestAction_InvalidRequests checks that invalid requests do nothing and return an error.
func TestAction_InvalidRequests(t *testing.T) {
	s := newScaling(t)
	for _, body := range []string{``, `[]`, `{"action":"delete"}`, `{"action":"scale","name":"pool"}`, `{"action":"scale","replicas":-1}`, `{"action":"scale","replicas":1,"more":1}`} {
		if code, result := s.send("do", body); code != http.StatusBadRequest || result["error"] == "" || len(s.did) > 0 {
			t.Errorf("%s: %d %v, did %v", body, code, result, s.did)
		}
	}
}

// TestHostName_IsRandom checks that servers on other ports cannot guess the host name, and that browsers resolve it to the
// loopback address.
func TestHostName_IsRandom(t *testing.T) {
	one, other := NewHostName(), NewHostName()
	if one == other || !strings.HasSuffix(one, ".localhost") || strings.ToLower(one) != one || len(one) < len("millwright-.localhost")+10 {
		t.Errorf("got %s and %s", one, other)
	}
}
