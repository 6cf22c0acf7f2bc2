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

// deploymentLabel is the label of Machines that by convention names their deployment.
// Without it, as in MCM, nothing of the kind is counted.
const deploymentLabel = "name"

// once are the metrics of what happens to a Machine.
type once struct {
	create, join, remove *prometheus.GaugeVec
	failedJoin           *prometheus.CounterVec
	stale                prometheus.Counter
}

// perPool are the labels of metrics of the Machines of a deployment. See labels.
var perPool = []string{"namespace", "machine_deployment", "instance_type", "zone"}

func newOnce() *once {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, perPool)
	}
	return &once{
		create: gauge("mcm_machine_create_duration_seconds", "Seconds from a machine's creation until its instance existed, of the last one."),
		join:   gauge("mcm_machine_join_duration_seconds", "Seconds from a machine's creation until it was Running, of the last one."),
		remove: gauge("mcm_machine_delete_duration_seconds", "Seconds from a machine's deletion until it was gone, of the last one."),
		failedJoin: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mcm_machine_num_failed_join", Help: "Number of machines that did not join in time.",
		}, perPool),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mcm_machine_stale_machines_total", Help: "Number of machines that were unhealthy for too long and are replaced.",
		}),
	}
}

func (o *once) all() []prometheus.Collector {
	return []prometheus.Collector{o.create, o.join, o.remove, o.failedJoin, o.stale}
}

// watch counts what happens to Machines.
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
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if machine, ok := object.(*v1alpha1.Machine); ok {
				c.gone(ctx, machine)
			}
		},
	}
	registration, err := informer.AddEventHandler(handlers)
	if err != nil {
		return fmt.Errorf("watching machines for their metrics: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = informer.RemoveEventHandler(registration) }) // the informer ends too
	return nil
}

func (c *Collector) changed(ctx context.Context, was, is *v1alpha1.Machine) {
	before, now := was.Status.CurrentStatus.Phase, is.Status.CurrentStatus.Phase
	if before != v1alpha1.MachineFailed && now == v1alpha1.MachineFailed && is.Status.LastOperation.Type == v1alpha1.MachineOperationHealthCheck {
		c.once.stale.Inc()
	}
	labels, ok := c.labels(ctx, is)
	if !ok {
		return
	}
	age := c.Clock.Since(is.CreationTimestamp.Time).Seconds()
	last := is.Status.LastOperation
	if was.Spec.ProviderID == "" && is.Spec.ProviderID != "" {
		c.once.create.WithLabelValues(labels...).Set(age)
	}
	if before != v1alpha1.MachineRunning && now == v1alpha1.MachineRunning && last.Type == v1alpha1.MachineOperationCreate {
		c.once.join.WithLabelValues(labels...).Set(age)
	}
	if before == v1alpha1.MachinePending && now == v1alpha1.MachineFailed {
		c.once.failedJoin.WithLabelValues(labels...).Inc()
	}
}

func (c *Collector) gone(ctx context.Context, machine *v1alpha1.Machine) {
	if labels, ok := c.labels(ctx, machine); ok && machine.DeletionTimestamp != nil {
		c.once.remove.WithLabelValues(labels...).Set(c.Clock.Since(machine.DeletionTimestamp.Time).Seconds())
	}
}

func (c *Collector) labels(ctx context.Context, machine *v1alpha1.Machine) ([]string, bool) {
	class := &v1alpha1.MachineClass{}
	key := client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Class.Name}
	if err := c.Reader.Get(ctx, key, class, client.UnsafeDisableDeepCopy); err != nil {
		class = nil
	}
	return labels(machine, class)
}

// labels are the values of perPool for a Machine that names its deployment. Unknown values are empty.
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
