package ui

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/ui"
)

// capiDeployments is the resource of Cluster API's MachineDeployments in commands.
const capiDeployments = "machinedeployments.cluster.x-k8s.io"

// capiDeployment returns a MachineDeployment of Cluster API without content, in the version that the cluster serves.
func (a actions) capiDeployment(r ui.Request) (*unstructured.Unstructured, error) {
	of, err := ui.ClusterAPIKind(a.client.RESTMapper(), "MachineDeployment")
	if err != nil {
		return nil, fmt.Errorf("cannot find the kind MachineDeployment of Cluster API: %w", err)
	}
	deployment := &unstructured.Unstructured{}
	deployment.SetGroupVersionKind(of)
	deployment.SetNamespace(r.Namespace)
	deployment.SetName(r.Name)
	return deployment, nil
}

func (a actions) capiScaleCommand(r ui.Request) []string {
	return a.kubectl(r, "scale", capiDeployments, r.Name, "--replicas", strconv.Itoa(int(*r.Replicas)))
}

// capiScale changes the replicas by a patch of the subresource, as kubectl does, so that the same permission suffices.
func (a actions) capiScale(ctx context.Context, r ui.Request) (string, error) {
	deployment, err := a.capiDeployment(r)
	if err != nil {
		return "", err
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, *r.Replicas))
	if err := a.client.SubResource("scale").Patch(ctx, deployment, patch); err != nil {
		return "", fmt.Errorf("cannot scale machine deployment %s of Cluster API: %w", keyOf(r), err)
	}
	return fmt.Sprintf("scaled to %d", *r.Replicas), nil
}

func pausePatch(pause bool) string { return fmt.Sprintf(`{"spec":{"paused":%t}}`, pause) }

func (a actions) capiPauseCommand(pause bool) func(ui.Request) []string {
	return func(r ui.Request) []string {
		return a.kubectl(r, "patch", capiDeployments, r.Name, "--type", "merge", "--patch", pausePatch(pause))
	}
}

func (a actions) capiPause(pause bool, done string) func(context.Context, ui.Request) (string, error) {
	return func(ctx context.Context, r ui.Request) (string, error) {
		deployment, err := a.capiDeployment(r)
		if err != nil {
			return "", err
		}
		if err := a.client.Patch(ctx, deployment, client.RawPatch(types.MergePatchType, []byte(pausePatch(pause)))); err != nil {
			return "", fmt.Errorf("cannot change machine deployment %s of Cluster API: %w", keyOf(r), err)
		}
		return done, nil
	}
}
