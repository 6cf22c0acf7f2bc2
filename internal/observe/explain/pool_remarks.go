package explain

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

// overlaps is the type and the reason of a condition of sets and deployments.
const overlaps = "SelectorOverlap"

// remarks says what a user should know, and what keeps nothing from being done: so it comes
// after all that does.
func (e *poolExplainer) remarks() {
	said := false
	if e.Kind == kindDeployment {
		said = e.remarksOfDeployment()
	}
	for i := range e.Sets {
		if !said { // a deployment speaks for its sets
			e.overlapping(&e.Sets[i])
		}
	}
}

// remarksOfDeployment reports whether one of the remarks is about overlapping selectors.
func (e *poolExplainer) remarksOfDeployment() (overlap bool) {
	key := e.Key
	for _, condition := range e.Deployment.Status.Conditions {
		since := condition.LastTransitionTime.Time
		switch condition.Type {
		case overlaps:
			overlap = true
			e.why(Overlap, "", since, "%s", condition.Message)
		case "SetReleased":
			e.why(Released, "", since, "%s", condition.Message)
			e.remedy("To drain and delete the machines of a released set: kubectl -n %s delete %s NAME. To have them back: change spec.selector so that it matches the set", key.Namespace, setResource)
		case "RollbackRefused":
			e.why(RollbackRefused, "", since, "%s", condition.Message)
			e.remedy("See what one can go back to: millwright rollout history %s -n %s. The refusal is forgotten with the next change of the template", key.Name, key.Namespace)
		}
	}
	return overlap
}

func (e *poolExplainer) overlapping(set *v1alpha1.MachineSet) {
	for _, condition := range set.Status.Conditions {
		if condition.Type == overlaps {
			e.why(Overlap, e.named(set), condition.LastTransitionTime.Time, "%s", condition.Message)
		}
	}
}
