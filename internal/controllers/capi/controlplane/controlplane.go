// Package controlplane finds the API servers of a Cluster.
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

// Machines returns the control plane machines of a Cluster that have an address and are not being deleted. They must
// not be changed, because the reader may be a cache.
func Machines(ctx context.Context, reader client.Reader, namespace, cluster string) ([]infrav1.MillwrightMachine, error) {
	list := &infrav1.MillwrightMachineList{}
	err := reader.List(ctx, list, client.InNamespace(namespace),
		client.MatchingLabels{core.LabelCluster: cluster}, client.HasLabels{core.LabelControlPlane}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the control plane of Cluster %s: %w", cluster, err)
	}
	return slices.DeleteFunc(list.Items, func(m infrav1.MillwrightMachine) bool {
		return !m.DeletionTimestamp.IsZero() || InternalAddress(&m) == ""
	}), nil
}

// InternalAddress returns the address at which other machines reach a machine; "" if it has none. It prefers internal
// addresses.
func InternalAddress(machine *infrav1.MillwrightMachine) string {
	return first(machine, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS)
}

// ExternalAddress returns the address at which most clients reach a machine; "" if it has none. It prefers external
// addresses.
func ExternalAddress(machine *infrav1.MillwrightMachine) string {
	return first(machine, corev1.NodeExternalIP, corev1.NodeExternalDNS, corev1.NodeInternalIP, corev1.NodeInternalDNS)
}

// first returns a machine's first address of the first of the types of which it has one.
func first(machine *infrav1.MillwrightMachine, types ...corev1.NodeAddressType) string {
	for _, addressType := range types {
		for _, address := range machine.Status.Addresses {
			if address.Type == addressType {
				return address.Address
			}
		}
	}
	return ""
}

// Port returns the port of the API servers on the machines.
func Port(infra *infrav1.MillwrightCluster) int32 {
	const standard = 6443 // the default of the schema, for objects without defaults
	return cmp.Or(infra.Spec.ControlPlanePort, standard)
}
