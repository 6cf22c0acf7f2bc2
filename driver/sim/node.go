package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim/internal/nodes"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
)

// newVM returns the VM that a creation requests.
func (d *Driver) newVM(c call, class *v1alpha1.MachineClass) VM {
	now := time.Now()
	v := VM{
		Namespace: c.namespace, Machine: c.name, NodeName: c.name,
		Account: c.account, Pool: c.spec.Pool, Tags: maps.Clone(c.spec.Tags), Zone: c.spec.Zone, APIGroup: c.spec.APIGroup,
		CreatedAt: now, VisibleAt: now.Add(c.spec.VisibleAfter),
		Initialized: !d.config.RequireInitialize,
	}
	if c.spec.Join == spec.JoinNever {
		return v
	}
	v.Node = &NodePlan{
		JoinAt:   now.Add(d.jittered(c, "joinDelay", c.spec.JoinDelay)),
		NotReady: c.spec.Join == spec.JoinNotReady,
		Labels:   nodeLabels(c, class.NodeTemplate),
		Taints:   slices.Clone(c.spec.NodeTaints),
		Capacity: nodes.Capacity(class.NodeTemplate),
		Agent:    Agent(c.spec.Agent),
	}
	if c.spec.Lifetime > 0 {
		v.Node.DiesAt = v.Node.JoinAt.Add(d.jittered(c, "lifetime", c.spec.Lifetime))
	}
	if v.Node.Agent != "" {
		v.Node.UpdateTime = c.spec.UpdateTime
	}
	if c.spec.Join == spec.JoinFlap {
		v.Node.FlapInterval = c.spec.FlapInterval
	}
	return v
}

// nodeLabels returns the labels that a kubelet and a cloud provider set.
func nodeLabels(c call, template *v1alpha1.NodeTemplate) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:   c.name,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
	}
	if template != nil {
		for label, value := range map[string]string{
			corev1.LabelInstanceTypeStable: template.InstanceType,
			corev1.LabelTopologyRegion:     template.Region,
			corev1.LabelTopologyZone:       template.Zone,
		} {
			if value != "" {
				labels[label] = value
			}
		}
		if template.Architecture != nil && *template.Architecture != "" {
			labels[corev1.LabelArchStable] = *template.Architecture
		}
	}
	if c.spec.Zone != "" {
		labels[corev1.LabelTopologyZone] = c.spec.Zone
	}
	maps.Copy(labels, c.spec.NodeLabels)
	return labels
}

// nodeWriter writes Node objects as kubelets do: one POST and one PATCH of the status to join, and one PATCH for
// each change of Ready.
type nodeWriter struct {
	client client.Client
}

// kubeletVersion is the kubelet version of simulated nodes.
const kubeletVersion = "v1.37.0-sim"

// register creates the node unless an earlier attempt created it.
func (w nodeWriter) register(ctx context.Context, v VM) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: v.NodeName, Labels: v.Node.Labels},
		Spec:       corev1.NodeSpec{ProviderID: v.ProviderID, Taints: v.Node.Taints},
		Status: corev1.NodeStatus{
			Capacity:    v.Node.Capacity,
			Allocatable: v.Node.Capacity,
			Addresses:   v.addresses(),
			Conditions:  w.conditions(corev1.ConditionFalse),
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: kubeletVersion, OperatingSystem: "linux",
				Architecture: v.Node.Labels[corev1.LabelArchStable],
				SystemUUID:   v.ProviderID, MachineID: v.ProviderID,
			},
		},
	}
	err := w.client.Create(ctx, node)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// report writes the complete status.
func (w nodeWriter) report(ctx context.Context, v VM, ready corev1.ConditionStatus) error {
	return w.patchStatus(ctx, v.NodeName, map[string]any{
		"conditions":  w.conditions(ready),
		"addresses":   v.addresses(),
		"capacity":    v.Node.Capacity,
		"allocatable": v.Node.Capacity,
	})
}

// setReady writes the Ready condition.
func (w nodeWriter) setReady(ctx context.Context, name string, ready corev1.ConditionStatus) error {
	return w.patchStatus(ctx, name, map[string]any{"conditions": []corev1.NodeCondition{w.ready(ready)}})
}

func (w nodeWriter) patchStatus(ctx context.Context, name string, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return fmt.Errorf("cannot encode the status of node %s: %w", name, err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return w.client.Status().Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, patch))
}

// renew renews the node's Lease. It needs one request, or two for the first renewal.
func (w nodeWriter) renew(ctx context.Context, name string, interval time.Duration) error {
	now := metav1.NewMicroTime(time.Now())
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now}})
	if err != nil {
		return fmt.Errorf("cannot encode the lease of node %s: %w", name, err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	err = w.client.Patch(ctx, lease, client.RawPatch(types.MergePatchType, patch))
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To(name),
		LeaseDurationSeconds: ptr.To(int32(max(1, 4*interval/time.Second))),
		RenewTime:            &now,
	}
	return w.client.Create(ctx, lease)
}

// conditions returns the conditions that a kubelet reports.
func (w nodeWriter) conditions(ready corev1.ConditionStatus) []corev1.NodeCondition {
	now := metav1.NewTime(time.Now())
	good := func(kind corev1.NodeConditionType, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message,
			LastHeartbeatTime: now, LastTransitionTime: now,
		}
	}
	return []corev1.NodeCondition{
		good(corev1.NodeMemoryPressure, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		good(corev1.NodeDiskPressure, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		good(corev1.NodePIDPressure, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		w.ready(ready),
	}
}

func (w nodeWriter) ready(ready corev1.ConditionStatus) corev1.NodeCondition {
	now := metav1.NewTime(time.Now())
	c := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: now, LastTransitionTime: now,
	}
	switch ready {
	case corev1.ConditionTrue:
		c.Reason, c.Message = "KubeletReady", "the simulated kubelet is ready"
	case corev1.ConditionFalse:
		c.Reason, c.Message = "KubeletNotReady", "the simulated kubelet is not ready"
	default:
		// The node lifecycle controller writes this one, not a kubelet.
		c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
	}
	return c
}
