package cli

import (
	"errors"
	"fmt"
	"io/fs"
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
	flags.StringVar(&f.dir, "dir", defaultDir, `folder of "millwright up"`)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of another cluster than the one in --dir")
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

func (f *clusterFlags) restConfig() (*rest.Config, error) {
	path := f.kubeconfig
	if path == "" {
		path = filepath.Join(f.dir, "kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if f.kubeconfig == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(`there is no cluster in %s: start one with "millwright up", or name another with --dir or --kubeconfig`, f.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "millwright"
	return config, nil
}
