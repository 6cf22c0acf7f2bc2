package machinedeployment

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
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
	// released are sets with machines that were made for the deployment, that nothing
	// controls, and that do not match any more.
	released []*v1alpha1.MachineSet
	// rolling tells that machines are replaced a few at a time. It is the default.
	rolling bool
	// surge and unavailable bound a rolling update, in machines.
	surge, unavailable int32
	now                time.Time
	// created tells that current was created in this pass, and found that it was an old
	// set before it.
	created, found bool
	// named are the Machines that an autoscaler named for deletion.
	named []named
	// unmarked are the names of those that could not be marked in this pass, and unmarkedWhy says
	// why of the first of them.
	unmarked    []string
	unmarkedWhy []error
	// held is how many machines a set keeps beyond what it asks for since some are preserved,
	// by its name.
	held map[string]int32
	// nodes are those of the Machines, as far as a rollout marks them; nil if nobody
	// looked.
	nodes *nodes
	// overlaps are the names of other deployments that select the same Machines.
	overlaps []string
	// again is after what time to look again without an event; 0 is never.
	again time.Duration
}

// named is an entry of the annotation by which an autoscaler names Machines.
type named struct {
	name string
	// at is when it was named, as it is written there; empty in the old form, which
	// has names only.
	at string
	// machine of that name, if it is the deployment's and exists.
	machine *v1alpha1.Machine
}

// nodes are what is known of the nodes of a deployment.
type nodes struct {
	// ofOld are the nodes of old sets, ofCurrent those of the current one.
	ofOld, ofCurrent []nodeOf
	// protect tells that a rollout keeps autoscalers from removing nodes.
	protect bool
}

// nodeOf is a Machine and its Node. Neither may be changed: they are the cache's.
type nodeOf struct {
	machine *v1alpha1.Machine
	node    *corev1.Node
}

// gather sorts out the sets that the deployment controls.
func gather(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) facts {
	strategy := deployment.Spec.Strategy.Type
	f := facts{deployment: deployment, now: now, rolling: strategy == "" || strategy == v1alpha1.RollingUpdateMachineDeploymentStrategyType}
	f.surge, f.unavailable = bounds(deployment)
	sets = slices.Clone(sets)
	slices.SortFunc(sets, revision.Older)
	f.current = revision.Current(sets, &deployment.Spec.Template)
	f.old = slices.DeleteFunc(sets, func(set *v1alpha1.MachineSet) bool { return set == f.current })
	return f
}

// all are the sets, the current one last. The slice is the caller's.
func (f facts) all() []*v1alpha1.MachineSet {
	all := slices.Clone(f.old)
	if f.current != nil {
		all = append(all, f.current)
	}
	return all
}

// selection is the deployment's selector. Without one, or with one that cannot be read,
// nothing is selected.
func selection(deployment *v1alpha1.MachineDeployment) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// matches reports whether a set belongs to what is selected: by its own labels and by those of
// the Machines that it makes.
func matches(selector labels.Selector, set *v1alpha1.MachineSet) bool {
	return selector.Matches(labels.Set(set.Labels)) && selector.Matches(labels.Set(set.Spec.Template.Labels))
}

// madeFor reports whether a set was made for a deployment of that name, whoever it belongs to
// now. Its name follows from the hash that it gives its Machines.
func madeFor(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) bool {
	hash := set.Spec.Template.Labels[v1alpha1.DefaultMachineDeploymentUniqueLabelKey]
	return hash != "" && set.Name == setName(deployment.Name, hash)
}

// overlap reports whether the selector of one of two deployments matches what the other makes.
// One that is going, or that selects everything, makes nothing.
func overlap(a, b *v1alpha1.MachineDeployment) bool {
	works := func(d *v1alpha1.MachineDeployment) bool { return d.DeletionTimestamp.IsZero() && !selectsAll(d) }
	takes := func(a, b *v1alpha1.MachineDeployment) bool {
		made := b.Spec.Template.Labels
		return asksFor(a, made) && selection(a).Matches(labels.Set(made))
	}
	return a.UID != b.UID && works(a) && works(b) && (takes(a, b) || takes(b, a))
}

// asksFor reports whether labels have all that the selector names, which is mostly not so, and
// costs much less than the whole of it.
func asksFor(deployment *v1alpha1.MachineDeployment, made map[string]string) bool {
	if deployment.Spec.Selector == nil {
		return false
	}
	for key, value := range deployment.Spec.Selector.MatchLabels {
		if is, ok := made[key]; !ok || is != value {
			return false
		}
	}
	return true
}

// selectsAll reports whether the deployment's selector is empty, which would match whatever
// nobody owns.
func selectsAll(deployment *v1alpha1.MachineDeployment) bool {
	selector := deployment.Spec.Selector
	return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
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
	return int32(min(up, math.MaxInt32-total)), int32(min(down, total))
}
