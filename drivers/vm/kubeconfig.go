package vm

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"

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
	made, err := NewClient(config)
	if err != nil {
		return nil, badKubeconfig("its certificates, keys or proxy cannot be used")
	}
	return &infrastructure{WithWatch: made, endpoint: Endpoint(config)}, nil
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
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return untrustedTransport{inner} })
	return config, nil
}

func badKubeconfig(why string) error {
	return status.Error(codes.InvalidArgument, "key "+kubeconfigKey+" of the class's Secret: "+why)
}

// notAllowed returns the first thing that a kubeconfig of a Secret must not contain: references to programs and
// files, and connections that allow others to read credentials and user data. It returns an empty string if there
// is none.
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
		}
	}
	return ""
}

const (
	// maxObject and maxList limit responses, in bytes. The API server stores objects of up to 1.5 MiB, and a
	// VirtualMachine has a few kilobytes.
	maxObject = 8 << 20
	maxList   = 128 << 20
)

// collections are the last parts of the paths of lists.
var collections = []string{"virtualmachines", "secrets", "nodes"}

var errRedirected = errors.New("the API server sent a redirect, which is not allowed")

// untrustedTransport is a connection to an API server that the driver's operator did not choose. A long response must not
// exhaust the memory, and a redirect must not lead to a server that only the driver can reach.
type untrustedTransport struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (d untrustedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.inner.RoundTrip(request)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode >= 300 && response.StatusCode < 400:
		_ = response.Body.Close()
		return nil, errRedirected
	case request.URL.Query().Get("watch") == "true":
		return response, nil // a watch is unlimited; its events are limited where they are decoded
	}
	limit := int64(maxObject)
	if request.Method == http.MethodGet && slices.Contains(collections, path.Base(request.URL.Path)) {
		limit = maxList
	}
	response.Body = http.MaxBytesReader(nil, response.Body, limit)
	return response, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (d untrustedTransport) WrappedRoundTripper() http.RoundTripper { return d.inner }
