package ui

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// newSharedFlags returns valid flags.
func newSharedFlags() *flags {
	return &flags{shared: shared{inCluster: true, urls: []string{"https://machines.example.com"}, maxSessions: 1, maxPerUser: 1, maxPerAddress: 1, idleTimeout: time.Minute}}
}

// TestShared_RejectsFlags checks that flags are rejected with a message that names them.
func TestShared_RejectsFlags(t *testing.T) {
	if err := newSharedFlags().validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*flags){
		"--url: set the address": func(f *flags) { f.urls = nil },
		"need --in-cluster":      func(f *flags) { f.inCluster = false },
		`"machines.example.com"`: func(f *flags) { f.urls = []string{"machines.example.com"} },
		"without TLS":            func(f *flags) { f.urls = []string{"http://machines.example.com"} },
		"same host":              func(f *flags) { f.urls = []string{"https://A.example.com:443/a", "https://a.example.com/b/"} },
		"set both or neither":    func(f *flags) { f.certFile = "tls.crt" },
		"must be at least 1":     func(f *flags) { f.maxPerAddress = 0 },
		"at least 1m":            func(f *flags) { f.idleTimeout = time.Second },
		"--host":                 func(f *flags) { f.host = "localhost" },
		"--target-kubeconfig":    func(f *flags) { f.target = "other.yaml" },
		"--metrics-url":          func(f *flags) { f.metricsURL = "http://127.0.0.1:10259/metrics" },
		"10.0.0.1":               func(f *flags) { f.trustedProxies = []string{"10.0.0.1"} },
	} {
		f := newSharedFlags()
		change(f)
		if err := f.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// TestURLs_AreThoseOfBrowsers checks that addresses are compared as browsers send origins, and end with a slash.
func TestURLs_AreThoseOfBrowsers(t *testing.T) {
	urls, err := parseURLs([]string{"https://Machines.Example.com:443", "https://machines.example.com:8443/page", "http://localhost:8001/a/"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, of := range urls {
		got = append(got, of.String())
	}
	if want := []string{"https://machines.example.com/", "https://machines.example.com:8443/page/", "http://localhost:8001/a/"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestShared_UsesOnlyTokenOfUser checks that requests use the token of the user, and neither the credentials of the
// kubeconfig nor its flags in commands.
func TestShared_UsesOnlyTokenOfUser(t *testing.T) {
	var mu sync.Mutex
	sent := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		sent[r.Header.Get("Authorization")+r.Header.Get("Impersonate-User")]++
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "selfsubjectreviews") {
			_, _ = io.WriteString(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"someone"}}}`)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
	}))
	t.Cleanup(server.Close)
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "of-kubeconfig", Impersonate: "admin"}
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "machines"}
	file.CurrentContext = "x"
	f := newSharedFlags()
	f.File = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, f.File); err != nil {
		t.Fatal(err)
	}
	config, namespace, err := f.anonymous()
	if err != nil || namespace != "machines" {
		t.Fatalf("namespace %q, %v", namespace, err)
	}
	if name, err := identify(t.Context(), config, "of-user"); name != "someone" || err != nil {
		t.Errorf("the user is %q, %v", name, err)
	}
	options, err := f.optionsFor(config, "of-user", "", namespace, "v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := options.Control.List(t.Context(), &v1alpha1.MachineList{}); err == nil {
		t.Error("the list succeeded")
	}
	_ = options.Target.Get(t.Context(), client.ObjectKey{Name: "node"}, &v1alpha1.Machine{}) // fails; its request is counted
	if _, err := options.Metrics(t.Context()); err == nil || strings.Contains(err.Error(), "--") {
		t.Errorf("the metrics were read, or the error names a flag, which users cannot set: %v", err)
	}
	if _, err := options.LastOutput(t.Context(), client.ObjectKey{Namespace: "n", Name: "vm"}); err == nil {
		t.Error("the output was read")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(sent) != 1 || sent["Bearer of-user"] < 4 {
		t.Errorf("requests with these credentials: %v", sent)
	}
	if flags := f.clusterFlags(); len(flags) > 0 {
		t.Errorf("commands select the cluster by %q", flags)
	}
}
