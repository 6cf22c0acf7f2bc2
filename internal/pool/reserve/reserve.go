// Package reserve decides which Machines exist in excess of the replicas, as a reserve.
//
// A MachineDeployment shares out its reserve over its sets, by an annotation of each; a MachineSet says
// which of its Machines are in it. No pods are scheduled on the nodes of those, and autoscalers leave
// them alone: the node template of such a Machine says so. All of it is pure.
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

// Asked returns what a deployment asks for, by field or by annotation; nil if it asks for nothing.
func Asked(deployment *v1alpha1.MachineDeployment) *intstr.IntOrString {
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

// Requested returns how many Machines a deployment asks for beyond its replicas, 0 if that cannot be read.
func Requested(deployment *v1alpha1.MachineDeployment) int32 {
	asked, replicas := Asked(deployment), max(0, int(deployment.Spec.Replicas))
	if asked == nil {
		return 0
	}
	number, err := intstr.GetScaledValueFromIntOrPercent(asked, replicas, true)
	if err != nil {
		return 0
	}
	return int32(min(max(0, number), math.MaxInt32-replicas)) // their sum is a number of replicas, too
}

// Excess returns how many Machines a deployment has beyond its replicas: no more than it requests,
// and than an autoscaler may give it.
func Excess(deployment *v1alpha1.MachineDeployment) int32 {
	requested := Requested(deployment)
	if most, given := Most(deployment); requested > 0 && given {
		return max(0, min(requested, most-deployment.Spec.Replicas))
	}
	return requested
}

// Most returns how many Machines an autoscaler may give a deployment, and whether that is known.
func Most(deployment *v1alpha1.MachineDeployment) (int32, bool) {
	most, err := strconv.ParseInt(deployment.Annotations[v1alpha1.AnnotationKeyAutoscalerMaxSize], 10, 32)
	return int32(most), err == nil && most >= 0
}

// Desired returns how many Machines a deployment is to have: its replicas and what it has in excess.
func Desired(deployment *v1alpha1.MachineDeployment) int32 {
	return deployment.Spec.Replicas + Excess(deployment)
}

// OfSet returns how many of a set's replicas are in excess; 0 if that cannot be read.
func OfSet(set *v1alpha1.MachineSet) int32 {
	n, err := strconv.ParseInt(set.Annotations[v1alpha1.AnnotationKeyExcessReplicas], 10, 32)
	if err != nil {
		return 0
	}
	return max(0, min(int32(n), counts.Desired(set)))
}

// Assign writes into a set how many of its replicas are in excess, and how their nodes are kept free.
// Without a reserve, the set has no annotation about it.
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

// Sets are the sets of a deployment, and what is about to become of them. They are read-only.
type Sets struct {
	Deployment *v1alpha1.MachineDeployment
	// Current is the set of the deployment's template; nil if there is none. Old are the others, the
	// oldest first.
	Current *v1alpha1.MachineSet
	Old     []*v1alpha1.MachineSet
	// Planned are the replicas of the sets that are scaled; the key nil is a new current set.
	Planned map[*v1alpha1.MachineSet]int32
	// Named are Machines that are deleted by their names.
	Named []*v1alpha1.Machine
	// Machines are those of all sets, by the names of the sets, if Machines move between sets; else nil.
	Machines map[string][]*v1alpha1.Machine
}

// Plan returns how many replicas of each set are in excess; the key nil is a new set, and nothing is none.
//
// At least the deployment's replicas are for pods, as far as the sets ask for so many: what is in excess
// gives way first. During a rollout, old sets keep what they have of the reserve, which is replaced first
// since it is empty. The current set gets the rest.
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

// beyond returns how many replicas all sets have beyond those of the deployment.
func (s Sets) beyond() int32 {
	sum := int64(s.replicas(s.Current)) - int64(s.Deployment.Spec.Replicas)
	for _, set := range s.Old {
		sum += int64(s.replicas(set))
	}
	return counts.Clamp(sum)
}

// replicas returns how many replicas a set is about to have.
func (s Sets) replicas(set *v1alpha1.MachineSet) int32 {
	if planned, scaled := s.Planned[set]; scaled || set == nil {
		return max(0, planned)
	}
	return counts.Desired(set)
}

// kept returns how many Machines of its reserve an old set keeps: it loses those first, but for Machines
// that are deleted by their names, and but for those that move to another set.
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

// Members are the Machines of a set that are to be in its reserve, by UID.
type Members map[types.UID]bool

// Of returns the members of a set's reserve: those that are in it stay as long as the set has enough
// others for pods, the newest for longest; if there are too few, the newest others join them. Machines
// that are gone soon do not count: those that are being deleted, or have failed. The machines of joins
// may join.
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

// Born returns how many of the next Machines of a set are created as members of its reserve. As the newest
// ones, they are created last.
func (m Members) Born(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, created int) int {
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

// Apart counts the reserve of a deployment apart from the other Machines of its status: what exists beyond
// the replicas is the reserve, as far as it goes. Autoscalers that read the status find the replicas that they set.
// While Machines of old sets exist, fewer than all others count as updated.
func Apart(status *v1alpha1.MachineDeploymentStatus, deployment *v1alpha1.MachineDeployment) {
	beyond := func(n, most int32) int32 { return max(0, min(n-deployment.Spec.Replicas, most)) }
	excess := beyond(status.Replicas, Excess(deployment))
	status.ExcessReplicas = excess
	status.Replicas -= excess
	status.UpdatedReplicas = max(0, status.UpdatedReplicas-excess)
	status.ReadyReplicas -= beyond(status.ReadyReplicas, excess)
	status.AvailableReplicas -= beyond(status.AvailableReplicas, excess)
}
