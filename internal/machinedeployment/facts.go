package machinedeployment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// facts are what a plan is made from.
type facts struct {
	deployment *v1alpha1.MachineDeployment
	// current is the set of the deployment's template; nil if there is none yet.
	current *v1alpha1.MachineSet
	// old are the sets of other templates, and those that are being deleted; the
	// oldest first.
	old []*v1alpha1.MachineSet
	// strays are sets that nothing controls and that match.
	strays []*v1alpha1.MachineSet
	// rolling tells that machines are replaced a few at a time. It is the default.
	rolling bool
	// surge and unavailable bound a rolling update, in machines.
	surge, unavailable int32
	now                time.Time
	// created tells that current was created in this pass.
	created bool
}

// gather sorts out the sets that the deployment controls.
func gather(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) facts {
	strategy := deployment.Spec.Strategy.Type
	f := facts{deployment: deployment, now: now, rolling: strategy == "" || strategy == v1alpha1.RollingUpdateMachineDeploymentStrategyType}
	f.surge, f.unavailable = bounds(deployment)
	sets = slices.Clone(sets)
	slices.SortFunc(sets, func(a, b *v1alpha1.MachineSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, set := range sets {
		if f.current == nil && set.DeletionTimestamp.IsZero() && sameTemplate(&set.Spec.Template, &deployment.Spec.Template) {
			f.current = set
			continue
		}
		f.old = append(f.old, set)
	}
	return f
}

func (f facts) all() []*v1alpha1.MachineSet {
	if f.current == nil {
		return f.old
	}
	return append(slices.Clone(f.old), f.current)
}

// selects tells whether a set belongs to the deployment: by its own labels and by those of
// the Machines that it makes.
func selects(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) bool {
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector) // nil selects nothing
	return err == nil && selector.Matches(labels.Set(set.Labels)) && selector.Matches(labels.Set(set.Spec.Template.Labels))
}

// selectsAll tells whether the deployment's selector is empty, which would match whatever
// nobody owns.
func selectsAll(deployment *v1alpha1.MachineDeployment) bool {
	selector := deployment.Spec.Selector
	return len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

// sameTemplate tells whether two templates make the same Machines. What can be changed
// on Machines that exist (node template, timeouts) does not count, nor do the set's own
// label and the kind of the class. The sets of a fleet that MCM has made are recognised
// by this: with another rule, the fleet would be rolled.
func sameTemplate(a, b *v1alpha1.MachineTemplateSpec) bool {
	return equality.Semantic.DeepEqual(essence(a), essence(b))
}

func essence(template *v1alpha1.MachineTemplateSpec) *v1alpha1.MachineTemplateSpec {
	reduced := template.DeepCopy()
	delete(reduced.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	reduced.Spec.NodeTemplateSpec = v1alpha1.NodeTemplateSpec{}
	reduced.Spec.MachineConfiguration = nil
	reduced.Spec.Class.Kind = ""
	return reduced
}

// templateHash is a number that differs between templates. It only has to be stable for
// a set that exists: the set of a template is found by comparison.
func templateHash(template *v1alpha1.MachineTemplateSpec, collisions int32) (string, error) {
	encoded, err := json.Marshal(essence(template))
	if err != nil {
		return "", fmt.Errorf("encoding the template: %w", err)
	}
	hash := fnv.New32a()
	_, _ = hash.Write(encoded) // a hash never fails
	if collisions > 0 {
		_, _ = hash.Write(strconv.AppendInt(nil, int64(collisions), 10))
	}
	return strconv.FormatUint(uint64(hash.Sum32()), 10), nil
}

// setName is the name of the set with that hash, in MCM's form.
func setName(deployment, hash string) string {
	const length = 5
	safe := rand.SafeEncodeString(hash)
	return deployment + "-" + safe[:min(length, len(safe))]
}

// bounds are how many machines an update may have beyond those wanted, and how many of
// those wanted may be missing. For a rolling update both default to 1, and are not both
// 0. An update in place makes no machine beyond those wanted, and the strategy Recreate
// has no bounds: it is unavailable until it is over.
func bounds(deployment *v1alpha1.MachineDeployment) (surge, unavailable int32) {
	config := v1alpha1.UpdateConfiguration{}
	switch strategy := deployment.Spec.Strategy; strategy.Type {
	case v1alpha1.RecreateMachineDeploymentStrategyType:
		return 0, 0
	case v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		if strategy.InPlaceUpdate != nil {
			config.MaxUnavailable = strategy.InPlaceUpdate.MaxUnavailable
		}
		config.MaxSurge = ptr.To(intstr.FromInt32(0))
	case v1alpha1.RollingUpdateMachineDeploymentStrategyType, "":
		if strategy.RollingUpdate != nil {
			config = strategy.RollingUpdate.UpdateConfiguration
		}
	}
	one, total := intstr.FromInt32(1), int(deployment.Spec.Replicas)
	// Both were validated, so neither can fail.
	up, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxSurge, one), total, true)
	down, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxUnavailable, one), total, false)
	if up == 0 && down == 0 {
		down = 1
	}
	// Their sum with the replicas is a number of replicas, too.
	return int32(min(up, math.MaxInt32-total)), int32(min(down, total)) //nolint:gosec // bounded on this line
}

// asked is how many machines a set shall have. One that is being deleted shall have none.
func asked(set *v1alpha1.MachineSet) int32 {
	if !set.DeletionTimestamp.IsZero() {
		return 0
	}
	return set.Spec.Replicas
}

// existing is how many machines a set has, those being deleted and those still to be
// created included. It is right if the set is settled.
func existing(set *v1alpha1.MachineSet) int32 { return max(set.Status.Replicas, asked(set)) }

// usable is how many machines of a set are available and shall stay. What a set has
// beyond what it asks for does not count: it is on its way out.
func usable(set *v1alpha1.MachineSet) int32 { return min(set.Status.AvailableReplicas, asked(set)) }

// kept is how many machines of a set failed, and are preserved. They are the last that a
// set deletes, so removing them takes all that can be used with them.
func kept(set *v1alpha1.MachineSet) int32 {
	return min(set.Status.PreservedFailedReplicas, asked(set)-usable(set))
}

// settled tells whether the status of a set was written for what it is asked for now. If
// not, it may have machines that its status does not count. A set that reports a failure
// was looked at, too.
func settled(set *v1alpha1.MachineSet) bool {
	return set.Status.ObservedGeneration >= set.Generation ||
		slices.ContainsFunc(set.Status.Conditions, func(c v1alpha1.MachineSetCondition) bool {
			return c.Type == v1alpha1.MachineSetReplicaFailure && c.Status == v1alpha1.ConditionTrue
		})
}

// sum adds up a number of the sets.
func sum(sets []*v1alpha1.MachineSet, number func(*v1alpha1.MachineSet) int32) int32 {
	var total int32
	for _, set := range sets {
		total += number(set)
	}
	return total
}

// empty tells whether the sets have no machines and will have none.
func empty(sets []*v1alpha1.MachineSet) bool {
	return !slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool { return !settled(set) || existing(set) > 0 })
}

// revision is the number of a set; 0 if it has none.
func revision(annotations map[string]string) int64 {
	number, _ := strconv.ParseInt(annotations[v1alpha1.AnnotationKeyRevision], 10, 64)
	return number
}

// notCopied are the annotations of a deployment that do not go to its sets.
var notCopied = []string{
	"kubectl.kubernetes.io/last-applied-configuration",
	v1alpha1.AnnotationKeyRevision,
	v1alpha1.AnnotationKeyRevisionHistory,
	v1alpha1.AnnotationKeyDesiredReplicas,
	v1alpha1.AnnotationKeyMaxReplicas,
	v1alpha1.AnnotationKeyPreferNoSchedule,
	v1alpha1.AnnotationKeyUnfreeze,
	v1alpha1.AnnotationKeyTriggerDeletion,
}

func copiedAnnotations(deployment *v1alpha1.MachineDeployment) map[string]string {
	copied := map[string]string{}
	maps.Copy(copied, deployment.Annotations)
	for _, key := range notCopied {
		delete(copied, key)
	}
	return copied
}
