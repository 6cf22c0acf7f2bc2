// Package rollout shows and controls the rollouts of MachineDeployments.
package rollout

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

// New returns the commands.
func New() *cobra.Command {
	return args.Group(&cobra.Command{
		Use:   "rollout",
		Short: "Watch and control how a MachineDeployment replaces its machines",
		Long: `Watch and control how a MachineDeployment replaces its machines.

NAME is the name of the MachineDeployment. machinedeployment/NAME and mcd/NAME are also accepted.
The commands need access to the API server only, and also work with MCM.`,
		Example: `  millwright rollout status pool
  millwright rollout restart mcd/pool -n machines --kubeconfig control.yaml
  millwright rollout undo pool --to-revision 2`,
	}, newStatus(), newHistory(), newUndo(), newPause(), newResume(), newRestart(), newDiff(), newReplacements())
}

// add completes a command that takes one MachineDeployment and calls run with it.
func add(cmd *cobra.Command, run func(cmd *cobra.Command, d deployment) error) *cobra.Command {
	flags := &kubeconfig.Flags{}
	cmd.ValidArgsFunction = flags.CompleteName(v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))
	cmd.Args = func(_ *cobra.Command, given []string) error {
		_, err := deploymentName(given)
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		var wrong args.Problems
		if wrong.Negative(cmd.Flags()); wrong != nil {
			return args.Wrong(wrong.Err())
		}
		d, err := open(flags, given)
		if err != nil {
			return err
		}
		return run(cmd, d)
	}
	flags.Add(cmd, "MachineDeployment")
	return cmd
}

// deploymentKinds are the names that kubectl accepts for MachineDeployments.
var deploymentKinds = map[string]bool{
	"machinedeployment": true, "machinedeployments": true, "mcd": true,
	"machinedeployment.machine.sapcloud.io": true, "machinedeployments.machine.sapcloud.io": true,
}

// deploymentName reads NAME, KIND/NAME or KIND NAME.
func deploymentName(given []string) (string, error) {
	all := strings.Join(given, "/")
	kind, name, hasKind := strings.Cut(all, "/")
	if !hasKind {
		kind, name = "machinedeployment", all
	}
	switch {
	case strings.Contains(name, "/"):
		return "", args.Wrongf("invalid name %q; specify one MachineDeployment as NAME, machinedeployment/NAME or mcd/NAME", all)
	case name == "":
		return "", args.Wrongf("the name of a MachineDeployment is required")
	case !deploymentKinds[strings.ToLower(kind)] && len(given) > 1:
		return "", args.Wrongf("unsupported kind %q; specify one MachineDeployment as NAME, machinedeployment/NAME or mcd/NAME", kind)
	case !deploymentKinds[strings.ToLower(kind)]:
		return "", args.Wrongf("unsupported kind %q; specify NAME, machinedeployment/NAME or mcd/NAME", kind)
	}
	return name, nil
}

// deployment is the MachineDeployment of a command, and its cluster.
type deployment struct {
	rollout.Follower

	key types.NamespacedName
}

// open returns the deployment of the arguments. It does not contact the cluster yet.
func open(flags *kubeconfig.Flags, given []string) (deployment, error) {
	name, err := deploymentName(given)
	if err != nil {
		return deployment{}, err
	}
	config, namespace, err := flags.Load()
	if err != nil {
		return deployment{}, err
	}
	// Client-side rate limits are meant for controllers. Shortly before a --timeout expires, the limiter would return
	// an error of its own.
	config.QPS = -1
	ctrl.SetLogger(logr.Discard()) // errors are printed; log lines would break the display
	c, err := connect.NewClient(config)
	return deployment{
		Follower: rollout.Follower{Config: config, Client: c},
		key:      types.NamespacedName{Namespace: namespace, Name: name},
	}, err
}

// requestTimeout limits all API requests of a command together.
const requestTimeout = 30 * time.Second

func newHistory() *cobra.Command {
	revision, format := int64(0), &output.Format{}
	cmd := add(&cobra.Command{
		Use:   "history NAME",
		Short: "List the revisions of a MachineDeployment, or show the template of one",
		Long: `List the revisions of a MachineDeployment, oldest first, or show the template of one.

Each revision is a MachineSet. spec.revisionHistoryLimit limits the number of MachineSets
without machines that are kept. CHANGE-CAUSE is the annotation kubernetes.io/change-cause that
the MachineDeployment had at the time of the revision.`,
		Example: `  millwright rollout history pool
  millwright rollout history pool --revision 3`,
	}, func(cmd *cobra.Command, d deployment) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
		defer cancel()
		facts, err := rollout.Read(ctx, d.Client, d.key)
		if err != nil {
			return err
		}
		if revision > 0 {
			set, err := rollout.Find(facts, revision)
			if err != nil {
				return err
			}
			return format.Print(cmd.OutOrStdout(), set, func(out io.Writer) error { return rollout.PrintRevision(out, facts, revision) })
		}
		sets := &v1alpha1.MachineSetList{}
		for _, set := range rollout.Revisions(facts) {
			sets.Items = append(sets.Items, *set)
		}
		return format.Print(cmd.OutOrStdout(), sets, func(out io.Writer) error { return rollout.PrintHistory(out, facts, time.Now()) })
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "show the template of this revision; 0 to list all")
	format.Add(cmd, output.Objects)
	return cmd
}
