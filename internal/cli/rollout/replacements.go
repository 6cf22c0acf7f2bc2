package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/observe/rollout/replacements"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// replacementFlags are those of "millwright rollout replacements".
type replacementFlags struct {
	policy  string
	limit   string
	timeout time.Duration
}

func newReplacements() *cobra.Command {
	flags := replacementFlags{}
	cmd := add(&cobra.Command{
		Use:   "replacements NAME",
		Short: "Show which unhealthy machines would be replaced, and which would wait",
		Long: `Show which unhealthy machines of a MachineDeployment would be replaced, and which would wait,
and for what. It changes nothing.

It decides as the manager does, by spec.replacement or the policy of --policy. What only a
running manager knows is left out: the limit of all pools together, outages of API servers,
and how many machines were replaced before, which is guessed from the ages of the machines.`,
		Example: `  millwright rollout replacements pool
  millwright rollout replacements pool --policy '{"budgets":[{"max":"20%","per":"topology.kubernetes.io/zone"}]}'`,
	}, func(cmd *cobra.Command, d deployment) error { return d.replacements(cmd, flags) })
	cmd.Flags().StringVar(&flags.policy, "policy", "", "policy to try instead of that of the MachineDeployment, as spec.replacement in JSON")
	cmd.Flags().StringVar(&flags.limit, "machine-max-health-replacements", "1", "the same flag of the manager")
	cmd.Flags().DurationVar(&flags.timeout, "machine-health-timeout", timeouts.DefaultHealth, "the same flag of the manager")
	return cmd
}

func (d deployment) replacements(cmd *cobra.Command, flags replacementFlags) error {
	of := replacements.Settings{HealthTimeout: flags.timeout, MaxReplacements: intstr.Parse(flags.limit)}
	if _, err := intstr.GetScaledValueFromIntOrPercent(&of.MaxReplacements, 100, false); err != nil {
		return args.Wrongf("--machine-max-health-replacements: %q is neither a number nor a percentage", flags.limit)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), answerTimeout)
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
	return replacements.Print(cmd.OutOrStdout(), replacements.Of(facts.Machines, of, now), now)
}

// policy returns the policy in a text, or else that of a deployment.
func policy(text string, deployment *v1alpha1.MachineDeployment) (*v1alpha1.ReplacementPolicy, error) {
	if text == "" {
		return budget.Given(deployment), nil
	}
	return budget.Parse(text)
}

// zones returns the zones of the classes, by their names.
func (d deployment) zones(ctx context.Context) (map[string]string, error) {
	classes, zones := &v1alpha1.MachineClassList{}, map[string]string{}
	if err := d.Client.List(ctx, classes, client.InNamespace(d.key.Namespace)); err != nil {
		return nil, fmt.Errorf("listing machine classes: %w", err)
	}
	for i := range classes.Items {
		zones[classes.Items[i].Name] = scarcity.Zone(&classes.Items[i])
	}
	return zones, nil
}
