package orphans

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// AnnotationOrphans on a class allows the removal of up to so many orphans, whatever their
// likelihood: an operator has looked at them, and removes the annotation afterwards.
const AnnotationOrphans = "safety.millwright.dev/remove-orphans-up-to"

type instance struct{ providerID, namespace, machine string }

func (i instance) key() types.NamespacedName {
	return types.NamespacedName{Namespace: i.namespace, Name: i.machine}
}

type orphan struct {
	instance
	// why is half a sentence.
	why string
	// since is when it was first seen.
	since time.Time
}

// orphansAmong returns the instances of a class that no object owns, by their IDs.
//
// An object owns the instance whose ID it stores. One that stores no ID, or whose creation
// failed, may adopt any instance of its name. Where an object stores another ID, an instance of
// its name is an orphan only if that other one exists and was made for the object, too: otherwise
// the driver may write IDs in another form, or a user may have edited the object's.
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

// strange returns half a sentence if the driver lists none of the instances that objects of the
// class have; else nothing.
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

type view struct {
	instances []instance
	// found are its orphans, due those that have been known for the grace period.
	found, due []orphan
	// allowed is the value of AnnotationOrphans.
	allowed int
	strange string
}

// decision is whether the orphans that are due are removed, or why not.
type decision struct {
	remove bool
	reason string
}

// decide counts orphans that are not due, too, as signs of an error.
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

// allowance is the value of AnnotationOrphans; 0 if it is no number.
func allowance(object client.Object) int {
	allowed, err := strconv.Atoi(object.GetAnnotations()[AnnotationOrphans])
	if err != nil {
		return 0 // also where Atoi returns the largest number
	}
	return allowed
}
