// Package machine explains and preserves Machines.
package machine

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/gather"
	"github.com/millwright-dev/millwright/internal/observe/explain/pool"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// NewExplain returns "millwright explain".
func NewExplain() *cobra.Command {
	flags := &explainFlags{}
	cmd := &cobra.Command{
		Use:     "explain KIND/NAME",
		Aliases: []string{"diagnose"}, // "kubectl explain" describes the fields of a kind
		Short:   "Explain the state of a Machine, MachineSet or MachineDeployment",
		Long: `Explain the state of a Machine, MachineSet or MachineDeployment: what is wrong since when, what
happens next, and what you can do.` + onlyReads + `

The command is also called "diagnose", because "kubectl explain" describes the fields of a kind.`,
		Example: `  millwright explain machine pool-a-x7k2p
  millwright explain mcd/pool`,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			_, _, err := parseObject(cmd, args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			kind, name, err := parseObject(cmd, args)
			if err != nil {
				return err
			}
			return flags.run(cmd, kind, name)
		},
	}
	flags.add(cmd, "object")
	cmd.ValidArgsFunction = cobra.NoFileCompletions // subcommands are the kinds
	for _, kind := range kinds {
		cmd.AddCommand(kind.command())
	}
	return cmd
}

// parseObject reads KIND/NAME, or KIND NAME if the kind is not the name of a subcommand.
func parseObject(cmd *cobra.Command, given []string) (kind explained, name string, err error) {
	if len(given) == 0 {
		return kind, "", nil
	}
	of, name, _ := strings.Cut(strings.Join(given, "/"), "/")
	of, _ = strings.CutSuffix(strings.ToLower(of), "."+v1alpha1.GroupName)
	if slices.Contains([]string{"machineclass", "machineclasses", "mcc"}, of) {
		return kind, "", args.Wrongf("classes cannot be explained; explain a machine, set or deployment that uses the class, which also reports problems of the class, or inspect it with: kubectl get machineclasses.%s %s", v1alpha1.GroupName, cmp.Or(name, "NAME"))
	}
	at := slices.IndexFunc(kinds, func(kind explained) bool { return of == kind.use || slices.Contains(kind.aliases, of) })
	if at < 0 {
		return kind, "", args.KnownCommand(cmd, given)
	}
	if kind = kinds[at]; name == "" || strings.Contains(name, "/") {
		return kind, "", args.OneName(kind.kind)(cmd, nil)
	}
	return kind, name, nil
}

// explained is a kind that can be explained.
type explained struct {
	use     string
	aliases []string
	// kind is in upper camel case.
	kind                 string
	short, long, example string
	explain              func(ctx context.Context, from gather.Reader, key types.NamespacedName) (report.Report, error)
}

const onlyReads = "\n\nThis only reads objects and does not need a running manager."

var kinds = []explained{
	{
		use: "machine", aliases: []string{"machines", "mc"}, kind: "Machine",
		short: "Explain why a Machine is not Running, was replaced, or is not deleted",
		long: `Explain why a Machine is not Running, why it was replaced, or what blocks its deletion:
since when, what happens next, and what you can do.` + onlyReads + ` A deleted Machine
is explained from its events, which an API server keeps for one hour by default.

For a VM of Millwright whose node is missing or unhealthy, the last lines of its console output are
shown, if you have permission to read them.`,
		example: `  millwright explain machine pool-a-x7k2p
  millwright explain machine pool-a-x7k2p -n machines --control-kubeconfig control.yaml --target-kubeconfig target.yaml -o json`,
		explain: func(ctx context.Context, from gather.Reader, key types.NamespacedName) (report.Report, error) {
			facts, err := from.Machine(ctx, key)
			return explain.Machine(facts, time.Now()), err
		},
	}, {
		use: "machineset", aliases: []string{"machinesets", "mcs"}, kind: "MachineSet",
		short: "Explain why a MachineSet does not have its desired Machines",
		long: `Explain why a MachineSet does not have its desired Machines: what prevents their creation,
which Machines are not healthy and why, what happens next, and what you can do.` + onlyReads,
		example: `  millwright explain machineset pool-7d9f8`,
		explain: func(ctx context.Context, from gather.Reader, key types.NamespacedName) (report.Report, error) {
			facts, err := from.Set(ctx, key)
			return pool.Explain(facts, time.Now()), err
		},
	}, {
		use: "machinedeployment", aliases: []string{"machinedeployments", "mcd"}, kind: "MachineDeployment",
		short: "Explain why a MachineDeployment does not have its desired Machines",
		long: `Explain why a MachineDeployment does not have its desired Machines, or why they are not up
to date: what blocks the rollout, which Machines are not healthy and why, what happens
next, and what you can do.` + onlyReads,
		example: `  millwright explain machinedeployment pool`,
		explain: func(ctx context.Context, from gather.Reader, key types.NamespacedName) (report.Report, error) {
			facts, err := from.Deployment(ctx, key)
			return pool.Explain(facts, time.Now()), err
		},
	},
}

func (k explained) command() *cobra.Command {
	flags := &explainFlags{}
	cmd := &cobra.Command{
		Use: k.use + " NAME", Aliases: k.aliases, Short: k.short, Long: k.long, Example: k.example,
		Args: args.OneName(k.kind),
		RunE: func(cmd *cobra.Command, args []string) error { return flags.run(cmd, k, args[0]) },
	}
	flags.add(cmd, k.kind)
	control := func() (*rest.Config, string, error) {
		config, _, namespace, err := flags.clusters()
		return config, namespace, err
	}
	cmd.ValidArgsFunction = kubeconfig.CompleteName(control, v1alpha1.SchemeGroupVersion.WithKind(k.kind))
	return cmd
}

// explainFlags select the clusters and the output format.
type explainFlags struct {
	kubeconfig.Flags

	control, target string
	format          output.Format
	nodeConditions  string
	manager         explain.Flags
}

// requestTimeout is how long an API server may take to respond to one request.
const requestTimeout = 10 * time.Second

func (f *explainFlags) add(cmd *cobra.Command, kind string) {
	flags := cmd.Flags()
	f.Flags.Add(cmd, kind)
	flags.Lookup("context").Usage = "context of the control cluster in its kubeconfig; defaults to the current context"
	flags.StringVar(&f.control, "control-kubeconfig", "", "kubeconfig of the control cluster, which holds the Machines; instead of --kubeconfig and --dir; defaults to --target-kubeconfig")
	flags.StringVar(&f.target, "target-kubeconfig", "", `kubeconfig of the target cluster, which the nodes join; "none" if there is none; defaults to the control cluster`)
	args.Section(flags, kubeconfig.Section)
	f.format.Add(cmd, output.Objects)
	args.Section(flags, args.General)
	flags.DurationVar(&f.manager.Creation, "machine-creation-timeout", timeouts.DefaultCreation, "value of this flag of the manager")
	flags.DurationVar(&f.manager.Health, "machine-health-timeout", timeouts.DefaultHealth, "value of this flag of the manager")
	flags.DurationVar(&f.manager.Drain, "machine-drain-timeout", timeouts.DefaultDrain, "value of this flag of the manager")
	flags.DurationVar(&f.manager.ResourceExhausted, "resource-exhausted-retry", timeouts.DefaultResourceExhausted, "value of this flag of the manager")
	flags.StringVar(&f.nodeConditions, "node-conditions", strings.Join(noderef.DefaultBadConditions, ","), "value of this flag of the manager")
	args.Section(flags, "manager's")
}

// validate returns all problems with the flags.
func (f *explainFlags) validate(flags *pflag.FlagSet) error {
	var wrong args.Problems
	wrong.Negative(flags)
	named := f.control != "" || f.target != "" && f.target != connect.None
	wrong.If(named && f.File != "", "--kubeconfig: cannot be used with --control-kubeconfig or --target-kubeconfig")
	wrong.If(named && f.Dir != "", "--dir: cannot be used with --control-kubeconfig or --target-kubeconfig")
	return wrong.Err()
}

// run explains an object. It returns an error if neither the object nor its events exist.
func (f *explainFlags) run(cmd *cobra.Command, kind explained, name string) error {
	if err := f.validate(cmd.Flags()); err != nil {
		return args.Wrong(err)
	}
	gatherer, namespace, err := f.gatherer()
	if err != nil {
		return err
	}
	explanation, err := kind.explain(cmd.Context(), gatherer, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	if explanation.Verdict == report.NotFound {
		return errors.New(strings.Join(append([]string{explanation.Summary}, explanation.Advice...), " "))
	}
	named := explanationOf{explanation, strings.ToLower(kind.kind) + "." + v1alpha1.GroupName + "/" + name}
	return f.format.Print(cmd.OutOrStdout(), named, func(out io.Writer) error { return report.Print(out, explanation) })
}

// explanationOf is an explanation with the name of its object.
type explanationOf struct {
	report.Report

	object string
}

// Names implements output.Named.
func (e explanationOf) Names() []string { return []string{e.object} }

// gatherer returns a reader of both clusters, and the namespace of the object. It does not contact the clusters
// yet.
func (f *explainFlags) gatherer() (made gather.Reader, namespace string, err error) {
	if f.nodeConditions != "" {
		f.manager.NodeConditions = noderef.ParseConditions(f.nodeConditions)
	}
	made.Flags = f.manager
	control, target, namespace, err := f.clusters()
	if err != nil {
		return made, "", err
	}
	control.Timeout = requestTimeout
	if made.Control, err = connect.NewClient(control); err != nil {
		return made, namespace, err
	}
	if made.Console, err = vm.LastOutput(control); err != nil || target == nil {
		return made, namespace, err
	}
	target.Timeout = requestTimeout
	made.Target, err = connect.NewClient(target)
	return made, namespace, err
}

// clusters returns the control cluster, the target cluster, which is nil if there is none, and a namespace of
// the control cluster.
func (f *explainFlags) clusters() (control, target *rest.Config, namespace string, err error) {
	switch {
	case f.control != "":
		control, namespace, err = connect.Named("--control-kubeconfig", f.control, f.Context)
	case f.target != "" && f.target != connect.None:
		control, namespace, err = connect.Named("--target-kubeconfig", f.target, f.Context)
	default:
		control, namespace, err = f.Load()
	}
	if err != nil {
		return nil, nil, "", err
	}
	target = control
	switch {
	case f.target == connect.None:
		target = nil
	case f.target != "" && f.control != "":
		target, _, err = connect.Named("--target-kubeconfig", f.target, "")
	}
	return control, target, cmp.Or(f.Namespace, namespace), err
}
