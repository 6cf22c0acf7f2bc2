package orphans

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AnnotationOrphans on a MachineClass, or on what else holds a class, lets the orphans of the class be removed if they are
// no more than so many, whatever else speaks against that: an operator has looked at them.
// It holds a number, and should be taken off afterwards.
const AnnotationOrphans = "safety.millwright.dev/remove-orphans-up-to"

// instance is what a driver lists.
type instance struct {
	providerID string
	// namespace and machine name the object that it was made for.
	namespace, machine string
}

func (i instance) key() types.NamespacedName {
	return types.NamespacedName{Namespace: i.namespace, Name: i.machine}
}

// orphan is an instance that nobody owns.
type orphan struct {
	instance
	// why is half a sentence for people.
	why string
	// since is when it was first seen.
	since time.Time
}

// orphansAmong finds the instances of a class that no object owns.
//
// An object owns the instance whose ID it stores, whatever it is named; one that stores
// no ID may yet adopt any instance of its name, and so may one whose creation failed. An
// instance of an object that stores another ID is an orphan only if that other one exists
// and was made for the object, too: otherwise the driver may have changed the way it writes
// IDs, or somebody may have edited the object's, and then the instance is not what it seems.
func orphansAmong(instances []instance, owners []Owner) []orphan {
	madeFor := map[string]types.NamespacedName{}
	for _, i := range instances {
		madeFor[i.providerID] = i.key()
	}
	owned, byName := map[string]bool{}, map[types.NamespacedName][]Owner{}
	for _, owner := range owners {
		for _, id := range owner.ProviderIDs {
			owned[id] = true
		}
		byName[owner.key()] = append(byName[owner.key()], owner)
	}
	var found []orphan
	for _, i := range instances {
		named := byName[i.key()]
		switch {
		case owned[i.providerID]:
		case len(named) == 0:
			found = append(found, orphan{instance: i, why: "there is no machine " + i.machine})
		case !slices.ContainsFunc(named, func(owner Owner) bool { return owner.Creating || !owner.hasOneOf(madeFor) }):
			found = append(found, orphan{instance: i, why: "machine " + i.machine + " has VM " + named[0].ProviderIDs[0]})
		}
	}
	slices.SortFunc(found, func(a, b orphan) int { return strings.Compare(a.providerID, b.providerID) })
	return found
}

func (o Owner) key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// hasOneOf reports whether one of the instances that it stores is listed, and as its own.
func (o Owner) hasOneOf(madeFor map[string]types.NamespacedName) bool {
	return slices.ContainsFunc(o.ProviderIDs, func(id string) bool { return madeFor[id] == o.key() })
}

// strange tells, as half a sentence, if what a driver lists cannot be believed: the objects
// of the class have VMs, and none of those is listed. Empty if nothing is strange.
func strange(class string, instances []instance, owners []Owner) string {
	listed := map[string]bool{}
	for _, i := range instances {
		listed[i.providerID] = true
	}
	missing := 0
	for _, owner := range owners {
		switch {
		case owner.Class != class || len(owner.ProviderIDs) == 0:
		case slices.ContainsFunc(owner.ProviderIDs, func(id string) bool { return listed[id] }):
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
func allowance(object client.Object) int {
	allowed, err := strconv.Atoi(object.GetAnnotations()[AnnotationOrphans])
	if err != nil {
		return 0
	}
	return allowed
}
