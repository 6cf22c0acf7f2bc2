package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim/internal/nodes"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
)

// Agent is the behavior of the program on a node that updates the node in place, such as Gardener's node agent.
// Once the node's condition InPlaceUpdate has the reason ReadyForUpdate, the node is not ready for the duration of
// the update. Afterwards, the label update-result contains the result.
type Agent string

// The agents. The zero value means that the node has no agent.
const (
	// AgentSucceeds updates the node.
	AgentSucceeds = Agent(spec.AgentSucceed)
	// AgentFails reports a failure with a reason.
	AgentFails = Agent(spec.AgentFail)
	// AgentIsSilent neither updates the node nor reports a result.
	AgentIsSilent = Agent(spec.AgentSilent)
	// AgentDies makes the node permanently Ready=Unknown.
	AgentDies = Agent(spec.AgentDie)
)

// agentPeriod is the interval at which an agent checks its node.
const agentPeriod = time.Second

// agentReason is the reason for failed updates of AgentFails.
const agentReason = "the simulated agent fails"

func (k *kubelets) planUpdate(v VM) {
	if v.Node.Joined && v.Node.Agent != "" && v.Node.Agent != AgentIsSilent {
		k.plan(update, v, agentPeriod)
	}
}

// update lets the agent check its node, and start or complete an update.
func (k *kubelets) update(ctx context.Context, w nodeWriter, v VM) error {
	node := &corev1.Node{}
	if err := k.nodes.Get(ctx, client.ObjectKey{Name: v.NodeName}, node); err != nil {
		return err
	}
	began, underway := k.updateSince(v.ProviderID, nodes.MayUpdate(node))
	switch {
	case began && v.Node.Agent == AgentDies:
		return w.setReady(ctx, v.NodeName, corev1.ConditionUnknown)
	case began:
		return w.setReady(ctx, v.NodeName, corev1.ConditionFalse)
	case underway < v.Node.UpdateTime || !nodes.MayUpdate(node) || v.Node.Agent == AgentDies:
		return nil
	}
	if err := w.setReady(ctx, v.NodeName, corev1.ConditionTrue); err != nil {
		return err
	}
	return w.reportUpdate(ctx, v.NodeName, v.Node.Agent == AgentSucceeds)
}

// updateSince records whether an update is in progress. It returns whether the update starts now and for how long
// it has been running.
func (k *kubelets) updateSince(vm string, may bool) (began bool, underway time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	begin, known := k.updating[vm]
	switch {
	case !may:
		delete(k.updating, vm)
		return false, 0
	case !known:
		k.updating[vm] = time.Now()
		return true, 0
	}
	return false, time.Since(begin)
}

// reportUpdate writes the result of an update to the node.
func (w nodeWriter) reportUpdate(ctx context.Context, name string, successful bool) error {
	metadata := map[string]any{"labels": map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateSuccessful}}
	if !successful {
		metadata["labels"] = map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateFailed}
		metadata["annotations"] = map[string]string{v1alpha1.AnnotationKeyMachineUpdateFailedReason: agentReason}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("cannot encode the update result of node %s: %w", name, err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return w.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch))
}
