package ui

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestMetricsURL_IsValidated checks which values of the flag are accepted.
func TestMetricsURL_IsValidated(t *testing.T) {
	for value, want := range map[string]bool{
		"": true, "none": true, "http://127.0.0.1:10259/metrics": true, "https://metrics.example.com/x": true,
		"127.0.0.1:10259": false, "file:///etc/passwd": false, "http://": false, "http://user:password@host/": false,
	} {
		if err := (&flags{metricsURL: value}).validate(); (err == nil) != want {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// TestMetrics_AreReadFromURL checks that neither redirects nor errors are taken for metrics, and that no credentials are
// sent.
func TestMetrics_AreReadFromURL(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
			t.Errorf("credentials are sent: %v", r.Header)
		}
		switch r.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(w, "x 1\n")
		case "/elsewhere":
			http.Redirect(w, r, "/metrics", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	read, err := fromURL(server.URL+"/metrics", server.URL+"/metrics", nil)(t.Context())
	if err != nil || len(read.Texts) != 1 {
		t.Fatal(read, err)
	}
	if text, err := io.ReadAll(read.Texts[0]); err != nil || string(text) != "x 1\n" {
		t.Errorf("%q, %v", text, err)
	}
	read.Close()
	for path, want := range map[string]string{"/elsewhere": "302", "/missing": "404"} {
		if _, err := fromURL(server.URL+path, server.URL+path, nil)(t.Context()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--metrics-url") {
			t.Errorf("%s: %v", path, err)
		}
	}
	server.Close()
	if _, err := fromURL(server.URL, server.URL, nil)(t.Context()); err == nil || !strings.Contains(err.Error(), "--metrics-url") {
		t.Errorf("no server: %v", err)
	}
}

// TestMetrics_AreReadFromPods checks that the Pods which hold the leases are read through the API server, and that problems
// name the next step.
func TestMetrics_AreReadFromPods(t *testing.T) {
	forbidden := false
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		if forbidden {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"pods/proxy is forbidden"}`)
			return
		}
		_, _ = io.WriteString(w, "x 1\n")
	}))
	t.Cleanup(server.Close)
	lease := func(name, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)}}
	}
	pod := func(name string, ports ...corev1.ContainerPort) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: ports}}}}
	}
	metrics, provider := corev1.ContainerPort{Name: "metrics", ContainerPort: 10258}, corev1.ContainerPort{Name: "providermetrics", ContainerPort: 10259}
	for name, tc := range map[string]struct {
		objects   []client.Object
		forbidden bool
		paths     string
		problem   string
	}{
		"one Pod": {
			objects: []client.Object{lease("machine-controller", "a-1_x"), lease("machine-controller-manager", "a-1_x"), pod("a-1", metrics, provider)},
			paths:   "/api/v1/namespaces/n/pods/a-1:10258/proxy/metrics /api/v1/namespaces/n/pods/a-1:10259/proxy/metrics",
		},
		"two Pods": {
			objects: []client.Object{lease("machine-controller", "b-1_x"), lease("machine-controller-manager", "a-1_y"), pod("a-1", metrics), pod("b-1", provider)},
			paths:   "/api/v1/namespaces/n/pods/a-1:10258/proxy/metrics /api/v1/namespaces/n/pods/b-1:10259/proxy/metrics",
		},
		"no manager":    {problem: "no manager has a lease in namespace n"},
		"not a Pod":     {objects: []client.Object{lease("machine-controller", "host_x")}, problem: "cannot read Pod host"},
		"without ports": {objects: []client.Object{lease("machine-controller", "a-1_x"), pod("a-1")}, problem: "no port named metrics"},
		"no permission": {
			objects: []client.Object{lease("machine-controller", "a-1_x"), pod("a-1", metrics)}, forbidden: true,
			paths: "/api/v1/namespaces/n/pods/a-1:10258/proxy/metrics", problem: "needs the permission to get pods/proxy",
		},
	} {
		paths, forbidden = nil, tc.forbidden
		p, err := newPods(&rest.Config{Host: server.URL}, fake.NewClientBuilder().WithObjects(tc.objects...).Build(), "n")
		if err != nil {
			t.Fatal(err)
		}
		read, err := p.read(t.Context())
		if got := strings.Join(paths, " "); got != tc.paths {
			t.Errorf("%s: read %s, want %s", name, got, tc.paths)
		}
		if (err == nil) != (tc.problem == "") || err != nil && (!strings.Contains(err.Error(), tc.problem) || !strings.Contains(err.Error(), "--metrics-url")) {
			t.Errorf("%s: %v", name, err)
		}
		read.Close()
	}
}

// TestMetrics_RedirectOfPodIsNotFollowed checks that a Pod cannot make the page send the user's token to another server, or
// send another request to the API server.
func TestMetrics_RedirectOfPodIsNotFollowed(t *testing.T) {
	attacker := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the server of the attacker gets the credentials %q", r.Header.Get("Authorization"))
	}))
	t.Cleanup(attacker.Close)
	for _, location := range []string{attacker.URL, "/api/v1/secrets"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/proxy/metrics") {
				t.Errorf("the API server gets a request for %s", r.URL.Path)
			}
			http.Redirect(w, r, location, http.StatusFound)
		}))
		t.Cleanup(server.Close)
		objects := fake.NewClientBuilder().WithObjects(
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "machine-controller"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a-1_x")}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a-1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 10258}}}}}},
		).Build()
		p, err := newPods(&rest.Config{Host: server.URL, BearerToken: "of-user"}, objects, "n")
		if err != nil {
			t.Fatal(err)
		}
		read, err := p.read(t.Context())
		read.Close()
		if err == nil || !strings.Contains(err.Error(), "redirect") {
			t.Errorf("redirect to %s: %v", location, err)
		}
	}
}
