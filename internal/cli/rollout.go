package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
)

func newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Watch and control how a MachineDeployment replaces its machines",
		Long: `Watch and control how a MachineDeployment replaces its machines.

NAME is that of the MachineDeployment; machinedeployment/NAME and mcd/NAME are the same.
All of it needs the API server only, and works with MCM as well.`,
		Example: `  millwright rollout status pool
  millwright rollout restart mcd/pool -n machines --kubeconfig control.yaml
  millwright rollout undo pool --to-revision 2`,
		SuggestionsMinimumDistance: 2,
		Args:                       knownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newRolloutStatusCommand(), newRolloutHistoryCommand(), newRolloutUndoCommand(),
		newRolloutPauseCommand(), newRolloutResumeCommand(), newRolloutRestartCommand(),
	)
	return cmd
}

// rolloutFlags say which cluster and namespace a deployment is in.
type rolloutFlags struct {
	clusterFlags

	context string
}

func (f *rolloutFlags) add(cmd *cobra.Command) {
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	f.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig; empty for its current one")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", `namespace of the deployment; empty for that of the context, or else "default"`)
}

// deploymentKinds are the names under which a MachineDeployment is known to kubectl.
var deploymentKinds = []string{
	"machinedeployment", "machinedeployments", "mcd",
	"machinedeployment.machine.sapcloud.io", "machinedeployments.machine.sapcloud.io",
}

// oneDeployment wants the name of one deployment, in any form that kubectl takes.
func oneDeployment(cmd *cobra.Command, args []string) error {
	if _, err := deploymentName(args); err != nil {
		return usage(cmd, err)
	}
	return nil
}

// deploymentName reads NAME, KIND/NAME or KIND NAME.
func deploymentName(args []string) (string, error) {
	all := strings.Join(args, "/")
	kind, name, hasKind := strings.Cut(all, "/")
	if !hasKind {
		kind, name = deploymentKinds[0], all
	}
	switch {
	case strings.Contains(name, "/"):
		return "", fmt.Errorf("%q is no name: give the name of one MachineDeployment, as NAME, machinedeployment/NAME or mcd/NAME", all)
	case name == "":
		return "", errors.New("give the name of one MachineDeployment")
	case !isDeployment(kind) && len(args) > 1:
		return "", fmt.Errorf("give the name of one MachineDeployment, as NAME, machinedeployment/NAME or mcd/NAME; %q is no kind that is rolled out here", kind)
	case !isDeployment(kind):
		return "", fmt.Errorf("%q is no kind that is rolled out here: give NAME, machinedeployment/NAME or mcd/NAME", kind)
	}
	return name, nil
}

func isDeployment(kind string) bool {
	for _, known := range deploymentKinds {
		if strings.EqualFold(kind, known) {
			return true
		}
	}
	return false
}

// notNegative refuses values of flags that are less than zero, by their names.
func notNegative(values map[string]int64) error {
	var wrong []string
	for name, value := range values {
		if value < 0 {
			wrong = append(wrong, "--"+name)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("%s: must not be negative", strings.Join(wrong, ", "))
}

// subject is the deployment that a command is about, and how to get at it.
type subject struct {
	key    types.NamespacedName
	client client.WithWatch
	link   *rollout.Link
}

// say is how a command says what it did to the deployment.
func (s subject) say(cmd *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "machinedeployment.machine.sapcloud.io/%s %s\n", s.key.Name, fmt.Sprintf(format, args...))
	return err
}

// open makes a client, and does not contact the cluster yet.
func (f *rolloutFlags) open(args []string) (subject, error) {
	name, err := deploymentName(args)
	if err != nil {
		return subject{}, err
	}
	config, namespace, err := f.reach()
	if err != nil {
		return subject{}, err
	}
	s := subject{key: types.NamespacedName{Namespace: namespace, Name: name}, link: &rollout.Link{}}
	config.Wrap(s.link.Wrap)
	if s.client, err = client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()}); err != nil {
		return subject{}, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return s, nil
}

// reach reads the kubeconfig, and tells which namespace is meant.
func (f *rolloutFlags) reach() (*rest.Config, string, error) {
	config, namespace, err := f.load(f.context)
	if err != nil {
		return nil, "", err
	}
	config.QPS, config.Burst = 50, 100 // a limit meant for controllers must not eat up a short --timeout
	return config, cmp.Or(f.namespace, namespace), nil
}
