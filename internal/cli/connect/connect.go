// Package connect creates client configurations from the kubeconfigs that flags name.
package connect

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/internal/manager"
)

// Values of kubeconfig flags in addition to a path.
const (
	// InCluster means the cluster that this process runs in.
	InCluster = "inClusterConfig"
	// None means no cluster.
	None = "none"
)

const userAgent = "millwright"

// NewClient returns a client for all kinds. It does not contact the cluster yet.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	// The client must not use controller-runtime's logger, which complains if a program has set none.
	c, err := client.NewWithWatch(config, client.Options{Scheme: manager.Scheme(), Log: logr.New(log.NullLogSink{})})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", config.Host, err)
	}
	return c, nil
}

// Named reads the kubeconfig that a flag names, and returns the namespace of its context. With InCluster or an
// empty path, it returns the configuration of the cluster that this process runs in, and the namespace of its
// Pod.
func Named(flag, path, context string) (config *rest.Config, namespace string, err error) {
	if path == "" || path == InCluster {
		config, err = rest.InClusterConfig()
		namespace = ofPod()
	} else {
		config, namespace, err = Read(&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, context)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", flag, err)
	}
	config.UserAgent = userAgent
	return config, namespace, nil
}

// WithoutCredentials returns the configuration of the cluster that this process runs in without credentials, and the
// namespace of its Pod. The Pod needs no token of a service account, only the certificates of the API server, which are in
// the ConfigMap kube-root-ca.crt of each namespace.
func WithoutCredentials() (config *rest.Config, namespace string, err error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, "", errors.New("this process does not run in a Pod; set --kubeconfig to select the cluster")
	}
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(host, port), UserAgent: userAgent, TLSClientConfig: rest.TLSClientConfig{CAFile: podRootCA},
	}, ofPod(), nil
}

// podRootCA is the file with the certificates of the API server.
const podRootCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

// podNamespace is the file with the namespace of a Pod, next to the token of its service account.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ofPod returns the namespace of the Pod that this process runs in, or "default".
func ofPod() string {
	text, err := os.ReadFile(podNamespace)
	if err != nil {
		return metav1.NamespaceDefault
	}
	return cmp.Or(strings.TrimSpace(string(text)), metav1.NamespaceDefault)
}

// Read reads the kubeconfig that the rules select. An empty context means the current one.
func Read(rules *clientcmd.ClientConfigLoadingRules, context string) (config *rest.Config, namespace string, err error) {
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	if config, err = loaded.ClientConfig(); err != nil {
		return nil, "", err
	}
	if namespace, _, err = loaded.Namespace(); err != nil {
		return nil, "", err
	}
	config.UserAgent = userAgent
	return config, namespace, nil
}
