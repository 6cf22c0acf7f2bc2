package drain

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// known is what gathering needs of what was done before.
type known struct {
	// refused are the pods whose last eviction was refused.
	refused map[types.UID]bool
	// volumes are those that pods which left are awaited for.
	volumes []string
}

// gather reads the facts from the cache; nothing of what it reads is changed. There are
// none if the node is gone.
func (d *Drainer) gather(ctx context.Context, req Request, before known) (*facts, error) {
	node := &corev1.Node{}
	if err := d.Client.Get(ctx, types.NamespacedName{Name: req.Node}, node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("reading node %s: %w", req.Node, err)
	}
	f := &facts{now: d.Clock.Now(), volumes: map[string]volume{}, elsewhere: map[string]bool{}, budgets: map[types.UID]*budget{}}
	for _, attached := range node.Status.VolumesAttached {
		f.attached = append(f.attached, attached.Name)
	}
	pods := &corev1.PodList{}
	if err := d.Client.List(ctx, pods, client.MatchingFields{PodByNode: req.Node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", req.Node, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; MustLeave(p) {
			fact, err := d.gatherPod(ctx, req, p, f.volumes)
			if err != nil {
				return nil, err
			}
			f.pods = append(f.pods, fact)
		}
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
			continue // not bound, or gone: nothing is attached
		}
		if _, seen := volumes[pv.Name]; !seen {
			volumes[pv.Name] = volume{multi: multiAttach(pv), Identity: d.Identify(req.Machine, pv)}
		}
		fact.volumes = append(fact.volumes, pv.Name)
	}
	return fact, nil
}

// volumeBehind finds the volume that a claim of the Pod is bound to; nil if none.
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

// absent absorbs that something is not there, and says what else is wrong.
func absent(err error, format string, args ...any) error {
	if client.IgnoreNotFound(err) == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func (d *Drainer) gatherBudgets(ctx context.Context, f *facts, refused map[types.UID]bool) error {
	byNamespace := map[string][]policyv1.PodDisruptionBudget{}
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
			budgets = slices.Clone(list.Items)
			slices.SortFunc(budgets, func(a, b policyv1.PodDisruptionBudget) int { return compareNames(&a, &b) })
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
