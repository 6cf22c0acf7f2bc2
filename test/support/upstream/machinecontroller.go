package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Timeouts are the timeouts of a machine-controller. A zero value means MCM's default.
type Timeouts struct {
	Health, Creation, Preserve time.Duration
}

// machineController is the process machine-controller.
type machineController struct {
	*Process
	driver driver.Driver
	Timeouts
}

// NewMachineController returns MCM's machine-controller for the Machines of a namespace.
func NewMachineController(c client.Client, namespace string, d driver.Driver, timeouts Timeouts) *Process {
	m := &machineController{Process: &Process{client: c, namespace: namespace, name: "machine-controller", made: map[string]bool{}}, driver: d, Timeouts: timeouts}
	for limit, standard := range map[*time.Duration]time.Duration{&m.Health: 10 * time.Minute, &m.Creation: 20 * time.Minute, &m.Preserve: 96 * time.Hour} {
		if *limit == 0 {
			*limit = standard
		}
	}
	m.Process.pass = m.reconcile
	return m.Process
}

func (c *machineController) reconcile(ctx context.Context, all *objects) error {
	for name, class := range all.classes {
		referred := slices.ContainsFunc(all.machines, func(m v1alpha1.Machine) bool { return m.Spec.Class.Name == name })
		if _, err := c.update(ctx, class, func() { hold(class, v1alpha1.FinalizerMCM, referred) }); err != nil {
			return err
		}
	}
	for i := range all.machines {
		if err := c.machine(ctx, all, &all.machines[i]); err != nil {
			return fmt.Errorf("%s: %w", all.machines[i].Name, err)
		}
	}
	return nil
}

// hold adds a finalizer to an object, or removes it.
func hold(object client.Object, finalizer string, desired bool) {
	finalizers := object.GetFinalizers()
	switch at := slices.Index(finalizers, finalizer); {
	case desired && at < 0:
		object.SetFinalizers(append(finalizers, finalizer))
	case !desired && at >= 0:
		object.SetFinalizers(slices.Delete(finalizers, at, at+1))
	}
}

// step is a part of a pass over a Machine. It reports whether it wrote something, which completes the pass.
type step func(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error)

func (c *machineController) machine(ctx context.Context, all *objects, machine *v1alpha1.Machine) error {
	steps := []step{c.finalizer, c.inPlace, c.health, c.node, c.preserve, c.createVM}
	if machine.DeletionTimestamp != nil {
		steps = []step{c.deletion}
	}
	for _, take := range steps {
		if wrote, err := take(ctx, all, machine); wrote || err != nil {
			return err
		}
	}
	return nil
}

func (c *machineController) finalizer(ctx context.Context, _ *objects, machine *v1alpha1.Machine) (bool, error) {
	return c.update(ctx, machine, func() { hold(machine, v1alpha1.FinalizerMCM, true) })
}

// setState sets the phase and the last operation in the status.
func setState(machine *v1alpha1.Machine, phase v1alpha1.MachinePhase, kind v1alpha1.MachineOperationType, state v1alpha1.MachineState, sentence string) {
	now := metav1.Now()
	current := &machine.Status.CurrentStatus
	current.Phase, current.TimeoutActive, current.LastUpdateTime = phase, phase == v1alpha1.MachinePending, now
	machine.Status.LastOperation = v1alpha1.LastOperation{Description: sentence, LastUpdateTime: now, State: state, Type: kind}
}

// request returns the request for the driver.
func (c *machineController) request(ctx context.Context, all *objects, machine *v1alpha1.Machine) (*v1alpha1.MachineClass, *corev1.Secret, error) {
	class := all.classes[machine.Spec.Class.Name]
	if class == nil || class.SecretRef == nil {
		return nil, nil, fmt.Errorf("class %q is missing, or names no Secret", machine.Spec.Class.Name)
	}
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: class.SecretRef.Namespace, Name: class.SecretRef.Name}, secret)
	return class, secret, err
}

// createVM is MCM's creation flow. It creates the VM, then writes its identity, then the status.
func (c *machineController) createVM(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	phase := machine.Status.CurrentStatus.Phase
	if machine.Spec.ProviderID != "" && phase != "" && phase != v1alpha1.MachineCrashLoopBackOff {
		return false, nil
	}
	class, secret, err := c.request(ctx, all, machine)
	if err != nil {
		return false, err
	}
	id, node := "", ""
	found, err := c.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret})
	switch {
	case err == nil:
		id, node = found.ProviderID, found.NodeName
	case status.Code(err) == codes.NotFound && machine.Spec.ProviderID == "":
		made, err := c.driver.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
		if err != nil {
			return c.fails(ctx, machine, err)
		}
		id, node = made.ProviderID, made.NodeName
	default:
		return c.fails(ctx, machine, err)
	}
	wrote, err := c.update(ctx, machine, func() {
		metav1.SetMetaDataLabel(&machine.ObjectMeta, v1alpha1.NodeLabelKey, node)
		if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, "3")
		}
		machine.Spec.ProviderID = id
	})
	if wrote || err != nil {
		return wrote, err
	}
	return c.updateStatus(ctx, machine, func() {
		setState(machine, v1alpha1.MachinePending, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, "Creating machine on cloud provider")
	})
}

// fails records that there is no VM. After the creation timeout, the Machine is Failed.
func (c *machineController) fails(ctx context.Context, machine *v1alpha1.Machine, cause error) (bool, error) {
	limit := c.Creation
	if text, there := machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; there {
		own, err := time.ParseDuration(text)
		if err != nil {
			return false, err
		}
		limit = own
	}
	phase := v1alpha1.MachineCrashLoopBackOff
	if time.Since(machine.CreationTimestamp.Time) > limit {
		phase = v1alpha1.MachineFailed
	}
	return c.updateStatus(ctx, machine, func() {
		setState(machine, phase, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Cloud provider message - "+cause.Error())
		machine.Status.LastOperation.ErrorCode = status.Code(cause).String()
	})
}

// ready reports whether a node is Ready.
func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// hasNode returns the Machine's node, or nil while the node is updated in place.
func hasNode(all *objects, machine *v1alpha1.Machine) *corev1.Node {
	phase := machine.Status.CurrentStatus.Phase
	if phase == "" || phase == v1alpha1.MachineInPlaceUpdating {
		return nil
	}
	return all.nodes[machine.Labels[v1alpha1.NodeLabelKey]]
}

// health copies the node's conditions, and derives the phase from them.
func (c *machineController) health(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	node := hasNode(all, machine)
	if node == nil {
		return false, nil
	}
	if !slices.Contains(node.Finalizers, v1alpha1.FinalizerNode) {
		return c.patchFinalizers(ctx, node, v1alpha1.FinalizerNode)
	}
	since := time.Since(machine.Status.CurrentStatus.LastUpdateTime.Time)
	return c.updateStatus(ctx, machine, func() {
		machine.Status.Conditions = slices.Clone(node.Status.Conditions)
		last, phase := machine.Status.LastOperation, machine.Status.CurrentStatus.Phase
		joins := last.Type == v1alpha1.MachineOperationCreate && last.State != v1alpha1.MachineStateSuccessful
		switch kind := v1alpha1.MachineOperationHealthCheck; {
		case ready(node) && phase != v1alpha1.MachineRunning && joins:
			took := time.Since(machine.CreationTimestamp.Time)
			setState(machine, v1alpha1.MachineRunning, last.Type, v1alpha1.MachineStateSuccessful, fmt.Sprintf("Machine %s successfully joined the cluster in %s", machine.Name, took))
		case ready(node) && phase != v1alpha1.MachineRunning:
			setState(machine, v1alpha1.MachineRunning, kind, v1alpha1.MachineStateSuccessful, fmt.Sprintf("Machine %s successfully re-joined the cluster", machine.Name))
		case !ready(node) && phase == v1alpha1.MachineRunning:
			setState(machine, v1alpha1.MachineUnknown, kind, v1alpha1.MachineStateProcessing, fmt.Sprintf("Machine %s is unhealthy - changing MachinePhase to Unknown. Node conditions: %v", machine.Name, node.Status.Conditions))
		case !ready(node) && phase == v1alpha1.MachineUnknown && since > c.Health:
			setState(machine, v1alpha1.MachineFailed, kind, v1alpha1.MachineStateFailed, fmt.Sprintf("Machine %s health checks failing since last %s minutes. Updating machine phase to Failed. Node Conditions: %v", machine.Name, c.Health, node.Status.Conditions))
		}
	})
}

// patchFinalizers sends the only patch of a node.
func (c *machineController) patchFinalizers(ctx context.Context, node *corev1.Node, finalizers ...string) (bool, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": append([]string{}, finalizers...)}})
	if err != nil {
		return false, err
	}
	field := ".metadata.finalizers"
	if len(finalizers) == 0 {
		field += " gone"
	}
	return c.wrote(node, "patch", "", []string{field}, c.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, body)))
}

// node labels the node with the Machine's name, and then applies the node template of the Machine.
func (c *machineController) node(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	node := hasNode(all, machine)
	if node == nil {
		return false, nil
	}
	wrote, err := c.update(ctx, node, func() { metav1.SetMetaDataLabel(&node.ObjectMeta, v1alpha1.LabelKeyMachineName, machine.Name) })
	if wrote || err != nil {
		return wrote, err
	}
	template := machine.Spec.NodeTemplateSpec
	applied, err := json.Marshal(template)
	if err != nil {
		return false, err
	}
	return c.update(ctx, node, func() {
		for key, value := range template.Labels {
			metav1.SetMetaDataLabel(&node.ObjectMeta, key, value)
		}
		for key, value := range template.Annotations {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value)
		}
		for _, taint := range template.Spec.Taints {
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
				node.Spec.Taints = append(node.Spec.Taints, taint)
			}
		}
		if node.Annotations[v1alpha1.AnnotationKeyLastAppliedNodeTemplate] == "" {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyLastAppliedNodeTemplate, string(applied))
		}
	})
}

// preserve applies the user's preservation annotation on the Machine or on the node. The node's annotation takes
// precedence.
func (c *machineController) preserve(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	node, until := hasNode(all, machine), machine.Status.CurrentStatus.PreserveExpiryTime
	if node == nil {
		return false, nil
	}
	value, failed := requested(machine, node), machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
	if wrote, err := c.copyRequest(ctx, machine, node); wrote || err != nil {
		return wrote, err
	}
	switch {
	case value == "" && until != nil:
		return c.stopPreserving(ctx, machine, node)
	case value != "now" && (value != "when-failed" || !failed):
		return false, nil
	case until == nil:
		return c.updateStatus(ctx, machine, func() {
			machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: time.Now().Add(c.Preserve)}
		})
	}
	return c.protect(ctx, node, failed, until)
}

// requested returns the effective annotation.
func requested(machine *v1alpha1.Machine, node *corev1.Node) string {
	ofNode := node.Annotations[v1alpha1.AnnotationKeyPreserve]
	if ofNode == "" && machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve] == "" {
		return machine.Annotations[v1alpha1.AnnotationKeyPreserve]
	}
	return ofNode
}

// protect marks the node of a preserved Machine.
func (c *machineController) protect(ctx context.Context, node *corev1.Node, failed bool, until *metav1.Time) (bool, error) {
	wrote, err := c.update(ctx, node, func() {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabledByMCM, "true")
	})
	if wrote || err != nil {
		return wrote, err
	}
	taint := corev1.Taint{Key: v1alpha1.TaintKeyPreserved, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: time.Now()}}
	if failed && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		return c.update(ctx, node, func() { node.Spec.Taints = append(node.Spec.Taints, taint) })
	}
	message := fmt.Sprintf("Machine preserved until %v.", until)
	if failed {
		message = v1alpha1.PreservedNodeDrainSuccessful + " " + message
	}
	return c.condition(ctx, node, corev1.ConditionTrue, "Preserved by user.", message)
}

// copyRequest copies the annotation of the node to the Machine.
func (c *machineController) copyRequest(ctx context.Context, machine *v1alpha1.Machine, node *corev1.Node) (bool, error) {
	requested := node.Annotations[v1alpha1.AnnotationKeyPreserve]
	if requested == "" {
		return false, nil
	}
	return c.update(ctx, machine, func() {
		delete(machine.Annotations, v1alpha1.AnnotationKeyPreserve)
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyLastAppliedPreserve, requested)
	})
}

// condition sets the node's condition Preserved.
func (c *machineController) condition(ctx context.Context, node *corev1.Node, state corev1.ConditionStatus, reason, message string) (bool, error) {
	return c.updateStatus(ctx, node, func() {
		next := corev1.NodeCondition{Type: v1alpha1.NodePreserved, Status: state, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
		others := slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == next.Type })
		node.Status.Conditions = append(others, next)
	})
}

func (c *machineController) stopPreserving(ctx context.Context, machine *v1alpha1.Machine, node *corev1.Node) (bool, error) {
	wrote, err := c.condition(ctx, node, corev1.ConditionFalse, "Preservation stopped.", "")
	if wrote || err != nil {
		return wrote, err
	}
	wrote, err = c.update(ctx, node, func() {
		maps.DeleteFunc(node.Annotations, func(key, _ string) bool {
			return key == v1alpha1.AnnotationKeyScaleDownDisabled || key == v1alpha1.AnnotationKeyScaleDownDisabledByMCM
		})
	})
	if wrote || err != nil {
		return wrote, err
	}
	wrote, err = c.update(ctx, machine, func() { delete(machine.Annotations, v1alpha1.AnnotationKeyLastAppliedPreserve) })
	if wrote || err != nil {
		return wrote, err
	}
	taint := corev1.Taint{Key: v1alpha1.TaintKeyPreserved, Effect: corev1.TaintEffectNoSchedule}
	wrote, err = c.update(ctx, node, func() {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) })
	})
	if wrote || err != nil {
		return wrote, err
	}
	return c.updateStatus(ctx, machine, func() { machine.Status.CurrentStatus.PreserveExpiryTime = nil })
}
