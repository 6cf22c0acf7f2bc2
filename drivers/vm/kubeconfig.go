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

// newKubeconfigClient returns a cluster whose client has no limit on the rate of requests: the API
// server has one.
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

// restConfig returns the connection that a kubeconfig describes. Who may write the Secret of a
// class must not get at programs, files and memory where the driver runs.
func restConfig(kubeconfig []byte) (*rest.Config, error) {
	// Errors of clientcmd and rest may quote the kubeconfig, so they are not returned.
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, badKubeconfig("cannot be read as a kubeconfig")
	}
	if found := notAllowed(loaded); found != "" {
		return nil, badKubeconfig(found + ", which is not allowed")
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, badKubeconfig("its current-context does not lead to a cluster and a user")
	}
	config.QPS = -1
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return distrustful{inner} })
	return config, nil
}

func badKubeconfig(why string) error {
	return status.Error(codes.InvalidArgument, "key "+kubeconfigKey+" of the class's Secret: "+why)
}

// notAllowed returns what a kubeconfig of a Secret must not contain: references to programs and
// files, and connections on which anybody between could read credentials and user data. Empty if
// there is nothing of that kind.
func notAllowed(config *clientcmdapi.Config) string {
	for _, user := range config.AuthInfos {
		switch {
		case user.Exec != nil || user.AuthProvider != nil:
			return "a user of it calls a program for its credentials"
		case user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "":
			return "a user of it names a file instead of its content"
		}
	}
	for _, cluster := range config.Clusters {
		switch server, err := url.Parse(cluster.Server); {
		case cluster.CertificateAuthority != "":
			return "a cluster of it names a file instead of its content"
		case cluster.InsecureSkipTLSVerify:
			return "a cluster of it has insecure-skip-tls-verify"
		case cluster.Server != "" && (err != nil || server.Scheme != "https" || server.Host == ""):
			return "the server of a cluster of it is not an https:// URL"
		}
	}
	return ""
}

const (
	// maxObject and maxList limit responses, in bytes. The API server stores objects of up to
	// 1.5 MiB, and a VirtualMachine has some kilobytes.
	maxObject = 8 << 20
	maxList   = 128 << 20
)

// collections are the last parts of the paths of lists.
var collections = []string{"virtualmachines", "secrets", "nodes"}

var errRedirected = errors.New("the API server redirects, which is not allowed")

// distrustful is a connection to an API server that the driver's operator has not chosen: a
// response of any length must not exhaust the memory, and a redirect must not lead to a server
// that only the driver can reach.
type distrustful struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (d distrustful) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.inner.RoundTrip(request)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode >= 300 && response.StatusCode < 400:
		_ = response.Body.Close()
		return nil, errRedirected
	case request.URL.Query().Get("watch") == "true":
		return response, nil // it has no end, and its events are limited where they are decoded
	}
	limit := int64(maxObject)
	if request.Method == http.MethodGet && slices.Contains(collections, path.Base(request.URL.Path)) {
		limit = maxList
	}
	response.Body = http.MaxBytesReader(nil, response.Body, limit)
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (d distrustful) WrappedRoundTripper() http.RoundTripper { return d.inner }
