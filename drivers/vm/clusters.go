package vm

import (
	"crypto/sha256"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// userAgent is that of clients whose configuration names none.
const userAgent = "millwright-driver-vm"

// NewClient returns a client that is fit for Options.Client. It makes no request, not
// even to learn which kinds the cluster has.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, vmv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(vmv1alpha1.SchemeGroupVersion.WithKind(vmv1alpha1.VirtualMachineKind), meta.RESTScopeNamespace)
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = userAgent
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
}

// mostClients bounds how many clients are kept.
const mostClients = 32

// clusters hands out clients of infrastructure clusters.
type clusters struct {
	standard client.WithWatch

	mu sync.Mutex
	// known holds clients by the hash of their kubeconfig, so that none is kept longer
	// than needed; recent holds the hashes, the one used last at the end.
	known  map[[sha256.Size]byte]client.WithWatch
	recent [][sha256.Size]byte
}

// get returns the client for a kubeconfig, and the standard one if there is none.
func (c *clusters) get(kubeconfig []byte) (client.WithWatch, error) {
	if len(kubeconfig) == 0 {
		if c.standard == nil {
			return nil, status.Error(codes.FailedPrecondition, "there is no infrastructure cluster: the class's Secret has no key "+kubeconfigKey)
		}
		return c.standard, nil
	}
	hash := sha256.Sum256(kubeconfig)
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.known[hash]; ok {
		c.use(hash)
		return known, nil
	}
	made, err := newKubeconfigClient(kubeconfig)
	if err != nil {
		return nil, err
	}
	if c.known == nil {
		c.known = map[[sha256.Size]byte]client.WithWatch{}
	}
	c.known[hash] = made
	c.use(hash)
	return made, nil
}

// use notes that a client was used, and forgets the one that was not for longest.
func (c *clusters) use(hash [sha256.Size]byte) {
	for i, known := range c.recent {
		if known == hash {
			c.recent = append(c.recent[:i], c.recent[i+1:]...)
			break
		}
	}
	c.recent = append(c.recent, hash)
	if len(c.recent) > mostClients {
		delete(c.known, c.recent[0])
		c.recent = c.recent[1:]
	}
}

// newKubeconfigClient has no limit of its own on the rate of requests: that is left to
// the API server.
func newKubeconfigClient(kubeconfig []byte) (client.WithWatch, error) {
	// The errors of what is called here may quote the kubeconfig, so they are left out.
	loaded, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, badKubeconfig("cannot be read as a kubeconfig")
	}
	if why := reachesOut(loaded); why != "" {
		return nil, badKubeconfig(why)
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, badKubeconfig("its current-context does not lead to a cluster and a user")
	}
	config.QPS = -1
	made, err := NewClient(config)
	if err != nil {
		return nil, badKubeconfig("its certificates, keys or proxy cannot be used")
	}
	return made, nil
}

func badKubeconfig(why string) error {
	return status.Error(codes.InvalidArgument, "key "+kubeconfigKey+" of the class's Secret: "+why)
}

// reachesOut tells why a kubeconfig cannot stand for itself. Whoever may write the
// Secret of a class must not thereby run programs or read files where this driver runs.
func reachesOut(config *clientcmdapi.Config) string {
	for _, user := range config.AuthInfos {
		switch {
		case user.Exec != nil || user.AuthProvider != nil:
			return "a user of it calls a program for its credentials, which is not allowed"
		case user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "":
			return "a user of it names a file, which is not allowed; put the content in its place"
		}
	}
	for _, cluster := range config.Clusters {
		if cluster.CertificateAuthority != "" {
			return "a cluster of it names a file, which is not allowed; put the content in its place"
		}
	}
	return ""
}
