// Package revision finds the current MachineSet of a MachineDeployment and the MachineSet of a revision, and
// numbers revisions.
//
// It follows the rules of MCM. Other rules would replace Machines that MCM created.
package revision

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Same reports whether two templates describe the same Machines.
func Same(a, b *v1alpha1.MachineTemplateSpec) bool { return sameAs(Essence(b))(a) }

// sameAs returns a function that compares templates with an essence. It compares class and annotations first,
// because hundreds of sets may exist, which differ mostly in these.
func sameAs(essence *v1alpha1.MachineTemplateSpec) func(*v1alpha1.MachineTemplateSpec) bool {
	return func(template *v1alpha1.MachineTemplateSpec) bool {
		return template.Spec.Class.Name == essence.Spec.Class.Name && maps.Equal(template.Annotations, essence.Annotations) &&
			equality.Semantic.DeepEqual(Essence(template), essence)
	}
}

// Essence returns a template without the fields that change on existing Machines (node template, timeouts, kind
// of the class) and without the set's own label. It shares memory with the template and is read-only.
func Essence(template *v1alpha1.MachineTemplateSpec) *v1alpha1.MachineTemplateSpec {
	reduced := *template
	if _, ofSet := reduced.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]; ofSet {
		reduced.Labels = maps.Clone(reduced.Labels)
		delete(reduced.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	}
	reduced.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
	reduced.Spec.MachineConfiguration = nil
	reduced.Spec.Class.Kind = ""
	return &reduced
}

// Older compares sets by age.
func Older(a, b *v1alpha1.MachineSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// Current returns the oldest set of a template that is not being deleted. Sets must be sorted by age. It
// returns nil if there is none.
func Current(sets []*v1alpha1.MachineSet, template *v1alpha1.MachineTemplateSpec) *v1alpha1.MachineSet {
	matches := sameAs(Essence(template))
	return first(sets, func(set *v1alpha1.MachineSet) bool {
		return set.DeletionTimestamp.IsZero() && matches(&set.Spec.Template)
	})
}

// Number returns the revision of a set, or the latest revision of a deployment. It returns 0 if there is none.
func Number(of metav1.Object) int64 {
	number, err := strconv.ParseInt(of.GetAnnotations()[v1alpha1.AnnotationKeyRevision], 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// Followed is like Number, but returns 0 for the highest possible number, which no other number can follow.
func Followed(of metav1.Object) int64 {
	if number := Number(of); number < math.MaxInt64 {
		return number
	}
	return 0
}

// Last returns the highest revision of the sets that can be followed by another one, or 0 if there is none.
func Last(sets []*v1alpha1.MachineSet) int64 {
	var last int64
	for _, set := range sets {
		last = max(last, Followed(set))
	}
	return last
}

// longestHistory is the maximum length of a set's revision history in bytes, as for a ReplicaSet.
const longestHistory = 2000

// Give sets the revision of a set, and appends the former revision to the set's history.
func Give(set *v1alpha1.MachineSet, number int64) {
	if was := set.Annotations[v1alpha1.AnnotationKeyRevision]; was != "" {
		history := strings.TrimPrefix(set.Annotations[v1alpha1.AnnotationKeyRevisionHistory]+","+was, ",")
		for len(history) > longestHistory {
			_, history, _ = strings.Cut(history, ",")
		}
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevisionHistory, history)
	}
	metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyRevision, strconv.FormatInt(number, 10))
}

// Sorted returns the sets that a deployment can be rolled back to, sorted by revision.
func Sorted(sets []*v1alpha1.MachineSet) []*v1alpha1.MachineSet {
	numbered := slices.DeleteFunc(slices.Clone(sets), func(set *v1alpha1.MachineSet) bool {
		return !set.DeletionTimestamp.IsZero() || Number(set) == 0
	})
	slices.SortStableFunc(numbered, func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(Number(a), Number(b)) })
	return numbered
}

// Pick returns the set with a revision, or nil if there is none. Revision 0 means the last but one.
func Pick(sets []*v1alpha1.MachineSet, number int64) *v1alpha1.MachineSet {
	numbered := Sorted(sets)
	if number != 0 {
		return first(numbered, func(set *v1alpha1.MachineSet) bool { return Number(set) == number })
	}
	if len(numbered) < 2 {
		return nil
	}
	return numbered[len(numbered)-2]
}

func first(sets []*v1alpha1.MachineSet, matches func(*v1alpha1.MachineSet) bool) *v1alpha1.MachineSet {
	if at := slices.IndexFunc(sets, matches); at >= 0 {
		return sets[at]
	}
	return nil
}

// Hash returns a number for the name of a new set. Existing sets are found by their templates, not by this
// number.
func Hash(template *v1alpha1.MachineTemplateSpec, collisions int32) string {
	encoded, _ := json.Marshal(Essence(template)) // cannot fail: plain fields
	hash := fnv.New32a()
	_, _ = hash.Write(encoded) // a hash never fails
	if collisions > 0 {
		_, _ = hash.Write(strconv.AppendInt(nil, int64(collisions), 10))
	}
	return strconv.FormatUint(uint64(hash.Sum32()), 10)
}

// SetName returns the name of a deployment's set with a hash, in MCM's format.
func SetName(deployment, hash string) string {
	const length = 5
	safe := rand.SafeEncodeString(hash)
	return deployment + "-" + safe[:min(length, len(safe))]
}

// CreatedFor reports whether a set was created for a deployment of the given name. It may have no owner now.
func CreatedFor(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) bool {
	hash := set.Spec.Template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]
	return hash != "" && set.Name == SetName(deployment.Name, hash)
}
