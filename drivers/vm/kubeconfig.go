package vm

import (
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// newKubeconfigClient returns a cluster whose client has no rate limit. The API server has its own.
func newKubeconfigClient(kubeconfig []byte) (*infrastructure, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	transport, err := newUntrustedTransport(config)
	if err != nil {
		return nil, badKubeconfig("its certificates or keys cannot be used")
	}
	made, err := newClient(config, &http.Client{Transport: transport})
	if err != nil {
		return nil, badKubeconfig("its certificates or keys cannot be used")
	}
	return &infrastructure{WithWatch: made, endpoint: Endpoint(config), pageSize: untrustedPage}, nil
}

// restConfig returns the connection that a kubeconfig describes. A user who can write the Secret of a class must
// not get access to programs, files or memory where the driver runs.
func restConfig(kubeconfig []byte) (*rest.Config, error) {
	// Errors of clientcmd and rest may quote the kubeconfig, so they are not returned.
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, badKubeconfig("it is not a valid kubeconfig")
	}
	if found := notAllowed(loaded); found != "" {
		return nil, badKubeconfig(found + ", which is not allowed")
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, badKubeconfig("its current-context has no cluster or no user")
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeJSON
	// Warnings are texts of the server, which would be logged without a limit.
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

func badKubeconfig(why string) error {
	return status.Error(codes.InvalidArgument, "key "+kubeconfigKey+" of the class's Secret: "+why)
}

// notAllowed returns the first thing that a kubeconfig of a Secret must not contain: references to programs and
// files, connections that allow others to read credentials and user data, and connections to other servers. It
// returns an empty string if there is none.
func notAllowed(config *clientcmdapi.Config) string {
	for _, user := range config.AuthInfos {
		switch {
		case user.Exec != nil || user.AuthProvider != nil:
			return "it has a user whose credentials come from a program"
		case user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "":
			return "it has a user that refers to a file instead of its content"
		}
	}
	for _, cluster := range config.Clusters {
		switch server, err := url.Parse(cluster.Server); {
		case cluster.CertificateAuthority != "":
			return "it has a cluster that refers to a file instead of its content"
		case cluster.InsecureSkipTLSVerify:
			return "it has a cluster with insecure-skip-tls-verify"
		case cluster.Server != "" && (err != nil || server.Scheme != "https" || server.Host == ""):
			return "it has a cluster whose server is not an https:// URL"
		case cluster.ProxyURL != "":
			return "it has a cluster with a proxy-url"
		}
	}
	return ""
}
