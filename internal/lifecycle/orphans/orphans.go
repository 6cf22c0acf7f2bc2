package orphans

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AnnotationOrphans on a class allows the removal of up to the given number of orphans, even if an error is
// more likely. Operators set it after they have checked the orphans, and remove it afterwards.
const AnnotationOrphans = "safety.millwright.dev/remove-orphans-up-to"

type instance struct{ providerID, namespace, machine string }

func (i instance) key() types.NamespacedName {
	return types.NamespacedName{Namespace: i.namespace, Name: i.machine}
}

type orphan struct {
	instance
	// why is a clause.
	why string
	// since is when it was first found.
	since time.Time
}

// orphansAmong returns the instances of a class that no object owns, sorted by provider ID.
//
// An object owns the instance whose ID it stores. An object that stores no ID, or whose creation failed, may
// adopt any instance with its name. If an object stores another ID, an instance with its name is an orphan only
// if the other instance exists and was created for the object as well. Otherwise the driver may use another ID
// format, or a user may have edited the object's ID.
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
			found = append(found, orphan{instance: i, why: "machine " + i.machine + " does not exist"})
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

// hasOneOf reports whether one of the instances whose IDs the owner stores is listed as its own.
func (o Owner) hasOneOf(madeFor map[string]types.NamespacedName) bool {
	return slices.ContainsFunc(o.ProviderIDs, func(id string) bool { return madeFor[id] == o.key() })
}

// suspicion returns a clause if the driver lists none of the instances that objects of the class own. Otherwise
// it returns an empty string.
func suspicion(class string, instances []instance, owners []Owner) string {
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
	return "the driver lists " + strconv.Itoa(len(instances)) + " VMs, but none of the " + strconv.Itoa(missing) + " VMs of the class's machines"
}

type view struct {
	instances []instance
	// found are the orphans, and due those that have been known for at least the grace period.
	found, due []orphan
	// allowed is the value of AnnotationOrphans.
	allowed   int
	suspicion string
}

// decision is whether due orphans are removed, or the reason why not.
type decision struct {
	remove bool
	reason string
}

// decide decides whether orphans are removed. Orphans that are not due also count as signs of an error.
func decide(mode Mode, limit Limit, v view) decision {
	found, instances := len(v.found), len(v.instances)
	switch {
	case len(v.due) == 0:
		return decision{}
	case mode != Delete:
		return decision{reason: "orphans are only reported in this mode"}
	case found <= v.allowed:
		return decision{remove: true}
	case v.suspicion != "":
		return decision{reason: v.suspicion + annotate(found)}
	case !limit.allows(found, instances):
		return decision{reason: strconv.Itoa(found) + " of " + strconv.Itoa(instances) + " VMs are orphans, more than may be removed at a time" + annotate(found)}
	}
	return decision{remove: true}
}

func annotate(found int) string {
	return "; to remove them, annotate the class with " + AnnotationOrphans + "=" + strconv.Itoa(found)
}

// allowance returns the value of AnnotationOrphans, or 0 if it is not a number.
func allowance(object client.Object) int {
	allowed, err := strconv.Atoi(object.GetAnnotations()[AnnotationOrphans])
	if err != nil {
		return 0 // Atoi returns the largest number for an overflow
	}
	return allowed
}
