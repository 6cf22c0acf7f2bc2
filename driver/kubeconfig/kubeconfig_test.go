package kubeconfig_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/millwright-dev/millwright/driver/kubeconfig"
)

func TestParse(t *testing.T) {
	good, token := clientcmdapi.Cluster{Server: "https://host:6443"}, clientcmdapi.AuthInfo{Token: "secret"}
	tests := map[string]struct {
		cluster clientcmdapi.Cluster
		user    clientcmdapi.AuthInfo
		want    string // part of the error
	}{
		"valid":          {cluster: good, user: token},
		"a program":      {good, clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "id", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: "Never"}}, "come from a program"},
		"a plug-in":      {good, clientcmdapi.AuthInfo{AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}}, "come from a program"},
		"a file":         {good, clientcmdapi.AuthInfo{TokenFile: "/etc/passwd"}, "refers to a file"},
		"an authority":   {clientcmdapi.Cluster{Server: "https://host", CertificateAuthority: "/etc/passwd"}, token, "refers to a file"},
		"no TLS":         {clientcmdapi.Cluster{Server: "http://host"}, token, "not an https:// URL"},
		"unverified TLS": {clientcmdapi.Cluster{Server: "https://host", InsecureSkipTLSVerify: true}, token, "insecure-skip-tls-verify"},
		"a proxy":        {clientcmdapi.Cluster{Server: "https://host", ProxyURL: "http://proxy"}, token, "proxy-url"},
		"too large":      {clientcmdapi.Cluster{Server: "https://host", CertificateAuthorityData: make([]byte, kubeconfig.MaxBytes)}, token, "at most 262144 are allowed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := clientcmd.Write(clientcmdapi.Config{
				Clusters:       map[string]*clientcmdapi.Cluster{"c": &test.cluster},
				AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": &test.user},
				Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
				CurrentContext: "x",
			})
			if err != nil {
				t.Fatal(err)
			}
			config, err := kubeconfig.Parse(text)
			if test.want == "" {
				if err != nil || config.Host != "https://host:6443" || config.BearerToken != "secret" {
					t.Errorf("got %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	for _, text := range []string{"", "secret", "{}"} {
		if _, err := kubeconfig.Parse([]byte(text)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
