package ui

import (
	"context"
	"fmt"
	"strconv"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/machine"
	"github.com/millwright-dev/millwright/internal/cli/rollout/change"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/ui"
)

// actions are what the buttons of the page do. They call the same functions as the commands.
type actions struct {
	client client.Client
	config *rest.Config
	// cluster are the flags that select the cluster in a command.
	cluster []string
}

// all returns the actions in the order in which the page shows them.
func (a actions) all() []ui.Action {
	return []ui.Action{
		{
			Name: "scale", Kind: "pool", Title: "Scale", Input: "replicas",
			Effect:  "Sets the number of machines. Surplus machines are drained and deleted.",
			Command: a.scaleCommand, Do: a.scale,
		}, {
			Name: "pause", Kind: "pool", Title: "Pause", Effect: "Stops the rollout. Scaling and the replacement of failed machines continue.",
			Command: a.command("rollout", "pause"), Do: a.rollout(change.Pause, "paused"),
		}, {
			Name: "resume", Kind: "pool", Title: "Resume", Effect: "Continues the rollout.",
			Command: a.command("rollout", "resume"), Do: a.rollout(change.Resume, "resumed"),
		}, {
			Name: "restart", Kind: "pool", Title: "Replace all", Interrupts: true,
			Effect:  "Replaces all machines, as the update strategy permits. Pods are evicted within their disruption budgets.",
			Command: a.command("rollout", "restart"),
			Do: a.rollout(func(ctx context.Context, c client.Client, key types.NamespacedName) (*v1alpha1.MachineDeployment, error) {
				return change.Restart(ctx, c, key, time.Now())
			}, "restarted"),
		}, {
			Name: "undo", Kind: "pool", Title: "Roll back", Input: "revision", Interrupts: true,
			Effect:  "Replaces the machines by those of an earlier revision, as the update strategy permits.",
			Command: a.undoCommand, Do: a.undo,
		}, {
			Name: "preserve", Kind: "machine", Title: "Preserve", Effect: "Prevents the machine from being deleted by its set, until the preservation expires.",
			Command: a.command("machine", "preserve"), Do: a.annotate(machine.Preserve),
		}, {
			Name: "release", Kind: "machine", Title: "Release", Effect: "Stops the preservation. If the machine has failed, its set replaces it.",
			Command: a.command("machine", "release"), Do: a.annotate(machine.Release),
		}, {
			Name: "migrate", Kind: "vm", Title: "Migrate", Input: "host", Effect: "Moves the virtual machine to another host while its guest runs.",
			Command: a.migrateCommand, Do: a.migrate,
		}, {
			Name: "reset", Kind: "vm", Title: "Reset", Interrupts: true,
			Effect:  "Resets the virtual machine like the reset button of a computer. The guest may lose data that it has not written to its disk.",
			Command: a.command("vm", "reset"), Do: a.reset,
		}, {
			Name: "capi-scale", Kind: "capi-pool", Title: "Scale", Input: "replicas",
			Effect:  "Sets the number of machines. Surplus machines are drained and deleted.",
			Command: a.capiScaleCommand, Do: a.capiScale,
		}, {
			Name: "capi-pause", Kind: "capi-pool", Title: "Pause", Effect: "Stops the rollout, scaling, and the replacement of failed machines.",
			Command: a.capiPauseCommand(true), Do: a.capiPause(true, "paused"),
		}, {
			Name: "capi-resume", Kind: "capi-pool", Title: "Resume", Effect: "Continues the rollout and scaling.",
			Command: a.capiPauseCommand(false), Do: a.capiPause(false, "resumed"),
		},
	}
}

func keyOf(r ui.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// millwright returns a command of this program with the flags for the cluster.
func (a actions) millwright(r ui.Request, more ...string) []string {
	command := append([]string{"millwright"}, more...)
	return append(append(command, "-n", r.Namespace), a.cluster...)
}

func (a actions) command(group, verb string) func(ui.Request) []string {
	return func(r ui.Request) []string { return a.millwright(r, group, verb, r.Name) }
}

func (a actions) rollout(do func(context.Context, client.Client, types.NamespacedName) (*v1alpha1.MachineDeployment, error), done string) func(context.Context, ui.Request) (string, error) {
	return func(ctx context.Context, r ui.Request) (string, error) {
		_, err := do(ctx, a.client, keyOf(r))
		return done, err
	}
}

func (a actions) annotate(do func(context.Context, client.Client, types.NamespacedName) (string, error)) func(context.Context, ui.Request) (string, error) {
	return func(ctx context.Context, r ui.Request) (string, error) { return do(ctx, a.client, keyOf(r)) }
}

// kubectl returns a command of kubectl, which has no flag --dir; the kubeconfig of a local cluster is in its directory.
func (a actions) kubectl(r ui.Request, more ...string) []string {
	command := append(append([]string{"kubectl"}, more...), "-n", r.Namespace)
	for i := 0; i+1 < len(a.cluster); i += 2 {
		name, value := a.cluster[i], a.cluster[i+1]
		if name == "--dir" {
			name, value = "--kubeconfig", value+"/kubeconfig"
		}
		command = append(command, name, value)
	}
	return command
}

func (a actions) scaleCommand(r ui.Request) []string {
	return a.kubectl(r, "scale", "machinedeployments."+v1alpha1.GroupName, r.Name, "--replicas", strconv.Itoa(int(*r.Replicas)))
}

// scale changes the replicas by the subresource, as kubectl does, so that the same permission suffices.
func (a actions) scale(ctx context.Context, r ui.Request) (string, error) {
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}
	scale := &autoscalingv1.Scale{}
	if err := a.client.SubResource("scale").Get(ctx, deployment, scale); err != nil {
		return "", fmt.Errorf("cannot read the replicas of machine deployment %s: %w", keyOf(r), err)
	}
	scale.Spec.Replicas = *r.Replicas
	if err := a.client.SubResource("scale").Update(ctx, deployment, client.WithSubResourceBody(scale)); err != nil {
		return "", fmt.Errorf("cannot scale machine deployment %s: %w", keyOf(r), err)
	}
	return fmt.Sprintf("scaled to %d", *r.Replicas), nil
}

func (a actions) undoCommand(r ui.Request) []string {
	command := a.millwright(r, "rollout", "undo", r.Name)
	if r.Revision != 0 {
		command = append(command, "--to-revision", strconv.FormatInt(r.Revision, 10))
	}
	return command
}

func (a actions) undo(ctx context.Context, r ui.Request) (string, error) {
	rollback, err := change.Undo(ctx, a.client, keyOf(r), r.Revision)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("rollback to revision %d requested", rollback.Revision), nil
}

func (a actions) migrateCommand(r ui.Request) []string {
	command := a.millwright(r, "vm", "migrate", r.Name)
	if r.Host != "" {
		command = append(command, "--to", r.Host)
	}
	return command
}

func (a actions) migrate(ctx context.Context, r ui.Request) (string, error) {
	return "migration requested", vm.Migrate(ctx, a.client, a.config, keyOf(r), r.Host)
}

func (a actions) reset(ctx context.Context, r ui.Request) (string, error) {
	return "reset", vm.Reset(ctx, a.config, keyOf(r))
}
