// Package controlplane finds where the API servers of a Cluster are.
package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

// Machines returns the control plane machines of a Cluster that have an address, and whose VM is to stay. They are
// those of the reader, which may be a cache: they must not be changed.
func Machines(ctx context.Context, reader client.Reader, namespace, cluster string) ([]infrav1.MillwrightMachine, error) {
	list := &infrav1.MillwrightMachineList{}
	err := reader.List(ctx, list, client.InNamespace(namespace),
		client.MatchingLabels{core.LabelCluster: cluster}, client.HasLabels{core.LabelControlPlane}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the control plane of Cluster %s: %w", cluster, err)
	}
	return slices.DeleteFunc(list.Items, func(m infrav1.MillwrightMachine) bool {
		return !m.DeletionTimestamp.IsZero() || Nearest(&m) == ""
	}), nil
}

// Nearest returns the address of a machine by which its neighbours reach it; empty if it has none.
func Nearest(machine *infrav1.MillwrightMachine) string {
	return first(machine, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS)
}

// Widest returns the address of a machine by which most reach it; empty if it has none.
func Widest(machine *infrav1.MillwrightMachine) string {
	return first(machine, corev1.NodeExternalIP, corev1.NodeExternalDNS, corev1.NodeInternalIP, corev1.NodeInternalDNS)
}

// first returns the first address of the first of these types.
func first(machine *infrav1.MillwrightMachine, types ...corev1.NodeAddressType) string {
	for _, wanted := range types {
		for _, address := range machine.Status.Addresses {
			if address.Type == wanted {
				return address.Address
			}
		}
	}
	return ""
}

// Port returns the port of the API servers on the machines.
func Port(infra *infrav1.MillwrightCluster) int32 {
	const standard = 6443 // the schema's default, for objects without it
	return cmp.Or(infra.Spec.ControlPlanePort, standard)
}
