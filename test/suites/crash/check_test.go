package crash

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// running checks that exactly that many Machines exist, each Running with its VM and its node.
func running(want int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		machines := &v1alpha1.MachineList{}
		if err := r.list(ctx, machines); err != nil {
			return err
		}
		if got := len(machines.Items); got != want {
			return fmt.Errorf("there are %d Machines, not %d", got, want)
		}
		for i := range machines.Items {
			if err := r.runs(ctx, &machines.Items[i]); err != nil {
				return fmt.Errorf("machine %s: %w", machines.Items[i].Name, err)
			}
		}
		if err := r.counted(ctx, want); err != nil {
			return err
		}
		return r.hasNoOrphans(ctx, want)
	}
}

// runs checks one Machine, its VM and its node.
func (r *run) runs(ctx context.Context, machine *v1alpha1.Machine) error {
	want := v1alpha1.MachineRunning
	if r.target == nil {
		want = v1alpha1.MachineAvailable
	}
	if phase := machine.Status.CurrentStatus.Phase; phase != want {
		return fmt.Errorf("is %q: %s", phase, machine.Status.LastOperation.Description)
	}
	vms, err := r.cloud.VMs()
	if err != nil {
		return err
	}
	own := slices.IndexFunc(vms, func(vm simVM) bool { return vm.ProviderID == machine.Spec.ProviderID })
	if own < 0 || vms[own].Machine != machine.Name || !vms[own].Initialized {
		return fmt.Errorf("has no VM of its own that is ready: provider ID %q", machine.Spec.ProviderID)
	}
	if r.target == nil {
		return nil
	}
	return r.joined(ctx, machine)
}

// joined checks a Machine's node.
func (r *run) joined(ctx context.Context, machine *v1alpha1.Machine) error {
	node := &corev1.Node{}
	if err := r.target.Client.Get(ctx, client.ObjectKey{Name: machine.Name}, node); err != nil {
		return err
	}
	template := machine.Spec.NodeTemplateSpec
	for key, value := range template.Labels {
		if node.Labels[key] != value {
			return fmt.Errorf("its node has no label %s=%s", key, value)
		}
	}
	for _, taint := range template.Spec.Taints {
		if !slices.ContainsFunc(node.Spec.Taints, func(has corev1.Taint) bool { return has.MatchTaint(&taint) }) {
			return fmt.Errorf("its node has no taint %s", taint.ToString())
		}
	}
	return nil
}

// counted checks the status of the MachineDeployment, if there is one.
func (r *run) counted(ctx context.Context, want int) error {
	deployments := &v1alpha1.MachineDeploymentList{}
	if err := r.list(ctx, deployments); err != nil {
		return err
	}
	for _, d := range deployments.Items {
		want := want - int(d.Status.ExcessReplicas) // these are counted separately
		if d.Status.ObservedGeneration != d.Generation || int(d.Status.AvailableReplicas) != want || int(d.Status.Replicas) != want {
			return fmt.Errorf("the deployment's status is %d of %d available, generation %d of %d",
				d.Status.AvailableReplicas, d.Status.Replicas, d.Status.ObservedGeneration, d.Generation)
		}
	}
	return nil
}

// hasNoOrphans checks that there are only the VMs, nodes and tokens of that many running Machines.
func (r *run) hasNoOrphans(ctx context.Context, machines int) error {
	vms, err := r.cloud.VMs()
	if err != nil {
		return err
	}
	nodes, wantNodes := 0, machines
	if r.target == nil {
		wantNodes = 0
	}
	if err := r.eachNode(ctx, func(*corev1.Node) error { nodes++; return nil }); err != nil {
		return err
	}
	if len(vms) != machines || nodes != wantNodes {
		return fmt.Errorf("there are %d VMs and %d nodes for %d Machines", len(vms), nodes, machines)
	}
	for _, cluster := range []*env.Cluster{r.control, r.target} {
		if cluster == nil {
			continue
		}
		if err := r.tokens(ctx, cluster); err != nil {
			return err
		}
	}
	return nil
}

// tokens checks that a cluster contains no bootstrap token.
func (r *run) tokens(ctx context.Context, cluster *env.Cluster) error {
	tokens, err := r.tokensIn(ctx, cluster)
	if err != nil || len(tokens) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", errToken, tokens[0].Name)
}

// tokensIn returns the run's bootstrap tokens in a cluster.
func (r *run) tokensIn(ctx context.Context, cluster *env.Cluster) ([]corev1.Secret, error) {
	secrets := &corev1.SecretList{}
	if err := cluster.Client.List(ctx, secrets, client.InNamespace("kube-system")); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(secrets.Items, func(secret corev1.Secret) bool {
		return !strings.Contains(string(secret.Data["description"]), r.control.Namespace+"/")
	}), nil
}

// refreshed checks the desired state, and that the new configuration has reached all Machines. The desired state
// includes their nodes.
func refreshed(ctx context.Context, r *run) error {
	machines := &v1alpha1.MachineList{}
	if err := r.list(ctx, machines); err != nil {
		return err
	}
	for _, machine := range machines.Items {
		if machine.Spec.NodeTemplateSpec.Labels[refreshLabel] == "" {
			return fmt.Errorf("machine %s is not refreshed", machine.Name)
		}
	}
	if err := r.heardOfNodes(ctx); err != nil {
		return err
	}
	return r.scenario.want(ctx, r)
}

// noMachine checks that all Machines are gone, and everything that belongs to them.
func noMachine(ctx context.Context, r *run) error {
	return r.empty(ctx, &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &infrav1.MillwrightMachineList{})
}

// nothing checks that nothing remains of what was declared or created for it.
func nothing(ctx context.Context, r *run) error {
	if err := noMachine(ctx, r); err != nil {
		return err
	}
	if err := r.empty(ctx, &v1alpha1.MachineClassList{}, &legacy.AWSMachineClassList{}, &corev1.SecretList{}); err != nil {
		return err
	}
	if err := r.noPod(ctx); err != nil {
		return err
	}
	return r.hasNoOrphans(ctx, 0)
}

// noPod checks that no Pod remains on the former nodes.
func (r *run) noPod(ctx context.Context) error {
	if r.target == nil {
		return nil
	}
	pods := &corev1.PodList{}
	if err := r.target.Client.List(ctx, pods, client.InNamespace(r.target.Namespace)); err != nil {
		return err
	}
	if left := len(pods.Items); left > 0 {
		return fmt.Errorf("%d pods are left", left)
	}
	return nil
}

func (r *run) empty(ctx context.Context, lists ...client.ObjectList) error {
	for _, list := range lists {
		if err := r.list(ctx, list); err != nil {
			return err
		}
		if left := meta.LenList(list); left > 0 {
			return fmt.Errorf("%d are left in %T", left, list)
		}
	}
	return nil
}

func (r *run) list(ctx context.Context, list client.ObjectList) error {
	return r.control.Client.List(ctx, list, client.InNamespace(r.control.Namespace))
}
