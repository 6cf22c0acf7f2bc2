package join

import (
	"context"
	"fmt"
	"slices"

	"github.com/millwright-dev/millwright/guest/kube"
)

// What an update in place is agreed by; see "Updating its node in place" in docs/machine.md.
const (
	inPlaceUpdate    = "InPlaceUpdate"
	readyForUpdate   = "ReadyForUpdate"
	updateResult     = "node.machine.sapcloud.io/update-result"
	updateSuccessful = "successful"
)

// awaitedUpdate is when the Node began to wait for its update in place; empty if it does not wait.
func (e *existing) awaitedUpdate() string {
	at := slices.IndexFunc(e.Status.Conditions, func(c condition) bool {
		return c.Type == inPlaceUpdate && c.Reason == readyForUpdate
	})
	if at < 0 || e.Metadata.Labels[updateResult] != "" {
		return ""
	}
	return e.Status.Conditions[at].Transition
}

// update is what an agent does on a Node that is drained for an update in place: the guest restarts, from
// what its image is then, and reports that. The Node tells whether it has restarted meanwhile, so an update
// survives a crash.
func (n *node) update(ctx context.Context, seen existing) error {
	if seen.awaitedUpdate() == "" {
		return nil
	}
	var there existing // not from a cache, which might have what is over
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
