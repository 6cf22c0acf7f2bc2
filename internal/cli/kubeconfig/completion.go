package kubeconfig

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/connect"
)

// completionTimeout limits the requests of a completion, for which the user waits.
const completionTimeout = 3 * time.Second

// CompleteName completes an argument with the names of the objects of a kind. Further arguments are not completed.
func (f *Flags) CompleteName(kind schema.GroupVersionKind) cobra.CompletionFunc {
	return CompleteName(f.Load, kind)
}

// CompleteName is like that of Flags, for a cluster that is selected in another way.
func CompleteName(load func() (*rest.Config, string, error), kind schema.GroupVersionKind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, load, kind)
	}
}

// CompleteNames completes all arguments with the names of the objects of a kind.
func (f *Flags) CompleteNames(kind schema.GroupVersionKind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		all, directive := names(cmd, f.Load, kind)
		return slices.DeleteFunc(all, func(name string) bool { return slices.Contains(given, name) }), directive
	}
}

// names returns the names of the objects of a kind. The shell selects those that begin with what was typed. Errors are
// ignored, because a shell cannot show them.
func names(cmd *cobra.Command, load func() (*rest.Config, string, error), kind schema.GroupVersionKind) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, namespace, err := load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	config.Timeout = completionTimeout
	c, err := connect.NewClient(config)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []cobra.Completion
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	slices.Sort(all)
	return all, cobra.ShellCompDirectiveNoFileComp
}

func (f *Flags) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	everywhere := func() (*rest.Config, string, error) {
		config, _, err := f.Load()
		return config, "", err
	}
	return names(cmd, everywhere, corev1.SchemeGroupVersion.WithKind("Namespace"))
}

func (f *Flags) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	rules, _ := f.rules()
	config, err := rules.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
