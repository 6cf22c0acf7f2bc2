package balancer

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The leader renews its lease every retryPeriod, and gives up renewDeadline after the last renewal. Another process
// becomes the leader after leaseDuration. The lease is not released at the end, so that a terminating process cannot
// write at the same time as a new leader. In the meantime all ports are served, and only new Clusters wait.
const leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, 2 * time.Second

// elect takes part in the election until the context is canceled. A process that loses the leadership, for example
// because the API server is unreachable, keeps forwarding connections, so it takes part in the election again instead
// of exiting.
func (c *Controller) elect(ctx context.Context) error {
	if c.Lock == nil {
		return nil
	}
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: c.Lock, Name: c.Lock.Describe(), LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: c.lead, OnStoppedLeading: c.standBy},
		})
		if err != nil {
			return fmt.Errorf("leader election: %w", err)
		}
		elector.Run(ctx)
	}
	return nil
}

// leading reports whether this process is the leader.
func (c *Controller) leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isLeader
}

// lead makes this process the leader, unless the context of the leadership is already canceled, because lead runs
// concurrently with the elector.
func (c *Controller) lead(ctx context.Context) {
	c.mu.Lock()
	c.isLeader = ctx.Err() == nil
	c.mu.Unlock()
	keys, err := c.keys(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("Cannot list MillwrightClusters", "err", err.Error()) // the cache is closed because this process terminates
		return
	}
	for _, key := range keys {
		c.waker.Wake(key)
	}
}

func (c *Controller) standBy() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isLeader = false
	for _, e := range c.open {
		e.chosen = false
	}
}
