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

// emptiness is an answer of the API server about the pods of a node. Only the passes over one
// Machine use it, of which there is one at a time.
type emptiness struct {
	// asked is when it was asked; zero if it was not.
	asked time.Time
	// unseen are the pods that the cache did not show.
	unseen  []types.NamespacedName
	failure error
	// failures is how many answers were errors, one after the other.
	failures int
}

// again is when to ask again: soon after the first errors, as nothing else may hold up the Machine.
func (e *emptiness) again() time.Time {
	interval := failureInterval
	if e.failures > 0 {
		interval = min(interval, time.Second<<(min(e.failures, 4)-1))
	}
	return e.asked.Add(interval)
}

// confirmed reports that the node is empty: new pods do not come, as it is cordoned.
func (e *emptiness) confirmed() bool {
	return !e.asked.IsZero() && e.failure == nil && len(e.unseen) == 0
}

// confirmTimeout is how long a pass waits for the API server.
const confirmTimeout = 5 * time.Second

// confirm has a drain wait that is done by the cache, until the API server has said that the node is
// empty.
func (d *Drainer) confirm(ctx context.Context, l *ledger, made *Report) {
	now := d.Clock.Now()
	if !l.empty.confirmed() && !now.Before(l.empty.again()) {
		l.empty = d.ask(ctx, l, now)
	}
	if l.empty.confirmed() {
		return
	}
	made.Done = false
	made.Wait = max(l.empty.again().Sub(now), time.Millisecond)
	for _, pod := range l.empty.unseen {
		made.Waiting = append(made.Waiting, Waiting{For: ForCache, Pod: pod, Next: now.Add(made.Wait)})
	}
	if l.empty.failure != nil {
		made.Failed = append(made.Failed, Failure{Text: fmt.Sprintf("asking for the pods of node %s: %v", l.node, l.empty.failure)})
	}
}

// ask asks for all pods of a small cluster, or else for those of the node.
func (d *Drainer) ask(ctx context.Context, l *ledger, now time.Time) emptiness {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	left, err, done := d.census.ofAll(ctx, d, l)
	if !done {
		pods, _, failure := d.Evictor.Left(ctx, l.node, 0)
		left, err = byNode(pods), failure
	}
	answer := emptiness{asked: now, unseen: left[l.node], failure: err}
	if err != nil {
		answer.failures = l.empty.failures + 1
	}
	return answer
}

// Clusters of no more pods are listed as a whole, as that answers for all drains. How many there are
// is found out at intervals.
const (
	censusLimit    = 200
	censusInterval = 10 * time.Minute
)

// census is a list of all pods of a small cluster. It answers for all nodes that were cordoned before
// it began.
type census struct {
	mu sync.Mutex // also while the API server is asked: who waits shares the next answer
	// begun is when the API server was asked; left and failure are its answer.
	begun   time.Time
	left    map[string][]types.NamespacedName
	failure error
	// large is when the cluster had too many pods.
	large time.Time
}

// ofAll returns the pods that have to leave, by their nodes. It is not done if the cluster has too
// many pods.
func (c *census) ofAll(ctx context.Context, d *Drainer, l *ledger) (left map[string][]types.NamespacedName, failure error, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := d.Clock.Now()
	switch {
	case !c.large.IsZero() && now.Sub(c.large) < censusInterval:
		return nil, nil, false
	case c.begun.After(l.cordoned) && c.begun.After(l.empty.asked):
		return c.left, c.failure, true
	}
	pods, more, err := d.Evictor.Left(ctx, "", censusLimit)
	if more {
		c.large = now
		return nil, nil, false
	}
	c.begun, c.left, c.failure = now, byNode(pods), err
	return c.left, c.failure, true
}

func byNode(pods []corev1.Pod) map[string][]types.NamespacedName {
	left := map[string][]types.NamespacedName{}
	for i := range pods {
		if MustLeave(&pods[i]) {
			node := pods[i].Spec.NodeName
			left[node] = append(left[node], client.ObjectKeyFromObject(&pods[i]))
		}
	}
	return left
}
