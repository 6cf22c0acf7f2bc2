package manager

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/index"
)

// machineByVM is an index of the cache: Machines by their provider IDs.
const machineByVM = "manager.machine.providerID"

// addIndexes adds the indexes of MCM's kinds.
func addIndexes(indexer client.FieldIndexer) error {
	ctx := context.Background()
	if err := index.Add(ctx, indexer); err != nil {
		return err //nolint:wrapcheck // says what it is
	}
	err := indexer.IndexField(ctx, &v1alpha1.Machine{}, machineByVM, func(object client.Object) []string {
		if id := object.(*v1alpha1.Machine).Spec.ProviderID; id != "" {
			return []string{id}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("adding the index %s: %w", machineByVM, err)
	}
	return nil
}

// claimedByMachine tells which Machine of machine.sapcloud.io has a VM: drivers that do not
// tell faces apart would give one VM to two machines of one name.
func claimedByMachine(cache client.Reader) func(context.Context, string, string) (string, error) {
	return func(ctx context.Context, namespace, providerID string) (string, error) {
		list := &v1alpha1.MachineList{}
		err := cache.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{machineByVM: providerID}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return "", fmt.Errorf("finding the machine of VM %s: %w", providerID, err)
		}
		if len(list.Items) == 0 {
			return "", nil
		}
		return "Machine " + client.ObjectKeyFromObject(&list.Items[0]).String(), nil
	}
}
