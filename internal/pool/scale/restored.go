package scale

import (
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// planRestored returns an operation when a restored set stops waiting: when all its Machines exist and their VMs have
// been looked up, or when the time is over. Until then, the set adopts Machines, but creates and deletes none.
func planRestored(f Facts, kept []*v1alpha1.Machine) []Operation {
	if restore.IsNewSet(f.Set) {
		return nil
	}
	exist, unknown := 0, 0
	for _, machine := range kept {
		if counts.Active(machine) {
			exist++
			unknown += one(deletion.Restored(machine))
		}
	}
	desired := int(f.Set.Spec.Replicas)
	missing := max(0, desired-exist)
	op := Operation{Action: EndRestore, Count: missing + unknown, Reason: fmt.Sprintf("%d of %d machines exist", exist, desired)}
	switch {
	case op.Count == 0:
		return []Operation{op}
	case !restore.Expired(f.Set, f.Now):
		return nil
	case missing > 0:
		op.Reason = fmt.Sprintf("%d of %d machines were restored within %s; the others are created", exist, desired, messages.Duration(restore.Timeout))
	default:
		op.Reason = fmt.Sprintf("the VMs of %d of %d machines were not looked up within %s", unknown, exist, messages.Duration(restore.Timeout))
	}
	return []Operation{op}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
