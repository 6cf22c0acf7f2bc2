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

// Agent is what the program on a node does that updates the node in place, as Gardener's node agent
// does: once the node's condition InPlaceUpdate has the reason ReadyForUpdate, the node is not ready for
// the time of the update, and then the label update-result tells how it ended.
type Agent string

// The agents. The zero value is none.
const (
	// AgentSucceeds updates the node.
	AgentSucceeds = Agent(spec.AgentSucceed)
	// AgentFails reports a failure with a reason.
	AgentFails = Agent(spec.AgentFail)
	// AgentIsSilent neither updates the node nor reports.
	AgentIsSilent = Agent(spec.AgentSilent)
	// AgentDies has its node become Ready=Unknown for good.
	AgentDies = Agent(spec.AgentDie)
)

// agentPeriod is how often an agent looks at its node.
const agentPeriod = time.Second

// agentReason is why updates of AgentFails fail.
const agentReason = "the simulated agent fails"

func (k *kubelets) planUpdate(v VM) {
	if v.Node.Joined && v.Node.Agent != "" && v.Node.Agent != AgentIsSilent {
		k.plan(update, v, agentPeriod)
	}
}

// update has the agent look at its node, and begin or end an update.
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

// updateSince notes whether an update is under way, and returns whether it begins, and how long it has
// been so.
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

// reportUpdate tells how an update ended.
func (w nodeWriter) reportUpdate(ctx context.Context, name string, successful bool) error {
	metadata := map[string]any{"labels": map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateSuccessful}}
	if !successful {
		metadata["labels"] = map[string]string{v1alpha1.LabelKeyNodeUpdateResult: v1alpha1.LabelValueNodeUpdateFailed}
		metadata["annotations"] = map[string]string{v1alpha1.AnnotationKeyMachineUpdateFailedReason: agentReason}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encoding the result for node %s: %w", name, err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return w.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch))
}
