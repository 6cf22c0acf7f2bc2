package drain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// facts are the input of a plan, in addition to the drain's state.
type facts struct {
	now time.Time
	// pods are the Pods that must leave, by priority.
	pods []pod
	// volumes are the volumes of the Pods, by the name of the PersistentVolume.
	volumes map[string]volume
	// attached is the node's status.volumesAttached.
	attached []corev1.UniqueVolumeName
	// elsewhere has the PersistentVolumes that are attached to another node.
	elsewhere map[string]bool
	// budgets are the budgets that block Pods whose eviction was refused, by the Pod's UID.
	budgets map[types.UID]*policyv1.PodDisruptionBudget
}

type pod struct {
	key      types.NamespacedName
	uid      types.UID
	labels   map[string]string
	priority int32
	grace    time.Duration
	// leaving reports that the Pod is being deleted, and killed that it is being deleted without a grace period.
	leaving, killed bool
	// controlled reports that a controller will replace the Pod.
	controlled bool
	// volumes are the names of the Pod's PersistentVolumes. It is empty once the Pod is finished.
	volumes []string
	arrival
}

type volume struct {
	// multi reports that the volume may be attached to several nodes at the same time.
	multi   bool
	id      string
	pending bool
}

// MustLeave reports whether a drain evicts the Pod. It does not evict the Pods of DaemonSets of any API group, such as
// OpenKruise's, because their controllers tolerate the cordon and replace them on the same node.
func MustLeave(p *corev1.Pod) bool {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(p)
	return owner == nil || owner.Kind != "DaemonSet"
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// podFacts returns the facts about a Pod without its volumes, which the caller adds.
func podFacts(p *corev1.Pod) pod {
	fact := pod{
		key:        types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
		uid:        p.UID,
		labels:     p.Labels,
		grace:      corev1.DefaultTerminationGracePeriodSeconds * time.Second,
		leaving:    !p.DeletionTimestamp.IsZero(),
		controlled: metav1.GetControllerOfNoCopy(p) != nil,
		arrival:    arrivalOf(p),
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

// longest limits grace periods, because the API server accepts any number of seconds.
const longest = 365 * 24 * time.Hour

func duration(seconds int64) time.Duration {
	return time.Duration(min(seconds, int64(longest/time.Second))) * time.Second
}

// byPriority sorts the highest priority first, in an order that is stable between passes.
func byPriority(a, b pod) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), compareKeys(a.key, b.key))
}

// claimsOf returns the names of a Pod's claims. Own has the claims of generic ephemeral volumes, which count
// only if the Pod controls them.
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

func multiAttach(pv *corev1.PersistentVolume) bool {
	return slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(pv.Spec.AccessModes, corev1.ReadOnlyMany)
}

// attachedAs reports whether a name in a node's status.volumesAttached is that of the volume with this ID at
// its provider. Names have the form PLUGIN/ID or PLUGIN/DRIVER^HANDLE, where the handle may be a path that ends
// in the ID.
func attachedAs(name corev1.UniqueVolumeName, id string) bool {
	rest, found := strings.CutSuffix(string(name), id)
	return found && id != "" && (rest == "" || strings.HasSuffix(rest, "/") || strings.HasSuffix(rest, "^"))
}

func (f facts) isAttached(id string) bool {
	return slices.ContainsFunc(f.attached, func(name corev1.UniqueVolumeName) bool { return attachedAs(name, id) })
}

type known struct {
	// refused has the Pods whose last eviction was refused.
	refused map[types.UID]bool
	// namespaces are the namespaces of these Pods, with duplicates.
	namespaces []string
	// volumes are the volumes that the drain waits for.
	volumes []string
}

// podsToLeave returns the Pods of a node in the cache that a drain evicts. They must not be modified.
func (d *Drainer) podsToLeave(ctx context.Context, node string) ([]*corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := d.Client.List(ctx, pods, client.MatchingFields{PodByNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	var leaving []*corev1.Pod
	for i := range pods.Items {
		if p := &pods.Items[i]; MustLeave(p) {
			leaving = append(leaving, p)
		}
	}
	return leaving, nil
}

// IsEmpty reports whether the cache shows no Pods on the node that a drain would evict. It returns false while the cache
// cannot be read.
func (d *Drainer) IsEmpty(ctx context.Context, node string) (bool, error) {
	if !d.isFilled(node) {
		return false, nil
	}
	pods, err := d.podsToLeave(ctx, node)
	return len(pods) == 0, err
}

// gather reads the facts from the cache. It returns nil if the node is gone.
func (d *Drainer) gather(ctx context.Context, req Request, before known) (*facts, error) {
	node := &corev1.Node{}
	if err := d.Client.Get(ctx, types.NamespacedName{Name: req.Node}, node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading node %s: %w", req.Node, err)
	}
	f := &facts{now: d.Clock.Now(), volumes: map[string]volume{}, elsewhere: map[string]bool{}, budgets: map[types.UID]*policyv1.PodDisruptionBudget{}}
	for _, attached := range node.Status.VolumesAttached {
		f.attached = append(f.attached, attached.Name)
	}
	pods, err := d.podsToLeave(ctx, req.Node)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		fact, err := d.gatherPod(ctx, req, p, f.volumes)
		if err != nil {
			return nil, err
		}
		f.pods = append(f.pods, fact)
	}
	slices.SortFunc(f.pods, byPriority)
	if err := d.gatherBudgets(ctx, f, before.refused); err != nil {
		return nil, err
	}
	return f, d.gatherElsewhere(ctx, req.Node, f.elsewhere, before.volumes)
}

func (d *Drainer) gatherPod(ctx context.Context, req Request, p *corev1.Pod, volumes map[string]volume) (pod, error) {
	fact := podFacts(p)
	if finished(p) {
		return fact, nil
	}
	names, own := claimsOf(p)
	for _, name := range names {
		pv, err := d.volumeBehind(ctx, p, name, own[name])
		if err != nil {
			return pod{}, err
		}
		if pv == nil {
			continue // not bound or gone, so nothing is attached
		}
		if _, seen := volumes[pv.Name]; !seen {
			id, pending, err := d.Identify(ctx, req.Machine, pv)
			if err != nil {
				return pod{}, fmt.Errorf("identifying volume %s: %w", pv.Name, err)
			}
			volumes[pv.Name] = volume{multi: multiAttach(pv), id: id, pending: pending}
		}
		fact.volumes = append(fact.volumes, pv.Name)
	}
	return fact, nil
}

func (d *Drainer) volumeBehind(ctx context.Context, p *corev1.Pod, name string, own bool) (*corev1.PersistentVolume, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := d.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: name}, claim); err != nil {
		return nil, absent(err, "reading claim %s/%s", p.Namespace, name)
	}
	if claim.Spec.VolumeName == "" || own && !metav1.IsControlledBy(claim, p) {
		return nil, nil
	}
	pv := &corev1.PersistentVolume{}
	if err := d.Client.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, pv); err != nil {
		return nil, absent(err, "reading volume %s", claim.Spec.VolumeName)
	}
	return pv, nil
}

func absent(err error, format string, args ...any) error {
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func (d *Drainer) gatherBudgets(ctx context.Context, f *facts, refused map[types.UID]bool) error {
	byNamespace := map[string][]selectingBudget{}
	for _, p := range f.pods {
		if !refused[p.uid] {
			continue
		}
		budgets, seen := byNamespace[p.key.Namespace]
		if !seen {
			list := &policyv1.PodDisruptionBudgetList{}
			if err := d.Client.List(ctx, list, client.InNamespace(p.key.Namespace), client.UnsafeDisableDeepCopy); err != nil {
				return fmt.Errorf("listing the pod disruption budgets of %s: %w", p.key.Namespace, err)
			}
			budgets = withSelectors(list.Items)
			slices.SortFunc(budgets, func(a, b selectingBudget) int { return strings.Compare(a.Name, b.Name) })
			byNamespace[p.key.Namespace] = budgets
		}
		f.budgets[p.uid] = budgetOf(p.labels, budgets)
	}
	return nil
}

func (d *Drainer) gatherElsewhere(ctx context.Context, node string, elsewhere map[string]bool, volumes []string) error {
	for _, name := range volumes {
		attachments := &storagev1.VolumeAttachmentList{}
		if err := d.Client.List(ctx, attachments, client.MatchingFields{AttachmentByVolume: name}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("listing the attachments of volume %s: %w", name, err)
		}
		elsewhere[name] = slices.ContainsFunc(attachments.Items, func(a storagev1.VolumeAttachment) bool {
			return a.Status.Attached && a.Spec.NodeName != node
		})
	}
	return nil
}

// Covering returns the budgets that select a Pod with these labels. The budgets must be those of the Pod's
// namespace.
func Covering(podLabels map[string]string, budgets []policyv1.PodDisruptionBudget) []*policyv1.PodDisruptionBudget {
	var covering []*policyv1.PodDisruptionBudget
	for _, pdb := range withSelectors(budgets) {
		if pdb.selector.Matches(labels.Set(podLabels)) {
			covering = append(covering, pdb.PodDisruptionBudget)
		}
	}
	return covering
}

// selectingBudget is a budget with its selector, whose conversion costs much more than its use.
type selectingBudget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

// withSelectors converts the selectors of budgets. It omits budgets with invalid selectors, because the API server also treats
// these as matching nothing.
func withSelectors(budgets []policyv1.PodDisruptionBudget) []selectingBudget {
	var all []selectingBudget
	for i := range budgets {
		if selector, err := metav1.LabelSelectorAsSelector(budgets[i].Spec.Selector); err == nil {
			all = append(all, selectingBudget{&budgets[i], selector})
		}
	}
	return all
}

// Settled reports whether the status belongs to the budget's current generation.
func Settled(pdb *policyv1.PodDisruptionBudget) bool {
	return pdb.Status.ObservedGeneration == pdb.Generation
}

// Allows reports whether the budget allows an eviction now.
func Allows(pdb *policyv1.PodDisruptionBudget) bool {
	return Settled(pdb) && pdb.Status.DisruptionsAllowed > 0
}

// Misconfigured reports whether the budget never allows an eviction, because it allows none although all of its
// Pods are healthy.
func Misconfigured(pdb *policyv1.PodDisruptionBudget) bool {
	return Settled(pdb) && pdb.Status.DisruptionsAllowed == 0 && pdb.Status.ExpectedPods > 0 &&
		pdb.Status.CurrentHealthy >= pdb.Status.ExpectedPods && len(pdb.Status.DisruptedPods) == 0
}

// budgetOf returns the first budget that refuses the eviction of a Pod with these labels, or else the first
// that covers it. It returns nil if none covers it.
func budgetOf(podLabels map[string]string, budgets []selectingBudget) *policyv1.PodDisruptionBudget {
	var found *policyv1.PodDisruptionBudget
	for _, pdb := range budgets {
		if pdb.selector.Matches(labels.Set(podLabels)) && (found == nil || Allows(found) && !Allows(pdb.PodDisruptionBudget)) {
			found = pdb.PodDisruptionBudget
		}
	}
	return found
}
