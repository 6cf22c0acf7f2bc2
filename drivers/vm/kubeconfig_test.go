package vm

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// kubeconfigOf returns a kubeconfig with one cluster and one user.
func kubeconfigOf(t testing.TB, cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo) []byte {
	t.Helper()
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": &cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": &user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	return content
}

var (
	goodCluster = clientcmdapi.Cluster{Server: "https://host:6443"}
	goodUser    = clientcmdapi.AuthInfo{Token: "token"}
)

// FuzzKubeconfig_IsRestricted: whatever the class's Secret contains, the connection runs no program, reads no file, and uses
// verified TLS.
func FuzzKubeconfig_IsRestricted(f *testing.F) {
	f.Add(kubeconfigOf(f, goodCluster, goodUser))
	f.Add(kubeconfigOf(f, goodCluster, clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "id", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: "Never"}}))
	f.Add(kubeconfigOf(f, goodCluster, clientcmdapi.AuthInfo{AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}}))
	f.Add(kubeconfigOf(f, goodCluster, clientcmdapi.AuthInfo{TokenFile: "/etc/passwd"}))
	f.Add(kubeconfigOf(f, clientcmdapi.Cluster{Server: "https://host", CertificateAuthority: "/etc/passwd"}, goodUser))
	f.Add(kubeconfigOf(f, clientcmdapi.Cluster{Server: "https://host", InsecureSkipTLSVerify: true}, goodUser))
	f.Add(kubeconfigOf(f, clientcmdapi.Cluster{Server: "host:8080", ProxyURL: "socks5://proxy"}, goodUser))
	f.Add([]byte(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": null}], "users": [null], "contexts": [{"name": ""}]}`))
	f.Fuzz(func(t *testing.T, kubeconfig []byte) {
		config, err := restConfig(kubeconfig)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument || config != nil {
				t.Errorf("got %v, %v", config, err)
			}
			return
		}
		tls := config.TLSClientConfig
		if config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" || tls.CAFile != "" || tls.CertFile != "" || tls.KeyFile != "" {
			t.Errorf("connection runs a program or reads a file: %#v", config)
		}
		if tls.Insecure || !strings.HasPrefix(strings.ToLower(config.Host), "https://") {
			t.Errorf("connection is not verified: %s, %+v", config.Host, tls)
		}
		_, _ = NewClient(config) // an error is fine, a panic is not
	})
}

func TestSecret_RejectsUnprotectedKubeconfigs(t *testing.T) {
	for name, cluster := range map[string]clientcmdapi.Cluster{
		"not verified": {Server: "https://host", InsecureSkipTLSVerify: true},
		"no TLS":       {Server: "http://host"},
		"no scheme":    {Server: "host:8080"},
	} {
		if _, err := restConfig(kubeconfigOf(t, cluster, goodUser)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v, want InvalidArgument", name, err)
		}
	}
	if _, err := restConfig(kubeconfigOf(t, goodCluster, goodUser)); err != nil {
		t.Errorf("valid kubeconfig: got error %v", err)
	}
}

// hostile starts an API server and returns the client for a class whose Secret has a kubeconfig for it.
func hostile(t *testing.T, handler http.HandlerFunc) client.Client {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	made, err := newKubeconfigClient(kubeconfigOf(t, clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: authority}, goodUser))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestClient_LimitsResponses: an API server that the author of a class chose cannot exhaust the driver's memory.
func TestClient_LimitsResponses(t *testing.T) {
	var sent atomic.Int64
	cluster := hostile(t, func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		piece := bytes.Repeat([]byte(" "), 1<<20)
		for range 256 {
			if _, err := out.Write(piece); err != nil {
				return
			}
			sent.Add(int64(len(piece)))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for what, limit := range map[string]int64{"object": maxObject, "list": maxList} {
		sent.Store(0)
		var err error
		if what == "object" {
			err = cluster.Get(ctx, client.ObjectKey{Namespace: "n", Name: "vm"}, &vmv1alpha1.VirtualMachine{})
		} else {
			err = cluster.List(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace("n"))
		}
		const buffers = 64 << 20 // in transit: Linux buffers up to 32 MiB for a slow receiver
		if err == nil || sent.Load() > limit+buffers {
			t.Errorf("%s: the driver read %d MiB, want at most %d MiB: %v", what, sent.Load()>>20, limit>>20, err)
		}
	}
}

// TestClient_DoesNotFollowRedirects: an API server that the author of a class chose cannot make the driver send requests to another
// server.
func TestClient_DoesNotFollowRedirects(t *testing.T) {
	asked := atomic.Bool{}
	internal := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		asked.Store(true)
		http.Error(out, "internal secret", http.StatusTeapot)
	}))
	t.Cleanup(internal.Close)
	cluster := hostile(t, func(out http.ResponseWriter, request *http.Request) {
		http.Redirect(out, request, internal.URL, http.StatusFound)
	})
	err := cluster.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "vm"}, &vmv1alpha1.VirtualMachine{})
	if !errors.Is(err, errRedirected) || asked.Load() || strings.Contains(err.Error(), "secret") {
		t.Errorf("other server got a request: %t, error: %v", asked.Load(), err)
	}
}
