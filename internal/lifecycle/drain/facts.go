package drain

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// facts is all that a plan is made from, apart from what was done before.
type facts struct {
	now time.Time
	// pods are those that have to leave, in the order in which they would one by one.
	pods []pod
	// volumes are those of the pods, by the name of the PersistentVolume.
	volumes map[string]volume
	// attached is what the node's status says is attached to it.
	attached []corev1.UniqueVolumeName
	// elsewhere names the PersistentVolumes that are attached to another node.
	elsewhere map[string]bool
	// budgets are those that cover pods whose eviction was refused, by the pod's UID.
	budgets map[types.UID]*budget
}

// pod is what counts of a Pod that has to leave.
type pod struct {
	key      types.NamespacedName
	uid      types.UID
	labels   map[string]string
	priority int32
	grace    time.Duration
	// leaving tells that it is being deleted, killed that it is without any grace.
	leaving, killed bool
	// controlled tells that somebody will make another one of it.
	controlled bool
	// volumes names the PersistentVolumes that it uses; none once it is finished.
	volumes []string
}

// volume is what counts of a PersistentVolume.
type volume struct {
	// multi tells that it may be attached to several nodes at once.
	multi bool
	Identity
}

// MustLeave reports whether a drain has to do with the Pod.
func MustLeave(p *corev1.Pod) bool {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(p)
	return owner == nil || owner.Kind != "DaemonSet" || !strings.HasPrefix(owner.APIVersion, "apps/")
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// podFacts takes from a Pod what counts; its volumes come later.
func podFacts(p *corev1.Pod) pod {
	fact := pod{
		key:        types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
		uid:        p.UID,
		labels:     p.Labels,
		grace:      corev1.DefaultTerminationGracePeriodSeconds * time.Second,
		leaving:    !p.DeletionTimestamp.IsZero(),
		controlled: metav1.GetControllerOfNoCopy(p) != nil,
	}
	if p.Spec.Priority != nil {
		fact.priority = *p.Spec.Priority
	}
	if seconds := p.Spec.TerminationGracePeriodSeconds; seconds != nil {
		fact.grace = duration(*seconds)
	}
	if fact.leaving && p.DeletionGracePeriodSeconds != nil {
		fact.grace = duration(*p.DeletionGracePeriodSeconds)
		fact.killed = *p.DeletionGracePeriodSeconds == 0
	}
	return fact
}

// longest is what no grace period exceeds: an API server takes any number of seconds.
const longest = 365 * 24 * time.Hour

func duration(seconds int64) time.Duration {
	return time.Duration(min(seconds, int64(longest/time.Second))) * time.Second
}

// byPriority puts the highest first. Names make the order the same at every pass.
func byPriority(a, b pod) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), strings.Compare(a.key.String(), b.key.String()))
}

// claimsOf names the claims of a Pod, and tells which are its own: those of generic
// ephemeral volumes, which count only if the Pod controls them.
func claimsOf(p *corev1.Pod) (names []string, own map[string]bool) {
	own = map[string]bool{}
	for i := range p.Spec.Volumes {
		source := &p.Spec.Volumes[i]
		switch {
		case source.PersistentVolumeClaim != nil:
			names = append(names, source.PersistentVolumeClaim.ClaimName)
		case source.Ephemeral != nil:
			name := p.Name + "-" + source.Name
			names, own[name] = append(names, name), true
		}
	}
	slices.Sort(names)
	return slices.Compact(names), own
}

// multiAttach reports whether the volume may be attached to several nodes.
func multiAttach(pv *corev1.PersistentVolume) bool {
	return slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(pv.Spec.AccessModes, corev1.ReadOnlyMany)
}

// attachedAs reports whether a name of a node's status.volumesAttached stands for the
// volume that the provider knows under this id. Names are PLUGIN/ID, or
// PLUGIN/DRIVER^HANDLE, where a handle may be a path that ends in the id. The id is
// compared as it is, up to one of these borders: it is no pattern.
func attachedAs(name corev1.UniqueVolumeName, id string) bool {
	rest, found := strings.CutSuffix(string(name), id)
	return found && id != "" && (rest == "" || strings.HasSuffix(rest, "/") || strings.HasSuffix(rest, "^"))
}

func (f facts) isAttached(id string) bool {
	return slices.ContainsFunc(f.attached, func(name corev1.UniqueVolumeName) bool { return attachedAs(name, id) })
}
