package drain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A drain evicts the Pods that were on the node when it was cordoned. The successors of some Pods come back to the
// node: Pods that tolerate the cordon, and Pods that do not go through the scheduler, since their owner sets
// spec.nodeName. They would be evicted until the drain times out.

const (
	// maxReturns is how many Pods of an owner are evicted that arrived after the cordon although they do not tolerate
	// it. The scheduler may have bound some of them before it noticed the cordon.
	maxReturns = 3
	// returnInterval is the time between the first evictions of such Pods. It doubles each time.
	returnInterval = 10 * time.Second
)

// cordonTaint is the taint of a cordoned node.
var cordonTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// toleratesCordon reports whether a toleration tolerates the cordon of a node.
func toleratesCordon(t *corev1.Toleration) bool {
	switch {
	case t.Effect != "" && t.Effect != cordonTaint.Effect, t.Key != "" && t.Key != cordonTaint.Key:
		return false
	case t.Operator == corev1.TolerationOpExists:
		return true
	}
	return t.Key == cordonTaint.Key && t.Value == cordonTaint.Value && (t.Operator == "" || t.Operator == corev1.TolerationOpEqual)
}

// cordonTolerations returns the tolerations that tolerate the cordon of a node.
func cordonTolerations(p *corev1.Pod) []corev1.Toleration {
	var kept []corev1.Toleration
	for i := range p.Spec.Tolerations {
		if toleratesCordon(&p.Spec.Tolerations[i]) {
			kept = append(kept, p.Spec.Tolerations[i])
		}
	}
	return kept
}

// ComesBack reports whether the drain of a node that was cordoned at the given time does not wait for a Pod, since
// the Pod tolerates the cordon and was created later.
func ComesBack(p *corev1.Pod, cordoned time.Time) bool {
	return !cordoned.IsZero() && p.CreationTimestamp.After(cordoned) && len(cordonTolerations(p)) > 0
}

// arrival describes when and why a Pod came to the node.
type arrival struct {
	created time.Time
	// owner identifies the controller that creates the Pod's successors, or the Pod itself.
	owner string
	// tolerates reports that the Pod tolerates the cordon.
	tolerates bool
}

func arrivalOf(p *corev1.Pod) arrival {
	a := arrival{created: p.CreationTimestamp.Time, owner: p.Namespace + "/" + p.Name, tolerates: len(cordonTolerations(p)) > 0}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		a.owner = string(owner.UID)
	}
	return a
}

// returns are the evictions of an owner's Pods that arrived after the cordon.
type returns struct {
	count int
	last  time.Time
}

// next returns when another Pod of the owner may be evicted.
func (r returns) next() time.Time {
	if r.count == 0 {
		return time.Time{}
	}
	return r.last.Add(returnInterval << (r.count - 1))
}

// arrived reports whether a Pod came to the node after the cordon. If this process has not seen the beginning of the
// drain, Pods that came back earlier count as having been there, and are evicted once.
func (l *drainState) arrived(uid types.UID, a arrival) bool {
	return l.there != nil && !l.there[uid] && a.created.After(l.begun)
}

// ignores reports whether the drain neither evicts a Pod nor waits for it, since its owner brings it back.
func (l *drainState) ignores(uid types.UID, a arrival) bool {
	return l.arrived(uid, a) && (a.tolerates || l.pods[uid] == nil && l.returns[a.owner].count >= maxReturns)
}

// separate removes the Pods that the drain ignores from the facts, and returns their names.
func (l *drainState) separate(f *facts) []types.NamespacedName {
	if l.there == nil {
		l.there = map[types.UID]bool{}
		for _, p := range f.pods {
			l.there[p.uid] = true
		}
	}
	var ignored []types.NamespacedName
	f.pods = slices.DeleteFunc(slices.Clone(f.pods), func(p pod) bool {
		if !l.ignores(p.uid, p.arrival) {
			return false
		}
		ignored = append(ignored, p.key)
		return true
	})
	slices.SortFunc(ignored, compareKeys)
	return ignored
}

// pass returns the requests to make now, and the report, of the Pods that the drain does not ignore.
func pass(f facts, r rules, l *drainState) ([]operation, Report) {
	ignored := l.separate(&f)
	ops := plan(f, r, l)
	made := report(f, r, l, ops)
	made.Returned = ignored
	return ops, made
}

// recordReturn counts the eviction of a Pod that arrived after the cordon.
func (l *drainState) recordReturn(p pod, now time.Time) {
	if !l.arrived(p.uid, p.arrival) {
		return
	}
	if l.returns == nil {
		l.returns = map[string]returns{}
	}
	l.returns[p.owner] = returns{count: l.returns[p.owner].count + 1, last: now}
}
