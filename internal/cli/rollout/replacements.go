package rollout

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/observe/rollout/replacements"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// replacementFlags are the flags of "millwright rollout replacements".
type replacementFlags struct {
	policy  string
	limit   string
	timeout time.Duration
	format  output.Format
}

func newReplacements() *cobra.Command {
	flags := &replacementFlags{}
	cmd := add(&cobra.Command{
		Use:   "replacements NAME",
		Short: "Show which unhealthy machines would be replaced, and which would wait",
		Long: `Show which unhealthy machines of a MachineDeployment would be replaced, and which would wait and
why, without changing anything.

The command decides as the manager does, based on spec.replacement or --policy. It does not
consider what only a running manager knows: the limit for all pools together, and outages of API
servers. It estimates the number of recent replacements from the ages of the machines.`,
		Example: `  millwright rollout replacements pool
  millwright rollout replacements pool --policy '{"budgets":[{"max":"20%","per":"topology.kubernetes.io/zone"}]}'`,
	}, func(cmd *cobra.Command, d deployment) error { return d.replacements(cmd, flags) })
	cmd.Flags().StringVar(&flags.policy, "policy", "", "replacement policy to use instead of spec.replacement of the MachineDeployment, in JSON")
	cmd.Flags().StringVar(&flags.limit, "machine-max-health-replacements", "1", "value of the manager's flag of the same name")
	cmd.Flags().DurationVar(&flags.timeout, "machine-health-timeout", timeouts.DefaultHealth, "value of the manager's flag of the same name")
	flags.format.Add(cmd, output.Tables)
	return cmd
}

func (d deployment) replacements(cmd *cobra.Command, flags *replacementFlags) error {
	of := replacements.Settings{HealthTimeout: flags.timeout, MaxReplacements: intstr.Parse(flags.limit)}
	if _, err := intstr.GetScaledValueFromIntOrPercent(&of.MaxReplacements, 100, false); err != nil {
		return args.Wrongf("--machine-max-health-replacements: %q is neither a number nor a percentage", flags.limit)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
	defer cancel()
	facts, err := rollout.Read(ctx, d.Client, d.key)
	if err != nil {
		return err
	}
	if of.Policy, err = policy(flags.policy, facts.Deployment); err != nil {
		return args.Wrongf("%v", err)
	}
	zones, err := d.zones(ctx)
	if err != nil {
		return err
	}
	of.Zone = func(machine *v1alpha1.Machine) string { return zones[machine.Spec.Class.Name] }
	now := time.Now()
	all := unhealthyOf(replacements.Of(facts.Machines, of, now), now)
	return flags.format.Print(cmd.OutOrStdout(), all, func(out io.Writer) error {
		return all.table(now).Print(out, flags.format, "No unhealthy machines; none would be replaced.")
	})
}

// unhealthy is the output of the command about a Machine.
type unhealthy struct {
	Machine string                `json:"machine"`
	Phase   v1alpha1.MachinePhase `json:"phase"`
	// Since is when the phase began.
	Since metav1.Time `json:"since"`
	// Replaced describes whether and when the Machine is replaced.
	Replaced string `json:"replaced"`
	name     string
}

type unhealthyMachines []unhealthy

func unhealthyOf(machines []replacements.Unhealthy, now time.Time) unhealthyMachines {
	all := unhealthyMachines{}
	for _, it := range machines {
		status := it.Machine.Status.CurrentStatus
		name, _ := output.NameOf(it.Machine) // the kind is known
		all = append(all, unhealthy{it.Machine.Name, status.Phase, status.LastUpdateTime, it.Fate(now), name})
	}
	return all
}

// Names implements output.Named.
func (u unhealthyMachines) Names() (names []string) {
	for _, it := range u {
		names = append(names, it.name)
	}
	return names
}

func (u unhealthyMachines) table(now time.Time) output.Table {
	all := output.Table{Columns: []output.Column{{Title: "MACHINE"}, {Title: "PHASE"}, {Title: "AGE OF PHASE"}, {Title: "REPLACED"}}}
	for _, it := range u {
		all.Rows = append(all.Rows, []string{it.Machine, string(it.Phase), duration.HumanDuration(now.Sub(it.Since.Time)), it.Replaced})
	}
	return all
}

// policy parses text. If text is empty, it returns the policy of the deployment.
func policy(text string, deployment *v1alpha1.MachineDeployment) (*v1alpha1.ReplacementPolicy, error) {
	if text == "" {
		return budget.Given(deployment), nil
	}
	return budget.Parse(text)
}

// zones returns the zone of each MachineClass by its name.
func (d deployment) zones(ctx context.Context) (map[string]string, error) {
	classes, zones := &v1alpha1.MachineClassList{}, map[string]string{}
	if err := d.Client.List(ctx, classes, client.InNamespace(d.key.Namespace)); err != nil {
		return nil, fmt.Errorf("cannot list machine classes: %w", err)
	}
	for i := range classes.Items {
		zones[classes.Items[i].Name] = scarcity.Zone(&classes.Items[i])
	}
	return zones, nil
}
