// Package reserve decides which Machines exist in excess of the replicas, as a reserve.
//
// A MachineDeployment distributes its reserve among its sets in an annotation of each set. A MachineSet decides
// which of its Machines are in the reserve. The node template of these Machines prevents Pods from being
// scheduled on their nodes and autoscalers from removing them. The package is pure.
package reserve

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
)

const yes = "true"

// Setting returns the excess replicas of a deployment, from its field or its annotation. It returns nil if
// neither is set.
func Setting(deployment *v1alpha1.MachineDeployment) *intstr.IntOrString {
	if deployment.Spec.ExcessReplicas != nil {
		return deployment.Spec.ExcessReplicas
	}
	text, given := deployment.Annotations[v1alpha1.AnnotationKeyExcessReplicas]
	if !given {
		return nil
	}
	value := intstr.FromString(text)
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		value = intstr.FromInt32(int32(n))
	}
	return &value
}

// Requested returns how many Machines a deployment requests beyond its replicas. It returns 0 if the value is
// not set or invalid.
func Requested(deployment *v1alpha1.MachineDeployment) int32 {
	replicas := max(0, int(deployment.Spec.Replicas))
	number, _ := intstr.GetScaledValueFromIntOrPercent(Setting(deployment), replicas, true) // 0 without a valid value
	return int32(min(max(0, number), math.MaxInt32-replicas))                               // the sum must be a valid number of replicas
}

// Excess returns how many Machines a deployment has beyond its replicas: the requested number, limited by the
// autoscaler's maximum.
func Excess(deployment *v1alpha1.MachineDeployment) int32 {
	requested := Requested(deployment)
	if most, given := Most(deployment); given {
		return max(0, min(requested, most-deployment.Spec.Replicas))
	}
	return requested
}

// Most returns the maximum number of Machines that an autoscaler may give a deployment, and whether it is
// known.
func Most(deployment *v1alpha1.MachineDeployment) (int32, bool) {
	most, err := strconv.ParseInt(deployment.Annotations[v1alpha1.AnnotationKeyAutoscalerMaxSize], 10, 32)
	return int32(most), err == nil && most >= 0
}

// Desired returns how many Machines a deployment should have: its replicas and its excess replicas.
func Desired(deployment *v1alpha1.MachineDeployment) int32 {
	return deployment.Spec.Replicas + Excess(deployment)
}

// OfSet returns how many of a set's replicas are excess replicas. It returns 0 if the annotation is invalid.
func OfSet(set *v1alpha1.MachineSet) int32 {
	n, err := strconv.ParseInt(set.Annotations[v1alpha1.AnnotationKeyExcessReplicas], 10, 32)
	if err != nil {
		return 0
	}
	return max(0, min(int32(n), counts.Desired(set)))
}

// Assign writes to a set how many of its replicas are excess replicas, and how their nodes are kept free of
// Pods. If there are none, it removes the annotations.
func Assign(set *v1alpha1.MachineSet, deployment *v1alpha1.MachineDeployment, excess int32) {
	annotate := func(key, value string, is bool) {
		if is {
			metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value)
		} else {
			delete(set.Annotations, key)
		}
	}
	evicts := deployment.Annotations[v1alpha1.AnnotationKeyExcessNoExecute] == yes
	annotate(v1alpha1.AnnotationKeyExcessReplicas, strconv.Itoa(int(excess)), excess > 0)
	annotate(v1alpha1.AnnotationKeyExcessNoExecute, yes, excess > 0 && evicts)
}

// Sets are the sets of a deployment and the planned changes. They are read-only.
type Sets struct {
	Deployment *v1alpha1.MachineDeployment
	// Current is the set of the deployment's template, or nil if there is none. Old are the others, the oldest
	// first.
	Current *v1alpha1.MachineSet
	Old     []*v1alpha1.MachineSet
	// Planned are the new replicas of the sets to scale. The key nil stands for a new current set.
	Planned map[*v1alpha1.MachineSet]int32
	// Named are Machines that were named for deletion.
	Named []*v1alpha1.Machine
	// Machines are the Machines of all sets, by the names of the sets, if Machines move between sets. Otherwise
	// it is nil.
	Machines map[string][]*v1alpha1.Machine
}

// Plan returns how many replicas of each set are excess replicas. The key nil stands for a new set. It returns
// nil if there is no excess.
//
// At least the deployment's replicas are for Pods, as far as the sets have as many: excess replicas are given
// up first. During a rollout, old sets keep what they have of the reserve, which is replaced first because it
// is empty. The current set gets the remainder.
func Plan(s Sets) map[*v1alpha1.MachineSet]int32 {
	excess := Excess(s.Deployment)
	none := func(set *v1alpha1.MachineSet) bool { return OfSet(set) == 0 }
	if excess == 0 && !slices.ContainsFunc(s.Old, func(set *v1alpha1.MachineSet) bool { return !none(set) }) {
		return nil
	}
	shares := map[*v1alpha1.MachineSet]int32{}
	left, total := s.beyond(), int32(0)
	give := func(set *v1alpha1.MachineSet, n int32) {
		n = max(0, min(n, s.replicas(set)-shares[set], left))
		shares[set], left, total = shares[set]+n, left-n, total+n
	}
	for _, set := range slices.Backward(s.Old) {
		give(set, s.kept(set))
	}
	give(s.Current, excess)
	for _, set := range slices.Backward(s.Old) { // until the current set has Machines
		give(set, excess-total)
	}
	return shares
}

// beyond returns how many replicas all sets have in total beyond those of the deployment.
func (s Sets) beyond() int32 {
	sum := int64(s.replicas(s.Current)) - int64(s.Deployment.Spec.Replicas)
	for _, set := range s.Old {
		sum += int64(s.replicas(set))
	}
	return counts.Clamp(sum)
}

// replicas returns how many replicas a set has after the planned changes.
func (s Sets) replicas(set *v1alpha1.MachineSet) int32 {
	if planned, scaled := s.Planned[set]; scaled || set == nil {
		return max(0, planned)
	}
	return counts.Desired(set)
}

// kept returns how many Machines of its reserve an old set keeps. It loses these first, except for Machines
// that were named for deletion or move to another set.
func (s Sets) kept(set *v1alpha1.MachineSet) int32 {
	was := OfSet(set)
	if s.Machines != nil {
		var in int32
		for _, machine := range s.Machines[set.Name] {
			if counted(machine) && In(&machine.Spec) {
				in++
			}
		}
		return min(was, in)
	}
	lost := counts.Desired(set) - s.replicas(set)
	for _, machine := range s.Named {
		if metav1.IsControlledBy(machine, set) && !In(&machine.Spec) {
			lost--
		}
	}
	return was - max(0, lost)
}

// Members are the Machines of a set that should be in its reserve, by UID.
type Members map[types.UID]bool

// Of returns the members of a set's reserve. Machines in the reserve remain in it while the set has enough
// others for Pods; the newest remain the longest. If there are too few, the newest other Machines join, if
// joins allows it. Machines that are being deleted or have failed do not count.
func Of(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, joins func(*v1alpha1.Machine) bool) Members {
	var in, others []*v1alpha1.Machine
	excess := OfSet(set)
	for _, machine := range machines {
		switch {
		case !counted(machine):
		case In(&machine.Spec):
			in = append(in, machine)
		default:
			others = append(others, machine)
		}
	}
	if excess == 0 && len(in) == 0 {
		return nil
	}
	beyond := max(0, len(in)+len(others)-int(counts.Desired(set)-excess))
	slices.SortFunc(in, newestFirst)
	members := Members{}
	for _, machine := range in[:min(len(in), beyond)] {
		members[machine.UID] = true
	}
	slices.SortFunc(others, newestFirst)
	for _, machine := range others {
		if len(members) < min(int(excess), beyond) && joins(machine) {
			members[machine.UID] = true
		}
	}
	return members
}

// NewMembers returns how many of the next Machines of a set are created as members of its reserve. They are
// created last, because the reserve prefers the newest Machines.
func (m Members) NewMembers(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, created int) int {
	exist := 0
	for _, machine := range machines {
		if counted(machine) {
			exist++
		}
	}
	excess := int(OfSet(set))
	beyond := max(0, exist+created-int(counts.Desired(set))+excess)
	return max(0, min(created, min(excess, beyond)-len(m)))
}

func counted(machine *v1alpha1.Machine) bool {
	return machine.DeletionTimestamp.IsZero() && machine.Status.CurrentStatus.Phase != v1alpha1.MachineFailed
}

func newestFirst(a, b *v1alpha1.Machine) int {
	return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
}

// Separate moves the reserve of a deployment from the other counts of its status to ExcessReplicas. Machines
// that exist beyond the replicas count as the reserve. Autoscalers that read the status then find the replicas
// that they set. While Machines of old sets exist, UpdatedReplicas is lower than the number of all other
// Machines.
func Separate(status *v1alpha1.MachineDeploymentStatus, deployment *v1alpha1.MachineDeployment) {
	beyond := func(n, most int32) int32 { return max(0, min(n-deployment.Spec.Replicas, most)) }
	excess := beyond(status.Replicas, Excess(deployment))
	status.ExcessReplicas = excess
	status.Replicas -= excess
	status.UpdatedReplicas = max(0, status.UpdatedReplicas-excess)
	status.ReadyReplicas -= beyond(status.ReadyReplicas, excess)
	status.AvailableReplicas -= beyond(status.AvailableReplicas, excess)
}
