package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	explanation "github.com/millwright-dev/millwright/internal/observe/explain"
)

// explainFlags say which clusters are asked, and how the answer is printed.
type explainFlags struct {
	clusterFlags

	context         string
	control, target string
	output          string
	nodeConditions  string
	timeouts        explanation.Timeouts
}

// How the answer is printed.
const (
	outputText = "text"
	outputJSON = "json"
)

// explainPatience is how long an API server may take to answer one request.
const explainPatience = 10 * time.Second

func newExplainCommand() *cobra.Command {
	flags := &explainFlags{}
	cmd := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Say why a machine, or a pool of machines, is as it is",
		Example: `  millwright explain machine pool-a-x7k2p
  millwright explain mcd/pool`,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			_, _, err := explainedObject(cmd, args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			kind, name, err := explainedObject(cmd, args)
			if err != nil {
				return err
			}
			return flags.run(cmd, kind, name)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.add(cmd, "object")
	for _, kind := range explainedKinds() {
		cmd.AddCommand(kind.command())
	}
	return cmd
}

// explainedKinds are those that can be explained.
func explainedKinds() []explained {
	return []explained{explainedMachine(), explainedSet(), explainedDeployment()}
}

// explainedObject reads KIND/NAME, or KIND NAME where the kind is not written as the command is.
func explainedObject(cmd *cobra.Command, args []string) (kind explained, name string, err error) {
	of, name, _ := strings.Cut(strings.Join(args, "/"), "/")
	of, _ = strings.CutSuffix(strings.ToLower(of), "."+v1alpha1.GroupName)
	if slices.Contains([]string{"machineclass", "machineclasses", "mcc"}, of) {
		return kind, "", usage(cmd, fmt.Errorf("classes are not explained: a class does nothing by itself. Ask about a machine, set or deployment that uses it, which tells what is wrong with the class, too. To look at it: kubectl get machineclasses.%s %s", v1alpha1.GroupName, cmp.Or(name, "NAME")))
	}
	for _, kind := range explainedKinds() {
		if of != kind.use && !slices.Contains(kind.aliases, of) {
			continue
		}
		if name == "" || strings.Contains(name, "/") {
			return kind, "", usage(cmd, fmt.Errorf("give the name of one %s", kind.kind))
		}
		return kind, name, nil
	}
	return kind, "", knownCommand(cmd, args)
}

// explained is a kind that can be explained.
type explained struct {
	use     string
	aliases []string
	// kind is how the kind is written.
	kind        string
	short, long string
	example     string
	explain     func(ctx context.Context, from explanation.Gatherer, key types.NamespacedName) (explanation.Report, error)
}

func (k explained) command() *cobra.Command {
	flags := &explainFlags{}
	cmd := &cobra.Command{
		Use: k.use + " NAME", Aliases: k.aliases, Short: k.short, Long: k.long, Example: k.example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] != "" {
				return nil
			}
			return usage(cmd, fmt.Errorf("give the name of one %s", k.kind))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.run(cmd, k, args[0])
		},
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	flags.add(cmd, k.kind)
	return cmd
}

func explainedMachine() explained {
	return explained{
		use: "machine", aliases: []string{"machines", "mc"}, kind: "Machine",
		short: "Say why a Machine is not Running, was replaced, or is not deleted",
		long: `Say why a Machine is not Running, why it was replaced, or what holds its deletion up:
each with since when, what happens next, and what you can do.

It only reads. It needs no manager, and asks none. Of a Machine that is gone it says what
events tell, which an API server keeps for an hour.`,
		example: `  millwright explain machine pool-a-x7k2p
  millwright explain machine pool-a-x7k2p -n machines --control-kubeconfig control.yaml --target-kubeconfig target.yaml -o json`,
		explain: func(ctx context.Context, from explanation.Gatherer, key types.NamespacedName) (explanation.Report, error) {
			facts, err := from.Gather(ctx, key)
			return explanation.Explain(facts, time.Now()), err
		},
	}
}

func explainedSet() explained {
	return explained{
		use: "machineset", aliases: []string{"machinesets", "mcs"}, kind: "MachineSet",
		short: "Say why a MachineSet does not have the Machines that it wants",
		long: `Say why a MachineSet does not have the Machines that it wants: what keeps it from making
them, what is wrong with those that it has, what happens next, and what you can do.

It only reads. It needs no manager, and asks none.`,
		example: `  millwright explain machineset pool-7d9f8`,
		explain: func(ctx context.Context, from explanation.Gatherer, key types.NamespacedName) (explanation.Report, error) {
			facts, err := from.GatherSet(ctx, key)
			return explanation.ExplainPool(facts, time.Now()), err
		},
	}
}

func explainedDeployment() explained {
	return explained{
		use: "machinedeployment", aliases: []string{"machinedeployments", "mcd"}, kind: "MachineDeployment",
		short: "Say why a MachineDeployment does not have the Machines that it wants",
		long: `Say why a MachineDeployment does not have the Machines that it wants, or not of its newest
template: what keeps it from going on, what is wrong with the Machines that it has, what
happens next, and what you can do.

It only reads. It needs no manager, and asks none.`,
		example: `  millwright explain machinedeployment pool`,
		explain: func(ctx context.Context, from explanation.Gatherer, key types.NamespacedName) (explanation.Report, error) {
			facts, err := from.GatherDeployment(ctx, key)
			return explanation.ExplainPool(facts, time.Now()), err
		},
	}
}

func (f *explainFlags) add(cmd *cobra.Command, kind string) {
	flags := cmd.Flags()
	f.addFlags(flags)
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig that leads to the Machines; empty for its current one")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the "+kind+`; empty for that of the context, or else "default"`)
	flags.StringVar(&f.control, "control-kubeconfig", "", "kubeconfig of the cluster where the Machines live, if it is not the one of --kubeconfig and --dir; empty for the target cluster")
	flags.StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the cluster that the nodes join; "none" if there is none; empty for the control cluster`)
	flags.StringVarP(&f.output, "output", "o", outputText, "text or json")
	flags.DurationVar(&f.timeouts.Creation, "machine-creation-timeout", explanation.DefaultCreationTimeout, "as the manager has it")
	flags.DurationVar(&f.timeouts.Health, "machine-health-timeout", explanation.DefaultHealthTimeout, "as the manager has it")
	flags.DurationVar(&f.timeouts.Drain, "machine-drain-timeout", explanation.DefaultDrainTimeout, "as the manager has it")
	flags.DurationVar(&f.timeouts.ResourceExhausted, "resource-exhausted-retry", explanation.DefaultResourceExhaustedRetry, "as the manager has it")
	flags.StringVar(&f.nodeConditions, "node-conditions", "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable", "as the manager has it")
}

// validate says all that is wrong with the flags at once.
func (f *explainFlags) validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(f.output != outputText && f.output != outputJSON, "--output: %q is neither text nor json", f.output)
	refuse(f.timeouts.ResourceExhausted < 0, "--resource-exhausted-retry: must not be negative")
	refuse(f.timeouts.Creation < 0 || f.timeouts.Health < 0 || f.timeouts.Drain < 0, "--machine-*-timeout: must not be negative")
	return errors.Join(append(errs, f.validateClusters())...)
}

func (f *explainFlags) validateClusters() error {
	if f.control == "" && (f.target == "" || f.target == kubeconfigNone) {
		return nil
	}
	for name, value := range map[string]string{"--kubeconfig": f.kubeconfig, "--dir": f.dir} {
		if value != "" {
			return fmt.Errorf("%s: cannot be used with --control-kubeconfig or --target-kubeconfig", name)
		}
	}
	return nil
}

// run is the command for an object of a kind.
func (f *explainFlags) run(cmd *cobra.Command, kind explained, name string) error {
	if err := f.validate(); err != nil {
		return usage(cmd, err)
	}
	return f.explain(cmd.Context(), kind, name, cmd.OutOrStdout())
}

// explain prints what there is to say of an object. One of which nothing is known is an
// error.
func (f *explainFlags) explain(ctx context.Context, kind explained, name string, out io.Writer) error {
	gatherer, namespace, err := f.gatherer()
	if err != nil {
		return err
	}
	report, err := kind.explain(ctx, gatherer, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	if report.Verdict == explanation.NotFound {
		return errors.New(strings.Join(append([]string{report.Answer}, report.Advice...), " "))
	}
	if f.output == outputJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(report); err != nil {
			return fmt.Errorf("writing the explanation: %w", err)
		}
		return nil
	}
	return explanation.Print(out, report)
}

// gatherer connects to both clusters, and tells which namespace is meant. Nothing is contacted
// yet.
func (f *explainFlags) gatherer() (made explanation.Gatherer, namespace string, err error) {
	f.timeouts.NodeConditions = splitList(f.nodeConditions)
	made.Timeouts = f.timeouts
	control, namespace, err := f.controlConfig()
	if err != nil {
		return made, "", err
	}
	namespace = cmp.Or(f.namespace, namespace)
	target, err := f.targetConfig(control)
	if err != nil {
		return made, "", err
	}
	if made.Control, err = reader(control); err != nil || target == nil {
		return made, namespace, err
	}
	made.Target, err = reader(target)
	return made, namespace, err
}

// controlConfig leads to the cluster of the Machines, and tells the namespace of its context.
func (f *explainFlags) controlConfig() (*rest.Config, string, error) {
	switch {
	case f.control != "":
		return loadKubeconfig("--control-kubeconfig", f.control, f.context)
	case f.target != "" && f.target != kubeconfigNone:
		return loadKubeconfig("--target-kubeconfig", f.target, f.context)
	default:
		return f.load(f.context)
	}
}

// targetConfig leads to the cluster of the nodes; nil if there is none.
func (f *explainFlags) targetConfig(control *rest.Config) (*rest.Config, error) {
	switch {
	case f.target == kubeconfigNone:
		return nil, nil
	case f.target == "" || f.control == "":
		return control, nil
	default:
		target, _, err := loadKubeconfig("--target-kubeconfig", f.target, "")
		return target, err
	}
}

// loadKubeconfig reads the file that a flag names.
func loadKubeconfig(flag, path, context string) (config *rest.Config, namespace string, err error) {
	if path == kubeconfigInCluster {
		config, err = rest.InClusterConfig()
		namespace = metav1.NamespaceDefault
	} else {
		config, namespace, err = (&clusterFlags{kubeconfig: path}).load(context)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", flag, err)
	}
	config.UserAgent = "millwright"
	return config, namespace, nil
}

// reader makes a client that cannot write.
func reader(config *rest.Config) (client.Reader, error) {
	config = rest.CopyConfig(config)
	config.Timeout = explainPatience
	made, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return made, nil
}
