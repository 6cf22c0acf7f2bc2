package safety

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// AnnotationOrphans on a MachineClass lets the orphans of the class be removed if they are
// no more than so many, whatever else speaks against that: an operator has looked at them.
// It holds a number, and should be taken off afterwards.
const AnnotationOrphans = "safety.millwright.dev/remove-orphans-up-to"

// instance is what a driver lists.
type instance struct {
	providerID string
	// machine is the name of the Machine that it was made for.
	machine string
}

// orphan is an instance that nobody owns.
type orphan struct {
	instance
	// why is half a sentence for people.
	why string
	// since is when it was first seen.
	since time.Time
}

// orphansAmong finds the instances of a class that no Machine owns.
//
// A Machine owns the instance whose ID it stores, whatever it is named; one that stores
// no ID may yet adopt any instance of its name, and so may one whose creation failed. An
// instance of a Machine that stores another ID is an orphan only if that other one exists:
// otherwise the driver may have changed the way it writes IDs, and then nobody's instance
// is what it seems.
func orphansAmong(instances []instance, machines []v1alpha1.Machine) []orphan {
	listed := map[string]bool{}
	for _, i := range instances {
		listed[i.providerID] = true
	}
	owned, byName := map[string]bool{}, map[string]*v1alpha1.Machine{}
	for i := range machines {
		owned[machines[i].Spec.ProviderID] = true
		byName[machines[i].Name] = &machines[i]
	}
	var found []orphan
	for _, i := range instances {
		if owned[i.providerID] {
			continue
		}
		machine := byName[i.machine]
		switch {
		case machine == nil:
			found = append(found, orphan{instance: i, why: "there is no machine " + i.machine})
		case creating(machine) || !listed[machine.Spec.ProviderID]:
			continue
		default:
			found = append(found, orphan{instance: i, why: "machine " + i.machine + " has VM " + machine.Spec.ProviderID})
		}
	}
	slices.SortFunc(found, func(a, b orphan) int { return strings.Compare(a.providerID, b.providerID) })
	return found
}

// creating tells whether a Machine may yet adopt an instance.
func creating(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return machine.Spec.ProviderID == "" || phase == "" || phase == v1alpha1.MachineCrashLoopBackOff
}

// strange tells, as half a sentence, if what a driver lists cannot be believed: the Machines
// of the class have VMs, and none of those is listed. Empty if nothing is strange.
func strange(class string, instances []instance, machines []v1alpha1.Machine) string {
	listed := map[string]bool{}
	for _, i := range instances {
		listed[i.providerID] = true
	}
	missing := 0
	for i := range machines {
		id := machines[i].Spec.ProviderID
		switch {
		case machines[i].Spec.Class.Name != class || id == "":
		case listed[id]:
			return ""
		default:
			missing++
		}
	}
	if missing == 0 {
		return ""
	}
	return "none of the " + strconv.Itoa(missing) + " VMs that machines of the class have is among the " + strconv.Itoa(len(instances)) + " that are listed"
}

// view is what is seen of a class.
type view struct {
	instances []instance
	// found are its orphans, due those that have been known for long enough.
	found, due []orphan
	// allowed is how many may go in any case.
	allowed int
	// strange is why nothing is believed, if not empty.
	strange string
}

// decision is what is done about the orphans of a class that are due.
type decision struct {
	remove bool
	// reason is why not, for people.
	reason string
}

// decide says whether the orphans that are due are removed. Those that are not due yet tell,
// too, how likely an error is.
func decide(mode Mode, limit Limit, v view) decision {
	found, instances := len(v.found), len(v.instances)
	switch {
	case len(v.due) == 0:
		return decision{}
	case mode != Delete:
		return decision{reason: "orphans are only reported"}
	case found <= v.allowed:
		return decision{remove: true}
	case v.strange != "":
		return decision{reason: v.strange + annotate(found)}
	case !limit.allows(found, instances):
		return decision{reason: strconv.Itoa(found) + " of " + strconv.Itoa(instances) + " VMs are more than may be removed at once" + annotate(found)}
	}
	return decision{remove: true}
}

func annotate(found int) string {
	return "; if they are to go, annotate the class with " + AnnotationOrphans + "=" + strconv.Itoa(found)
}

// allowance is how many orphans an operator lets go; 0 if nothing that makes sense is said.
func allowance(class *v1alpha1.MachineClass) int {
	allowed, err := strconv.Atoi(class.Annotations[AnnotationOrphans])
	if err != nil {
		return 0
	}
	return allowed
}
