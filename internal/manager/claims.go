package manager

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Drivers that do not tell faces apart would give one VM to two machines of one name, and
// users may write the ID of one to another. So each face asks what the other has, if the
// manager has both.

// claimedByMachines finds the Machines of machine.sapcloud.io that name a VM.
func claimedByMachines(cache client.Reader) instance.Claimants {
	return func(ctx context.Context, namespace, providerID string) ([]instance.Claimant, error) {
		list := &v1alpha1.MachineList{}
		err := cache.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{fieldindex.MachineByProviderID: providerID}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("finding the Machine of VM %s: %w", providerID, err)
		}
		var found []instance.Claimant
		for i := range list.Items {
			found = append(found, machine.Claim(&list.Items[i]))
		}
		return found, nil
	}
}

// claimedByInfrastructure finds the MillwrightMachines that name a VM.
func claimedByInfrastructure(cache client.Reader) instance.Claimants {
	return func(ctx context.Context, namespace, providerID string) ([]instance.Claimant, error) {
		list := &infrav1.MillwrightMachineList{}
		err := cache.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{capi.ByProviderID: providerID}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("finding the MillwrightMachine of VM %s: %w", providerID, err)
		}
		var found []instance.Claimant
		for i := range list.Items {
			found = append(found, capi.Claim(&list.Items[i], providerID))
		}
		return found, nil
	}
}
