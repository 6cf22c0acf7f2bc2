package metrics

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// deploymentLabel is the label that by convention names the deployment of a Machine. As in MCM,
// Machines without it are not counted.
const deploymentLabel = "name"

// once holds the metrics of occurrences that can be detected only when a Machine object changes.
type once struct {
	join       *prometheus.GaugeVec
	failedJoin *prometheus.CounterVec
	stale      prometheus.Counter
	pools      *pools
}

// perPool lists the labels of metrics of the Machines of a deployment. See labels.
var perPool = []string{"namespace", "machine_deployment", "instance_type", "zone"}

func newOnce() *once {
	o := &once{
		join: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mcm_machine_join_duration_seconds", Help: "Seconds from creation until the machine was Running, for the last machine that joined.",
		}, perPool),
		failedJoin: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mcm_machine_num_failed_join", Help: "Number of machines that did not join in time.",
		}, perPool),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mcm_machine_stale_machines_total", Help: "Number of machines that were deleted because they were unhealthy for too long.",
		}),
	}
	o.pools = newPools(o.join, o.failedJoin)
	return o
}

// watch counts joins, failed joins and deletions of stale Machines.
func (c *Collector) watch(ctx context.Context) error {
	informer, err := c.Informers.GetInformer(ctx, &v1alpha1.Machine{})
	if err != nil {
		return fmt.Errorf("watching machines for their metrics: %w", err)
	}
	handlers := toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			was, ok := before.(*v1alpha1.Machine)
			is, also := after.(*v1alpha1.Machine)
			if ok && also {
				c.changed(ctx, was, is)
			}
		},
	}
	registration, err := informer.AddEventHandler(handlers)
	if err != nil {
		return fmt.Errorf("watching machines for their metrics: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = informer.RemoveEventHandler(registration) }) // the informer stops too
	return nil
}

func (c *Collector) changed(ctx context.Context, was, is *v1alpha1.Machine) {
	before, now := was.Status.CurrentStatus.Phase, is.Status.CurrentStatus.Phase
	if was.DeletionTimestamp.IsZero() && !is.DeletionTimestamp.IsZero() &&
		before == v1alpha1.MachineFailed && was.Status.LastOperation.Type == v1alpha1.MachineOperationHealthCheck {
		c.once.stale.Inc()
	}
	joined := before != v1alpha1.MachineRunning && now == v1alpha1.MachineRunning && is.Status.LastOperation.Type == v1alpha1.MachineOperationCreate
	late := before == v1alpha1.MachinePending && now == v1alpha1.MachineFailed
	if !joined && !late {
		return
	}
	labels, ok := c.labels(ctx, is)
	if !ok {
		return
	}
	c.once.pools.record(labels, func() {
		if joined {
			c.once.join.WithLabelValues(labels...).Set(c.Clock.Since(is.CreationTimestamp.Time).Seconds())
			return
		}
		c.once.failedJoin.WithLabelValues(labels...).Inc()
	})
}

func (c *Collector) labels(ctx context.Context, machine *v1alpha1.Machine) ([]string, bool) {
	class := &v1alpha1.MachineClass{}
	key := client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Class.Name}
	if err := c.Reader.Get(ctx, key, class, client.UnsafeDisableDeepCopy); err != nil {
		class = nil
	}
	return labels(machine, class)
}

// labels returns the values of perPool for a Machine, with unknown values empty. It returns false
// if the Machine does not name its deployment.
func labels(machine *v1alpha1.Machine, class *v1alpha1.MachineClass) ([]string, bool) {
	deployment := machine.Labels[deploymentLabel]
	if deployment == "" {
		return nil, false
	}
	instanceType := ""
	if class != nil && class.NodeTemplate != nil {
		instanceType = class.NodeTemplate.InstanceType
	}
	return []string{machine.Namespace, deployment, instanceType, machine.Spec.NodeTemplateSpec.Labels[corev1.LabelTopologyZone]}, true
}
