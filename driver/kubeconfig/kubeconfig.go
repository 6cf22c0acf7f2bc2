// Package kubeconfig reads kubeconfigs that come from Secrets, whose authors must not get access to programs or files
// where the reader runs.
package kubeconfig

import (
	"errors"
	"fmt"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// MaxBytes is the maximum size of a kubeconfig, in bytes. A certificate of a few kilobytes fits many times.
const MaxBytes = 256 << 10

// Parse returns the connection that the current context of a kubeconfig describes. It refuses references to programs and
// files, connections without TLS or verification of the server, and proxies. Errors are sentences without any part of
// the kubeconfig, which may contain credentials.
func Parse(kubeconfig []byte) (*rest.Config, error) {
	if len(kubeconfig) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are allowed", len(kubeconfig), MaxBytes)
	}
	// Errors of clientcmd and rest may quote the kubeconfig, so they are not returned.
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.New("it is not a valid kubeconfig")
	}
	if found := notAllowed(loaded); found != "" {
		return nil, errors.New(found + ", which is not allowed")
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errors.New("its current-context has no cluster or no user")
	}
	// Warnings are texts of the server, which would be logged without a limit.
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
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
