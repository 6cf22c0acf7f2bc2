package cli

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/internal/manager"
)

// view is what there is of machines at one moment.
type view struct {
	deployments []v1alpha1.MachineDeployment
	machines    []v1alpha1.Machine
	vms         []vmv1alpha1.VirtualMachine
	nodes       []corev1.Node
}

// viewer follows what there is.
type viewer struct {
	cache   cache.Cache
	changed chan struct{} // holds one token when something has changed
}

// newViewer follows a cluster until the context ends. It returns when everything is known.
func newViewer(ctx context.Context, config *rest.Config) (*viewer, error) {
	followed, err := cache.New(config, cache.Options{Scheme: manager.Scheme(), DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return nil, fmt.Errorf("following the cluster: %w", err)
	}
	v := &viewer{cache: followed, changed: make(chan struct{}, 1)}
	note := func(any) {
		select {
		case v.changed <- struct{}{}:
		default:
		}
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: note, DeleteFunc: note, UpdateFunc: func(_, now any) { note(now) },
	}
	kinds := []client.Object{&v1alpha1.MachineDeployment{}, &v1alpha1.Machine{}, &vmv1alpha1.VirtualMachine{}, &corev1.Node{}}
	go followed.Start(ctx) // ends with the context, and says before what is wrong
	for _, kind := range kinds {
		informer, err := followed.GetInformer(ctx, kind)
		if err != nil {
			return nil, fmt.Errorf("following %T: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("following %T: %w", kind, err)
		}
	}
	// An informer that was asked for before the cache had started was not waited for.
	if !followed.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("following the cluster: %w", ctx.Err())
	}
	return v, nil
}

// readView reads what there is.
func readView(ctx context.Context, from client.Reader) (view, error) {
	deployments, machines := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineList{}
	vms, nodes := &vmv1alpha1.VirtualMachineList{}, &corev1.NodeList{}
	for _, list := range []client.ObjectList{deployments, machines, vms, nodes} {
		if err := from.List(ctx, list); err != nil {
			return view{}, fmt.Errorf("reading what there is: %w", err)
		}
	}
	return view{deployments: deployments.Items, machines: machines.Items, vms: vms.Items, nodes: nodes.Items}, nil
}

// until calls with each view, the first one at once, until it says that it has seen enough.
func (v *viewer) until(ctx context.Context, enough func(view) bool) error {
	// What happens at about the same time is shown at once.
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for {
		seen, err := readView(ctx, v.cache)
		if err != nil {
			return err
		}
		if enough(seen) {
			return nil
		}
		select {
		case <-v.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wanted is the number of Machines that all deployments want.
func (v view) wanted() int {
	sum := 0
	for i := range v.deployments {
		sum += int(v.deployments[i].Spec.Replicas)
	}
	return sum
}

// settled reports whether all deployments have what they want and nothing more.
func (v view) settled() bool {
	for i := range v.deployments {
		d := &v.deployments[i]
		if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != d.Spec.Replicas ||
			d.Status.UpdatedReplicas != d.Spec.Replicas || d.Status.AvailableReplicas != d.Spec.Replicas {
			return false
		}
	}
	return len(v.machines) == v.wanted() && v.readyNodes() == v.wanted()
}

// readyNodes counts the nodes of Machines that are Ready.
func (v view) readyNodes() int {
	count := 0
	for i := range v.machines {
		if node := v.nodeOf(&v.machines[i]); node != nil && nodeReady(node) {
			count++
		}
	}
	return count
}

func (v view) nodeOf(machine *v1alpha1.Machine) *corev1.Node {
	for i := range v.nodes {
		if id := v.nodes[i].Spec.ProviderID; id != "" && id == machine.Spec.ProviderID {
			return &v.nodes[i]
		}
	}
	return nil
}

func nodeReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// lines says in one line what each Machine does.
func (v view) lines() map[string]string {
	lines := map[string]string{}
	for i := range v.machines {
		machine := &v.machines[i]
		lines[machine.Name] = v.lineOf(machine)
	}
	return lines
}

func (v view) lineOf(machine *v1alpha1.Machine) string {
	phase := string(machine.Status.CurrentStatus.Phase)
	if phase == "" {
		phase = "New"
	}
	phase = fmt.Sprintf("%-12s", phase)
	if node := v.nodeOf(machine); node != nil && nodeReady(node) && machine.DeletionTimestamp == nil {
		return phase + "node is Ready"
	}
	for i := range v.vms {
		if vm := &v.vms[i]; vmdriver.MachineOf(vm) == client.ObjectKeyFromObject(machine) {
			return phase + stateOf(vm)
		}
	}
	return phase + machine.Status.LastOperation.Description
}
