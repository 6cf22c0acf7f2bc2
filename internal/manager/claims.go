package manager

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/index"
)

// claimedByMachine tells which Machine of machine.sapcloud.io has a VM: drivers that do not
// tell faces apart would give one VM to two machines of one name.
func claimedByMachine(cache client.Reader) func(context.Context, string, string) (string, error) {
	return func(ctx context.Context, namespace, providerID string) (string, error) {
		list := &v1alpha1.MachineList{}
		err := cache.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index.MachineByProviderID: providerID}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return "", fmt.Errorf("finding the machine of VM %s: %w", providerID, err)
		}
		if len(list.Items) == 0 {
			return "", nil
		}
		return "Machine " + client.ObjectKeyFromObject(&list.Items[0]).String(), nil
	}
}
