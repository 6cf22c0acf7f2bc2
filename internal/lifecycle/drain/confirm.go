package drain

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// emptiness is the result of a check with the API server that a node has no Pods left. It is used only by the
// passes of one Machine, which never run concurrently.
type emptiness struct {
	// checked is when the check was made. It is zero if none was made.
	checked time.Time
	// unseen are the Pods that the cache did not show.
	unseen  []types.NamespacedName
	failure error
	// failures is the number of consecutive failed checks.
	failures int
}

// nextCheck returns when to check again. The first retries follow soon, because the Machine may wait for
// nothing else.
func (e *emptiness) nextCheck() time.Time {
	interval := failureInterval
	if e.failures > 0 {
		interval = min(interval, time.Second<<(min(e.failures, 4)-1))
	}
	return e.checked.Add(interval)
}

// confirmed reports whether the node is known to be empty. Because the node is cordoned, no new Pods are
// scheduled.
func (e *emptiness) confirmed() bool {
	return !e.checked.IsZero() && e.failure == nil && len(e.unseen) == 0
}

// confirmTimeout is how long a pass waits for the API server.
const confirmTimeout = 5 * time.Second

// confirm keeps a drain waiting that is done according to the cache, until the API server has confirmed that
// the node is empty.
func (d *Drainer) confirm(ctx context.Context, l *drainState, made *Report) {
	now := d.Clock.Now()
	if !l.empty.confirmed() && !now.Before(l.empty.nextCheck()) {
		l.empty = d.check(ctx, l, now)
	}
	if l.empty.confirmed() {
		return
	}
	made.Done = false
	made.Wait = max(l.empty.nextCheck().Sub(now), time.Millisecond)
	for _, pod := range l.empty.unseen {
		made.Waiting = append(made.Waiting, Waiting{For: ForCache, Pod: pod, Next: now.Add(made.Wait)})
	}
	if l.empty.failure != nil {
		made.Failed = append(made.Failed, Failure{Text: fmt.Sprintf("listing the pods of node %s: %v", l.node, l.empty.failure)})
	}
}

// check lists all Pods of a small cluster, or otherwise the Pods of the node.
func (d *Drainer) check(ctx context.Context, l *drainState, now time.Time) emptiness {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	left, err, done := d.clusterPods.ofAll(ctx, d, l)
	if !done {
		pods, _, failure := d.Evictor.Left(ctx, l.node, 0)
		left, err = byNode(pods), failure
	}
	result := emptiness{checked: now, unseen: d.awaited(l, left[l.node]), failure: err}
	if err != nil {
		result.failures = l.empty.failures + 1
	}
	return result
}

// remaining is a Pod that the API server lists.
type remaining struct {
	key types.NamespacedName
	uid types.UID
	arrival
}

// awaited returns the names of the Pods that the drain does not ignore.
func (d *Drainer) awaited(l *drainState, pods []remaining) []types.NamespacedName {
	d.mu.Lock()
	defer d.mu.Unlock()
	var keys []types.NamespacedName
	for _, p := range pods {
		if !l.ignores(p.uid, p.arrival) {
			keys = append(keys, p.key)
		}
	}
	return keys
}

// Clusters with at most this many Pods are listed completely, because one list then serves all drains. The size
// of a larger cluster is checked again after the interval.
const (
	clusterListLimit    = 200
	clusterListInterval = 10 * time.Minute
)

// clusterPods is a list of all Pods of a small cluster. It is valid for all nodes that were cordoned before the
// list began.
type clusterPods struct {
	mu sync.Mutex // also held during the list, so that waiting drains share its result
	// begun is when the list began; left and failure are its result.
	begun   time.Time
	left    map[string][]remaining
	failure error
	// large is when the cluster was found to have too many Pods.
	large time.Time
}

// ofAll returns the Pods that must leave, by node. Done is false if the cluster has too many Pods.
func (c *clusterPods) ofAll(ctx context.Context, d *Drainer, l *drainState) (left map[string][]remaining, failure error, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := d.Clock.Now()
	switch {
	case now.Sub(c.large) < clusterListInterval:
		return nil, nil, false
	case c.begun.After(l.cordoned) && c.begun.After(l.empty.checked):
		return c.left, c.failure, true
	}
	pods, more, err := d.Evictor.Left(ctx, "", clusterListLimit)
	if more {
		c.large = now
		return nil, nil, false
	}
	c.begun, c.left, c.failure = now, byNode(pods), err
	return c.left, c.failure, true
}

func byNode(pods []corev1.Pod) map[string][]remaining {
	left := map[string][]remaining{}
	for i := range pods {
		if MustLeave(&pods[i]) {
			node := pods[i].Spec.NodeName
			left[node] = append(left[node], remaining{client.ObjectKeyFromObject(&pods[i]), pods[i].UID, arrivalOf(&pods[i])})
		}
	}
	return left
}
