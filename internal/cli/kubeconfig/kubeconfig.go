// Package kubeconfig finds the cluster that a command uses.
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
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// Flags select a cluster and a namespace.
type Flags struct {
	// Dir is the directory of a local cluster.
	Dir string
	// File is a kubeconfig. It cannot be used with Dir. If both are empty, KUBECONFIG, the default directory
	// and ~/.kube/config are tried.
	File string
	// Context is the context of the kubeconfig. If empty, the current one is used.
	Context string
	// Namespace defaults to the namespace of the context.
	Namespace string
}

// Add adds --dir and --kubeconfig to the flags of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Dir, "dir", "", `directory of the local cluster started by "millwright up"`)
	flags.StringVar(&f.File, "kubeconfig", "", "path to the kubeconfig; defaults to the first of KUBECONFIG, "+localdir.Default+"/kubeconfig and ~/.kube/config that exists")
}

// Client returns a client of the cluster, and sets Namespace to the namespace that Load returns. It does not
// contact the cluster yet.
func (f *Flags) Client() (client.WithWatch, error) {
	config, namespace, err := f.Load()
	if err != nil {
		return nil, err
	}
	f.Namespace = namespace
	return connect.NewClient(config)
}

// Load reads the kubeconfig. The namespace is that of the flags, of the context, or "default".
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

// ExplainStopped returns an error that names the command to start the local cluster if it is not running, and
// err otherwise.
func (f *Flags) ExplainStopped(err error) error {
	for _, file := range f.rules().GetLoadingPrecedence() {
		dir := filepath.Dir(file)
		if !controlplane.IsDirectory(dir) {
			continue
		}
		if pid, problem := controlplane.Holder(dir); problem == nil && pid == 0 {
			return fmt.Errorf("no cluster runs in %s; start it with: %s", dir, localdir.UpAgain(dir))
		}
	}
	return err
}

// noCluster returns the error for a missing kubeconfig.
func (f *Flags) noCluster() error {
	switch environment := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case f.File != "":
		return fmt.Errorf("kubeconfig %s not found or without a cluster", f.File)
	case f.Dir == "" && environment != "":
		return fmt.Errorf("kubeconfig %s not found or without a cluster (from %s); correct it, or set --kubeconfig or --dir", environment, clientcmd.RecommendedConfigPathEnvVar)
	default:
		return fmt.Errorf(`no cluster found in %s; start one with "millwright up", or set --dir, --kubeconfig or KUBECONFIG`, f.Directory())
	}
}

// rules returns where to search for the kubeconfig, in order of precedence.
func (f *Flags) rules() *clientcmd.ClientConfigLoadingRules {
	inDir := filepath.Join(f.Directory(), "kubeconfig")
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

// Directory returns the directory of the local cluster.
func (f *Flags) Directory() string { return cmp.Or(f.Dir, localdir.Default) }
