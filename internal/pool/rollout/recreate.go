package rollout

import "github.com/millwright-dev/millwright/internal/pool/counts"

// planRecreate removes all old Machines before the first new one is created.
func planRecreate(r *Rollout) []Operation {
	var operations []Operation
	for _, set := range r.Old {
		if counts.Desired(set) > 0 {
			operations = append(operations, scaleTo(set, 0, "the strategy Recreate removes all old machines before it creates new ones"))
		}
	}
	return operations
}
