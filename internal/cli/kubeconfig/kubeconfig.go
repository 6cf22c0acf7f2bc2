// Package kubeconfig finds the cluster that a command uses.
package kubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// Flags select a cluster and a namespace.
type Flags struct {
	// Dir is the directory of a local cluster.
	Dir string
	// File is a kubeconfig. It cannot be used with Dir. If both are empty, KUBECONFIG and ~/.kube/config are used, as
	// by kubectl. Without KUBECONFIG and without a context in ~/.kube/config, it is the cluster in the default
	// directory.
	File string
	// Context is the context of the kubeconfig. If empty, the current one is used.
	Context string
	// Namespace defaults to the namespace of the context.
	Namespace string

	// notes gets a line that names the local cluster. It is nil unless standard error is a terminal.
	notes io.Writer
}

// Section is the section of the flags in the help of commands with many flags.
const Section = "cluster"

// Add adds the flags to those of a command. of is what the namespace contains, such as "Machine".
func (f *Flags) Add(cmd *cobra.Command, of string) {
	f.AddCluster(cmd)
	cmd.Flags().StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the "+of+`; defaults to that of the context, or else "default"`)
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.completeNamespaces) // the flag exists
}

// AddCluster adds the flags except --namespace.
func (f *Flags) AddCluster(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Dir, "dir", "", `directory of the local cluster started by "millwright up"`)
	flags.StringVar(&f.File, "kubeconfig", "", "path to the kubeconfig; defaults to KUBECONFIG or ~/.kube/config, or else to the local cluster in "+localdir.Default)
	flags.StringVar(&f.Context, "context", "", "context of the kubeconfig; defaults to the current context")
	_ = cmd.MarkFlagDirname("dir") // the flags exist
	_ = cmd.RegisterFlagCompletionFunc("context", f.completeContexts)
	pre := cmd.PreRun
	cmd.PreRun = func(cmd *cobra.Command, args []string) {
		if out := cmd.ErrOrStderr(); terminal.Open(out) != nil {
			f.notes = out
		}
		if pre != nil {
			pre(cmd, args)
		}
	}
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
	rules, local := f.rules()
	config, namespace, err = connect.Read(rules, f.Context)
	switch {
	case clientcmd.IsEmptyConfig(err), f.File == "" && errors.Is(err, fs.ErrNotExist):
		return nil, "", f.noCluster()
	case err != nil:
		return nil, "", fmt.Errorf("cannot read the kubeconfig: %w", err)
	}
	if local && f.notes != nil {
		fmt.Fprintf(f.notes, "Using the local cluster in %s.\n", f.Directory())
		f.notes = nil // once
	}
	return config, cmp.Or(f.Namespace, namespace), nil
}

// ExplainStopped returns an error that names the command to start the local cluster if it is not running, and
// err otherwise.
func (f *Flags) ExplainStopped(err error) error {
	rules, _ := f.rules()
	for _, file := range rules.GetLoadingPrecedence() {
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

// LocalMetrics returns the path of the socket at which the local cluster's manager serves its metrics; "" if the flags
// select another cluster.
func (f *Flags) LocalMetrics() string {
	rules, _ := f.rules()
	for _, file := range rules.GetLoadingPrecedence() {
		if dir := filepath.Dir(file); controlplane.IsDirectory(dir) {
			return localdir.MetricsSocket(dir)
		}
	}
	return ""
}

// noCluster returns the error for a missing kubeconfig.
func (f *Flags) noCluster() error {
	switch environment := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case f.File != "":
		return fmt.Errorf("kubeconfig %s not found or without a cluster", f.File)
	case f.Dir == "" && environment != "":
		return fmt.Errorf("kubeconfig %s not found or without a cluster (from %s); correct it, or set --kubeconfig or --dir", environment, clientcmd.RecommendedConfigPathEnvVar)
	default:
		err := fmt.Errorf(`no cluster found in %s; start one with "millwright up", or set --dir, --kubeconfig or KUBECONFIG`, f.Directory())
		if f.Dir == "" {
			err = noClusterError{err}
		}
		return err
	}
}

// ErrNoCluster is the error if neither flags nor the environment select a cluster, and there is no local cluster.
var ErrNoCluster = errors.New("no cluster")

type noClusterError struct{ error }

// Is implements the interface of package errors.
func (noClusterError) Is(target error) bool { return target == ErrNoCluster }

// rules returns where to search for the kubeconfig, in order of precedence, and whether that is the local cluster.
func (f *Flags) rules() (rules *clientcmd.ClientConfigLoadingRules, local bool) {
	if f.File != "" {
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: f.File}, false
	}
	inDir := filepath.Join(f.Directory(), "kubeconfig")
	if f.Dir != "" {
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: inDir}, true
	}
	if _, err := os.Stat(inDir); err == nil && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" && !f.usersKubeconfig() {
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: inDir}, true
	}
	return clientcmd.NewDefaultClientConfigLoadingRules(), false
}

// usersKubeconfig reports whether kubectl would use ~/.kube/config: it exists, and has the context. If the file cannot be
// read, the error is reported later.
func (f *Flags) usersKubeconfig() bool {
	config, err := clientcmd.LoadFromFile(clientcmd.RecommendedHomeFile)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	_, has := config.Contexts[cmp.Or(f.Context, config.CurrentContext)]
	return has
}

// Directory returns the directory of the local cluster.
func (f *Flags) Directory() string { return cmp.Or(f.Dir, localdir.Default) }
