package join

import (
	"context"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/guest/kube"
)

// The protocol of in-place updates; see "Updating its node in place" in docs/tasks/machine.md.
const (
	inPlaceUpdate    = "InPlaceUpdate"
	readyForUpdate   = "ReadyForUpdate"
	updateResult     = "node.machine.sapcloud.io/update-result"
	updateSuccessful = "successful"
)

// awaitedUpdate returns when the Node began to wait for its in-place update, or "" if it does not wait.
func (e *existing) awaitedUpdate() string {
	at := slices.IndexFunc(e.Status.Conditions, func(c condition) bool {
		return c.Type == inPlaceUpdate && c.Reason == readyForUpdate
	})
	if at < 0 || e.Metadata.Labels[updateResult] != "" {
		return ""
	}
	return e.Status.Conditions[at].Transition
}

// update acts as the agent of a Node that is drained for an in-place update: the guest restarts from its
// current image, and reports that. The Node shows whether it has restarted in the meantime, so an update
// survives a crash.
func (n *node) update(ctx context.Context, seen existing) error {
	if seen.awaitedUpdate() == "" {
		return nil
	}
	var there existing // not from a cache, which may be outdated
	if err := n.client.Get(ctx, n.path(), &there); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	switch there.awaitedUpdate() {
	case "":
		return nil
	case n.restartedFor:
		n.logf("update: restarted, which is all that there is to update")
		labels := map[string]string{updateResult: updateSuccessful}
		if err := n.client.Patch(ctx, n.path(), kube.MergePatch, map[string]any{"metadata": map[string]any{"labels": labels}}); err != nil {
			return fmt.Errorf("reporting the update: %w", err)
		}
		return nil
	default:
		n.logf("update: the node is drained, restarting")
		n.restart()
		return nil
	}
}
