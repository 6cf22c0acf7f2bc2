// Package kubeconfig finds the clusters that a command uses.
package kubeconfig

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

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/folder"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// Flags select a cluster and a namespace.
type Flags struct {
	// Dir is the folder of a local cluster.
	Dir string
	// File is a kubeconfig. File and Dir exclude each other; without both, KUBECONFIG, the default
	// folder and ~/.kube/config are tried.
	File string
	// Context of the kubeconfig. Empty means the current one.
	Context string
	// Namespace. Empty means that of the context.
	Namespace string
}

// Add adds --dir and --kubeconfig to the flags of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Dir, "dir", "", `directory of the local cluster started by "millwright up"`)
	flags.StringVar(&f.File, "kubeconfig", "", "path to the kubeconfig; defaults to the first of KUBECONFIG, "+folder.Default+"/kubeconfig and ~/.kube/config that exists")
}

// Client returns a client of the cluster, and sets the namespace as Load returns it. It does not contact the
// cluster yet.
func (f *Flags) Client() (client.WithWatch, error) {
	config, namespace, err := f.Load()
	if err != nil {
		return nil, err
	}
	f.Namespace = namespace
	return connect.NewClient(config)
}

// Load reads the kubeconfig. The namespace is that of the flags, or else of the context, or
// else "default".
func (f *Flags) Load() (config *rest.Config, namespace string, err error) {
	if f.File != "" && f.Dir != "" {
		return nil, "", args.Wrongf("--kubeconfig: cannot be used with --dir")
	}
	config, namespace, err = connect.Read(f.rules(), f.Context)
	switch {
	case clientcmd.IsEmptyConfig(err), f.File == "" && errors.Is(err, fs.ErrNotExist):
		return nil, "", f.noCluster()
	case err != nil:
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return config, cmp.Or(f.Namespace, namespace), nil
}

// ExplainStopped returns an error that says how to start the local cluster if it is not running;
// otherwise err.
func (f *Flags) ExplainStopped(err error) error {
	for _, file := range f.rules().GetLoadingPrecedence() {
		dir := filepath.Dir(file)
		if !controlplane.IsFolder(dir) {
			continue
		}
		if pid, problem := controlplane.Holder(dir); problem == nil && pid == 0 {
			return fmt.Errorf("nothing runs in %s: start it with: %s", dir, folder.UpAgain(dir))
		}
	}
	return err
}

// noCluster returns the error for a kubeconfig that does not exist.
func (f *Flags) noCluster() error {
	switch environment := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case f.File != "":
		return fmt.Errorf("there is no cluster in the kubeconfig %s", f.File)
	case f.Dir == "" && environment != "":
		return fmt.Errorf("there is no cluster in %s, which %s names: correct that, or name another with --kubeconfig or --dir", environment, clientcmd.RecommendedConfigPathEnvVar)
	default:
		return fmt.Errorf(`there is no cluster in %s: start one with "millwright up", or name another with --dir, --kubeconfig or KUBECONFIG`, f.Folder())
	}
}

// rules returns where the kubeconfig is looked for, in order of precedence.
func (f *Flags) rules() *clientcmd.ClientConfigLoadingRules {
	inDir := filepath.Join(f.Folder(), "kubeconfig")
	switch {
	case f.File != "":
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: f.File}
	case f.Dir != "":
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: inDir}
	}
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		if _, err := os.Stat(inDir); err == nil {
			return &clientcmd.ClientConfigLoadingRules{ExplicitPath: inDir}
		}
	}
	return clientcmd.NewDefaultClientConfigLoadingRules()
}

// Folder returns the folder of the local cluster.
func (f *Flags) Folder() string { return cmp.Or(f.Dir, folder.Default) }
