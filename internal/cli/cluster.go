package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/manager"
)

// defaultDir is where local mode keeps everything.
const defaultDir = ".millwright"

// clusterFlags say which cluster a command looks at.
type clusterFlags struct {
	dir, kubeconfig, namespace string
}

func (f *clusterFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "dir", "", `folder of the "millwright up" whose cluster is meant`)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; without it and --dir, KUBECONFIG, "+defaultDir+"/kubeconfig or ~/.kube/config, whichever there is first")
}

func (f *clusterFlags) addNamespace(flags *pflag.FlagSet) {
	flags.StringVarP(&f.namespace, "namespace", "n", "default", "namespace of the virtual machines")
}

// connect makes a client, and does not contact the cluster yet.
func (f *clusterFlags) connect() (client.WithWatch, error) {
	config, err := f.restConfig()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return c, nil
}

// restConfig says how to reach the cluster.
func (f *clusterFlags) restConfig() (*rest.Config, error) {
	config, _, err := f.load("")
	return config, err
}

// load reads the kubeconfig, and tells the namespace of its context. An empty context is the
// current one.
func (f *clusterFlags) load(context string) (*rest.Config, string, error) {
	if f.kubeconfig != "" && f.dir != "" {
		return nil, "", &usageError{err: errors.New("--kubeconfig: cannot be used with --dir")}
	}
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(f.rules(), &clientcmd.ConfigOverrides{CurrentContext: context})
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) || f.kubeconfig == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, "", f.noCluster()
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	namespace, _, err := loaded.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.UserAgent = "millwright"
	return config, namespace, nil
}

// noCluster says where none was found.
func (f *clusterFlags) noCluster() error {
	switch environment := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case f.kubeconfig != "":
		return fmt.Errorf("there is no cluster in the kubeconfig %s", f.kubeconfig)
	case f.dir == "" && environment != "":
		return fmt.Errorf("there is no cluster in %s, which %s names: correct that, or name another with --kubeconfig or --dir", environment, clientcmd.RecommendedConfigPathEnvVar)
	default:
		return fmt.Errorf(`there is no cluster in %s: start one with "millwright up", or name another with --dir, --kubeconfig or KUBECONFIG`, f.folder())
	}
}

// rules say where the kubeconfig is looked for.
func (f *clusterFlags) rules() *clientcmd.ClientConfigLoadingRules {
	inDir := filepath.Join(f.folder(), "kubeconfig")
	switch {
	case f.kubeconfig != "":
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: f.kubeconfig}
	case f.dir != "":
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: inDir}
	}
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		if _, err := os.Stat(inDir); err == nil {
			return &clientcmd.ClientConfigLoadingRules{ExplicitPath: inDir}
		}
	}
	return clientcmd.NewDefaultClientConfigLoadingRules()
}

// folder is that of local mode.
func (f *clusterFlags) folder() string { return cmp.Or(f.dir, defaultDir) }
