package crash

import (
	"fmt"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// both combines two rules.
func both(one, other rule) rule {
	return func(r *run, was, is moment) error {
		if err := one(r, was, is); err != nil {
			return err
		}
		return other(r, was, is)
	}
}

// most requires that there are never more Machines, including those that are being deleted.
func most(limit int) rule {
	return func(_ *run, _, is moment) error {
		if got := len(is.machines); got > limit {
			return fmt.Errorf("%w: %d, at most %d", errTooMany, got, limit)
		}
		return nil
	}
}

// least requires a minimum number of available Machines, which are Running and not being deleted.
func least(limit int) rule {
	return func(_ *run, _, is moment) error {
		got := 0
		for _, machine := range is.machines {
			if machine.DeletionTimestamp.IsZero() && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning {
				got++
			}
		}
		if got < limit {
			return fmt.Errorf("%w: %d, at least %d", errTooFew, got, limit)
		}
		return nil
	}
}

// notMixed requires that Machines of the two classes never exist at the same time.
func notMixed(_ *run, _, is moment) error {
	classes := map[string]bool{}
	for _, machine := range is.machines {
		classes[machine.Spec.Class.Name] = true
	}
	if len(classes) > 1 {
		return errMixed
	}
	return nil
}

// onlyNamed requires that only the Machine that an autoscaler marked is deleted.
func onlyNamed(r *run, was, is moment) error {
	for name := range was.machines {
		machine, exists := is.machines[name]
		if name != r.named && (!exists || !machine.DeletionTimestamp.IsZero()) {
			return fmt.Errorf("%w: %s, while %s is named", errVictim, name, r.named)
		}
	}
	return nil
}

// frozenMakeNothing requires that no Machine is created while its MachineSet is frozen.
func frozenMakeNothing(_ *run, was, is moment) error {
	for name, machine := range is.machines {
		if _, old := was.machines[name]; old {
			continue
		}
		for _, owner := range machine.OwnerReferences {
			if set := was.sets[owner.Name]; set != nil && set.Labels[v1alpha1.LabelKeyFreeze] == "True" {
				return fmt.Errorf("%w: %s makes %s", errFrozen, owner.Name, name)
			}
		}
	}
	return nil
}
