package vm

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

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
	f.Add(kubeconfigOf(f, clientcmdapi.Cluster{Server: "https://host", ProxyURL: "http://proxy"}, goodUser))
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
		if config.Proxy != nil {
			t.Error("connection uses a proxy")
		}
		_, _ = newUntrustedTransport(config) // an error is fine, a panic is not
	})
}

func TestSecret_RejectsUnprotectedKubeconfigs(t *testing.T) {
	for name, cluster := range map[string]clientcmdapi.Cluster{
		"not verified": {Server: "https://host", InsecureSkipTLSVerify: true},
		"no TLS":       {Server: "http://host"},
		"no scheme":    {Server: "host:8080"},
		"a proxy":      {Server: "https://host", ProxyURL: "http://169.254.169.254"},
	} {
		if _, err := restConfig(kubeconfigOf(t, cluster, goodUser)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v, want InvalidArgument", name, err)
		}
	}
	if _, err := restConfig(kubeconfigOf(t, goodCluster, goodUser)); err != nil {
		t.Errorf("valid kubeconfig: got error %v", err)
	}
}
