package machinedeployment

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// facts are what a plan is made from.
type facts struct {
	deployment *v1alpha1.MachineDeployment
	// current is the set of the deployment's template; nil if there is none yet.
	current *v1alpha1.MachineSet
	// old are the sets of other templates, the oldest first.
	old []*v1alpha1.MachineSet
	// surge and unavailable bound a rolling update, in machines.
	surge, unavailable int32
	now                time.Time
}

// gather sorts out what was read.
func gather(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) facts {
	f := facts{deployment: deployment, now: now}
	f.surge, f.unavailable = bounds(deployment)
	sets = slices.Clone(sets)
	slices.SortStableFunc(sets, func(a, b *v1alpha1.MachineSet) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
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

// sameTemplate tells whether two templates make the same Machines. What can be changed
// on Machines that exist (node template, timeouts) does not count, nor do the set's own
// label and the kind of the class.
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

// bounds are how many machines a rolling update may have beyond those wanted, and how
// many of those may be missing. Both default to 1, and are not both 0.
func bounds(deployment *v1alpha1.MachineDeployment) (surge, unavailable int32) {
	if deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType {
		return 0, deployment.Spec.Replicas
	}
	one := intstr.FromInt32(1)
	config := v1alpha1.UpdateConfiguration{}
	if rolling := deployment.Spec.Strategy.RollingUpdate; rolling != nil {
		config = rolling.UpdateConfiguration
	}
	total := int(deployment.Spec.Replicas)
	// Both were validated, so neither can fail.
	up, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxSurge, one), total, true)
	down, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxUnavailable, one), total, false)
	if up == 0 && down == 0 {
		down = 1
	}
	return int32(up), int32(min(down, total)) //nolint:gosec // bounded by replicas and validation
}

// replicas adds up what the sets ask for.
func replicas(sets []*v1alpha1.MachineSet) int32 {
	var sum int32
	for _, set := range sets {
		sum += set.Spec.Replicas
	}
	return sum
}

// existing adds up the machines that the sets have, those being deleted included.
func existing(sets []*v1alpha1.MachineSet) int32 {
	var sum int32
	for _, set := range sets {
		sum += max(set.Status.Replicas, set.Spec.Replicas)
	}
	return sum
}

// availableOf adds up the machines of the sets that can be used. What a set has beyond
// what it asks for does not count: it is on its way out.
func availableOf(sets []*v1alpha1.MachineSet) int32 {
	var sum int32
	for _, set := range sets {
		sum += min(set.Status.AvailableReplicas, set.Spec.Replicas)
	}
	return sum
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
