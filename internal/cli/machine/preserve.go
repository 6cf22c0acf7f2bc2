package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// New returns the commands for one Machine, in addition to those given, which are deprecated.
func New(deprecated ...*cobra.Command) *cobra.Command { return newCommands(open, deprecated...) }

// opener returns a client and the namespace of the cluster that the flags select.
type opener func(*kubeconfig.Flags) (client.Client, string, error)

func open(flags *kubeconfig.Flags) (client.Client, string, error) {
	config, namespace, err := flags.Load()
	if err != nil {
		return nil, "", err
	}
	c, err := connect.NewClient(config)
	return c, namespace, err
}

func newCommands(open opener, deprecated ...*cobra.Command) *cobra.Command {
	return args.Group(&cobra.Command{
		Use:   "machine",
		Short: "Preserve a Machine for diagnosis, or release it",
		Long: `Preserve a Machine for diagnosis, or release it.

The commands set the annotation ` + v1alpha1.AnnotationKeyPreserve + ` of the Machine
NAME, also given as machine/NAME. They only need the API server of the Machines, and also work
with MCM.`,
		Example: `  millwright machine preserve pool-a-x7k2p
  millwright machine preserve pool-a-x7k2p --when-failed -n machines --kubeconfig control.yaml
  millwright machine release machine/pool-a-x7k2p`,
	}, append([]*cobra.Command{newPreserve(open), newRelease(open)}, deprecated...)...)
}

func newPreserve(open opener) *cobra.Command {
	whenFailed := false
	cmd := change(open, &cobra.Command{
		Use:   "preserve NAME",
		Short: "Prevent a Machine from being deleted by its set",
		Long: `Prevent a Machine from being deleted by its set, immediately or, with --when-failed, once it
has failed. A failed node is drained. The preservation expires at the time in
status.currentStatus.preserveExpiryTime: after spec.machinePreserveTimeout of the Machine,
or the manager's --machine-preserve-timeout.`,
		Example: `  millwright machine preserve pool-a-x7k2p
  millwright machine preserve pool-a-x7k2p --when-failed --dry-run=server`,
	}, func(machine *v1alpha1.Machine) (value, done string) {
		if whenFailed {
			return preservation.WhenFailed, "will be preserved once it has failed"
		}
		return preserved(machine)
	})
	cmd.Flags().BoolVar(&whenFailed, "when-failed", false, "preserve the Machine only once it has failed")
	return cmd
}

func newRelease(open opener) *cobra.Command {
	never := false
	cmd := change(open, &cobra.Command{
		Use:   "release NAME",
		Short: "End the preservation of a Machine",
		Long: `End the preservation of a Machine. If it has failed, its set then replaces it.

A Machine that its set preserved automatically gets the value "false", since the set would
preserve it again.`,
		Example: `  millwright machine release pool-a-x7k2p`,
	}, func(machine *v1alpha1.Machine) (value, done string) {
		if never {
			return preservation.Never, neverPreserved
		}
		return released(machine)
	})
	cmd.Flags().BoolVar(&never, "never", false, "also prevent the set of the Machine from preserving it automatically")
	return cmd
}

const neverPreserved = "will not be preserved"

// preserved and released decide the annotation of a Machine without flags.
func preserved(*v1alpha1.Machine) (value, done string) {
	return preservation.Now, "will be preserved now"
}

func released(machine *v1alpha1.Machine) (value, done string) {
	own := machine.Annotations[v1alpha1.AnnotationKeyPreserve]
	switch {
	case own == preservation.AutoPreserved:
		return preservation.Never, neverPreserved
	case own == "" && machine.Status.CurrentStatus.PreserveExpiryTime == nil:
		return "", "is not preserved"
	}
	return "", "will no longer be preserved"
}

// Preserve prevents a Machine from being deleted by its set, as the command without flags, and returns what was done as a
// clause without subject.
func Preserve(ctx context.Context, c client.Client, key types.NamespacedName) (done string, err error) {
	_, done, err = annotate(ctx, c, key, preserved)
	return done, err
}

// Release stops the preservation of a Machine, as the command without flags, and returns what was done as a clause without
// subject.
func Release(ctx context.Context, c client.Client, key types.NamespacedName) (done string, err error) {
	_, done, err = annotate(ctx, c, key, released)
	return done, err
}

// change completes a command that sets the annotation of a Machine, or removes it if the value is empty.
func change(open opener, cmd *cobra.Command, decide func(*v1alpha1.Machine) (value, done string)) *cobra.Command {
	flags, dry, format := &kubeconfig.Flags{}, &dryrun.Mode{}, &output.Format{}
	cmd.ValidArgsFunction = flags.CompleteName(v1alpha1.SchemeGroupVersion.WithKind("Machine"))
	cmd.Args = func(_ *cobra.Command, given []string) error {
		_, err := machineName(given)
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		name, err := machineName(given)
		if err != nil {
			return err
		}
		c, namespace, err := open(flags)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), requestsTimeout)
		defer cancel()
		changed, done, err := annotate(ctx, dry.Wrap(c), types.NamespacedName{Namespace: namespace, Name: name}, decide)
		if err != nil {
			return flags.ExplainStopped(err)
		}
		return format.Changed(cmd.OutOrStdout(), changed, done+dry.Suffix())
	}
	flags.Add(cmd, "Machine")
	dry.Add(cmd)
	format.Add(cmd, output.Objects)
	return cmd
}

// requestsTimeout is how long an API server may take for all requests of a command.
const requestsTimeout = 30 * time.Second

// machineKinds are the names by which kubectl knows Machines.
var machineKinds = []string{"machine", "machines", "machine.machine.sapcloud.io", "machines.machine.sapcloud.io"}

// machineName reads NAME, KIND/NAME or KIND NAME.
func machineName(given []string) (string, error) {
	all := strings.Join(given, "/")
	kind, name, hasKind := strings.Cut(all, "/")
	if !hasKind {
		kind, name = "machine", all
	}
	if name == "" || strings.Contains(name, "/") || !slices.Contains(machineKinds, strings.ToLower(kind)) {
		return "", args.Wrongf("expected one argument, the name of a Machine as NAME or machine/NAME")
	}
	return name, nil
}

// annotate reads a Machine and changes its annotation as decided. It returns the Machine as it was written.
func annotate(ctx context.Context, c client.Client, key types.NamespacedName, decide func(*v1alpha1.Machine) (value, done string)) (*v1alpha1.Machine, string, error) {
	machine := &v1alpha1.Machine{}
	if err := c.Get(ctx, key, machine); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, "", fmt.Errorf("machine %s does not exist; \"kubectl get machines -A\" lists all", key)
		}
		return nil, "", fmt.Errorf("cannot read machine %s: %w", key, err)
	}
	if !machine.DeletionTimestamp.IsZero() {
		return nil, "", fmt.Errorf("machine %s is being deleted and cannot be preserved or released", key)
	}
	if of := machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve]; of != "" {
		return nil, "", fmt.Errorf("the annotation %s=%s of node %s takes precedence over that of machine %s; change or remove it first",
			v1alpha1.AnnotationKeyPreserve, of, machine.NodeName(), key)
	}
	value, done := decide(machine)
	if machine.Annotations[v1alpha1.AnnotationKeyPreserve] == value {
		return machine, done, nil
	}
	// Without its UID, the patch would change a Machine that was created with the same name in the meantime.
	annotations := map[string]any{v1alpha1.AnnotationKeyPreserve: value}
	if value == "" {
		annotations[v1alpha1.AnnotationKeyPreserve] = nil
		delete(machine.Annotations, v1alpha1.AnnotationKeyPreserve)
	} else {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyPreserve, value)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": machine.UID, "annotations": annotations}})
	if err != nil {
		return nil, "", err
	}
	if err := c.Patch(ctx, machine, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return nil, "", fmt.Errorf("cannot change machine %s: %w", key, err)
	}
	return machine, done, nil
}
