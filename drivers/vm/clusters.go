package vm

import (
	"crypto/sha256"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

const (
	// userAgent is the default user agent.
	userAgent = "millwright-driver-vm"
	// maxClients is the maximum number of cached clients.
	maxClients = 32
)

// NewClient returns a client for Options.Client. It sends no request, not even to discover
// the kinds of the cluster.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	return newClient(config, nil)
}

// newClient returns a client that uses the given HTTP client, or its own if that is nil.
func newClient(config *rest.Config, sender *http.Client) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, vmv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(vmv1alpha1.SchemeGroupVersion.WithKind(vmv1alpha1.VirtualMachineKind), meta.RESTScopeNamespace)
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = userAgent
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper, HTTPClient: sender})
}

// clusters caches infrastructure clusters.
type clusters struct {
	// standard is the cluster for classes without a kubeconfig, or nil if there is none.
	standard *infrastructure
	// recent contains clusters by the hash of their kubeconfig. The kubeconfig itself is not stored.
	recent *lru.Cache
}

// get returns the cluster for the kubeconfig in a class's Secret, or the standard cluster if the Secret has no
// kubeconfig.
func (c clusters) get(secret *corev1.Secret) (*infrastructure, error) {
	kubeconfig := ptr.Deref(secret, corev1.Secret{}).Data[kubeconfigKey]
	if len(kubeconfig) == 0 {
		if c.standard == nil {
			return nil, status.Error(codes.FailedPrecondition, "no infrastructure cluster is configured; set the key "+kubeconfigKey+" in the class's Secret")
		}
		return c.standard, nil
	}
	hash := sha256.Sum256(kubeconfig)
	if known, ok := c.recent.Get(hash); ok {
		return known.(*infrastructure), nil
	}
	created, err := newKubeconfigClient(kubeconfig)
	if err != nil {
		return nil, err
	}
	c.recent.Add(hash, created)
	return created, nil
}
