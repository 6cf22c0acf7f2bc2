package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/cluster/load"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

const (
	// requestInterval is the time between two requests of the demo, and requestTimeout the time limit of a
	// response: without KVM, a busy guest takes seconds.
	requestInterval = 200 * time.Millisecond
	requestTimeout  = 30 * time.Second
	// probeInterval is the time between two probes of whether a new node forwards to the service.
	probeInterval = time.Second
	// lastRequests is the number of requests that are sent after the last old machine is gone.
	lastRequests = 50
)

// service is what the Pods serve, as reached from outside the guests.
type service struct {
	balancer load.Balancer
	requests *load.Generator
}

// awaitService waits until the Pods serve through every node.
func (d *demo) awaitService(ctx context.Context) error {
	fmt.Fprintln(d.stdout, "Waiting for the Pods ...")
	if err := d.openService(ctx); err != nil {
		return err
	}
	probing, stop := context.WithCancel(ctx)
	defer stop()
	go d.service.balancer.Run(probing, probeInterval)
	begin := time.Now()
	defer d.display.restart()
	err := d.follower.Until(ctx, 50*time.Millisecond, probeInterval, func() (bool, error) {
		pods, err := d.pods(ctx)
		if err == nil {
			err = d.display.show(podLines(pods))
		}
		if err != nil {
			return false, err
		}
		serve, err := d.servesAll(ctx)
		return serve && len(d.service.balancer.Targets(ctx)) == d.desiredNodes(ctx), err
	})
	if err != nil {
		return fmt.Errorf("waiting for the Pods: %w", err)
	}
	fmt.Fprintf(d.stdout, "All Pods serve after %.1f s.\n\n", time.Since(begin).Seconds())
	return nil
}

// openService finds the Service and connects to it through the switch between guests.
func (d *demo) openService(ctx context.Context) error {
	port, err := d.nodePort(ctx)
	if err != nil {
		return err
	}
	// Later steps use it too; it exits with the process.
	ctx = context.WithoutCancel(ctx)
	guests, err := dialer.New(ctx, d.mode.switchSocket(), hostAddress(d.network).Next(), d.network,
		slog.New(logr.ToSlogHandler(d.mode.log.WithName("requests"))))
	if err != nil {
		return err
	}
	s := &service{}
	s.requests = load.New(load.Config{
		Targets: func() []netip.AddrPort { return s.balancer.Targets(ctx) },
		Dial:    guests.Dial, Every: requestInterval, Timeout: requestTimeout,
	})
	s.balancer = load.Balancer{Nodes: d.nodes, Get: s.requests.Get, Port: port}
	d.service = s
	return nil
}

var errNoService = errors.New("the examples have no Service of type NodePort to send requests to")

// nodePort returns the port of the Service on all nodes.
func (d *demo) nodePort(ctx context.Context) (uint16, error) {
	services, err := d.services(ctx)
	if err != nil {
		return 0, err
	}
	for i := range services {
		for _, port := range services[i].Spec.Ports {
			if port.NodePort > 0 {
				return uint16(port.NodePort), nil
			}
		}
	}
	return 0, errNoService
}

// services returns the Services of the examples.
func (d *demo) services(ctx context.Context) ([]corev1.Service, error) {
	list := &corev1.ServiceList{}
	if err := d.client.List(ctx, list, client.InNamespace(localNamespace)); err != nil {
		return nil, fmt.Errorf("cannot read the Services: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(service corev1.Service) bool { return service.Name == "kubernetes" }), nil
}

// nodes returns the nodes of Machines.
func (d *demo) nodes(ctx context.Context) ([]corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := d.follower.List(ctx, list); err != nil {
		return nil, err
	}
	isHost := func(node corev1.Node) bool { return node.Labels[vmv1alpha1.HostKey] != "" }
	return slices.DeleteFunc(slices.Clone(list.Items), isHost), nil
}

func (d *demo) desiredNodes(ctx context.Context) int {
	seen, err := readObjects(ctx, d.follower)
	if err != nil {
		return -1
	}
	return seen.desired()
}

// pods returns the Pods of the examples' Deployments.
func (d *demo) pods(ctx context.Context) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := d.follower.List(ctx, list, client.InNamespace(localNamespace)); err != nil {
		return nil, fmt.Errorf("cannot read the Pods: %w", err)
	}
	isOther := func(pod corev1.Pod) bool {
		owner := metav1.GetControllerOf(&pod)
		return owner == nil || owner.Kind != "ReplicaSet"
	}
	return slices.DeleteFunc(slices.Clone(list.Items), isOther), nil
}

// servesAll reports whether all Deployments have their available Pods.
func (d *demo) servesAll(ctx context.Context) (bool, error) {
	list := &appsv1.DeploymentList{}
	if err := d.follower.List(ctx, list, client.InNamespace(localNamespace)); err != nil {
		return false, fmt.Errorf("cannot read the Deployments: %w", err)
	}
	for i := range list.Items {
		of := &list.Items[i]
		desired := int32(1)
		if of.Spec.Replicas != nil {
			desired = *of.Spec.Replicas
		}
		if of.Status.ObservedGeneration < of.Generation || of.Status.AvailableReplicas < desired {
			return false, nil
		}
	}
	return len(list.Items) > 0, nil
}

// podLines returns the state of each Pod by name.
func podLines(pods []corev1.Pod) map[string]string {
	lines := map[string]string{}
	for i := range pods {
		lines[pods[i].Name] = messages.Line(fmt.Sprintf("%-12son %s", podState(&pods[i]), cmp.Or(pods[i].Spec.NodeName, "no node yet")))
	}
	return lines
}

func podState(pod *corev1.Pod) string {
	ready := slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
	switch {
	case pod.DeletionTimestamp != nil:
		return "Terminating"
	case ready:
		return "Ready"
	}
	return cmp.Or(string(pod.Status.Phase), string(corev1.PodPending))
}

// rollUnderLoad replaces all machines with machines of a new class while requests are sent. It fails if a
// request fails.
func (d *demo) rollUnderLoad(ctx context.Context) error {
	serving, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go d.service.balancer.Run(serving, probeInterval)
	go func() {
		defer close(ended)
		d.service.requests.Run(serving)
	}()
	begin := time.Now()
	err := d.rollAll(ctx)
	stop()
	<-ended
	count := d.service.requests.Count()
	fmt.Fprintf(d.stdout, "Requests to the Service during %.0f s: %s.\n\n", time.Since(begin).Seconds(), count)
	if count.Failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d requests failed: %s", count.Failed, count.Failed+count.Succeeded, strings.Join(count.Failures, "; ")))
	}
	return err
}

// rollAll replaces the machines of all deployments, one deployment after the other.
func (d *demo) rollAll(ctx context.Context) error {
	deployments := &v1alpha1.MachineDeploymentList{}
	if err := d.client.List(ctx, deployments, client.InNamespace(localNamespace)); err != nil {
		return fmt.Errorf("cannot list the deployments: %w", err)
	}
	for i := range deployments.Items {
		if err := d.roll(ctx, &deployments.Items[i]); err != nil {
			return err
		}
	}
	enough := d.service.requests.Count().Succeeded + lastRequests
	return d.follower.Until(ctx, 50*time.Millisecond, probeInterval, func() (bool, error) {
		serve, err := d.servesAll(ctx)
		return serve && d.service.requests.Count().Succeeded >= enough, err
	})
}

// roll changes the class of a deployment, and shows its rollout until it completes.
func (d *demo) roll(ctx context.Context, deployment *v1alpha1.MachineDeployment) error {
	class, err := d.copyClass(ctx, deployment)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, "Rolling out class %[2]s to %[1]s, under load ...\n", deployment.Name, class)
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"template":{"spec":{"class":{"name":%q}}}}}`, class))
	if err := d.client.Patch(ctx, deployment, patch); err != nil {
		return fmt.Errorf("cannot change %s: %w", deployment.Name, err)
	}
	config := d.mode.plane.RESTConfig()
	config.UserAgent, config.QPS = "millwright-demo", -1
	followed := rollout.Follower{Config: config, Client: d.client, Pace: 100 * time.Millisecond, Beat: time.Second, Surroundings: 5 * time.Second}
	begin, view := time.Now(), &podsView{display: display{out: d.stdout}}
	view.display.restart()
	err = followed.Follow(ctx, client.ObjectKeyFromObject(deployment), func(facts rollout.Facts) (bool, error) {
		pods, err := d.pods(ctx)
		if err != nil {
			return false, err
		}
		now := time.Now()
		status := rollout.StatusOf(facts, now)
		return status.Outcome == rollout.Complete, view.show(status, pods, d.service.requests.Count(), now, now.Sub(begin))
	})
	if err != nil {
		return fmt.Errorf("rolling out %s: %w", deployment.Name, err)
	}
	fmt.Fprintf(d.stdout, "All machines of %s were replaced after %.1f s.\n", deployment.Name, time.Since(begin).Seconds())
	return nil
}

// copyClass creates a copy of a deployment's class and returns its name.
func (d *demo) copyClass(ctx context.Context, deployment *v1alpha1.MachineDeployment) (string, error) {
	class := &v1alpha1.MachineClass{}
	key := client.ObjectKey{Namespace: deployment.Namespace, Name: deployment.Spec.Template.Spec.Class.Name}
	if err := d.client.Get(ctx, key, class); err != nil {
		return "", fmt.Errorf("cannot read the class: %w", err)
	}
	class.ObjectMeta = metav1.ObjectMeta{Namespace: class.Namespace, GenerateName: deployment.Name + "-next-"}
	if err := d.client.Create(ctx, class); err != nil {
		return "", fmt.Errorf("cannot create a class: %w", err)
	}
	return class.Name, nil
}

// podsView shows a rollout of machines, their Pods, and the requests that they serve.
type podsView struct {
	display display
	printed string
}

func (v *podsView) show(status rollout.Status, pods []corev1.Pod, requests load.Count, now time.Time, since time.Duration) error {
	if v.display.screen != nil {
		lines := append(rollout.View(status, now, since), "")
		return v.display.screen.Draw(append(append(lines, podTable(pods)...), "", "requests: "+requests.String()))
	}
	if line := rollout.Line(status); line != v.printed {
		v.printed = line
		fmt.Fprintln(v.display.out, line)
	}
	return v.display.show(podLines(pods))
}

func podTable(pods []corev1.Pod) []string {
	var text strings.Builder
	columns := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(columns, "POD\tNODE\tSTATE")
	byName := map[string]*corev1.Pod{}
	for i := range pods {
		byName[pods[i].Name] = &pods[i]
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		pod := byName[name]
		fmt.Fprintf(columns, "%s\t%s\t%s\n", name, cmp.Or(pod.Spec.NodeName, "-"), podState(pod))
	}
	_ = columns.Flush() // to memory
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

// deletePods deletes the owners of Pods, and waits until the Pods have terminated.
func (d *demo) deletePods(ctx context.Context) error {
	fmt.Fprintln(d.stdout, "\nDeleting the Pods ...")
	for _, kind := range []client.Object{&policyv1.PodDisruptionBudget{}, &appsv1.Deployment{}} {
		options := []client.DeleteAllOfOption{client.InNamespace(localNamespace), client.PropagationPolicy(metav1.DeletePropagationBackground)}
		if err := d.client.DeleteAllOf(ctx, kind, options...); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
	}
	services, err := d.services(ctx)
	if err != nil {
		return err
	}
	for i := range services {
		if err := client.IgnoreNotFound(d.client.Delete(ctx, &services[i])); err != nil {
			return fmt.Errorf("deleting: %w", err)
		}
	}
	defer d.display.restart()
	return d.follower.Until(ctx, 50*time.Millisecond, 0, func() (bool, error) {
		pods, err := d.pods(ctx)
		if err != nil {
			return false, err
		}
		return len(pods) == 0, d.display.show(podLines(pods))
	})
}
